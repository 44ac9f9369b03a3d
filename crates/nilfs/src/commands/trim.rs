//! `nilfs trim`: tells the device which segments hold nothing.

use std::io::Write;
use std::path::PathBuf;

use nilfs_ondisk::ByteCount;
use serde::Serialize;

use crate::administration::{Purpose, on};
use crate::interrupt;
use crate::output;
use crate::size;

/// Tell the device which segments are clean, so that it can use them itself
///
/// Flash lives longer with it, and thin volumes and sparse images give the space back. A mount with
/// -o discard does it all the time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs trim /mnt
  nilfs trim --from 1G --to 2G --minimum 64M disk.img

A SIZE is in bytes, or has a binary unit, such as 64M.")]
pub struct Args {
    /// Begin at this byte of the volume
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "0")]
    from: u64,
    /// End at this byte of the volume, instead of its end
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    to: Option<u64>,
    /// Leave shorter runs alone
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "0")]
    minimum: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Any file or directory of the mount, or the device or image
    #[arg(value_name = "DIR|DEVICE")]
    path: PathBuf,
}

#[derive(Serialize)]
struct Record {
    trimmed_bytes: u64,
}

/// Does it, and prints how much it was.
pub fn run(args: Args) -> anyhow::Result<()> {
    let to = args.to.unwrap_or(u64::MAX);
    let trimmed_bytes = on(&args.path, Purpose::Change, |volume| {
        let (path, is_served) = (args.path.display().to_string(), volume.is_served());
        interrupt::explain(move || {
            let goes_on = match is_served {
                true => "the process that serves the volume goes on with the trim",
                false => "what was trimmed stays so",
            };
            format!("{path}: interrupted; {goes_on}, and it may be done again")
        });
        Ok(volume.trim(args.from, to, args.minimum)?)
    })?;
    if args.json {
        return output::json(&Record { trimmed_bytes });
    }
    Ok(writeln!(output::out(), "{} trimmed", ByteCount(trimmed_bytes))?)
}
