//! `nilfs check`: what `nilfs fsck -n` does, under the name for those who only want to know.

use std::path::PathBuf;

use super::fsck::{Mode, Order, check_and_repair, end};

/// Check that a volume keeps the rules of the format
///
/// The same as nilfs fsck -n. Nothing is written. If the volume is mounted for writing, its newest
/// checkpoint is checked, with all before it; no space comes back on it meanwhile. The exit code is 3 if
/// an error was found.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs check disk.img
  nilfs check /dev/sdb1
  nilfs check --json disk.img | jq '.findings[] | select(.severity == \"error\")'")]
pub struct Args {
    /// Read the content of files, too, and compare all of it with the checksums of the logs
    #[arg(long)]
    scrub: bool,
    /// Show every finding; without this option, of many of one kind only some
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image, or any file or directory of a mounted volume
    #[arg(value_name = "DEVICE|DIR")]
    device: PathBuf,
}

/// Prints what is wrong, and what there is.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { scrub, verbose, json, device } = args;
    end(check_and_repair(&Order {
        mode: Mode::Check,
        scrub,
        verbose,
        json,
        force: false,
        accept: false,
        undo: None,
        progress: None,
        device,
    })?)
}
