//! `nilfs umount`: unmounts, waits until everything is on the device, and says so if it is not.

use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nilfs_device::{Access, FileDevice};
use nilfs_engine::{Loss, Volume};
use nilfs_fuse::{MountError, Mounted, says_nobody_serves};
use nilfs_ondisk::ByteCount;
use nilfs_ondisk::superblock::{STATE_ERROR, STATE_VALID};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;

use crate::administration::{Administration, is_believable, mounts_of};
use crate::completions;
use crate::control::Client;
use crate::exit::{self, Failure, Status};
use crate::interrupt;
use crate::names::{Name, ambiguous};
use crate::output::{self, local_time, printable, say};

/// Unmount volumes and wait until they are clean
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs umount mnt")]
pub struct UmountArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The directories on which they are mounted, or the devices or images; or LABEL=, UUID=,
    /// PARTLABEL= or PARTUUID= with a name
    #[arg(value_name = "DIR|DEVICE", required = true, add = completions::mount())]
    operands: Vec<PathBuf>,
}

/// A mount that is no more.
#[derive(Serialize)]
struct Record {
    device: String,
    directory: String,
    /// Whether everything is on the device.
    complete: bool,
}

/// Unmounts all of them; when this returns, the processes that served the volumes have let go of
/// them. One that cannot be unmounted is no reason to leave the others.
pub fn umount(args: UmountArgs) -> anyhow::Result<()> {
    let (mut unmounted, mut failed) = (Vec::new(), None);
    let mut note = |done: anyhow::Result<()>| {
        if let Err(error) = done
            && let Some(earlier) = failed.replace(error)
        {
            exit::report(&earlier);
        }
    };
    for operand in &args.operands {
        note(directory(operand).and_then(|dir| unmount(&dir)).and_then(|(mount, end)| {
            unmounted.push(Record::of(&mount, end.is_ok()));
            end
        }));
    }
    if args.json {
        note(output::json(&unmounted));
    }
    failed.map_or(Ok(()), Err)
}

impl Record {
    fn of(mount: &Mounted, complete: bool) -> Self {
        let name = |path: &Path| printable(path.as_os_str().as_bytes());
        Self { device: name(&mount.source), directory: name(&mount.dir), complete }
    }
}

/// The directory of the mount that an operand means.
fn directory(operand: &Path) -> anyhow::Result<PathBuf> {
    let mounts = match Name::parse(operand)? {
        Some(name) => {
            let ours = Mounted::all().into_iter().filter(Mounted::is_nilfs);
            let named = |it: &Mounted| is_believable(it) && name.is_of(&it.source);
            ours.filter(named).collect()
        }
        None => {
            let kind = fs::metadata(operand).map(|metadata| metadata.file_type());
            match kind {
                Ok(kind) if kind.is_file() || kind.is_block_device() => mounts_of(operand)?,
                _ => {
                    return absolute(operand)
                        .with_context(|| format!("cannot find {}", operand.display()));
                }
            }
        }
    };
    match &mounts[..] {
        [mounted] => Ok(mounted.dir.clone()),
        [] => {
            let message = format!("{} is not mounted", operand.display());
            Err(Failure::new(Status::Failed, message).into())
        }
        several => Err(ambiguous(operand, several.iter().map(|mounted| mounted.dir.as_path()))),
    }
}

/// Unmounts what is mounted on a directory. Returns the mount, and whether all is well with the volume
/// when the process that served it is done.
fn unmount(dir: &Path) -> anyhow::Result<(Mounted, anyhow::Result<()>)> {
    let refuse = |why: String| Failure::new(Status::Failed, format!("{} {why}", dir.display()));
    let mounted = Mounted::on(dir).ok_or_else(|| refuse("is not mounted".into()))?;
    if !mounted.is_nilfs() {
        let file_system = mounted.file_system;
        return Err(refuse(format!("is a mount of {file_system}; use umount for it")).into());
    }
    let user = rustix::process::geteuid();
    if let Some(owner) = mounted.owner().filter(|owner| !user.is_root() && *owner != user.as_raw())
    {
        let who = match owner {
            0 => "only the superuser can unmount it".to_owned(),
            owner => format!("only user {owner}, who has mounted it, can unmount it"),
        };
        return Err(refuse(format!("is a mount of another user; {who}")).into());
    }
    // Before unmounting: the path is known to name the right file while the volume is mounted.
    let volume = File::open(&mounted.source);
    let written = !mounted.is_read_only();
    let (place, on) = (dir.to_owned(), mounted.source.display().to_string());
    interrupt::explain(move || if_interrupted(&place, &on));
    let cut_off = Client::new(dir).under_way();
    let loss = if written { write_out(dir) } else { None };
    let process = if written { None } else { serving_process(dir) };
    nilfs_fuse::unmount(dir).map_err(|error| held_by(&mounted, error))?;
    // The process goes on where another directory shows the same mount (mount --bind).
    let other = Mounted::all().into_iter().find(|it| it.device == mounted.device);
    let has_ended = other.is_none();
    match other {
        Some(other) => {
            let (shown, other) = (dir.display(), other.dir.display());
            say!("nilfs: {shown} is unmounted, but the volume stays mounted on {other}");
        }
        None => cut_off.iter().for_each(|(what, again)| {
            say!("nilfs: {what} that was under way may not be complete; {again}");
        }),
    }
    if has_ended && let Some(process) = process {
        wait_for_end(&process);
    }
    let end = see_the_end(&mounted, volume, loss, has_ended);
    Ok((mounted, end))
}

/// Message about an unmount that is under way.
fn if_interrupted(dir: &Path, source: &str) -> String {
    let shown = dir.display();
    match Mounted::on(dir) {
        Some(_) => format!("{shown}: interrupted; it is still mounted"),
        None => format!(
            "{shown}: interrupted; it is unmounted, and what was written may not be on {source} yet"
        ),
    }
}

/// Waits until the volume of a mount that `has_ended` is free, and checks that nothing is missing on it
/// but the `loss` that is known of already.
fn see_the_end(
    mounted: &Mounted,
    volume: io::Result<File>,
    loss: Option<Loss>,
    has_ended: bool,
) -> anyhow::Result<()> {
    let source = mounted.source.display();
    let written = !mounted.is_read_only();
    if has_ended {
        let volume =
            volume.with_context(|| format!("unmounted, but cannot see when {source} is clean"))?;
        wait_for_release(&volume, written)
            .with_context(|| format!("unmounted, but cannot wait for {source}"))?;
    }
    let why = match loss {
        Some(loss) => missing(&loss, &source),
        None if has_ended && written && is_marked_as_bad(&mounted.source) => {
            "the last checkpoint could not be written; see the log".to_owned()
        }
        None => return Ok(()),
    };
    let message = format!("{} is unmounted, but {why}", mounted.dir.display());
    Err(Failure::new(Status::Failed, message).into())
}

/// Names a mount of the past that reads through this one, if that is why it is in use.
fn held_by(mounted: &Mounted, error: MountError) -> anyhow::Error {
    let is_past = |other: &Mounted| {
        let is_other = other.dir != mounted.dir && other.checkpoint.is_some();
        is_other && other.source == mounted.source && other.is_nilfs()
    };
    let past = Mounted::all().into_iter().find(is_past);
    let (MountError::Busy { dir, .. }, Some(past)) = (&error, past) else { return error.into() };
    let message = format!(
        "{} is in use: checkpoint {} of it is mounted on {} and read through it; unmount that first",
        dir.display(),
        past.checkpoint.unwrap_or_default(),
        past.dir.display()
    );
    Failure::new(Status::Busy, message).into()
}

/// Lets everything be written while the process can still be asked what has become of it. Returns
/// what could not be written.
fn write_out(dir: &Path) -> Option<Loss> {
    // Whether it fails is a part of the answer to the question. A process that does not answer is
    // gone, or of another version.
    let client = Client::new(dir);
    let _ = client.checkpoint(false);
    client.status().ok()?.stopped
}

/// What is not on the device, and why.
fn missing(loss: &Loss, source: &dyn Display) -> String {
    let Loss { reason, since, files, bytes } = loss;
    let since = local_time(*since as i64);
    let what = match files {
        0 => format!("what has changed since {since} may not be on {source}"),
        1 => {
            format!("1 file with changes since {since} ({}) is not on {source}", ByteCount(*bytes))
        }
        files => format!(
            "up to {files} files with changes since {since} ({} in all) are not on {source}",
            ByteCount(*bytes)
        ),
    };
    format!("{what}: {reason}")
}

/// Whether the volume was left with an error noted in its superblocks.
fn is_marked_as_bad(source: &Path) -> bool {
    let superblocks = FileDevice::open(source, Access::Inspect)
        .map_err(anyhow::Error::from)
        .and_then(|device| Ok(Volume::superblocks(&device)?));
    let state = superblocks.map(|copies| copies.best.raw().s_state.get());
    state.is_ok_and(|state| state & STATE_VALID == 0 && state & STATE_ERROR != 0)
}

/// The path without symbolic links, also that of a mount whose process is gone, which cannot be
/// looked at.
fn absolute(dir: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(dir) {
        Err(error) if says_nobody_serves(&error) => {
            let dir = std::path::absolute(dir)?;
            match (dir.parent(), dir.file_name()) {
                (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
                _ => Err(error),
            }
        }
        result => result,
    }
}

/// The process that serves a mount, if it can be seen from here.
fn serving_process(dir: &Path) -> Option<OwnedFd> {
    let pid = Pid::from_raw(Client::new(dir).process().ok()?.pid)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until a process has ended: that of a read-only mount may still use the mount through which
/// it reads. If its number means another process here, that is not waited for for ever.
fn wait_for_end(process: &OwnedFd) {
    const MOST: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    let _ = poll(&mut ended, Some(&MOST));
}

/// Waits until nobody writes to the volume, if it was `written` through this mount. A reader,
/// such as the process of a read-only mount, is given a moment to close it; others may go on.
fn wait_for_release(volume: &File, written: bool) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(10);
    const MOST_PAUSES: u32 = 20;
    while written && nilfs_device::is_written(volume)? {
        thread::sleep(PAUSE);
    }
    for _ in 0..MOST_PAUSES {
        if !nilfs_device::is_read(volume)? {
            break;
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
