//! The side of a command: reaches the process that serves a mount.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nilfs_engine::{
    CleanerOrder, Cno, Defragmented, DeletedCheckpoints, Ino, ResizeProgress, Status, Usage,
};
use rustix::io::Errno;

use super::pages;
use super::protocol::{Reply, Request, Resizing};
use crate::administration::{Administration, Reason, Refusal};
use crate::metrics::Metrics;

/// How often is asked how far a resize has come.
const GLANCE: Duration = Duration::from_millis(100);

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
        match self.ask(Request::Metrics)? {
            Reply::Metrics(metrics) => Ok(*metrics),
            other => Err(unexpected(&other)),
        }
    }

    /// Lets the cleaner's settings be read again, from `file` instead of the mount's own. Gives what
    /// was wrong with it.
    pub fn reload_settings(&self, file: Option<PathBuf>) -> Result<Vec<String>, Refusal> {
        match self.ask(Request::ReloadSettings { file })? {
            Reply::Reloaded { warnings } => Ok(warnings),
            other => Err(unexpected(&other)),
        }
    }

    /// Lets the process make the volume read-only or writable, as the words behind `-o` say.
    pub fn remount(&self, words: Vec<String>) -> Result<(), Refusal> {
        self.ask(Request::Remount { words }).map(|_| ())
    }

    fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        let request = serde_json::to_vec(&request).map_err(|error| strange(&error))?;
        let answer = self.exchange(&request).map_err(|error| unreachable_because(&error))?;
        match serde_json::from_slice(&answer).map_err(|error| strange(&error))? {
            Reply::Refused(refusal) => Err(refusal),
            reply => Ok(reply),
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
            "the process that serves the volume takes no orders; mount it again".to_owned()
        }
        Some(Errno::NOTCONN | Errno::CONNABORTED) => {
            "the process that served the volume is gone; unmount it".to_owned()
        }
        _ => format!("cannot ask the process that serves the volume: {error}"),
    };
    Refusal::new(Reason::Unsupported, message)
}

fn strange(error: &serde_json::Error) -> Refusal {
    let message = format!(
        "the process that serves the volume is of another version ({error}); mount it again"
    );
    Refusal::new(Reason::Unsupported, message)
}

fn unexpected(reply: &Reply) -> Refusal {
    let message = format!("the process that serves the volume answered something else: {reply:?}");
    Refusal::new(Reason::Failed, message)
}

impl Administration for Client {
    fn status(&self) -> Result<Status, Refusal> {
        match self.ask(Request::Status)? {
            Reply::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    fn usage(&self) -> Result<Usage, Refusal> {
        match self.ask(Request::Usage)? {
            Reply::Usage(usage) => Ok(usage),
            other => Err(unexpected(&other)),
        }
    }

    fn set_snapshot(&self, cno: Cno, snapshot: bool) -> Result<(), Refusal> {
        self.ask(Request::SetSnapshot { cno, snapshot }).map(|_| ())
    }

    fn delete_checkpoints(
        &self,
        range: RangeInclusive<Cno>,
    ) -> Result<DeletedCheckpoints, Refusal> {
        let (first, last) = range.into_inner();
        match self.ask(Request::DeleteCheckpoints { first, last })? {
            Reply::Deleted(deleted) => Ok(deleted),
            other => Err(unexpected(&other)),
        }
    }

    fn checkpoint(&self, anew: bool) -> Result<Cno, Refusal> {
        match self.ask(Request::Checkpoint { anew })? {
            Reply::Checkpoint(cno) => Ok(cno),
            other => Err(unexpected(&other)),
        }
    }

    fn order_cleaner(&self, order: CleanerOrder) -> Result<(), Refusal> {
        self.ask(Request::Cleaner(order)).map(|_| ())
    }

    fn trim(&self, from: u64, to: u64, minimum: u64) -> Result<u64, Refusal> {
        match self.ask(Request::Trim { from, to, minimum })? {
            Reply::Trimmed(bytes) => Ok(bytes),
            other => Err(unexpected(&other)),
        }
    }

    fn resize(&self, bytes: u64, progress: &mut dyn FnMut(ResizeProgress)) -> Result<(), Refusal> {
        self.ask(Request::StartResize { bytes })?;
        loop {
            match self.ask(Request::Resizing)? {
                Reply::Resizing(Resizing::Running(so_far)) => progress(so_far),
                Reply::Resizing(Resizing::Done(at_the_end)) => {
                    progress(at_the_end);
                    return Ok(());
                }
                Reply::Resizing(Resizing::Failed(refusal)) => return Err(refusal),
                other => return Err(unexpected(&other)),
            }
            thread::sleep(GLANCE);
        }
    }

    fn defragment(&self, ino: Ino, budget: u64) -> Result<Defragmented, Refusal> {
        match self.ask(Request::Defragment { ino, budget })? {
            Reply::Defragmented(done) => Ok(done),
            other => Err(unexpected(&other)),
        }
    }
}
