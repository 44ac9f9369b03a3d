//! The helpers of umount(8): `umount.nilfs2`, for our mounts and for those of Linux itself, and two
//! for the types that our own mounts have. Through them umount(8) says what could not be written.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nilfs_fuse::Mounted;
use rustix::mount::UnmountFlags;

use super::mount::{MOUNT_FAILED, nilfs};
use super::words::{Word, Words};
use super::{Ended, FAILED, Tool};
use crate::administration;
use crate::output::say;

macro_rules! options {
    () => {
        "
  -f   by force
  -l   now, although something is in use; the rest follows later
  -n   accepted without effect
  -r   accepted without effect
  -v   say what was done
  -h   this help
  -V   the version
"
    };
}

macro_rules! helper_for {
    ($type:literal) => {
        Tool {
            name: concat!("umount.", $type),
            usage: concat!(
                "Usage: umount.",
                $type,
                " [-flnrv] DIR...\nThe helper of umount(8) for the type ",
                $type,
                ".\n",
                options!()
            ),
            long: &[],
            complaint: concat!("umount.", $type, ": "),
            run,
        }
    };
}

pub(super) const FOR_NILFS2: Tool = helper_for!("nilfs2");
pub(super) const FOR_FUSE: Tool = helper_for!("fuse.nilfs");
pub(super) const FOR_FUSEBLK: Tool = helper_for!("fuseblk.nilfs");

/// Exit code as in mount(8): of several, some were unmounted.
const SOME_UNMOUNTED: u8 = 64;

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let mut flags = UnmountFlags::empty();
    let mut verbose = false;
    let mut operands = Vec::new();
    while let Some(word) = words.next()? {
        match word {
            Word::Option('f') => flags |= UnmountFlags::FORCE,
            Word::Option('l') => flags |= UnmountFlags::DETACH,
            Word::Option('v') => verbose = true,
            Word::Option('n' | 'r') => {}
            Word::Option('t' | 'N') => drop(words.value()?),
            Word::Option(letter) => return Err(words.invalid(letter)),
            Word::Operand(operand) => operands.push(PathBuf::from(operand)),
        }
    }
    if operands.is_empty() {
        say!("No mountpoint specified");
        return Err(Ended(FAILED).into());
    }
    let tool = words.tool();
    let mut unmounted = 0;
    for path in &operands {
        if unmount(tool, path, flags)? {
            unmounted += 1;
            if verbose {
                tool.complain(format_args!("{} unmounted", path.display()));
            }
        }
    }
    Ok(match unmounted {
        0 => ExitCode::from(MOUNT_FAILED),
        count if count == operands.len() => ExitCode::SUCCESS,
        _ => ExitCode::from(SOME_UNMOUNTED),
    })
}

/// Unmounts a directory, or what is mounted of a device; says so if that is not possible.
fn unmount(tool: &Tool, path: &Path, flags: UnmountFlags) -> anyhow::Result<bool> {
    let shown = path.display();
    if std::fs::symlink_metadata(path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        tool.complain(format_args!("{shown}: not found"));
        return Ok(false);
    }
    let dir = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mounted = match Mounted::on(&dir) {
        None => administration::mount_of(&dir)?,
        mounted => mounted,
    };
    let Some(mounted) = mounted else {
        tool.complain(format_args!("{shown}: not mounted"));
        return Ok(false);
    };
    if mounted.is_nilfs() && flags.is_empty() {
        return Ok(nilfs(tool, &["umount".into(), "--".into(), mounted.dir.into()])? == 0);
    }
    match rustix::mount::unmount(&mounted.dir, flags) {
        Ok(()) => Ok(true),
        Err(error) => {
            let why = crate::exit::without_error_numbers(&error.to_string());
            tool.complain(format_args!("{shown}: {why}"));
            Ok(false)
        }
    }
}
