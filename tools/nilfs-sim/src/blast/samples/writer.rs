//! A mounted volume on which time passes, and what is written next.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use nilfs_device::Device;
use nilfs_engine::{Amount, Cno, DeviceCode, Error, Filesystem, ManualRun, NewInode, Timestamp};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::changes::Change;
use super::lived::Lived;
use super::{Which, options};
use crate::clock::{EPOCH, ThreadClock};
use crate::medium::{Medium, content, medium};

/// After this time, the superblocks follow the log.
pub(super) const LONG: Duration = Duration::from_secs(20);

/// In this time, they do not, however often it passes.
pub(super) const SHORT: Duration = Duration::from_millis(10);

/// Writes on a volume.
pub(super) struct Writer {
    start: Vec<u8>,
    medium: Arc<Medium>,
    pub(super) fs: Arc<Filesystem>,
    random: StdRng,
    now: Timestamp,
    /// Bytes of a block.
    pub(super) block: u64,
}

impl Writer {
    /// Mounts a volume.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub(super) fn begin(which: Which, seed: u64, start: Vec<u8>) -> Result<Self, String> {
        let medium = Arc::new(medium(start.clone()));
        let below: Arc<dyn Device> = Arc::<Medium>::clone(&medium);
        let fs = Filesystem::mount(below, options()).map_err(|error| error.to_string())?;
        let random = StdRng::seed_from_u64(seed);
        Ok(Self { start, medium, fs, random, now: EPOCH, block: which.block_bytes.into() })
    }

    /// Content of the device now.
    pub(super) fn device(&self) -> Vec<u8> {
        content(&self.medium)
    }

    /// The volume as it is on the device now: the power fails.
    pub(super) fn lose_power(self) -> Lived {
        let events = self.medium.below().take_events();
        let lived = Lived::without_syncs(self.start, events);
        debug_assert_eq!(lived.content(), content(&self.medium));
        lived
    }

    /// The volume after it is unmounted.
    pub(super) fn unmount(self) -> Result<Lived, Error> {
        self.fs.unmount()?;
        Ok(self.lose_power())
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, time: Duration) {
        let nanoseconds = self.now.nanoseconds + time.subsec_nanos();
        self.now.seconds += time.as_secs() as i64 + i64::from(nanoseconds / 1_000_000_000);
        self.now.nanoseconds = nanoseconds % 1_000_000_000;
        ThreadClock::set(self.now);
    }

    /// Makes a checkpoint that the superblocks name.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        self.fs.sync()?;
        self.pass(LONG);
        Ok(())
    }

    /// Makes a checkpoint that they do not name yet.
    pub(super) fn commit(&mut self) -> Result<(), Error> {
        self.fs.commit()?;
        self.pass(SHORT);
        Ok(())
    }

    /// Uses every segment once with a file that goes ten times, so that blocks have a former content.
    pub(super) fn use_every_segment(&mut self, bytes: u64) -> Result<(), Error> {
        for _ in 0..10 {
            self.apply(&Change::make("churn", bytes))?;
            self.sync()?;
            self.apply(&Change::remove("churn"))?;
            self.sync()?;
            self.forget()?;
        }
        Ok(())
    }

    /// Deletes all checkpoints but snapshots and the newest, and cleans.
    pub(super) fn forget(&mut self) -> Result<(), Error> {
        let newest = self.fs.status().cno.0;
        self.fs.delete_checkpoints(Cno(1)..=Cno(newest - 1))?;
        self.fs.sync()?;
        self.fs.clean(&ManualRun {
            protection: Some(Duration::ZERO),
            min_reclaimable: Some(Amount::Count(1)),
            ..ManualRun::default()
        })?;
        Ok(())
    }

    /// Number of these that the seed picks.
    pub(super) fn pick(&mut self, among: Range<u64>) -> u64 {
        self.random.random_range(among)
    }

    /// Content that no other block has.
    pub(super) fn bytes(&mut self, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.random.fill(&mut bytes[..]);
        bytes
    }
}

/// A file that is not there yet.
pub(super) fn new_file() -> NewInode {
    new(S_IFREG | 0o644)
}

/// A directory that is not there yet.
pub(super) fn new_directory() -> NewInode {
    new(S_IFDIR | 0o755)
}

fn new(mode: u16) -> NewInode {
    NewInode { mode, uid: 1000, gid: 100, rdev: DeviceCode::default() }
}
