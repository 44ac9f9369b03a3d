//! `nilfs sync`: makes everything durable, in a checkpoint.

use std::io::Write;
use std::path::PathBuf;

use crate::administration::{Purpose, on};
use crate::output;

/// Make everything that was written so far durable, in a checkpoint, and print its number
///
/// Everybody may do it, on every kernel; sync(1) reaches only some mounts. If nothing has changed
/// since the newest checkpoint, no other is made. An fsync needs less: a file is durable after it,
/// but it makes no checkpoint to come back to.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs sync /mnt
  S=$(nilfs sync /mnt); nilfs diff $S /mnt")]
pub struct Args {
    /// Any file or directory of the mount, or the device or image
    #[arg(value_name = "DIR|DEVICE")]
    path: PathBuf,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let cno = on(&args.path, Purpose::Change, |volume| Ok(volume.checkpoint(false)?))?;
    Ok(writeln!(output::out(), "{cno}")?)
}
