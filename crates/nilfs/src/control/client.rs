//! The side of a command: reaches the process that serves a mount.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nilfs_engine::{
    CheckpointInfo, CheckpointTotals, CleanerOrder, Cno, Defragmented, DeletedCheckpoints, Holders,
    Ino, Note, PurgeOptions, PurgeProgress, Purged, ResizeProgress, RollbackProgress, RolledBack,
    SnapshotChange, Status, Times, Usage,
};
use nilfs_ondisk::superblock::LogCursor;
use rustix::io::Errno;

use super::requests::{
    AdminRequest, ChangeSnapshots, Commit, Defragment, DeleteCheckpoints, FindCheckpoint,
    GetChanges, GetCheckpointTotals, GetDirectoryChanges, GetHolders, GetMetrics, GetNewestLog,
    GetNotes, GetPowers, GetProcess, GetPurge, GetResize, GetRollback, GetScrub, GetStatus,
    GetUsage, GetVersions, KeepPast, ListCheckpoints, MakeCheckpoint, OrderCleaner, Powers,
    Process, ReloadSettings, Remount, SetSnapshot, StartPurge, StartResize, StartRollback,
    StartScrub, StopScrub, Trim, Work,
};
use super::{messages, pages};
use crate::administration::{Administration, Reason, Refusal};
use crate::metrics::Metrics;
use crate::past::{self, Change, Name, Version};
use crate::scrubbing::{Plan, Scrubbing};

/// How often it is asked how far something is.
const GLANCE: Duration = Duration::from_millis(100);

/// How to go on with work that the end of a mount has cut off.
const RESIZE_AGAIN: &str = "the same nilfs resize again goes on";
const ROLLBACK_AGAIN: &str = "if nilfs diff shows that it was not done, do it again";
const PURGE_AGAIN: &str = "nilfs purge --finish does the rest";

/// Versions of a file that are asked for at a time.
const VERSIONS_AT_ONCE: usize = 1024;

/// Asks the process that serves a mount.
#[derive(Debug)]
pub struct Client {
    node: PathBuf,
}

impl Client {
    /// Through a file or directory of the mount. It is open only while something is asked, so that
    /// the volume can be unmounted in between.
    pub fn new(node: &Path) -> Self {
        Self { node: node.to_owned() }
    }

    /// What has been counted since the mount.
    pub fn metrics(&self) -> Result<Metrics, Refusal> {
        self.ask(&GetMetrics {})
    }

    /// Lets the cleaner's settings be read again, from `file` instead of the mount's own. Returns
    /// what was wrong with it.
    pub fn reload_settings(&self, file: Option<PathBuf>) -> Result<Vec<String>, Refusal> {
        self.ask(&ReloadSettings { file }).map(|reloaded| reloaded.warnings)
    }

    /// Lets the process make the volume read-only or writable, as the words after `-o` say.
    pub fn remount(&self, words: Vec<String>) -> Result<(), Refusal> {
        self.ask(&Remount { words }).map(drop)
    }

    /// What the mount does not show of a file of the past.
    pub fn powers(&self, cno: Cno, ino: Ino) -> Result<Powers, Refusal> {
        self.ask(&GetPowers { cno, ino })
    }

    /// Has the past kept for a command that copies out of it, as [`super::KeptPast`] does.
    pub(super) fn keep_past(&self, copy: u64, seconds: u32) -> Result<(), Refusal> {
        self.ask(&KeepPast { copy, seconds }).map(drop)
    }

    /// What two checkpoints differ in.
    pub fn changes(&self, from: Cno, to: Cno) -> Result<Vec<Change>, Refusal> {
        self.ask(&GetChanges { from, to })
    }

    /// The versions of a file, as [`crate::past::versions`] returns them. Some are asked for at a time,
    /// so that the process needs little memory, however many there are.
    pub fn versions(
        &self,
        path: &Name,
        at: Option<Cno>,
        limit: usize,
    ) -> Result<Vec<Version>, Refusal> {
        past::in_pages(VERSIONS_AT_ONCE, path, at, limit, |path, at, limit| {
            self.ask(&GetVersions { path: path.clone(), at, limit })
        })
    }

    /// When names changed below a directory, as [`past::changes_of_directories`] returns it.
    pub fn changes_of_directories(
        &self,
        path: &Name,
        from: Cno,
        most: usize,
    ) -> Result<Option<BTreeSet<Cno>>, Refusal> {
        self.ask(&GetDirectoryChanges { path: path.clone(), from, most })
    }

    /// Begins to scrub the volume, or goes on with that, and does not wait for it.
    pub fn start_scrub(&self, plan: Plan) -> Result<(), Refusal> {
        self.ask(&StartScrub { plan }).map(drop)
    }

    /// Interrupts the scrub that is under way, if there is one.
    pub fn stop_scrub(&self) -> Result<(), Refusal> {
        self.ask(&StopScrub {}).map(drop)
    }

    /// How the scrubs of the volume are going.
    pub fn scrubbing(&self) -> Result<Scrubbing, Refusal> {
        self.ask(&GetScrub {})
    }

    /// The process that serves the mount.
    pub fn process(&self) -> Result<Process, Refusal> {
        self.ask(&GetProcess {})
    }

    fn ask<R: AdminRequest>(&self, request: &R) -> Result<R::Reply, Refusal> {
        let question = messages::question(request)?;
        let answer = self.exchange(&question).map_err(|error| unreachable_because(&error))?;
        messages::reply::<R>(&answer)
    }

    /// Names the work that an end of the mount would cut off now, and says how to go on with it then.
    pub fn under_way(&self) -> Vec<(&'static str, &'static str)> {
        let purging = matches!(self.ask(&GetPurge {}), Ok(Work::Running(_)));
        let resizing = matches!(self.ask(&GetResize {}), Ok(Work::Running(_)));
        let works = [(purging, "the purge", PURGE_AGAIN), (resizing, "the resize", RESIZE_AGAIN)];
        let running = works.into_iter().filter(|(is_running, ..)| *is_running);
        running.map(|(_, what, again)| (what, again)).collect()
    }

    /// Waits for the end of what was begun, and asks now and then how it is going. If the mount ends before
    /// that, `again` says how to go on.
    fn wait<R, Progress, Done>(
        &self,
        question: &R,
        progress: &mut dyn FnMut(Progress),
        again: &str,
    ) -> Result<Done, Refusal>
    where
        R: AdminRequest<Reply = Work<Progress, Done>>,
    {
        // The process was there when the work was begun: if it cannot be reached now, the mount is over.
        let ended = |_| {
            let message = format!("the mount has ended before this was complete; {again}");
            Refusal::new(Reason::Failed, message)
        };
        let question = messages::question(question)?;
        loop {
            let answer = self.exchange(&question).map_err(ended)?;
            match messages::reply::<R>(&answer)? {
                Work::Running(so_far) => progress(so_far),
                Work::Done(done) => return Ok(done),
                Work::Failed(refusal) => return Err(refusal),
            }
            thread::sleep(GLANCE);
        }
    }

    fn exchange(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let node = File::open(&self.node)?;
        pages::collect(request, |message| nilfs_fuse::ask(&node, message))
    }
}

/// Why the process cannot be asked.
fn unreachable_because(error: &io::Error) -> Refusal {
    let message = match Errno::from_io_error(error) {
        Some(Errno::NOTTY) => {
            "the process that serves this mount cannot be asked anything; unmount the volume and mount \
             it again"
                .to_owned()
        }
        _ if nilfs_fuse::says_nobody_serves(error) => {
            "the process that served this mount is gone; unmount it".to_owned()
        }
        _ => format!("cannot ask the process that serves this mount: {error}"),
    };
    Refusal::new(Reason::Unsupported, message)
}

impl Administration for Client {
    fn is_served(&self) -> bool {
        true
    }

    fn status(&self) -> Result<Status, Refusal> {
        self.ask(&GetStatus {})
    }

    fn usage(&self) -> Result<Usage, Refusal> {
        self.ask(&GetUsage {})
    }

    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>, Refusal> {
        self.ask(&ListCheckpoints { from, limit })
    }

    fn checkpoint_totals(&self) -> Result<CheckpointTotals, Refusal> {
        self.ask(&GetCheckpointTotals {})
    }

    fn newest_until(&self, second: u64) -> Result<Option<CheckpointInfo>, Refusal> {
        match self.ask(&FindCheckpoint { until: second }) {
            // A process of an older version does not know.
            Err(Refusal { reason: Reason::Unsupported, .. }) => {
                let list = |from, limit| self.checkpoints(from, limit);
                let newest = self.status()?.cno;
                Times::default().newest_made(newest, Cno::MAX, &(0..=second), &list)
            }
            found => found,
        }
    }

    fn newest_log(&self) -> Result<LogCursor, Refusal> {
        self.ask(&GetNewestLog {})
    }

    fn notes(&self) -> Result<Vec<Note>, Refusal> {
        self.ask(&GetNotes {})
    }

    fn change_snapshots(&self, changes: &[SnapshotChange]) -> Result<(), Refusal> {
        self.ask(&ChangeSnapshots { changes: changes.to_vec() }).map(drop)
    }

    /// So it is asked of a process that is older, too.
    fn set_snapshot(&self, cno: Cno, snapshot: bool) -> Result<(), Refusal> {
        self.ask(&SetSnapshot { cno, snapshot }).map(drop)
    }

    fn delete_checkpoints(
        &self,
        range: RangeInclusive<Cno>,
    ) -> Result<DeletedCheckpoints, Refusal> {
        let (first, last) = range.into_inner();
        self.ask(&DeleteCheckpoints { first, last })
    }

    fn checkpoint(&self, anew: bool) -> Result<Cno, Refusal> {
        let made = if anew { self.ask(&MakeCheckpoint { anew }) } else { self.ask(&Commit {}) };
        made.map(|made| made.cno)
    }

    fn order_cleaner(&self, order: CleanerOrder) -> Result<(), Refusal> {
        self.ask(&OrderCleaner { order }).map(drop)
    }

    fn trim(&self, from: u64, to: u64, minimum: u64) -> Result<u64, Refusal> {
        self.ask(&Trim { from, to, minimum }).map(|trimmed| trimmed.bytes)
    }

    fn resize(&self, bytes: u64, progress: &mut dyn FnMut(ResizeProgress)) -> Result<(), Refusal> {
        self.ask(&StartResize { bytes })?;
        let at_the_end = self.wait(&GetResize {}, progress, RESIZE_AGAIN)?;
        progress(at_the_end);
        Ok(())
    }

    fn roll_back(
        &self,
        to: Cno,
        path: &Name,
        progress: &mut dyn FnMut(RollbackProgress),
    ) -> Result<RolledBack, Refusal> {
        self.ask(&StartRollback { to, path: path.clone() })?;
        self.wait(&GetRollback {}, progress, ROLLBACK_AGAIN)
    }

    fn holders(&self, path: &Name) -> Result<Holders, Refusal> {
        self.ask(&GetHolders { path: path.clone() })
    }

    fn purge(
        &self,
        path: Option<&Name>,
        options: PurgeOptions,
        progress: &mut dyn FnMut(PurgeProgress),
    ) -> Result<Purged, Refusal> {
        self.ask(&StartPurge { path: path.cloned(), options })?;
        self.wait(&GetPurge {}, progress, PURGE_AGAIN)
    }

    fn defragment(&self, ino: Ino, budget: u64) -> Result<Defragmented, Refusal> {
        self.ask(&Defragment { ino, budget })
    }
}
