//! A rich tree, made from a seed: the same operations on any file system, so that two file systems
//! that were filled with the same seed and scale must have equal manifests.
//!
//! It makes what a file system finds hard: deep trees, large directories, every type of file, names
//! of every length and of any byte, sizes around every border, sparse files of up to a tebibyte,
//! maps of several levels, hard links, odd modes, owners and times. Only root can make all of it.

mod modify;
mod populate;
mod tree;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;

use rand::SeedableRng;
use rand::rngs::StdRng;

use self::tree::Tree;

/// What to fill a directory with.
#[derive(Debug, Clone, Copy)]
pub struct Fill {
    /// Decides contents, names, times, and the order of writes.
    pub seed: u64,
    /// Thousands of entries of the large directory. With 1, the tree has some 2300 entries and 40
    /// MiB; from 10 on, it has a file whose map has four levels with blocks of 1 KiB.
    pub scale: u32,
}

impl Fill {
    /// Fills `directory`, which must be empty.
    pub fn populate(&self, directory: &Path) -> io::Result<()> {
        let mut tree = Tree::new(directory);
        populate::populate(&mut tree, self)?;
        tree.settle(self.seed)
    }

    /// Changes much of what [`Fill::populate`] made in `directory`: deletes, truncates, renames,
    /// overwrites, appends, changes modes and owners.
    pub fn modify(&self, directory: &Path) -> io::Result<()> {
        let mut tree = Tree::new(directory);
        modify::modify(&mut tree, self)?;
        tree.settle(self.seed ^ 1)
    }

    /// The randomness of one part of the work, which other parts don't disturb.
    fn randomness(&self, part: &str) -> StdRng {
        let mut hasher = DefaultHasher::new();
        (self.seed, part).hash(&mut hasher);
        StdRng::seed_from_u64(hasher.finish())
    }
}
