//! A mounted file system, and the daemon behind it if we started one.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nilfs_lab::cleanup::{Pending, Undo, register};
use parking_lot::Mutex;
use rustix::mount::UnmountFlags;

use crate::command::{self, Messages};

/// How often the state of a daemon is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long a daemon may take until its mount is usable.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A mount. Dropped without [`Mount::unmount`], it is torn away with whatever it held.
pub struct Mount {
    dir: PathBuf,
    unmount_command: Option<Command>,
    daemon: Option<Daemon>,
    pending: Pending,
}

struct Daemon {
    child: Arc<Mutex<Child>>,
    messages: Messages,
    pending: Pending,
}

impl Daemon {
    /// A directory is mounted on when it is on another device than its parent. Asking for this
    /// waits until the daemon answers requests.
    fn wait_until_mounted(&self, dir: &Path) -> Result<()> {
        let outside = device_of(dir.parent().unwrap_or(Path::new("/")))?;
        let start = Instant::now();
        while device_of(dir)? == outside {
            if let Some(status) = self.status()? {
                bail!("ended before it had mounted: {status}: {}", self.messages.end());
            }
            if start.elapsed() > START_LIMIT {
                let limit = START_LIMIT.as_secs();
                bail!("did not mount within {limit} s: {}", self.messages.end());
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits for the end of an unmounted daemon: only then has it written everything.
    fn wait(self) -> Result<()> {
        // The lock is free in between, so that the clean-up can kill a daemon that hangs.
        let status = loop {
            match self.status()? {
                Some(status) => break status,
                None => sleep(POLL_INTERVAL),
            }
        };
        self.pending.cancel();
        if !status.success() {
            bail!("the daemon failed at its end: {status}: {}", self.messages.end());
        }
        Ok(())
    }

    /// How it ended, if it has.
    fn status(&self) -> Result<Option<ExitStatus>> {
        let status = self.child.lock().try_wait();
        status.context("cannot wait for a daemon")
    }
}

impl Mount {
    /// Mounts with a command that returns when the mount is usable. `unmount` does the opposite
    /// and returns when all is on the device; without one, umount(2) is called.
    pub fn by_command(dir: &Path, mount: &mut Command, unmount: Option<Command>) -> Result<Self> {
        let pending = register(Undo::Unmount(dir.to_owned()));
        command::run(mount)?;
        Ok(Self { dir: dir.to_owned(), unmount_command: unmount, daemon: None, pending })
    }

    /// Starts a FUSE daemon that stays in the foreground, and waits until its mount is usable.
    pub fn by_daemon(dir: &Path, daemon: &mut Command) -> Result<Self> {
        let line = command::line_of(daemon);
        let messages = Messages::new()?;
        let pending = register(Undo::Unmount(dir.to_owned()));
        let child = daemon
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(messages.sink()?)
            // A group of its own: Ctrl-C is for us, and we end the daemon in an orderly way.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run `{line}`"))?;
        let child = Arc::new(Mutex::new(child));
        let daemon = Daemon { pending: register(Undo::Kill(child.clone())), child, messages };
        daemon.wait_until_mounted(dir).with_context(|| format!("`{line}`"))?;
        Ok(Self { dir: dir.to_owned(), unmount_command: None, daemon: Some(daemon), pending })
    }

    /// The process that serves it, if we started it in the foreground.
    pub fn process(&self) -> Option<u32> {
        self.daemon.as_ref().map(|daemon| daemon.child.lock().id())
    }

    /// Unmounts and returns when the file system has written all it had to write.
    pub fn unmount(self) -> Result<()> {
        match self.unmount_command {
            Some(mut unmount) => command::run(&mut unmount)?,
            None => rustix::mount::unmount(&self.dir, UnmountFlags::empty())
                .with_context(|| format!("cannot unmount {}", self.dir.display()))?,
        }
        self.pending.cancel();
        self.daemon.map_or(Ok(()), Daemon::wait)
    }

    /// Kills the daemon as a crash would, and takes the dead mount away.
    pub fn kill(self) -> Result<()> {
        match self.daemon {
            Some(daemon) => drop(daemon.pending),
            None => bail!("the mount at {} has no daemon of ours to kill", self.dir.display()),
        }
        drop(self.pending);
        Ok(())
    }
}

fn device_of(path: &Path) -> Result<u64> {
    let metadata = path.metadata().with_context(|| format!("cannot stat {}", path.display()))?;
    Ok(metadata.dev())
}
