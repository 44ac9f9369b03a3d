//! What all trees of a volume have in common: where blocks are now, which checkpoints somebody
//! looks at, and where the names of large directories are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::{Cno, Ino};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::names::{self, Positions};
use super::{File, Tree, TreeRoot, View};
use crate::bmap::Source;
use crate::cache::{Room, cache};
use crate::checkpoints;
use crate::error::{Error, Result};
use crate::host::{Mutex, NumberState, Rank, RwLock};

/// Blocks of a directory that are searched for a name sooner than that somebody notes where its
/// names are.
const SEARCHED_BLOCKS: u64 = 4;

/// Directories whose names are expected to be known at a time.
const DIRECTORIES: usize = 1024;

/// What all trees of a volume share.
pub(crate) struct Shared {
    /// The newest checkpoint, and the DAT through which every tree finds its blocks.
    newest: RwLock<Arc<View>>,
    /// Checkpoints that are looked at, and those that nobody may look at any more.
    looks: Mutex<Looks>,
    /// Where the names of large directories are.
    names: Cache<(Cno, Ino), Arc<Positions>, Bytes, NumberState>,
    /// Bytes that the names of one directory may take.
    most: usize,
}

/// Who looks at what.
#[derive(Default)]
struct Looks {
    /// Checkpoints that are looked at.
    kept: BTreeMap<Cno, Looked>,
    /// Checkpoints that a step of the cleaner is just giving up; none of them is looked at.
    given_up: Vec<Range<Cno>>,
}

/// A checkpoint that is looked at.
#[derive(Default)]
struct Looked {
    /// By how many.
    holders: usize,
    /// Where its tree begins, once somebody has opened it.
    root: Option<Arc<TreeRoot>>,
}

/// Counts the memory of what is cached.
#[derive(Clone)]
struct Bytes;

impl Weighter<(Cno, Ino), Arc<Positions>> for Bytes {
    fn weight(&self, _: &(Cno, Ino), positions: &Arc<Positions>) -> u64 {
        positions.bytes() as u64
    }
}

impl Shared {
    /// What the trees of a volume share whose newest checkpoint is `newest`; the positions of names
    /// may take `bytes` of memory.
    pub(crate) fn new(newest: View, bytes: usize) -> Arc<Self> {
        let room = Room { values: DIRECTORIES, weight: bytes as u64, hot: None };
        Arc::new(Self {
            newest: RwLock::new(Rank::View, Arc::new(newest)),
            looks: Mutex::new(Rank::KeptTrees, Looks::default()),
            names: cache(&room, Bytes),
            most: bytes / 4,
        })
    }

    /// The newest checkpoint.
    pub(crate) fn newest(&self) -> Arc<View> {
        Arc::clone(&self.newest.read())
    }

    /// Puts another one in its place. Returns the one before.
    pub(crate) fn publish(&self, newest: View) -> Arc<View> {
        std::mem::replace(&mut *self.newest.write(), Arc::new(newest))
    }

    /// Opens the tree of a checkpoint.
    pub(crate) fn open(
        self: &Arc<Self>,
        source: Source<'_>,
        cpfile: &Root,
        cno: Cno,
    ) -> Result<Tree> {
        let kept = self.keep(cno)?;
        let root = Arc::new(TreeRoot::new(&checkpoints::checkpoint(source, cpfile, cno)?)?);
        let tree = Tree::new(self, Arc::clone(&root), kept)?;
        self.looks.lock().kept.entry(cno).or_default().root = Some(root);
        Ok(tree)
    }

    /// The tree of a checkpoint that somebody has opened and holds, whether or not the checkpoint was
    /// deleted since.
    pub(crate) fn held(self: &Arc<Self>, cno: Cno) -> Option<Result<Tree>> {
        let kept = self.keep(cno).ok()?;
        let root = self.looks.lock().kept.get(&cno).and_then(|looked| looked.root.clone())?;
        Some(Tree::new(self, root, kept))
    }

    /// Keeps what a checkpoint needs from being cleaned away, until the value is dropped.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] if it is just being given up.
    pub(crate) fn keep(self: &Arc<Self>, cno: Cno) -> Result<Kept> {
        let mut looks = self.looks.lock();
        if looks.given_up.iter().any(|range| range.contains(&cno)) {
            return Err(Error::NoCheckpoint(cno));
        }
        looks.kept.entry(cno).or_default().holders += 1;
        Ok(Kept { shared: Arc::clone(self), cno })
    }

    /// The checkpoints that are kept that way, ascending.
    pub(crate) fn kept(&self) -> Vec<Cno> {
        self.looks.lock().kept.keys().copied().collect()
    }

    /// From now on, nobody can look at these checkpoints, and at others again. False, and nothing has
    /// changed, if somebody is looking at one of them.
    pub(crate) fn give_up(&self, checkpoints: &[Range<Cno>]) -> bool {
        let mut looks = self.looks.lock();
        let is_kept = |range: &Range<Cno>| {
            range.start < range.end && looks.kept.range(range.clone()).next().is_some()
        };
        if checkpoints.iter().any(is_kept) {
            return false;
        }
        looks.given_up = checkpoints.to_vec();
        true
    }

    /// Where the names of a directory of a view are, if it pays to know that.
    pub(crate) fn positions(&self, view: &View, dir: &File) -> Result<Option<Arc<Positions>>> {
        // What was synced after a checkpoint is not the checkpoint's.
        let is_of_checkpoint = dir.synced.is_none();
        if !is_of_checkpoint || view.store.block_size().blocks_for(dir.size()) <= SEARCHED_BLOCKS {
            return Ok(None);
        }
        let key = (view.tree.cno, dir.ino());
        if let Some(known) = self.names.get(&key) {
            return Ok(Some(known));
        }
        let found = names::positions(dir, view, self.most)?.map(Arc::new);
        if let Some(found) = &found {
            self.names.insert(key, Arc::clone(found));
        }
        Ok(found)
    }
}

/// Keeps a checkpoint; see [`Shared::keep`].
pub(crate) struct Kept {
    shared: Arc<Shared>,
    cno: Cno,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let kept = &mut self.shared.looks.lock().kept;
        if let Some(looked) = kept.get_mut(&self.cno) {
            looked.holders -= 1;
            if looked.holders == 0 {
                kept.remove(&self.cno);
            }
        }
    }
}
