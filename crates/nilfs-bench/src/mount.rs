//! A mounted file system, and the daemon behind it if we started one.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::mount::UnmountFlags;

use crate::cleanup::{Pending, Undo, register};
use crate::command;

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
    pending: Pending,
}

impl Mount {
    /// Mounts with a command that returns when the mount is usable. `unmount` does the opposite
    /// and returns when all is on the device; without one, umount(2) is called.
    pub fn by_command(dir: &Path, mount: &mut Command, unmount: Option<Command>) -> Result<Self> {
        let pending = register(Undo::Unmount(dir.to_owned()));
        command::run(mount)?;
        Ok(Self {
            dir: dir.to_owned(),
            unmount_command: unmount,
            daemon: None,
            pending,
        })
    }

    /// Starts a FUSE daemon that stays in the foreground, and waits until its mount is usable.
    pub fn by_daemon(dir: &Path, daemon: &mut Command) -> Result<Self> {
        let line = command::line_of(daemon);
        let log = tempfile::tempfile().context("cannot make a file for a daemon's messages")?;
        let pending = register(Undo::Unmount(dir.to_owned()));
        let child = daemon
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(
                log.try_clone()
                    .context("cannot share a daemon's message file")?,
            )
            // A group of its own: Ctrl-C is for us, and we end the daemon in an orderly way.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run `{line}`"))?;
        let child = Arc::new(Mutex::new(child));
        let daemon = Daemon {
            pending: register(Undo::Kill(child.clone())),
            child,
        };
        wait_until_mounted(dir, &daemon.child, log).with_context(|| format!("`{line}`"))?;
        Ok(Self {
            dir: dir.to_owned(),
            unmount_command: None,
            daemon: Some(daemon),
            pending,
        })
    }

    /// Unmounts and returns when the file system has written all it had to write.
    pub fn unmount(self) -> Result<()> {
        match self.unmount_command {
            Some(mut unmount) => command::run(&mut unmount)?,
            None => rustix::mount::unmount(&self.dir, UnmountFlags::empty())
                .with_context(|| format!("cannot unmount {}", self.dir.display()))?,
        }
        self.pending.cancel();
        if let Some(daemon) = self.daemon {
            // After umount(2) a FUSE daemon still flushes; its end is the end of that.
            while daemon
                .child
                .lock()
                .try_wait()
                .context("cannot wait for a daemon")?
                .is_none()
            {
                sleep(POLL_INTERVAL);
            }
            daemon.pending.cancel();
        }
        Ok(())
    }

    /// Kills the daemon as a crash would, and takes the dead mount away.
    pub fn kill(self) -> Result<()> {
        match self.daemon {
            Some(daemon) => drop(daemon.pending),
            None => bail!(
                "the mount at {} has no daemon of ours to kill",
                self.dir.display()
            ),
        }
        drop(self.pending);
        Ok(())
    }
}

/// A directory is mounted on when it is on another device than its parent. For FUSE, asking for
/// this waits until the daemon answers requests.
fn wait_until_mounted(dir: &Path, daemon: &Mutex<Child>, mut log: File) -> Result<()> {
    let parent = dir.parent().unwrap_or(Path::new("/"));
    let outside = device_of(parent)?;
    let start = Instant::now();
    loop {
        if device_of(dir)? != outside {
            return Ok(());
        }
        if let Some(status) = daemon
            .lock()
            .try_wait()
            .context("cannot wait for a daemon")?
        {
            bail!(
                "ended before it had mounted: {status}: {}",
                read_log(&mut log)
            );
        }
        if start.elapsed() > START_LIMIT {
            bail!(
                "did not mount within {} s: {}",
                START_LIMIT.as_secs(),
                read_log(&mut log)
            );
        }
        sleep(POLL_INTERVAL);
    }
}

fn device_of(path: &Path) -> Result<u64> {
    let metadata = path
        .metadata()
        .with_context(|| format!("cannot stat {}", path.display()))?;
    Ok(metadata.dev())
}

fn read_log(log: &mut File) -> String {
    use std::io::Seek;
    let mut said = Vec::new();
    match log.rewind().and_then(|()| log.read_to_end(&mut said)) {
        Ok(_) => command::last_lines(&String::from_utf8_lossy(&said)),
        Err(error) => format!("(its messages cannot be read: {error})"),
    }
}
