//! `nilfs sync`: makes everything durable, in a checkpoint.

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

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
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Any file or directory of the mount, or the device or image; without it, the current directory
    #[arg(value_name = "DIR|DEVICE", default_value = ".", hide_default_value = true)]
    path: PathBuf,
}

#[derive(Serialize)]
struct Record {
    checkpoint: u64,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let cno = on(&args.path, Purpose::Change, |volume| Ok(volume.checkpoint(false)?))?;
    if args.json {
        return output::json(&Record { checkpoint: cno.0 });
    }
    Ok(writeln!(output::out(), "{cno}")?)
}
