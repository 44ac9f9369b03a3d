//! How full the volume is: in two numbers for programs, and by what keeps the blocks, for people. Both
//! count as available what a writer would be given, which may wait for a checkpoint and the cleaner.

use std::ops::ControlFlow;

use nilfs_ondisk::{Cno, FileBlock, Ino, VBlockNr};

use super::Filesystem;
use crate::cleaner::options::Usage;
use crate::cleaner::space_usage::{FreeSpace, SpaceUsage};
use crate::error::{Error, Result};
use crate::tree::{File, View};
use crate::types::StatFs;
use crate::writer::space::{self, Deleted};

/// How often what must be known is gathered in vain.
const ATTEMPTS: u32 = 3;

impl Filesystem {
    /// How full the volume is (docs/format.md §23).
    ///
    /// # Errors
    /// The ifile or the DAT cannot be read.
    pub fn stat_fs(&self) -> Result<StatFs> {
        let geometry = self.store.geometry();
        let view = self.view();
        let files = self.noting(view.inode_capacity())?;
        self.look_for_reclaimable();
        let free = self.noting(self.unused_after_deleting(&view))?;
        Ok(StatFs {
            block_size: geometry.block_size.bytes() as u32,
            blocks: space::total(&geometry),
            free,
            available: self.writer.space.available(free, geometry.block_size.bytes64()),
            files,
            files_free: files.saturating_sub(view.tree.inodes),
            name_max: nilfs_ondisk::dirent::NAME_MAX as u32,
        })
    }

    /// Where the space is. Reads the DAT when it is asked for the first time.
    ///
    /// # Errors
    /// Damage, a device error.
    pub fn usage(&self) -> Result<Usage> {
        // Counting takes a while on a large volume: no thread should have to wait for it.
        Ok(self.space_usage()?.count())
    }

    /// Returns what is to be counted, of one moment. Gathers what must be known for that.
    fn space_usage(&self) -> Result<SpaceUsage> {
        let options = self.cleaner.options();
        for _ in 0..ATTEMPTS {
            self.cleaning().gather_live_blocks()?;
            // Everything that is counted is of one moment.
            let session = self.writing().lock();
            if self.cleaning().needs_less() {
                self.cleaning().count_needed();
                session.refresh();
            }
            let unused = Some(self.unused_after_deleting(&self.view())?);
            let (free, reserved) =
                (self.writer.space.writable_blocks(), self.writer.space.reserved_blocks());
            let now = self.now().seconds as u64;
            let mut state = self.cleaner.live_blocks();
            match state.ready() {
                Some(known) if known.covers(&known.protection(options.protection, now)) => {
                    let refused = session.refused_segments();
                    let room = FreeSpace { free, reserved, unused, refused };
                    let geometry = self.store.geometry();
                    return Ok(SpaceUsage::new(geometry, known, &options, room, now));
                }
                Some(_) => state.forget_all(),
                None => {}
            }
        }
        Err(Error::Invalid("the volume changes too fast to be counted; try again"))
    }

    /// Blocks that are not needed, or will not be once a checkpoint knows what was deleted.
    fn unused_after_deleting(&self, view: &View) -> Result<u64> {
        // Inodes may be wrong about their blocks.
        let total = space::total(&self.store.geometry());
        Ok(self.writer.space.unused_blocks().saturating_add(self.deleted_blocks(view)?).min(total))
    }

    /// Blocks of the newest checkpoint that the next one gives back with the files that nothing refers
    /// to any more. Where a snapshot may have some of them, no more are looked at than a commit may
    /// free.
    fn deleted_blocks(&self, view: &View) -> Result<u64> {
        let kept = match self.writer.space.deleted() {
            Deleted::Unknown => return Ok(0),
            Deleted::Unneeded => return Ok(self.table.lock().abandoned_blocks()),
            Deleted::NeededBy(cno) if cno >= view.tree.cno => return Ok(0),
            Deleted::NeededBy(cno) => cno,
        };
        let abandoned = self.table.lock().abandoned_files();
        let (mut deleted, mut left) = (0, self.most_freed());
        for (ino, blocks) in abandoned {
            if blocks <= left {
                left -= blocks;
                deleted += born_after(view, ino, kept)?;
            }
        }
        Ok(deleted)
    }
}

/// Data blocks of a file that were born after a checkpoint; none, if the file is damaged, which the
/// commit meets that deletes it.
fn born_after(view: &View, ino: Ino, kept: Cno) -> Result<u64> {
    let count = || -> Result<u64> {
        let file = File::new(ino, view.inode(ino)?)?;
        let mut born = 0;
        if file.file_type().has_blocks() {
            let mut dat = view.dat.translator(&view.store);
            view.source().scan(&file.map, FileBlock(0), &mut |_, pointer| {
                born += u64::from(dat.entry(VBlockNr(pointer))?.start > kept);
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(born)
    };
    match count() {
        Err(error) if error.is_damage() || matches!(error, Error::Stale) => Ok(0),
        counted => counted,
    }
}
