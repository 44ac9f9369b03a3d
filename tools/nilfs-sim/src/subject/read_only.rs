//! The engine where nothing can be changed.

use std::sync::Arc;

use nilfs_device::Device;
use nilfs_engine::{Files, Ino, ReadOnlyOptions, ReadOnlyVolume, Verify};
use nilfs_ondisk::Cno;

use super::guarded;
use super::tree_reader::TreeReader;
use crate::clock::ThreadClock;
use crate::name::Name;
use crate::outcome::Facts;
use crate::threads::taking_time;
use crate::tree::Tree;

/// A volume that is mounted without the right to write, seen from one of its directories.
pub struct ReadOnlySubject {
    volume: Arc<ReadOnlyVolume>,
    root: Ino,
    settled: bool,
}

impl ReadOnlySubject {
    /// Mounts the volume on `device`, to show a checkpoint or, if `checkpoint` is `None`, the newest
    /// one with what was synced after it.
    ///
    /// # Errors
    /// The engine's, in words; a panic of the engine is one too.
    pub fn mount(device: Arc<dyn Device>, checkpoint: Option<Cno>) -> Result<Self, String> {
        let clock = Arc::new(ThreadClock);
        let verify = Verify::All;
        let options = ReadOnlyOptions { checkpoint, clock, verify, ..ReadOnlyOptions::default() };
        let mounted = guarded(|| ReadOnlyVolume::mount(taking_time(device), options));
        let volume = Arc::new(mounted.map_err(|error| format!("mount: {error}"))?);
        // What was synced after a checkpoint is not laid out yet.
        Ok(Self { volume, root: Ino::ROOT, settled: checkpoint.is_some() })
    }

    /// The same with the directory `name` as its root.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn below(&self, name: Name) -> Result<Self, String> {
        let found = guarded(|| Files::lookup(&*self.volume, self.root, &name.bytes()));
        let found = found.map_err(|error| format!("look up {name}: {error}"))?;
        Ok(Self { volume: Arc::clone(&self.volume), root: found.ino, settled: self.settled })
    }

    /// What is known of the root.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn root(&self) -> Result<Facts, String> {
        let root = guarded(|| Files::attr(&*self.volume, self.root));
        root.map(|attr| Facts::from(&attr)).map_err(|error| format!("/: {error}"))
    }

    /// The whole tree.
    ///
    /// # Errors
    /// What the engine said, or where it contradicts itself, in words.
    pub fn tree(&self) -> Result<Tree, String> {
        TreeReader { files: &*self.volume, root: self.root, settled: self.settled }.tree()
    }
}
