//! Everything that can be asked of the process that serves a mount. A request is a type, with the
//! type of its reply and with what the process does for it; [`ALL`] lists them.
//!
//! Both sides may be of different versions, so these types may grow, but not change: a field that
//! comes later is an `Option`, or has a default that is true of a program that does not know it. If
//! a request would be wrong without a field that an older process passes over, it is another
//! request with a name of its own. The recorded messages in `recorded.json` must be understood for
//! ever.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use nilfs_engine::{
    Attr, CheckpointInfo, CheckpointTotals, CleanerOrder, Cno, Defragmented, DeletedCheckpoints,
    DeviceCode, Holders, Ino, Note, PurgeOptions, PurgeProgress, Purged, ResizeProgress,
    RollbackProgress, RolledBack, SnapshotChange, Status, Usage,
};
use nilfs_fuse::{CopyNr, PastSettings};
use nilfs_ondisk::superblock::LogCursor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::server::{Known, Server};
use crate::administration::Refusal;
use crate::metrics::Metrics;
use crate::past::{Change, Name, Version};
use crate::scrubbing::{Plan, Scrubbing};

/// Something that can be asked.
pub trait AdminRequest: Serialize + DeserializeOwned {
    /// Its name, for ever.
    const NAME: &'static str;
    /// Whether it only looks, and so is for everybody.
    const IS_HARMLESS: bool = false;
    /// What is answered.
    type Reply: Serialize + DeserializeOwned;

    /// What the process does for it.
    fn serve(self, server: &Server) -> Result<Self::Reply, Refusal>;
}

/// All requests that are known.
pub(super) const ALL: &[Known] = &[
    Known::new::<GetStatus>(),
    Known::new::<GetUsage>(),
    Known::new::<GetMetrics>(),
    Known::new::<SetSnapshot>(),
    Known::new::<DeleteCheckpoints>(),
    Known::new::<MakeCheckpoint>(),
    Known::new::<Commit>(),
    Known::new::<OrderCleaner>(),
    Known::new::<ReloadSettings>(),
    Known::new::<Remount>(),
    Known::new::<Trim>(),
    Known::new::<StartResize>(),
    Known::new::<GetResize>(),
    Known::new::<StartRollback>(),
    Known::new::<GetRollback>(),
    Known::new::<GetHolders>(),
    Known::new::<StartPurge>(),
    Known::new::<GetPurge>(),
    Known::new::<Defragment>(),
    Known::new::<GetPowers>(),
    Known::new::<KeepPast>(),
    Known::new::<GetProcess>(),
    Known::new::<ListCheckpoints>(),
    Known::new::<GetCheckpointTotals>(),
    Known::new::<FindCheckpoint>(),
    Known::new::<GetChanges>(),
    Known::new::<GetVersions>(),
    Known::new::<GetDirectoryChanges>(),
    Known::new::<GetNotes>(),
    Known::new::<ChangeSnapshots>(),
    Known::new::<StartScrub>(),
    Known::new::<StopScrub>(),
    Known::new::<GetScrub>(),
    Known::new::<GetNewestLog>(),
];

/// The reply if there is nothing to be said but that it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {}

/// How things are.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetStatus {}

impl AdminRequest for GetStatus {
    const NAME: &'static str = "status";
    const IS_HARMLESS: bool = true;
    type Reply = Status;

    fn serve(self, server: &Server) -> Result<Status, Refusal> {
        server.volume.status()
    }
}

/// Where the space is.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetUsage {}

impl AdminRequest for GetUsage {
    const NAME: &'static str = "usage";
    const IS_HARMLESS: bool = true;
    type Reply = Usage;

    fn serve(self, server: &Server) -> Result<Usage, Refusal> {
        server.volume.usage()
    }
}

/// What has been counted since the mount.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetMetrics {}

impl AdminRequest for GetMetrics {
    const NAME: &'static str = "metrics";
    const IS_HARMLESS: bool = true;
    type Reply = Metrics;

    fn serve(self, server: &Server) -> Result<Metrics, Refusal> {
        Ok((server.metrics)())
    }
}

/// Makes a snapshot of a checkpoint, or an ordinary checkpoint of a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub struct SetSnapshot {
    pub cno: Cno,
    pub snapshot: bool,
}

impl AdminRequest for SetSnapshot {
    const NAME: &'static str = "set-snapshot";
    type Reply = Nothing;

    fn serve(self, server: &Server) -> Result<Nothing, Refusal> {
        server.volume.set_snapshot(self.cno, self.snapshot)?;
        Ok(Nothing {})
    }
}

/// What is noted about snapshots, by ascending number.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetNotes {}

impl AdminRequest for GetNotes {
    const NAME: &'static str = "notes";
    const IS_HARMLESS: bool = true;
    type Reply = Vec<Note>;

    fn serve(self, server: &Server) -> Result<Vec<Note>, Refusal> {
        server.volume.notes()
    }
}

/// Makes all of these changes of snapshots, or none.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChangeSnapshots {
    pub changes: Vec<SnapshotChange>,
}

impl AdminRequest for ChangeSnapshots {
    const NAME: &'static str = "change-snapshots";
    type Reply = Nothing;

    fn serve(self, server: &Server) -> Result<Nothing, Refusal> {
        server.volume.change_snapshots(&self.changes)?;
        Ok(Nothing {})
    }
}

/// Deletes the checkpoints of a range, except snapshots and the newest.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeleteCheckpoints {
    pub first: Cno,
    pub last: Cno,
}

impl AdminRequest for DeleteCheckpoints {
    const NAME: &'static str = "delete-checkpoints";
    type Reply = DeletedCheckpoints;

    fn serve(self, server: &Server) -> Result<DeletedCheckpoints, Refusal> {
        server.volume.delete_checkpoints(self.first..=self.last)
    }
}

/// Makes everything durable in a checkpoint. Everybody may ask for it, as for a sync.
#[derive(Debug, Serialize, Deserialize)]
pub struct Commit {}

impl AdminRequest for Commit {
    const NAME: &'static str = "commit";
    const IS_HARMLESS: bool = true;
    type Reply = MadeCheckpoint;

    fn serve(self, server: &Server) -> Result<MadeCheckpoint, Refusal> {
        Ok(MadeCheckpoint { cno: server.volume.checkpoint(false)? })
    }
}

/// Makes everything durable in a checkpoint, a new one even if nothing has changed if `anew`.
#[derive(Debug, Serialize, Deserialize)]
pub struct MakeCheckpoint {
    pub anew: bool,
}

/// The checkpoint in which everything is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeCheckpoint {
    pub cno: Cno,
}

impl AdminRequest for MakeCheckpoint {
    const NAME: &'static str = "checkpoint";
    type Reply = MadeCheckpoint;

    fn serve(self, server: &Server) -> Result<MadeCheckpoint, Refusal> {
        Ok(MadeCheckpoint { cno: server.volume.checkpoint(self.anew)? })
    }
}

/// Gives the cleaner an order.
#[derive(Debug, Serialize, Deserialize)]
pub struct OrderCleaner {
    pub order: CleanerOrder,
}

impl AdminRequest for OrderCleaner {
    const NAME: &'static str = "order-cleaner";
    type Reply = Nothing;

    fn serve(self, server: &Server) -> Result<Nothing, Refusal> {
        server.volume.order_cleaner(self.order)?;
        Ok(Nothing {})
    }
}

/// Reads the cleaner's settings again, from this file instead of the mount's own.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReloadSettings {
    pub file: Option<PathBuf>,
}

/// The settings are in force, but for what was wrong with the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadedSettings {
    pub warnings: Vec<String>,
}

impl AdminRequest for ReloadSettings {
    const NAME: &'static str = "reload-settings";
    type Reply = ReloadedSettings;

    fn serve(self, server: &Server) -> Result<ReloadedSettings, Refusal> {
        Ok(ReloadedSettings { warnings: server.mount.reload_settings(self.file.as_deref())? })
    }
}

/// Gets ready for the kernel's mount to become read-only or writable, if the words after `-o` ask
/// for nothing else.
#[derive(Debug, Serialize, Deserialize)]
pub struct Remount {
    pub words: Vec<String>,
}

impl AdminRequest for Remount {
    const NAME: &'static str = "remount";
    type Reply = Nothing;

    fn serve(self, server: &Server) -> Result<Nothing, Refusal> {
        server.mount.remount(&self.words)?;
        Ok(Nothing {})
    }
}

/// Tells the device about clean segments between two bytes of the volume, in runs of at least
/// `minimum` bytes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Trim {
    pub from: u64,
    pub to: u64,
    pub minimum: u64,
}

/// How much the device was told about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trimmed {
    pub bytes: u64,
}

impl AdminRequest for Trim {
    const NAME: &'static str = "trim";
    type Reply = Trimmed;

    fn serve(self, server: &Server) -> Result<Trimmed, Refusal> {
        Ok(Trimmed { bytes: server.volume.trim(self.from, self.to, self.minimum)? })
    }
}

/// Begins to give the volume another size. It can take hours, so it is not waited for.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartResize {
    pub bytes: u64,
}

impl AdminRequest for StartResize {
    const NAME: &'static str = "start-resize";
    type Reply = Nothing;

    fn serve(self, server: &Server) -> Result<Nothing, Refusal> {
        server.start_resize(self.bytes)?;
        Ok(Nothing {})
    }
}

/// How the resize is going that was begun last.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetResize {}

/// How something is going that is not waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work<Progress, Done> {
    Running(Progress),
    /// It is over, or there was none.
    Done(Done),
    Failed(Refusal),
}

impl<Progress, Done: Default> Default for Work<Progress, Done> {
    fn default() -> Self {
        Self::Done(Done::default())
    }
}

/// How a resize is going.
pub type Resizing = Work<ResizeProgress, ResizeProgress>;

impl AdminRequest for GetResize {
    const NAME: &'static str = "resizing";
    const IS_HARMLESS: bool = true;
    type Reply = Resizing;

    fn serve(self, server: &Server) -> Result<Resizing, Refusal> {
        Ok(server.resizing())
    }
}

/// Begins to make everything what it was in a checkpoint, or what is at a path and below it. The path
/// begins at the root of the volume. It can take minutes, so it is not waited for.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartRollback {
    pub to: Cno,
    pub path: Name,
}

impl AdminRequest for StartRollback {
    const NAME: &'static str = "start-rollback";
    type Reply = Nothing;

    fn serve(self, server: &Server) -> Result<Nothing, Refusal> {
        server.start_rollback(self.to, self.path)?;
        Ok(Nothing {})
    }
}

/// How the rollback is going that was begun last.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetRollback {}

/// How a rollback is going.
pub type RollingBack = Work<RollbackProgress, RolledBack>;

impl AdminRequest for GetRollback {
    const NAME: &'static str = "rolling-back";
    const IS_HARMLESS: bool = true;
    type Reply = RollingBack;

    fn serve(self, server: &Server) -> Result<RollingBack, Refusal> {
        Ok(server.rolling_back())
    }
}

/// Tells what has blocks of a file. The path begins at the root of the volume, and nothing is opened by
/// it.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetHolders {
    pub path: Name,
}

impl AdminRequest for GetHolders {
    const NAME: &'static str = "holders";
    type Reply = Holders;

    fn serve(self, server: &Server) -> Result<Holders, Refusal> {
        server.volume.holders(&self.path)
    }
}

/// Begins to take away all that the past has of a file; without a path, to complete that. It can take
/// hours, so it is not waited for.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartPurge {
    pub path: Option<Name>,
    pub options: PurgeOptions,
}

impl AdminRequest for StartPurge {
    const NAME: &'static str = "start-purge";
    type Reply = Nothing;

    fn serve(self, server: &Server) -> Result<Nothing, Refusal> {
        // What is to go is most likely what was looked at last.
        server.mount.end_past();
        server.start_purge(self.path, self.options)?;
        Ok(Nothing {})
    }
}

/// How the purge is going that was begun last.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetPurge {}

/// How a purge is going.
pub type Purging = Work<PurgeProgress, Purged>;

impl AdminRequest for GetPurge {
    const NAME: &'static str = "purging";
    const IS_HARMLESS: bool = true;
    type Reply = Purging;

    fn serve(self, server: &Server) -> Result<Purging, Refusal> {
        Ok(server.purging())
    }
}

/// Makes a file contiguous, if its blocks are at most `budget`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Defragment {
    pub ino: Ino,
    pub budget: u64,
}

impl AdminRequest for Defragment {
    const NAME: &'static str = "defragment";
    type Reply = Defragmented;

    fn serve(self, server: &Server) -> Result<Defragmented, Refusal> {
        server.volume.defragment(self.ino, self.budget)
    }
}

/// Tells what a mount does not show of a file of the past, because it would have power there.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetPowers {
    pub cno: Cno,
    pub ino: Ino,
}

/// What a file had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Powers {
    /// Permissions, set-id and sticky bits.
    pub mode: u16,
    /// The device that a device node stands for, as the volume has it.
    rdev: u64,
    /// `FS_*_FL` flags.
    pub flags: u32,
    pub generation: u32,
}

impl Powers {
    /// The device that a device node stands for.
    pub fn device(&self) -> DeviceCode {
        DeviceCode::decode(self.rdev)
    }
}

impl From<Attr> for Powers {
    fn from(attr: Attr) -> Self {
        let Attr { mode, flags, generation, .. } = attr;
        Self { mode, rdev: attr.rdev.encode(), flags, generation }
    }
}

impl AdminRequest for GetPowers {
    const NAME: &'static str = "powers";
    type Reply = Powers;

    fn serve(self, server: &Server) -> Result<Powers, Refusal> {
        server.mount.powers(self.cno, self.ino)
    }
}

/// Keeps the past that is being looked at for so many seconds more, however short of room the volume is, for
/// a command that copies out of it; 0 when that has ended. It is for every user: one who may write can fill
/// the volume as well.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeepPast {
    /// A number that the command has drawn.
    pub copy: u64,
    pub seconds: u32,
}

/// Seconds for which the past is kept at a time, at most.
const LONGEST_KEPT: u32 = 60;

impl AdminRequest for KeepPast {
    const NAME: &'static str = "keep-past";
    const IS_HARMLESS: bool = true;
    type Reply = Nothing;

    fn serve(self, server: &Server) -> Result<Nothing, Refusal> {
        let seconds = self.seconds.min(LONGEST_KEPT);
        server.mount.keep_past(CopyNr(self.copy), Duration::from_secs(seconds.into()));
        Ok(Nothing {})
    }
}

/// Tells which process serves the mount.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetProcess {}

/// The process that serves a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number, where it runs.
    pub pid: i32,
    /// What the door to the past is called in every directory, if there is one.
    #[serde(default = "first_door")]
    pub door: Option<String>,
    /// Which way requests take, as the option `transport` calls it; `None`: through `/dev/fuse`, by a
    /// process that knows no other.
    pub transport: Option<String>,
}

/// What it was called before it could be called otherwise.
fn first_door() -> Option<String> {
    Some(PastSettings::default().name)
}

impl AdminRequest for GetProcess {
    const NAME: &'static str = "process";
    const IS_HARMLESS: bool = true;
    type Reply = Process;

    fn serve(self, server: &Server) -> Result<Process, Refusal> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let transport = server.mount.transport().map(|transport| transport.to_string());
        Ok(Process { pid, door: server.mount.door(), transport })
    }
}

/// What two checkpoints differ in. This tells names to one who might not be allowed to see them, so it
/// is for those who may do anything.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetChanges {
    pub from: Cno,
    pub to: Cno,
}

impl AdminRequest for GetChanges {
    const NAME: &'static str = "changes";
    type Reply = Vec<Change>;

    fn serve(self, server: &Server) -> Result<Vec<Change>, Refusal> {
        server.mount.past().changes(self.from, self.to)
    }
}

/// The versions of a file, the newest first, at most `limit`: from the newest checkpoint on, or from
/// `at`. The path begins at the root of the volume, and nothing is opened by it.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetVersions {
    pub path: Name,
    pub at: Option<Cno>,
    pub limit: usize,
}

impl AdminRequest for GetVersions {
    const NAME: &'static str = "versions";
    type Reply = Vec<Version>;

    fn serve(self, server: &Server) -> Result<Vec<Version>, Refusal> {
        server.mount.past().versions(&self.path, self.at, self.limit)
    }
}

/// When names changed in a directory or below it: the checkpoints beyond `from`, unless it takes more than
/// `most` versions of directories to find that out. The path begins at the root of the volume, and nothing
/// is opened by it.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetDirectoryChanges {
    pub path: Name,
    pub from: Cno,
    pub most: usize,
}

impl AdminRequest for GetDirectoryChanges {
    const NAME: &'static str = "directory-changes";
    type Reply = Option<BTreeSet<Cno>>;

    fn serve(self, server: &Server) -> Result<Option<BTreeSet<Cno>>, Refusal> {
        server.mount.past().changes_of_directories(&self.path, self.from, self.most)
    }
}

/// Begins to scrub the volume, or goes on with that. It can take hours, so it is not waited for.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartScrub {
    pub plan: Plan,
}

impl AdminRequest for StartScrub {
    const NAME: &'static str = "start-scrub";
    type Reply = Nothing;

    fn serve(self, server: &Server) -> Result<Nothing, Refusal> {
        server.mount.scrubber()?.begin(self.plan)?;
        Ok(Nothing {})
    }
}

/// Interrupts the scrub that is under way, if there is one.
#[derive(Debug, Serialize, Deserialize)]
pub struct StopScrub {}

impl AdminRequest for StopScrub {
    const NAME: &'static str = "stop-scrub";
    type Reply = Nothing;

    fn serve(self, server: &Server) -> Result<Nothing, Refusal> {
        server.mount.scrubber()?.interrupt();
        Ok(Nothing {})
    }
}

/// How the scrubs of the volume are going. This tells names to one who might not be allowed to see them,
/// so it is for those who may do anything.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetScrub {}

impl AdminRequest for GetScrub {
    const NAME: &'static str = "scrubbing";
    type Reply = Scrubbing;

    fn serve(self, server: &Server) -> Result<Scrubbing, Refusal> {
        Ok(server.mount.scrubber()?.state())
    }
}

/// The checkpoints from a number on, ascending, at most `limit`; or fewer, but at least one.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListCheckpoints {
    pub from: Cno,
    pub limit: usize,
}

/// Checkpoints that one answer has at most.
const CHECKPOINTS_AT_ONCE: usize = 1024;

impl AdminRequest for ListCheckpoints {
    const NAME: &'static str = "checkpoints";
    const IS_HARMLESS: bool = true;
    type Reply = Vec<CheckpointInfo>;

    fn serve(self, server: &Server) -> Result<Vec<CheckpointInfo>, Refusal> {
        server.volume.checkpoints(self.from, self.limit.min(CHECKPOINTS_AT_ONCE))
    }
}

/// Tells how many checkpoints there are.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetCheckpointTotals {}

impl AdminRequest for GetCheckpointTotals {
    const NAME: &'static str = "checkpoint-totals";
    const IS_HARMLESS: bool = true;
    type Reply = CheckpointTotals;

    fn serve(self, server: &Server) -> Result<CheckpointTotals, Refusal> {
        server.volume.checkpoint_totals()
    }
}

/// Tells the newest checkpoint that was not made after a second since 1970.
#[derive(Debug, Serialize, Deserialize)]
pub struct FindCheckpoint {
    pub until: u64,
}

impl AdminRequest for FindCheckpoint {
    const NAME: &'static str = "find-checkpoint";
    const IS_HARMLESS: bool = true;
    type Reply = Option<CheckpointInfo>;

    fn serve(self, server: &Server) -> Result<Option<CheckpointInfo>, Refusal> {
        server.volume.newest_until(self.until)
    }
}

/// Tells where the log of the newest checkpoint is, for those who read the device while it is written.
#[derive(Debug, Serialize, Deserialize)]
pub struct GetNewestLog {}

impl AdminRequest for GetNewestLog {
    const NAME: &'static str = "newest-log";
    const IS_HARMLESS: bool = true;
    type Reply = LogCursor;

    fn serve(self, server: &Server) -> Result<LogCursor, Refusal> {
        server.volume.newest_log()
    }
}
