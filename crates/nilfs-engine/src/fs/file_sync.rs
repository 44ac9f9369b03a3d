//! Making files durable.
//!
//! If nothing but the content of existing blocks has changed since the last checkpoint, a data-sync
//! log of it all is as good as a checkpoint (docs/format.md §19): a summary, which brings the files'
//! times along, and the blocks. For fdatasync, one of the file's own blocks is enough. Anything else
//! takes a checkpoint.
//!
//! All that wait for the log at the same time are served by one log and one flush
//! (`log/group_commit.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{FileBlock, Ino};

use super::Filesystem;
use super::inode::{InodeRef, State};
use super::types::Order;
use crate::block::Block;
use crate::commit::{MetadataChanges, SyncedFile};
use crate::error::Result;
use crate::host::atomic::Ordering;
use crate::log::segment_writer::SegmentWriter;
use crate::overlay::Placed;

/// Changed blocks of a file up to which a data-sync log is written. Every sync looks through all that
/// have changed since the last checkpoint, so one has to come when they are many.
const MOST_CHANGED: usize = 2048;

/// A file that is to become durable.
pub(super) struct SyncRequest {
    inode: InodeRef,
    /// Attributes that are not needed to read the content may be left to the next checkpoint.
    data_only: bool,
    /// The freeze that will take what the caller has seen.
    ticket: u64,
}

impl Filesystem {
    /// Makes a file durable: its content, its attributes, and the names that lead to it; with a
    /// directory, everything that has changed on the volume. With `data_only`, attributes that are
    /// not needed to read the content may be left to the next checkpoint.
    ///
    /// # Errors
    /// As [`Filesystem::commit`].
    pub fn sync_file(&self, inode: &InodeRef, data_only: bool) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let ticket = self.next_freeze();
        let request = SyncRequest { inode: Arc::clone(inode), data_only, ticket };
        self.file_syncs.join(
            request,
            || self.writable_log(),
            |log, requests| {
                self.write_files(log, requests)?;
                self.flush_locked(log)
            },
        )
    }

    /// Writes whatever the requests still need.
    fn write_files(&self, log: &mut SegmentWriter, requests: &[&SyncRequest]) -> Result<()> {
        let strict = self.options.order == Order::Strict;
        // A commit that started after the request has everything that the caller has seen. In strict
        // order nothing less will do: a file that has not changed itself says nothing about others.
        let open = |request: &&SyncRequest| {
            self.committed_freeze() < request.ticket && (strict || !self.is_committed(request))
        };
        let open: Vec<&SyncRequest> = requests.iter().copied().filter(open).collect();
        if open.is_empty() {
            return Ok(());
        }
        let files = match open.iter().all(|request| request.data_only) {
            _ if strict || log.is_recovering() => None,
            true => self.content_of(&open),
            false => self.whole_change(),
        };
        match files {
            Some(files) if self.write_data_sync(log, &files)? => Ok(()),
            _ => self.commit_locked(log, &MetadataChanges::default()).map(drop),
        }
    }

    fn is_committed(&self, request: &SyncRequest) -> bool {
        // Linux passes neither sync nor syncfs on to a FUSE file system. The fsync of a directory is
        // what people have instead, so it covers whatever has changed.
        if request.inode.file_type() == FileType::Directory {
            return false;
        }
        let state = request.inode.state.read();
        // A directory on the way may have been renamed; only fdatasync need not care.
        let names = match request.data_only {
            true => state.names_changed,
            false => self.names_changed.load(Ordering::Acquire),
        };
        !state.dirty && state.frozen.is_none() && names <= self.committed_freeze()
    }

    /// The new content of the files that are waited for; `None` if that alone would not do.
    fn content_of(&self, requests: &[&SyncRequest]) -> Option<Vec<Synced>> {
        let inodes: BTreeMap<Ino, &InodeRef> =
            requests.iter().map(|request| (request.inode.ino(), &request.inode)).collect();
        let one = |inode: &InodeRef| {
            let state = inode.state.read();
            let named = state.names_changed <= self.committed_freeze();
            let pages = new_content(inode, &state).filter(|_| named)?;
            let file = SyncedFile { ino: inode.ino(), times: None, pages };
            Some(Synced { inode: Arc::clone(inode), file })
        };
        inodes.into_values().map(one).collect()
    }

    /// Everything that has changed, if that is nothing but content and times.
    fn whole_change(&self) -> Option<Vec<Synced>> {
        // Of several changes, one must not be there without those before it.
        let _transaction = self.transactions.write();
        let named = self.names_changed.load(Ordering::Acquire) <= self.committed_freeze();
        let changed: Vec<InodeRef> = self.table.lock().dirty.values().cloned().collect();
        let one = |inode: &InodeRef| {
            let state = inode.state.read();
            let pages = new_content(inode, &state)?;
            let times = state.times_changed.then(|| state.times(inode.ino()));
            let file = SyncedFile { ino: inode.ino(), times, pages };
            Some(Synced { inode: Arc::clone(inode), file })
        };
        // A file without a name does not outlive a crash.
        let outlives = |inode: &&InodeRef| inode.state.read().links() > 0;
        let files = || changed.iter().filter(outlives).map(one).collect();
        named.then(files).flatten()
    }

    /// Writes a data-sync log, unless there is no room for it in the segment, or nothing for it to
    /// carry the times with.
    fn write_data_sync(&self, log: &mut SegmentWriter, files: &[Synced]) -> Result<bool> {
        let changed = |file: &&SyncedFile| file.times.is_some() || !file.pages.is_empty();
        let (inodes, files): (Vec<_>, Vec<_>) = files
            .iter()
            .map(|synced| (&synced.inode, &synced.file))
            .filter(|(_, file)| changed(file))
            .unzip();
        if files.is_empty() {
            return Ok(true);
        }
        let written = log.write_data_sync(&files, &self.stamp());
        let Some(written) = self.or_stop(log, written)? else { return Ok(false) };
        assert_eq!(written.placed.len(), files.len(), "each file has its blocks in the log");
        for ((inode, file), placed) in inodes.iter().zip(&files).zip(written.placed) {
            note_placed(&mut inode.state.write(), file, placed);
        }
        self.refresh_space(log);
        self.written.data_sync.fetch_add(written.blocks, Ordering::Relaxed);
        let pages = files.iter().map(|file| file.pages.len() as u64).sum();
        self.written.user_blocks.fetch_add(pages, Ordering::Relaxed);
        Ok(true)
    }
}

/// What a data-sync log takes of a file that has changed.
struct Synced {
    inode: InodeRef,
    file: SyncedFile,
}

/// The blocks of a file that are in no log yet, if only the content of existing blocks has changed.
fn new_content(inode: &InodeRef, state: &State) -> Option<Vec<(FileBlock, Block)>> {
    let needs_checkpoint = inode.file_type() == FileType::Directory
        || state.attributes_changed
        || state.fresh
        // A recovery could not find a file without a name.
        || state.links() == 0
        || state.frozen.is_some()
        || state.overlay.cut.is_some()
        || state.overlay.pages.len() > MOST_CHANGED;
    let pages = state.overlay.pages.iter().filter(|(_, page)| page.placed.is_none());
    let pages = pages.map(|(key, page)| (*key, Block::clone(&page.data)));
    (!needs_checkpoint).then(|| pages.collect())
}

/// Takes note of where a data-sync log has put the pages of a file. Some may have changed since.
fn note_placed(state: &mut State, file: &SyncedFile, placed: Vec<Placed>) {
    assert_eq!(placed.len(), file.pages.len(), "each block has its place in the log");
    for ((key, data), placed) in file.pages.iter().zip(placed) {
        match state.overlay.pages.get_mut(key).filter(|page| Arc::ptr_eq(&page.data, data)) {
            Some(page) => page.placed = Some(placed),
            None => state.overlay.superseded.push(placed),
        }
    }
    if file.times.is_some_and(|times| state.times(file.ino) == times) {
        state.times_changed = false;
    }
}
