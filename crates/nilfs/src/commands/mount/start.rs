//! `nilfs mount`: starts a process that serves the volume, and waits until it can be used.
//!
//! The process is this program once more, not a fork: threads do not survive a fork. It inherits
//! standard error, so it says itself what went wrong as long as somebody listens; its standard
//! output is a pipe on which it says that the volume can be used.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context;
use clap_complete::engine::ArgValueCompleter;
use nilfs_device::Device;
use nilfs_engine::ReadOnlyVolume;
use nilfs_repair::{AsRepaired, Observer};
use rustix::fs::{Mode, OFlags};

use super::attend::Hangup;
use super::logging;
use super::open::open;
use super::options::{self, Options};
use super::read_only;
use super::remount::remount;
use super::rescue::losses;
use super::serve::serve;
use crate::exit::{Failure, Status};
use crate::image::{Checkpoints, Door};
use crate::memory;
use crate::names;
use crate::output::say;
use crate::signature::OnVolume;

/// What comes first below the options on the help page.
const EXAMPLES: &str = "\
Examples:
  nilfs mount disk.img mnt
  nilfs mount -o ro,cp=17 disk.img old    checkpoint 17, also next to a mount of the present
  nilfs mount -o ro,cp=yesterday disk.img old
  nilfs mount -o pp=10m /dev/sdb1 /mnt    keep what is deleted for ten minutes
  nilfs mount -o remount,ro /mnt";

/// Mount a volume
///
/// Returns when the volume can be used. A process in the background serves it, and cleans it, until
/// it is unmounted.
#[derive(Debug, clap::Args)]
#[command(
    after_help = format!("{EXAMPLES}\n\n{}", options::help()),
    override_usage = "nilfs mount [OPTIONS] <DEVICE> <DIR>\n       nilfs mount -o remount,ro|rw <DIR>"
)]
pub struct MountArgs {
    /// How to mount; several words are separated by commas
    #[arg(short, value_name = "OPTIONS", add = ArgValueCompleter::new(options::complete))]
    options: Vec<String>,
    /// Stay in the foreground, with messages on the terminal, until the volume is unmounted
    #[arg(long)]
    foreground: bool,
    /// Append messages to this file instead of the system's log
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Be the process in the background, and say on standard output when the volume can be used
    #[arg(long, hide = true)]
    background: bool,
    /// The device or image; or LABEL=, UUID=, PARTLABEL= or PARTUUID= with a name
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// The directory
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What the process in the background says.
const READY: &[u8] = b"ready";

/// Mounts the volume. Returns when it can be used, or with --foreground when it is unmounted.
pub fn mount(mut args: MountArgs) -> anyhow::Result<()> {
    if options::is_remount(&args.options) {
        // The device may be left out.
        return remount(args.dir.as_ref().unwrap_or(&args.device), &args.options);
    }
    let Some(dir) = &args.dir else {
        let message = "the directory is missing; see nilfs mount --help";
        return Err(Failure::new(Status::Usage, message).into());
    };
    args.device = names::device(&args.device)?;
    let mut options = Options::parse(&args.options, rustix::process::geteuid().is_root())?;
    if !args.foreground && !args.background {
        return start(&args, dir);
    }
    // Started as /proc/self/exe, the process would be called "exe".
    let _ = rustix::thread::set_name(c"nilfs");
    memory::get_along_with(memory::available());
    logging::start(args.log.as_deref(), args.foreground)?;
    let of_files = options.read_config()?;
    let of_words = options.warning().map(str::to_owned);
    let warn = |warning: &str| {
        tracing::warn!("{warning}");
        if args.background {
            say!("nilfs: {warning}");
        }
    };
    of_files.iter().map(ToString::to_string).chain(of_words).for_each(|warning| warn(&warning));
    match args.background {
        true => serve_volume(&args.device, dir, options, &warn, Hangup::Reloads, leave_terminal),
        false => serve_volume(&args.device, dir, options, &warn, Hangup::Ends, || Ok(())),
    }
}

/// Serves the volume. A checkpoint of one that is mounted already comes through that mount.
fn serve_volume(
    device: &Path,
    dir: &Path,
    options: Options,
    warn: &dyn Fn(&str),
    hangup: Hangup,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if !options.kernel.read_only {
        return serve(device, dir, options, hangup, ready);
    }
    let source = || {
        std::fs::canonicalize(device).with_context(|| format!("cannot find {}", device.display()))
    };
    let checkpoint = match &options.checkpoint {
        // A broken volume may not know the times of its checkpoints.
        Some(when) if options.rescue => Some(when.number().ok_or_else(|| {
            let message = "with rescue, cp= takes the number of a checkpoint";
            Failure::new(Status::Usage, message)
        })?),
        Some(when) => Some(Checkpoints::of(device)?.find(when)?.cno),
        None => None,
    };
    let door = match checkpoint {
        Some(cno) if !options.rescue => Door::of(device, Some(cno))?,
        _ => None,
    };
    if let Some(door) = door {
        return read_only::serve(|_| Ok(door), &source()?, dir, checkpoint, options, hangup, ready);
    }
    let opened = open(device, dir, &options)?;
    let repaired = options.rescue.then(|| AsRepaired::new(opened.clone(), &Observer::default()));
    let shown: Arc<dyn Device> =
        repaired.as_ref().map_or_else(|| opened.clone() as _, |it| Arc::clone(&it.device));
    let volume = |options: &Options| {
        let volume =
            ReadOnlyVolume::mount(shown, options.read_only(checkpoint)).on_volume(device)?;
        if let Some(repaired) = &repaired {
            losses(repaired, &volume, device).iter().for_each(|loss| warn(loss));
        }
        Ok(volume)
    };
    let served = read_only::serve(volume, &source()?, dir, checkpoint, options, hangup, ready);
    if let Err(error) = opened.release() {
        tracing::debug!("{} is free when the process has ended: {error}", device.display());
    }
    served
}

/// Starts the process in the background and waits for its word. If it fails, this process ends
/// with the same exit code.
fn start(args: &MountArgs, dir: &Path) -> anyhow::Result<()> {
    let mut words = vec![OsString::from("mount"), "--background".into()];
    for list in &args.options {
        words.extend(["-o".into(), list.into()]);
    }
    if let Some(log) = &args.log {
        // It leaves the current directory.
        let log = std::path::absolute(log).context("cannot find the current directory")?;
        words.extend(["--log".into(), log.into()]);
    }
    words.extend(["--".into(), args.device.clone().into(), dir.into()]);
    let mut child = Command::new("/proc/self/exe")
        .arg0("nilfs")
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the process that serves the volume")?;
    let mut said = [0; READY.len()];
    let pipe = child.stdout.take().context("the process in the background has no output")?;
    if { pipe }.read_exact(&mut said).is_ok() && said == READY {
        return Ok(());
    }
    let status = child.wait().context("cannot wait for the process that serves the volume")?;
    // It has said why on the standard error that we share.
    match status.code() {
        Some(code) => std::process::exit(code),
        None => anyhow::bail!("the process that serves the volume was killed: {status}"),
    }
}

/// Says that the volume can be used, and lets go of the terminal and the current directory.
fn leave_terminal() -> anyhow::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .context("cannot open /dev/null")?;
    std::env::set_current_dir("/").context("cannot change to /")?;
    // What is typed there is not meant for us. We stay in the session: Linux schedules the processes of
    // a session as a group, and moves a program to another core whenever one of another group answers
    // it. Fails only for the leader of a session, which we are not.
    let _ = rustix::process::setpgid(None, None);
    let mut stdout = std::io::stdout();
    stdout.write_all(READY).and_then(|()| stdout.flush()).context("cannot report success")?;
    rustix::stdio::dup2_stdout(&null).context("cannot leave standard output")?;
    rustix::stdio::dup2_stderr(&null).context("cannot leave standard error")
}
