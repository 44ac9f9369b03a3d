//! `nilfs stat`: everything about a file but its content.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use nilfs_engine::Timestamp;
use nilfs_ondisk::ByteCount;
use nilfs_ondisk::inode::FileType;

use crate::image::{Asked, ImageArgs, LastLink, find};
use crate::output::{self, Rows, local_time, printable};
use crate::record::{FileRecord, device_of, mode_string};

/// Show type, size, owner, times and flags of files of a volume
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs stat disk.img photos photos/1.jpg
  nilfs stat --json disk.img / | jq -r '.[].modified'")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageArgs,
    /// The files
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

/// Prints it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let asked = args.image.open(&args.paths, "stat")?;
    let mut records = Vec::new();
    for (nth, Asked { files, path }) in asked.iter().enumerate() {
        let path = path.as_bytes();
        let found = find(files, path, LastLink::Keep)?;
        let attr = found.attr;
        if args.json {
            records.push(FileRecord::new(path, &found)?);
            continue;
        }
        if nth > 0 {
            writeln!(output::out())?;
        }
        let mut rows = Rows::properties();
        let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
        row("path", printable(path));
        if attr.file_type == FileType::Symlink {
            row("target", printable(&found.read_link()?));
        }
        row("inode", attr.ino.to_string());
        row("type", attr.file_type.in_words().to_owned());
        if let Some((major, minor)) = device_of(&attr) {
            row("device", format!("{major}, {minor}"));
        }
        row("mode", format!("{:04o} ({})", attr.mode, mode_string(&attr)));
        row("links", attr.nlink.to_string());
        row("owner", format!("{}:{}", attr.uid, attr.gid));
        row("size", format!("{} ({} bytes)", ByteCount(attr.size), attr.size));
        let stored = ByteCount(attr.blocks.saturating_mul(512));
        row("stored", format!("{stored} ({} blocks of 512 bytes)", attr.blocks));
        row("modified", precise_time(attr.mtime));
        row("changed", precise_time(attr.ctime));
        row("flags", format!("{:#x}", attr.flags));
        row("generation", attr.generation.to_string());
        rows.print()?;
    }
    if args.json { output::json(&records) } else { Ok(()) }
}

fn precise_time(time: Timestamp) -> String {
    format!("{}.{:09}", local_time(time.seconds), time.nanoseconds)
}
