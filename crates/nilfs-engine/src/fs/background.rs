//! The threads of a mounted volume: here the one that makes checkpoints while nobody asks for one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nilfs_ondisk::Ino;

use super::Filesystem;
use crate::error::Result;
use crate::host::atomic::Ordering;
use crate::host::{Condvar, Instant, JoinHandle, Mutex, Rank, sleep, spawn};
use crate::writer::space::Pressure;

/// Changes in memory, in bytes, at which a checkpoint begins before its time: enough for large
/// writes, little enough that the device has something to do while programs go on.
const EAGER_BYTES: u64 = 64 << 20;

/// What a writer waits for each page when the last clean segment is near: about 100 MB/s are left.
const SLOWEST_PAGE: Duration = Duration::from_micros(40);

/// The commit interval of a volume that does not name one.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);

/// Bytes of names and attributes that no log has, at which they are written without being asked for: an
/// fsync has to write all of them.
const MOST_RECORDS: usize = 256 << 10;

/// Bytes of them, at which a checkpoint takes them where nobody asks for durability.
const MOST_UNWRITTEN: usize = 16 << 20;

/// What the thread has waited for.
enum Due {
    /// Many names and attributes have changed.
    Records,
    /// Files have taken the place of others.
    Replacements,
    /// Changes are old or many.
    Checkpoint,
    /// Files without a name may have been closed.
    Abandoned,
    /// The end.
    Stop,
}

/// How the thread learns that there is something to do.
#[derive(Debug)]
pub(super) struct Wakeup {
    state: Mutex<Pending>,
    condition: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    /// When the oldest uncommitted change was made.
    since: Option<Instant>,
    /// Enough has changed that a checkpoint should not wait for its time.
    eager: bool,
    /// Names and attributes should be written now.
    records: bool,
    /// Files that have taken the place of others should be written now.
    replacements: bool,
    stop: bool,
}

impl Default for Wakeup {
    fn default() -> Self {
        let state = Mutex::new(Rank::Wakeup, Pending::default());
        Self { state, condition: Condvar::default() }
    }
}

impl Wakeup {
    /// Something has changed for the first time since the last freeze.
    pub(super) fn changed(&self) {
        let mut state = self.state.lock();
        if state.since.is_none() {
            state.since = Some(Instant::now());
            self.condition.notify_all();
        }
    }

    /// A checkpoint should not wait for its time.
    pub(super) fn hurry(&self) {
        let mut state = self.state.lock();
        if !state.eager {
            state.eager = true;
            self.condition.notify_all();
        }
    }

    /// Many names and attributes have changed.
    fn write_records(&self) {
        let mut state = self.state.lock();
        if !state.records {
            state.records = true;
            self.condition.notify_all();
        }
    }

    /// A file with content that is in no log has taken the place of another.
    pub(super) fn write_replacements(&self) {
        let mut state = self.state.lock();
        if !state.replacements {
            state.replacements = true;
            self.condition.notify_all();
        }
    }

    /// A freeze has taken all changes.
    pub(super) fn frozen(&self) {
        let mut state = self.state.lock();
        state.since = None;
        state.eager = false;
        state.records = false;
        state.replacements = false;
    }

    fn stop(&self) {
        self.state.lock().stop = true;
        self.condition.notify_all();
    }

    /// Waits until there is something to do. With `abandoned`, that is the case after the interval
    /// even if nothing has changed.
    fn wait(&self, interval: Duration, abandoned: bool) -> Due {
        let mut state = self.state.lock();
        let deadline = Instant::now() + interval;
        loop {
            if state.stop {
                return Due::Stop;
            }
            if state.eager {
                return Due::Checkpoint;
            }
            if std::mem::take(&mut state.records) {
                return Due::Records;
            }
            if std::mem::take(&mut state.replacements) {
                return Due::Replacements;
            }
            let changed = state.since.map(|since| since + interval);
            let Some(due) = changed.or(abandoned.then_some(deadline)) else {
                self.condition.wait(&mut state);
                continue;
            };
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return if changed.is_some() { Due::Checkpoint } else { Due::Abandoned };
            }
            self.condition.wait_for(&mut state, left);
        }
    }
}

/// The running threads. Dropping it ends them; nothing is committed by that.
#[derive(Debug)]
pub struct Background {
    fs: Arc<Filesystem>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    fn start(&mut self, name: &str, work: fn(&Filesystem)) -> io::Result<()> {
        let fs = Arc::clone(&self.fs);
        let thread = spawn(name, move || work(&fs))?;
        self.threads.push(thread);
        Ok(())
    }
}

impl std::fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filesystem")
            .field("read_only", &self.is_read_only())
            .finish_non_exhaustive()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.fs.wakeup.stop();
        self.fs.cleaner.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}

impl Filesystem {
    /// Starts the thread that makes a checkpoint when the commit interval has passed since a
    /// change, or earlier if much has changed, and the cleaner.
    ///
    /// # Errors
    /// The system has no thread left for this process or its user.
    pub fn start_background(self: &Arc<Self>) -> io::Result<Background> {
        let mut background = Background { fs: Arc::clone(self), threads: Vec::new() };
        background.start("checkpoints", Self::run_background)?;
        background.start("cleaner", Self::run_cleaner)?;
        Ok(background)
    }

    fn run_background(&self) {
        match self.release_orphans() {
            Ok(0) => {}
            Ok(count) => tracing::info!("deleted {count} files that had lost their last name"),
            Err(error) => tracing::error!("cannot look for files without a name: {error}"),
        }
        let interval = self.commit_interval();
        loop {
            let orphans = !self.table.lock().orphans.is_empty();
            match self.wakeup.wait(interval, orphans) {
                Due::Stop => return,
                Due::Records if self.write_records().is_ok() => continue,
                Due::Replacements if self.write_replacements().is_ok() => continue,
                Due::Records | Due::Replacements => {}
                Due::Abandoned if !self.table.lock().has_abandoned() => continue,
                Due::Abandoned | Due::Checkpoint => {}
            }
            // The error has been reported where it stopped the volume from being written.
            if self.commit().is_err() && !self.writer.rests() {
                return;
            }
        }
    }

    fn commit_interval(&self) -> Duration {
        self.options
            .commit_interval
            .or_else(|| self.volume_commit_interval())
            .unwrap_or(DEFAULT_INTERVAL)
    }

    /// Whether a change may have to wait for long just now: for room, for memory, or for checkpoints
    /// between its parts, if it makes a `shortened` file shorter that is very large. A cheap look, not a
    /// promise.
    pub fn may_delay_changes(&self, shortened: Option<Ino>) -> bool {
        let has_parts = |ino| {
            let inode = self.table.lock().get(ino);
            let per_block = self.store.block_size().sectors();
            let most = self.most_freed().saturating_mul(per_block);
            inode.is_some_and(|inode| inode.state.read().sectors(per_block) > most)
        };
        self.delays.load(Ordering::Relaxed) || shortened.is_some_and(has_parts)
    }

    /// Commits before a change, where too much is uncommitted. A change that is done already must not fail
    /// with the commit.
    pub(super) fn wait_for_memory(&self) -> Result<()> {
        if self.delays.load(Ordering::Relaxed) {
            let page = self.store.block_size().bytes64();
            if self.writer.space.pressure(page).uncommitted > self.options.dirty_limit {
                self.commit()?;
            }
        }
        Ok(())
    }

    /// Calls for a checkpoint before too much is uncommitted, after a change.
    /// Where clean segments are few, writers of this many `pages` leave the cleaner some time, the
    /// more the fewer there are, so that nobody meets the end at full speed.
    pub(super) fn throttle(&self, pages: u64) {
        let page = self.store.block_size().bytes64();
        let Pressure { shortage, dirty, uncommitted } = self.writer.space.pressure(page);
        if shortage > 0.0 && self.cleaner.is_working() {
            sleep(SLOWEST_PAGE.mul_f64(pages as f64 * shortage * shortage));
        }
        let limit = self.options.dirty_limit;
        // Early enough for those who begin before they can know.
        let soon = limit - limit / 8;
        self.delays.store(shortage > 0.0 || uncommitted > soon, Ordering::Relaxed);
        if dirty >= EAGER_BYTES.min(limit / 4) {
            self.wakeup.hurry();
        }
        let records = self.journal.lock().bytes();
        if records > MOST_RECORDS && self.writes_records() && self.writer.syncs() > 0 {
            self.wakeup.write_records();
        } else if records > MOST_UNWRITTEN {
            self.wakeup.hurry();
        }
    }
}

#[cfg(test)]
mod tests {
    use nilfs_device::{Action, FaultyDevice, MemoryDevice};

    use super::*;
    use crate::fixtures::{BLOCK, check, copy_of, empty_volume, make_file, mount};
    use crate::{MountOptions, NewInode};

    /// A program that is told of an error takes the change for not done.
    #[test]
    fn a_change_that_is_done_does_not_fail_with_a_checkpoint() {
        let (device, faults) = FaultyDevice::new(MemoryDevice::from(empty_volume(60).snapshot()));
        let options = MountOptions { dirty_limit: 64 << 10, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::new(device), options).unwrap();
        let file = make_file(&fs);
        fs.commit().unwrap();
        faults.fail(Action::Write);
        fs.write(&file, 0, &[b'n'; 100 * BLOCK]).unwrap();
        fs.write(&file, 0, b"x").unwrap_err();
        let mut first = [0];
        fs.read(&file, 0, &mut first).unwrap();
        assert_eq!(first, [b'n']);
    }

    /// The next fsync, of whatever file, would have to write all of them.
    #[test]
    fn many_names_are_written_without_being_asked_for_where_somebody_syncs() {
        let device = empty_volume(60);
        let fs = mount(&device);
        let root = fs.root().unwrap().inode;
        let file = make_file(&fs);
        let permissions = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: Default::default() };
        let name = |nth: usize| format!("{nth:0200}");
        let make = |nth| fs.create(&root, name(nth).as_bytes(), &permissions).unwrap();
        let bytes = || fs.journal.lock().bytes();
        let is_asked = || matches!(fs.wakeup.wait(Duration::ZERO, false), Due::Records);
        let mut count = 0;
        let mut make_many = || {
            while bytes() <= MOST_RECORDS {
                make(count);
                count += 1;
            }
            // The first change after that sees it.
            make(count);
            count += 1;
            count
        };
        make_many();
        assert!(!is_asked(), "nobody syncs");
        fs.sync_file(&file).unwrap();
        assert_eq!(bytes(), 0);
        let checkpoint = fs.newest_log().cno;
        let made = make_many();
        assert!(is_asked());
        fs.write_records().unwrap();
        assert_eq!((bytes(), fs.newest_log().cno), (0, checkpoint));
        check(&device);
        let after_cut = mount(&copy_of(&device));
        let root = after_cut.root().unwrap().inode;
        assert!(after_cut.lookup(&root, name(made - 1).as_bytes()).is_ok());
        fs.unmount().unwrap();
    }
}
