//! The helpers of mount(8), which finds one for each type of mount as a program of its name:
//! `mount.nilfs2` for that of Linux, which becomes a mount through us, and two for the types that
//! our own mounts have.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

use super::words::{Word, Words};
use super::{Ended, Tool, volume};
use crate::administration;
use crate::commands::mount_options;
use crate::exit::Status;
use crate::output::say;

macro_rules! options {
    () => {
        "
  -f   do nothing
  -n   accepted without effect
  -r   read-only
  -v   say what was done
  -w   read and write (default)
  -o   options, separated by commas
  -h   this help
  -V   the version
"
    };
}

macro_rules! helper_for {
    ($type:literal) => {
        Tool {
            name: concat!("mount.", $type),
            usage: concat!(
                "Usage: mount.",
                $type,
                " [-fnrvw] [-o OPTIONS] DEVICE DIR\nThe helper of mount(8) for the type ",
                $type,
                "; see nilfs mount --help for the options.\n",
                options!()
            ),
            long: &[],
            complaint: concat!("mount.", $type, ": "),
            run,
        }
    };
}

pub(super) const FOR_NILFS2: Tool = helper_for!("nilfs2");
pub(super) const FOR_FUSE: Tool = helper_for!("fuse.nilfs");
pub(super) const FOR_FUSEBLK: Tool = helper_for!("fuseblk.nilfs");

/// Exit codes as in mount(8).
const USAGE: u8 = 1;
/// The mount failed.
pub(super) const MOUNT_FAILED: u8 = 32;

#[derive(Debug, Default)]
struct Options {
    lists: Vec<OsString>,
    fake: bool,
    verbose: bool,
}

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let mut options = Options::default();
    let mut operands = Vec::new();
    while let Some(word) = words.next()? {
        match word {
            Word::Option('o') => options.lists.push(words.value()?),
            Word::Option('r') => options.lists.push("ro".into()),
            Word::Option('w') => options.lists.push("rw".into()),
            Word::Option('f') => options.fake = true,
            Word::Option('v') => options.verbose = true,
            Word::Option('n' | 's') => {}
            Word::Option('t' | 'N') => drop(words.value()?),
            Word::Option(letter) => return Err(words.invalid(letter)),
            Word::Operand(operand) => operands.push(operand),
        }
    }
    let mut operands = operands.into_iter();
    let Some(device) = operands.next() else { return Err(usage("No device specified")) };
    let Some(dir) = operands.next() else { return Err(usage("No mountpoint specified")) };
    if options.fake {
        return Ok(ExitCode::SUCCESS);
    }
    mount(words.tool(), Path::new(&device), Path::new(&dir), &options)
}

fn usage(what: &str) -> anyhow::Error {
    say!("{what}");
    Ended(USAGE).into()
}

fn mount(tool: &Tool, device: &Path, dir: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let failed = Ok(ExitCode::from(MOUNT_FAILED));
    if let Err(error) = fs::metadata(device) {
        let why = volume::why(&error.into());
        tool.complain(format_args!("device {} not accessible: {why}", device.display()));
        return failed;
    }
    let lists = options.lists.iter().map(|list| list.to_string_lossy().into_owned());
    let lists: Vec<_> = lists.collect();
    if tool.name == FOR_NILFS2.name
        && mount_options::access(&lists) != Some(true)
        && !mount_options::is_remount(&lists)
        && let Some(mounted) = administration::mount_of(device)?
        && !mounted.is_read_only()
    {
        tool.complain(format_args!(
            "the device already has a rw-mount on {}.\n\t\tmultiple rw-mount is not allowed.",
            mounted.dir.display()
        ));
        return failed;
    }
    let mut words: Vec<OsString> = vec!["mount".into()];
    for list in &options.lists {
        words.extend(["-o".into(), list.clone()]);
    }
    words.extend(["--".into(), device.into(), dir.into()]);
    match nilfs(tool, &words)? {
        0 if options.verbose => {
            tool.complain(format_args!("{} mounted on {}", device.display(), dir.display()));
            Ok(ExitCode::SUCCESS)
        }
        0 => Ok(ExitCode::SUCCESS),
        code if code == Status::Usage as i32 => Ok(ExitCode::from(USAGE)),
        _ => failed,
    }
}

/// Runs `nilfs` with these words, as another process, and lets it speak in the tool's name. Returns
/// its exit code.
pub(super) fn nilfs(tool: &Tool, words: &[OsString]) -> anyhow::Result<i32> {
    let output = Command::new("/proc/self/exe")
        .arg0("nilfs")
        .args(words)
        .stdin(Stdio::null())
        .output()
        .context("cannot start nilfs")?;
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        tool.complain(line.strip_prefix("nilfs: ").unwrap_or(line));
    }
    Ok(output.status.code().unwrap_or(Status::Failed as i32))
}
