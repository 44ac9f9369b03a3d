//! `nilfs ls`: directories.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use anyhow::Context;
use nilfs_ondisk::ByteCount;
use nilfs_ondisk::inode::FileType;

use crate::exit::{Failure, Status};
use crate::image::{Asked, Entry, ImageArgs, LastLink, Walk, WalkEntry, find};
use crate::output::{self, Column, Rows, local_time, printable};
use crate::record::{FileRecord, device_of, mode_string};

/// List a directory of a volume
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs ls -l disk.img photos
  nilfs ls -R --at 17 disk.img    everything as it was at checkpoint 17
  nilfs ls /mnt/photos@monday")]
pub struct Args {
    /// Show mode, links, owner, size and time
    #[arg(short, long)]
    long: bool,
    /// Go through the directories below too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageArgs,
    /// The directory, or a file
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
}

/// Prints what is in it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let (root, asked) = args.image.open_or_root(args.path.as_slice())?;
    let Asked { files, path } = match &asked[..] {
        [] => &root,
        [only] => only,
        [_, Asked { path, .. }, ..] => {
            let path = printable(path.as_bytes());
            let message = format!("{path} is one path too many; nilfs ls lists one");
            return Err(Failure::new(Status::Usage, message).into());
        }
    };
    let last = if args.long || args.json { LastLink::Keep } else { LastLink::Follow };
    let entry = find(files, path.as_bytes(), last)?;
    let found: Box<dyn Iterator<Item = WalkEntry>> = if entry.attr.file_type == FileType::Directory
    {
        Box::new(Walk::new(Rc::new(entry), args.recursive))
    } else {
        let path = path.as_bytes().to_vec();
        let entry = Ok(Rc::new(entry));
        Box::new(std::iter::once(WalkEntry { path, entry }))
    };
    let found = found.map(|WalkEntry { path, entry }| {
        let entry = entry.with_context(|| printable(&path))?;
        anyhow::Ok((path, entry))
    });
    if args.json {
        let records = found.map(|found| {
            let (path, entry) = found?;
            FileRecord::new(&path, &entry)
        });
        return output::json(&records.collect::<anyhow::Result<Vec<_>>>()?);
    }
    if args.long {
        return print_long(found);
    }
    let mut out = io::BufWriter::new(output::out());
    for found in found {
        let (path, _) = found?;
        writeln!(out, "{}", printable(&path))?;
    }
    Ok(out.flush()?)
}

fn print_long(
    found: impl Iterator<Item = anyhow::Result<(Vec<u8>, Rc<Entry>)>>,
) -> anyhow::Result<()> {
    let mut rows = Rows::new(&[
        Column::Text("MODE"),
        Column::Number("LINKS"),
        Column::Number("OWNER"),
        Column::Number("GROUP"),
        Column::Number("SIZE"),
        Column::Text("MODIFIED"),
        Column::Text("NAME"),
    ]);
    for found in found {
        let (path, entry) = found?;
        let attr = &entry.attr;
        let mut name = printable(&path);
        if attr.file_type == FileType::Symlink {
            name = format!("{name} -> {}", printable(&entry.read_link()?));
        }
        let size = match device_of(attr) {
            Some((major, minor)) => format!("{major},{minor}"),
            None => ByteCount(attr.size).to_string(),
        };
        rows.push([
            mode_string(attr),
            attr.nlink.to_string(),
            attr.uid.to_string(),
            attr.gid.to_string(),
            size,
            local_time(attr.mtime.seconds),
            name,
        ]);
    }
    rows.print()
}
