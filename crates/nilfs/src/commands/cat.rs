//! `nilfs cat`: the content of files.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::Context;
use nilfs_ondisk::inode::FileType;

use crate::image::{Asked, ImageArgs, LastLink, find};
use crate::output::{self, printable};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// Print files of a volume
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs cat disk.img notes/todo.txt
  nilfs cat --at 17 disk.img notes/todo.txt    as it was at checkpoint 17
  nilfs cat /mnt/notes/todo.txt@yesterday")]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// The files
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

/// Prints them one after the other.
pub fn run(args: Args) -> anyhow::Result<()> {
    let asked = args.image.open(&args.paths, "cat")?;
    let mut out = output::out();
    let mut buffer = vec![0; READ_BYTES];
    for Asked { files, path } in &asked {
        let context = || printable(path.as_bytes());
        let file = find(files, path.as_bytes(), LastLink::Follow)?;
        if file.attr.file_type == FileType::Directory {
            return Err(nilfs_engine::Error::IsDirectory).with_context(context);
        }
        let mut offset = 0;
        loop {
            let count = file.read(offset, &mut buffer).with_context(context)?;
            if count == 0 {
                break;
            }
            out.write_all(&buffer[..count])?;
            offset += count as u64;
        }
    }
    Ok(())
}
