//! `chcp`: makes snapshots of checkpoints, and checkpoints of snapshots.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::bail;
use nilfs_engine::Cno;

use super::words::{Words, split_volume};
use super::{FAILED, Tool, number, volume};
use crate::administration::{Administration, Reason};

pub(super) const TOOL: Tool = Tool {
    name: "chcp",
    usage: "\
Usage: chcp [OPTION]... cp|ss [DEVICE|NODE] CNO...
Make snapshots (ss) of checkpoints of a NILFS2 volume, or checkpoints (cp) of snapshots.

  -h, --help      this help
  -V, --version   the version
",
    long: &[],
    complaint: "chcp: ",
    run,
};

fn run(words: Words) -> anyhow::Result<ExitCode> {
    let tool = words.tool();
    let mut operands = words.operands([])?.into_iter();
    let (Some(mode), rest) = (operands.next(), operands.collect::<Vec<_>>()) else {
        bail!("too few arguments");
    };
    let snapshot = match mode.as_bytes() {
        _ if rest.is_empty() => bail!("too few arguments"),
        b"ss" => true,
        b"cp" => false,
        _ => bail!("{}: invalid checkpoint mode", mode.to_string_lossy()),
    };
    let (name, checkpoints) = match rest.len() {
        1 => (None, rest),
        _ => split_volume(rest, |operand| number::exact(operand).is_some()),
    };
    let all_done = volume::administer(name.as_deref(), |volume| {
        checkpoints.iter().try_fold(true, |all_done, checkpoint| {
            Ok(change(volume, tool, checkpoint, snapshot)? && all_done)
        })
    })?;
    Ok(if all_done { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Changes one; says so if that is not possible, and goes on.
fn change(
    volume: &dyn Administration,
    tool: &Tool,
    word: &OsString,
    snapshot: bool,
) -> anyhow::Result<bool> {
    let shown = word.to_string_lossy();
    let complaint = match number::exact(word.as_bytes()).filter(|cno| *cno < Cno::MAX.0) {
        None => "invalid checkpoint number".to_owned(),
        Some(0) => bail!("Invalid argument"),
        Some(cno) => match volume.set_snapshot(Cno(cno), snapshot) {
            Ok(()) => return Ok(true),
            Err(refusal) if refusal.reason == Reason::NoCheckpoint => "no checkpoint".to_owned(),
            Err(refusal) => refusal.message,
        },
    };
    tool.complain(format_args!("{shown}: {complaint}"));
    Ok(false)
}
