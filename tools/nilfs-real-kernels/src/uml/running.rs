//! A guest at work: waiting for it, and killing it in the middle.

use std::fs;
use std::io::{PipeReader, Read};
use std::path::Path;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::error::{Error, Result, read_text};
use crate::{KernelLog, ScriptResult};

/// How often a condition for killing the guest is looked at.
const GLANCE: Duration = Duration::from_millis(2);

/// A guest that works. Dropping it kills it.
#[derive(Debug)]
pub struct RunningUml {
    child: Child,
    /// Returns the console's text when no process of the guest holds the console open any more:
    /// only then has the last of them stopped writing to the image.
    console: Receiver<String>,
    directory: TempDir,
    deadline: Instant,
    timeout: Duration,
}

impl RunningUml {
    pub(super) fn new(
        child: Child,
        mut console: PipeReader,
        directory: TempDir,
        timeout: Duration,
    ) -> Self {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            let mut text = Vec::new();
            // A pipe whose other end is gone has given all that there was.
            let _ = console.read_to_end(&mut text);
            let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
        });
        Self { child, console: receiver, directory, deadline: Instant::now() + timeout, timeout }
    }

    /// The directory that host and guest share; the script's standard output and error are the
    /// files `stdout` and `stderr` there.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Waits until the script has ended.
    pub fn wait(mut self) -> Result<ScriptResult> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.console.recv_timeout(left) {
            Ok(console) => self.result(console),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let reason = format!("killed after {} s", self.timeout.as_secs());
                Err(Error::Unfinished { reason, console: self.end() })
            }
        }
    }

    /// Kills the guest in the middle of its work as soon as `moment` answers true, as if its power
    /// had been cut, and returns what its kernel had said until then. It is an error if the script
    /// ends, or its time is over, before that.
    pub fn kill_when(mut self, mut moment: impl FnMut() -> bool) -> Result<KernelLog> {
        while !moment() {
            if Instant::now() > self.deadline {
                let reason = "the moment to kill it never came".to_owned();
                return Err(Error::Unfinished { reason, console: self.end() });
            }
            if let Ok(console) = self.console.recv_timeout(GLANCE) {
                self.result(console)?.succeeded()?;
                let reason = "its script ended before the moment to kill it".to_owned();
                return Err(Error::Unfinished { reason, console: String::new() });
            }
        }
        Ok(KernelLog::from_console(&self.end()))
    }

    /// As [`RunningUml::kill_when`], after a time counted from now.
    pub fn kill_after(self, delay: Duration) -> Result<KernelLog> {
        let moment = Instant::now() + delay;
        self.kill_when(|| Instant::now() >= moment)
    }

    /// Kills what still lives of the guest and waits until nobody writes to the image any more.
    fn end(&mut self) -> String {
        self.kill();
        self.console.recv().unwrap_or_default()
    }

    fn kill(&mut self) {
        // The guest's processes are processes of the host in the group of the first of them.
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It fails only if the group is gone, and then all is well.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }

    fn result(&mut self, console: String) -> Result<ScriptResult> {
        let _ = self.child.wait();
        let directory = self.directory.path();
        let Some(status) = fs::read_to_string(directory.join("status"))
            .ok()
            .and_then(|status| status.trim().parse().ok())
        else {
            return Err(Error::Unfinished { reason: "it stopped by itself".to_owned(), console });
        };
        Ok(ScriptResult {
            status,
            stdout: read_text(&directory.join("stdout"))?,
            stderr: read_text(&directory.join("stderr"))?,
            kernel_log: KernelLog::from_console(&console),
        })
    }
}

impl Drop for RunningUml {
    fn drop(&mut self) {
        // A child that was waited for may have left its number to somebody else.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}
