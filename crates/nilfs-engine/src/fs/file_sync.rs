//! Making files durable.
//!
//! If nothing but the content of existing blocks has changed since the last checkpoint, a data-sync
//! log of it all is as good as a checkpoint (docs/format.md §19): a summary, which brings the files'
//! times along, and the blocks. For fdatasync, one of the file's own blocks is enough. Anything else
//! takes a checkpoint.
//!
//! Whoever has to wait for the log is served by the next one who gets it: one log and one flush for
//! all who wait.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{FileBlock, Ino};

use super::Filesystem;
use super::inode::{InodeRef, State};
use super::sync::Log;
use super::types::Order;
use crate::block::Block;
use crate::commit::{self, Chores, SyncedFile};
use crate::error::Result;
use crate::host::atomic::{AtomicBool, Ordering};
use crate::host::{Mutex, Rank};
use crate::overlay::Placed;

/// Changed blocks of a file up to which a data-sync log is written. Every sync looks through all that
/// have changed since the last checkpoint, so one has to come when they are many.
const MOST_CHANGED: usize = 2048;

/// Somebody waits for a file to become durable.
struct Request {
    inode: InodeRef,
    /// Attributes that are not needed to read the content may stay behind.
    data_only: bool,
    /// The freeze that will take what the caller has seen.
    ticket: u64,
    done: AtomicBool,
}

/// Requests that nobody has taken yet.
pub(super) struct Waiting(Mutex<Vec<Arc<Request>>>);

impl Default for Waiting {
    fn default() -> Self {
        Self(Mutex::new(Rank::SyncRequests, Vec::new()))
    }
}

impl Filesystem {
    /// Makes a file durable: its content, its attributes, and the names that lead to it; with a
    /// directory, everything that has changed on the volume. With `data_only`, attributes that are
    /// not needed to read the content may stay behind.
    ///
    /// # Errors
    /// As [`Filesystem::commit`].
    pub fn sync_file(&self, inode: &InodeRef, data_only: bool) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let mine = Arc::new(Request {
            inode: Arc::clone(inode),
            data_only,
            ticket: self.next_freeze(),
            done: AtomicBool::new(false),
        });
        self.waiting.0.lock().push(Arc::clone(&mine));
        // If the one who has taken the request failed, nothing can be written any more, and this
        // fails as well.
        let mut log = self.lock_writable(log).inspect_err(|_| {
            self.waiting.0.lock().retain(|waiting| !Arc::ptr_eq(waiting, &mine));
        })?;
        if mine.done.load(Ordering::Acquire) {
            return Ok(());
        }
        let requests = mem::take(&mut *self.waiting.0.lock());
        self.write_files(&mut log, &requests)?;
        self.flush_locked(&mut log)?;
        requests.iter().for_each(|request| request.done.store(true, Ordering::Release));
        Ok(())
    }

    /// Writes whatever the requests still need.
    fn write_files(&self, log: &mut Log, requests: &[Arc<Request>]) -> Result<()> {
        let strict = self.options.order == Order::Strict;
        // A commit that started after the request has everything that the caller has seen. In strict
        // order nothing less will do: a file that has not changed itself says nothing about others.
        let open = |request: &&Arc<Request>| {
            log.completed < request.ticket && (strict || !self.is_committed(log, request))
        };
        let open: Vec<&Arc<Request>> = requests.iter().filter(open).collect();
        if open.is_empty() {
            return Ok(());
        }
        let files = match open.iter().all(|request| request.data_only) {
            _ if strict || log.resumes => None,
            true => self.content_of(log, &open),
            false => self.whole_change(log),
        };
        match files {
            Some(files) if self.write_data_sync(log, &files)? => Ok(()),
            _ => self.commit_locked(log, &Chores::default()).map(drop),
        }
    }

    fn is_committed(&self, log: &Log, request: &Request) -> bool {
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
        !state.dirty && state.frozen.is_none() && names <= log.completed
    }

    /// The new content of the files that are waited for; `None` if that alone would not do.
    fn content_of(&self, log: &Log, requests: &[&Arc<Request>]) -> Option<Vec<Synced>> {
        let inodes: BTreeMap<Ino, &InodeRef> =
            requests.iter().map(|request| (request.inode.ino(), &request.inode)).collect();
        let one = |inode: &InodeRef| {
            let state = inode.state.read();
            let named = state.names_changed <= log.completed;
            let pages = new_content(inode, &state).filter(|_| named)?;
            let file = SyncedFile { ino: inode.ino(), times: None, pages };
            Some(Synced { inode: Arc::clone(inode), file })
        };
        inodes.into_values().map(one).collect()
    }

    /// Everything that has changed, if that is nothing but content and times.
    fn whole_change(&self, log: &Log) -> Option<Vec<Synced>> {
        // Of several changes, one must not be there without those before it.
        let _gate = self.gate.write();
        let named = self.names_changed.load(Ordering::Acquire) <= log.completed;
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
    fn write_data_sync(&self, log: &mut Log, files: &[Synced]) -> Result<bool> {
        let changed = |file: &&SyncedFile| file.times.is_some() || !file.pages.is_empty();
        let (inodes, files): (Vec<_>, Vec<_>) = files
            .iter()
            .map(|synced| (&synced.inode, &synced.file))
            .filter(|(_, file)| changed(file))
            .unzip();
        if files.is_empty() {
            return Ok(true);
        }
        let now = self.now().seconds as u64;
        // A checkpoint meets the same error, and then knows what to do.
        let Ok(Some((write, placed))) =
            commit::build_data_sync(&self.store, &mut log.base, &files, now)
        else {
            return Ok(false);
        };
        log.synced = true;
        for ((inode, file), placed) in inodes.iter().zip(&files).zip(placed) {
            note_placed(&mut inode.state.write(), file, placed);
        }
        self.refresh_space(log);
        self.written.data_sync.fetch_add(write.len(), Ordering::Relaxed);
        let pages = files.iter().map(|file| file.pages.len() as u64).sum();
        self.written.user_blocks.fetch_add(pages, Ordering::Relaxed);
        let written = self.write_log(log, &write);
        if let Err(error) = &written {
            self.stop_writing(log, error);
        }
        written.map(|()| true)
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
