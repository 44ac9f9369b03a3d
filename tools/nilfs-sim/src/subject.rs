//! The engine that does the operations of a world.

mod read_only;
mod tree_reader;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use nilfs_device::Device;
use nilfs_engine::{
    Amount, Attr, Background, CheckpointInfo, CleanerOptions, Entry, Error, Filesystem, FsyncBy,
    InodeRef, MadeBy, ManualRun, MountOptions, NewInode, Note, Order, Policy, Result, Seek,
    SnapshotChange, SnapshotName, Usage, Verify, Volume,
};
use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{ByteCount, Cno};

pub use self::read_only::ReadOnlySubject;
use self::tree_reader::TreeReader;
use crate::clock::ThreadClock;
use crate::name::{Name, Path};
use crate::op::{Handle, Listed, Op, Target, is_of_rule, link_text, pattern};
use crate::outcome::{Facts, Outcome, Refusal};
use crate::threads::taking_time;
use crate::tree::Tree;

/// For how long the cleaner does nothing when it has nothing more to do.
#[cfg(feature = "shuttle")]
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A mounted file system, seen from one of its directories, with files held open.
pub struct Subject {
    fs: Arc<Filesystem>,
    device: Arc<dyn Device>,
    root: InodeRef,
    handles: BTreeMap<Handle, InodeRef>,
    /// Nothing has been changed since the mount.
    settled: bool,
}

/// How a subject is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mounting {
    /// Whether a sync of one file keeps the order of everything.
    pub order: Order,
    /// How an fsync makes durable what is more than new content of existing blocks.
    pub fsync: FsyncBy,
    /// What a log of an fsync is filled up to, in bytes.
    pub flash_page: u64,
    /// Memory for changes that are not committed, in bytes.
    pub dirty_limit: u64,
    /// Memory for what can be read again, in bytes.
    pub cache_limit: u64,
    /// Checkpoints younger than this many seconds are not cleaned away, as long as there is room.
    pub protection: u64,
    /// They are not, even if there is none.
    pub hard_protection: bool,
    /// Which segments the cleaner takes first when it works by itself, see `rest`.
    pub policy: Policy,
    /// Whether segments that become free are discarded.
    pub discard: bool,
}

impl Mounting {
    /// The usual way.
    pub const READ_WRITE: Self = Self {
        order: Order::Relaxed,
        fsync: FsyncBy::Log,
        flash_page: 4 << 10,
        dirty_limit: 256 << 20,
        cache_limit: 64 << 20,
        protection: 3600,
        hard_protection: false,
        policy: Policy::CostBenefit,
        discard: false,
    };
}

impl Subject {
    /// Mounts the volume on `device`.
    ///
    /// # Errors
    /// The engine's, in words; a panic of the engine is one too.
    pub fn mount(device: Arc<dyn Device>, how: Mounting) -> Result<Self, String> {
        let options = MountOptions {
            order: how.order,
            fsync: how.fsync,
            flash_page: ByteCount(how.flash_page),
            verify: Verify::All,
            dirty_limit: how.dirty_limit,
            cache_limit: how.cache_limit,
            commit_interval: None,
            discard: how.discard,
            clock: Arc::new(ThreadClock),
            cleaner: CleanerOptions {
                protection: Duration::from_secs(how.protection),
                hard_protection: how.hard_protection,
                policy: how.policy,
                max_clean: Amount::Percent(100),
                step_interval: Duration::ZERO,
                ..CleanerOptions::default()
            },
            ..MountOptions::default()
        };
        let device = taking_time(device);
        let mounted = guarded(|| {
            let fs = Filesystem::mount(Arc::clone(&device), options)?;
            fs.release_orphans()?;
            let root = fs.root()?.inode;
            Ok(Self { fs, device, root, handles: BTreeMap::new(), settled: true })
        });
        mounted.map_err(|error| format!("mount: {error}"))
    }

    /// The same file system for another thread, with no files open.
    #[must_use]
    pub fn another(&self) -> Self {
        Self {
            fs: Arc::clone(&self.fs),
            device: Arc::clone(&self.device),
            root: Arc::clone(&self.root),
            handles: BTreeMap::new(),
            settled: false,
        }
    }

    /// The same file system with the directory `name` as its root and no files open.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn below(&self, name: Name) -> Result<Self, String> {
        let entry = guarded(|| self.fs.lookup(&self.root, &name.bytes()));
        let entry = entry.map_err(|error| format!("look up {name}: {error}"))?;
        Ok(Self { root: entry.inode, ..self.another() })
    }

    /// Starts the engine's background work; it ends when the result is dropped.
    #[must_use]
    pub fn start_background(&self) -> Background {
        self.fs.start_background().expect("a machine for tests has a thread to spare")
    }

    /// Whether writes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.fs.is_read_only()
    }

    /// Lets all files go and unmounts.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn unmount(mut self) -> Result<(), String> {
        self.handles.clear();
        guarded(|| self.fs.unmount()).map_err(|error| format!("unmount: {error}"))
    }

    /// How many inodes the volume counts as used.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn inodes(&self) -> Result<u64, String> {
        let stat = guarded(|| self.fs.stat_fs()).map_err(|error| format!("statfs: {error}"))?;
        Ok(stat.files - stat.files_free)
    }

    /// How many blocks the volume has left.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn free_blocks(&self) -> Result<u64, String> {
        let stat = guarded(|| self.fs.stat_fs()).map_err(|error| format!("statfs: {error}"))?;
        Ok(stat.free)
    }

    /// Whether this many clean segments are left, besides those that writers leave clean, that none of
    /// them can meet a shortage soon.
    #[must_use]
    pub fn has_ample_room(&self) -> bool {
        let status = self.fs.status();
        status.clean_segments > status.kept_segments + status.geometry.nsegments / 4
    }

    /// How many segments the volume has.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.fs.status().geometry.nsegments
    }

    /// The newest checkpoint.
    #[must_use]
    pub fn newest(&self) -> Cno {
        self.fs.status().cno
    }

    /// All checkpoints, ascending.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn checkpoints(&self) -> Result<Vec<Listed>, String> {
        list(&self.device)
    }

    /// Where the space is, and how many segments the cleaner has found damaged.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn usage(&self) -> Result<(Usage, u64), String> {
        let usage = guarded(|| self.fs.usage()).map_err(|error| format!("usage: {error}"))?;
        Ok((usage, self.fs.status().cleaner.segments_skipped))
    }

    /// Fails if a clean segment is kept out of use because something that is needed was found there. As
    /// far as segments have been looked at; `thorough`: each of them is, by its summaries and by the DAT.
    ///
    /// # Errors
    /// How many such segments there are, or the engine's, in words.
    pub fn refuses_no_segment(&self, thorough: bool) -> Result<(), String> {
        if thorough {
            // No run of segments is so long: they are looked at, and not trimmed.
            let looked = guarded(|| self.fs.trim(0, u64::MAX, u64::MAX));
            looked.map_err(|error| format!("look at clean segments: {error}"))?;
            self.usage()?;
        }
        match self.fs.status().refused_segments {
            0 => Ok(()),
            refused => Err(format!("{refused} clean segments are refused on a sound volume")),
        }
    }

    /// Does nothing, in virtual time, until the cleaner has nothing more to do by itself. Returns the
    /// number of segments that it has freed.
    #[cfg(feature = "shuttle")]
    #[must_use]
    pub fn rest(&self) -> u64 {
        let totals = || self.fs.status().cleaner;
        let before = totals();
        let background = self.start_background();
        let mut last = before;
        loop {
            nilfs_engine::sleep(LONGEST_PAUSE);
            match totals() {
                now if now == last => break,
                now => last = now,
            }
        }
        drop(background);
        last.segments_freed - before.segments_freed
    }

    /// Cleans all there is to clean, whatever is young.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn clean(&self) -> Result<(), String> {
        let cleaned = guarded(|| clean(&self.fs, 0));
        cleaned.map_err(|error| format!("clean: {error}"))
    }

    /// Makes a snapshot of the present; `None` if it is past before it can be kept, or there is no
    /// room for it.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn take_snapshot(&self) -> Result<Option<Cno>, String> {
        let taken = guarded(|| {
            let taken = self.fs.checkpoint_now().and_then(|cno| {
                self.fs.change_snapshots(&[set_snapshot(cno, true)])?;
                Ok(Some(cno))
            });
            match taken {
                Err(Error::NoCheckpoint(_) | Error::NoSpace) => Ok(None),
                taken => taken,
            }
        });
        taken.map_err(|error| format!("take a snapshot: {error}"))
    }

    /// Makes an ordinary checkpoint of a snapshot.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn give_up_snapshot(&self, cno: Cno) -> Result<(), String> {
        let given_up = guarded(|| self.fs.change_snapshots(&[set_snapshot(cno, false)]));
        given_up.map_err(|error| format!("give up snapshot {cno}: {error}"))
    }

    /// Gives the volume another size, in bytes.
    pub fn resize(&self, bytes: u64) -> Outcome {
        let resized = catch_unwind(AssertUnwindSafe(|| self.fs.resize(bytes, &mut |_| {})));
        match resized {
            Ok(result) => done(result).unwrap_or_else(Outcome::Refused),
            Err(_) => Outcome::Refused(Refusal::Broken("the engine panicked".into())),
        }
    }

    /// Makes everything what it was in a checkpoint. Returns the snapshot of the state before, too, if
    /// anything has changed.
    pub fn roll_back(&mut self, to: Cno) -> (Outcome, Option<Cno>) {
        self.settled = false;
        let done = catch_unwind(AssertUnwindSafe(|| self.fs.roll_back(to, b"", &mut |_| {})));
        match done {
            Ok(Ok(done)) => (Outcome::Done, done.checkpoint.map(|_| done.before)),
            Ok(Err(error)) => (Outcome::Refused(error.into()), None),
            Err(_) => (Outcome::Refused(Refusal::Broken("the engine panicked".into())), None),
        }
    }

    /// Does `op`; [`Op::Remount`], [`Op::Resize`] and [`Op::RollBack`] are not for a subject, since they
    /// need to know the device or the past.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.settled &= op.only_looks();
        let done = catch_unwind(AssertUnwindSafe(|| self.try_apply(op)));
        match done {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(refusal)) => Outcome::Refused(refusal),
            Err(_) => Outcome::Refused(Refusal::Broken("the engine panicked".into())),
        }
    }

    fn try_apply(&mut self, op: &Op) -> Result<Outcome, Refusal> {
        let fs = &self.fs;
        match op {
            Op::Create { path, kind, mode, rdev } => {
                let (parent, name) = self.parent(path)?;
                let new = NewInode { mode: kind.mode_bits() | mode, uid: 0, gid: 0, rdev: *rdev };
                Ok(facts(&fs.create(&parent, &name.bytes(), &new)?.attr))
            }
            Op::CreateNameless { directory, mode, handle } => {
                let parent = self.resolve(&directory.0)?;
                let mode = FileType::Regular.mode_bits() | mode;
                let new = NewInode { mode, uid: 0, gid: 0, rdev: Default::default() };
                let Entry { inode, attr } = fs.create_nameless(&parent, &new)?;
                self.handles.insert(*handle, inode);
                Ok(facts(&attr))
            }
            Op::Symlink { path, length } => {
                let (parent, name) = self.parent(path)?;
                let text = link_text(*length);
                Ok(facts(&fs.symlink(&parent, &name.bytes(), &text, 0, 0)?.attr))
            }
            Op::Link { target, to } => {
                let inode = self.find(target)?;
                let (parent, name) = self.parent(to)?;
                Ok(facts(&fs.link(&inode, &parent, &name.bytes())?))
            }
            Op::Unlink(path) => {
                let (parent, name) = self.parent(path)?;
                done(self.taking_away(&parent, name, || fs.unlink(&parent, &name.bytes())))
            }
            Op::RemoveDirectory(path) => {
                let (parent, name) = self.parent(path)?;
                done(self.taking_away(&parent, name, || fs.rmdir(&parent, &name.bytes())))
            }
            Op::Rename { from, to, mode } => {
                let (parent, name) = self.parent(from)?;
                let (to_parent, to_name) = self.parent(to)?;
                done(self.taking_away(&to_parent, to_name, || {
                    fs.rename(&parent, &name.bytes(), &to_parent, &to_name.bytes(), *mode)
                }))
            }
            Op::Write { target, offset, length, fill } => {
                let inode = self.find(target)?;
                done(fs.write(&inode, *offset, &pattern(*fill, *offset, *length)))
            }
            Op::SetAttr { target, changes } => {
                Ok(facts(&fs.set_attr(&self.find(target)?, changes)?))
            }
            Op::SetFlags { target, flags } => {
                Ok(facts(&fs.set_flags(&self.find(target)?, *flags)?))
            }
            Op::Read { target, offset, length } => {
                let inode = self.find(target)?;
                let mut buffer = vec![0xee; *length as usize];
                let got = fs.read(&inode, *offset, &mut buffer)?;
                buffer.truncate(got);
                Ok(Outcome::Bytes(buffer))
            }
            Op::Seek { target, offset, what } => self.seek(target, *offset, *what),
            Op::Stat(target) => Ok(facts(&fs.attr(&self.find(target)?)?)),
            Op::ReadLink(path) => Ok(Outcome::Bytes(fs.read_link(&self.resolve(&path.0)?)?)),
            Op::List(path) => self.list(path),
            Op::Open { path, handle } => {
                let inode = self.resolve(&path.0)?;
                self.handles.insert(*handle, inode);
                Ok(Outcome::Done)
            }
            Op::Close(handle) => {
                if let Some(inode) = self.handles.remove(handle) {
                    self.let_go(inode);
                }
                Ok(Outcome::Done)
            }
            Op::Fsync(target) => done(fs.sync_file(&self.find(target)?)),
            Op::Fdatasync(target) => done(fs.sync_file(&self.find(target)?)),
            Op::Sync => done(fs.sync()),
            Op::Commit => done(fs.commit().map(|_| ())),
            Op::Remount | Op::Resize { .. } | Op::RollBack { .. } => {
                Err(Refusal::Broken("a subject knows neither its device nor its past".into()))
            }
            Op::Checkpoint => done(fs.checkpoint_now().map(|_| ())),
            Op::SetSnapshot { snapshot, .. } => match op.checkpoints(&self.listed()?) {
                Some((cno, _)) => done(fs.change_snapshots(&[set_snapshot(cno, *snapshot)])),
                None => Ok(Outcome::Done),
            },
            Op::FollowRule => {
                let listed = self.listed()?;
                let Some((newest, _)) = op.checkpoints(&listed) else { return Ok(Outcome::Done) };
                let of_rule = |it: &&Listed| it.snapshot && is_of_rule(it.cno) && it.cno != newest;
                let released = listed.iter().filter(of_rule);
                let changes: Vec<_> = std::iter::once(set_snapshot(newest, true))
                    .chain(released.map(|it| set_snapshot(it.cno, false)))
                    .collect();
                done(fs.change_snapshots(&changes))
            }
            Op::DeleteCheckpoints { .. } => match op.checkpoints(&self.listed()?) {
                Some((first, last)) => done(fs.delete_checkpoints(first..=last).map(|_| ())),
                None => Ok(Outcome::Done),
            },
            Op::Clean { protection, .. } => done(clean(fs, *protection)),
            Op::Trim => done(fs.trim(0, u64::MAX, 0).map(|_| ())),
        }
    }

    /// The whole tree.
    ///
    /// # Errors
    /// What the engine said, or where it contradicts itself, in words.
    pub fn tree(&self) -> Result<Tree, String> {
        TreeReader { files: &*self.fs, root: self.root.ino(), settled: self.settled }.tree()
    }

    /// The names that a listing of a directory has, `between` being called again and again
    /// while it is under way.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn list_slowly(
        &mut self,
        path: &Path,
        mut between: impl FnMut(&mut Self),
    ) -> Result<Vec<Vec<u8>>, String> {
        let in_words = |error| format!("list {path}: {error:?}");
        let directory = self.resolve(&path.0).map_err(in_words)?;
        let mut listed = Vec::new();
        let mut cookie = 0;
        let some = |subject: &Self, cookie, listed: &mut Vec<_>| {
            guarded(|| tree_reader::list_some(&*subject.fs, directory.ino(), cookie, listed))
        };
        while let Some(next) = some(self, cookie, &mut listed)? {
            cookie = next;
            between(self);
        }
        Ok(listed.into_iter().map(|entry| entry.name).collect())
    }

    fn listed(&self) -> Result<Vec<Listed>, Refusal> {
        Ok(list_checkpoints(&self.device)?)
    }

    fn seek(&self, target: &Target, offset: u64, what: Seek) -> Result<Outcome, Refusal> {
        let inode = self.find(target)?;
        if inode.file_type() != FileType::Regular {
            return Ok(Outcome::Done);
        }
        match self.fs.seek(&inode, offset, what) {
            Ok(position) => Ok(Outcome::Position(Some(position))),
            Err(Error::NoData) => Ok(Outcome::Position(None)),
            Err(error) => Err(error.into()),
        }
    }

    fn list(&self, path: &Path) -> Result<Outcome, Refusal> {
        let mut names = Vec::new();
        let directory = self.resolve(&path.0)?;
        for listed in tree_reader::entries(&*self.fs, directory.ino())? {
            let kind = listed
                .kind
                .ok_or_else(|| Refusal::Broken(format!("an entry without type: {listed:?}")))?;
            names.push((listed.name, kind));
        }
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Outcome::Names(names))
    }

    fn find(&self, target: &Target) -> Result<InodeRef, Refusal> {
        match target {
            Target::Path(path) => self.resolve(&path.0),
            Target::Handle(handle) => self.handles.get(handle).cloned().ok_or(Refusal::NotOpen),
        }
    }

    fn resolve(&self, names: &[Name]) -> Result<InodeRef, Refusal> {
        names.iter().try_fold(Arc::clone(&self.root), |at, name| {
            let Entry { inode, .. } = self.fs.lookup(&at, &name.bytes())?;
            Ok(inode)
        })
    }

    /// Does what may take the name of a file away, as a front end does it: the file is held by its number,
    /// and let go of after that.
    fn taking_away(
        &self,
        parent: &InodeRef,
        name: Name,
        take: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let held = self.fs.lookup_and_hold(parent, &name.bytes());
        let taken = take();
        if let Ok(attr) = held {
            self.fs.let_go(attr.ino, 1);
        }
        taken
    }

    /// Lets go of an open file, as a front end does it.
    fn let_go(&self, inode: InodeRef) {
        self.fs.hold(&inode);
        let ino = inode.ino();
        drop(inode);
        self.fs.let_go(ino, 1);
    }

    fn parent(&self, path: &Path) -> Result<(InodeRef, Name), Refusal> {
        let (parents, name) = path.split().ok_or(Refusal::Invalid)?;
        Ok((self.resolve(parents)?, name))
    }
}

/// All checkpoints on a device, ascending, whether it is mounted or not.
///
/// # Errors
/// The engine's, in words; a snapshot that has not the name that it was given with it, or a name
/// that is left of one.
pub fn list(device: &Arc<dyn Device>) -> Result<Vec<Listed>, String> {
    let listed = guarded(|| list_checkpoints(device));
    listed.map_err(|error| format!("list the checkpoints: {error}"))
}

fn list_checkpoints(device: &Arc<dyn Device>) -> Result<Vec<Listed>> {
    let volume = Volume::open_with(Arc::clone(device), Verify::All)?;
    let found = volume.checkpoints(Cno::MIN, usize::MAX)?;
    let snapshots: Vec<Cno> = found.iter().filter(|it| it.snapshot).map(|it| it.cno).collect();
    let notes = volume.notes()?;
    let is_named =
        |note: &Note| note.name == name_of(note.cno) && note.made_by == maker_of(note.cno);
    // A rollback makes one without a name, or says so of one that has a name already.
    let is_of_rollback = |note: &Note| {
        note.text.as_str().starts_with("before the rollback to checkpoint ")
            && (note.name.is_none() || note.name == name_of(note.cno))
    };
    let is_own = |note: &Note| is_named(note) || is_of_rollback(note);
    let named: Vec<Cno> = notes.iter().filter(|note| is_own(note)).map(|note| note.cno).collect();
    if snapshots != named || notes.len() != named.len() {
        return Err(Error::Inconsistent(format!(
            "the names of snapshots {snapshots:?}: {notes:?}"
        )));
    }
    let listed =
        |it: &CheckpointInfo| Listed { cno: it.cno, time: it.created, snapshot: it.snapshot };
    Ok(found.iter().map(listed).collect())
}

/// Makes a snapshot of a checkpoint, with a name, or an ordinary checkpoint of it again. It is
/// somebody's, or one that retention makes. It is given up by somebody, because a rollback may have
/// made it, and retention would let it be.
fn set_snapshot(cno: Cno, snapshot: bool) -> SnapshotChange {
    let (made_by, name) = (maker_of(cno), name_of(cno));
    match snapshot {
        true => SnapshotChange::Keep { cno, made_by, name, text: None },
        false => SnapshotChange::Release { cno, made_by: MadeBy::User },
    }
}

/// The name that the snapshot of a checkpoint has in every simulation.
fn name_of(cno: Cno) -> Option<SnapshotName> {
    format!("number-{cno}").parse().ok()
}

/// Who makes it.
fn maker_of(cno: Cno) -> MadeBy {
    if is_of_rule(cno) { MadeBy::Retention } else { MadeBy::User }
}

/// Cleans all there is to clean, and protects what is younger than this many seconds.
fn clean(fs: &Filesystem, protection: u64) -> Result<()> {
    let run = ManualRun {
        protection: Some(Duration::from_secs(protection)),
        min_reclaimable: Some(Amount::Count(1)),
        ..ManualRun::default()
    };
    fs.clean(&run).map(|_| ())
}

fn done(result: Result<()>) -> Result<Outcome, Refusal> {
    Ok(result.map(|()| Outcome::Done)?)
}

fn facts(attr: &Attr) -> Outcome {
    Outcome::Facts(Facts::from(attr))
}

/// Calls into the engine and makes words of its errors and panics.
fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the engine panicked".into()),
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound => Self::NotFound,
            Error::Exists => Self::Exists,
            Error::NotDirectory => Self::NotDirectory,
            Error::IsDirectory => Self::IsDirectory,
            Error::NotEmpty => Self::NotEmpty,
            Error::NoSpace | Error::NoRoomToRollBack { .. } => Self::NoSpace,
            Error::NoRoomToShrink { .. } => Self::NoRoom,
            Error::ReadOnly { .. } => Self::ReadOnly,
            Error::TooManyLinks => Self::TooManyLinks,
            Error::NameTooLong => Self::NameTooLong,
            Error::Invalid(_) => Self::Invalid,
            Error::FileTooLarge => Self::FileTooLarge,
            Error::NotPermitted(_) => Self::NotPermitted,
            Error::NoCheckpoint(_) => Self::NoCheckpoint,
            Error::Busy => Self::Busy,
            Error::Device { .. } => Self::Device(error.to_string()),
            Error::Unsupported(_) => Self::Unsupported,
            other => Self::Broken(other.to_string()),
        }
    }
}

impl From<&Attr> for Facts {
    fn from(attr: &Attr) -> Self {
        let is_directory = attr.file_type == FileType::Directory;
        Self {
            kind: attr.file_type,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: if is_directory { 0 } else { attr.size },
            mtime: attr.mtime,
            ctime: attr.ctime,
            flags: attr.flags,
        }
    }
}
