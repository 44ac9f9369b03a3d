//! `nilfs image`: the metadata of a volume as a file.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use nilfs_device::{Access, Device};
use nilfs_engine::metadata_image;
use nilfs_ondisk::ByteCount;
use serde::Serialize;

use super::salvage::lies_on;
use crate::device;
use crate::exit::{Failure, Status};
use crate::interrupt;
use crate::output;
use crate::progress::scan_progress;
use crate::signature::OnVolume;

/// Copy the metadata of a volume to a sparse image, for a bug report
///
/// The image has everything but the content of files, which is zeros in it, and what fsync has recorded
/// since the newest checkpoint, which is left out: a checker finds in it what it finds on the volume,
/// but for damage of these records. Names, the targets of symbolic links and the notes of snapshots are
/// in it for everybody to read, unless they are scrambled: then each name becomes another one of the
/// same length, wherever it occurs, and the notes are left out. Nothing is written to the volume.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs image /dev/sdb1 metadata.img
  nilfs image disk.img metadata.img && nilfs check metadata.img
  nilfs image --scramble /dev/sdb1 metadata.img
  tar -cSf - metadata.img | zstd > metadata.tar.zst    a small file of it")]
pub struct Args {
    /// Put other names in the place of those of files, links and the volume, and leave out those of
    /// snapshots
    #[arg(long)]
    scramble: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// A new file, as large as the device, of which only metadata take room
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Record of what became of the bytes of the device that are in use.
#[derive(Serialize)]
struct Record {
    metadata_bytes: u64,
    omitted_bytes: u64,
}

/// Copies it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (path, file) = (args.device.display(), args.file.display());
    let refused =
        |why: &str| anyhow::Error::from(Failure::new(Status::Refused, format!("{file} {why}")));
    let device: Arc<dyn Device> = Arc::new(device::open(&args.device, Access::ReadOnly)?);
    if fs::symlink_metadata(&args.file).is_ok() {
        return Err(refused("is there already; name a new file"));
    }
    let directory = args.file.parent().filter(|directory| *directory != Path::new(""));
    let directory = directory.unwrap_or(Path::new("."));
    if lies_on(directory, &args.device)? {
        return Err(refused("lies on the volume that is to be copied; name another place"));
    }
    let image = tempfile::Builder::new().prefix(".nilfs-image-").tempfile_in(directory);
    let image = image.with_context(|| directory.display().to_string())?;
    let (told, unfinished) = (path.to_string(), image.path().to_owned());
    interrupt::explain(move || {
        // If it cannot be removed, it can be seen.
        let _ = fs::remove_file(&unfinished);
        format!("{told}: interrupted; no image was made")
    });
    image.as_file().set_len(device.size()).with_context(|| file.to_string())?;
    let mut write = |place, bytes: &[u8]| match bytes.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => image.as_file().write_all_at(bytes, place),
    };
    let progress = scan_progress("reading the device", device.size());
    let copied = metadata_image::copy(&device, args.scramble, &mut write, &*progress)
        .with_context(|| format!("to {file}"))
        .on_volume(&args.device)?;
    drop(progress);
    image.persist_noclobber(&args.file).map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => refused("is there already; name a new file"),
        _ => anyhow::Error::from(error.error).context(file.to_string()),
    })?;
    if args.json {
        let (metadata_bytes, omitted_bytes) = (copied.kept, copied.dropped);
        return output::json(&Record { metadata_bytes, omitted_bytes });
    }
    let (kept, dropped) = (ByteCount(copied.kept), ByteCount(copied.dropped));
    Ok(writeln!(output::out(), "{file}: {kept} of metadata; {dropped} of content left out")?)
}
