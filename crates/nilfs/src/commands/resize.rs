//! `nilfs resize`: gives a volume another size.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use nilfs_device::{Access, Device, FileDevice};
use nilfs_engine::{ResizeProgress, Status, Volume};
use nilfs_ondisk::ByteCount;
use serde::Serialize;

use crate::administration::{Administration, Purpose, Reason, Refusal, Target, on};
use crate::exit::{Failure, Status as ExitStatus};
use crate::interrupt;
use crate::output;
use crate::progress::Progress;
use crate::signature::OnVolume;
use crate::size::Change;

/// Make a volume larger or smaller, also while it is mounted
///
/// To enlarge, make the partition larger first; an image file grows by itself. To shrink, this
/// comes first and the partition follows; an image file shrinks by itself. What lies beyond the new
/// end is moved first. Interrupted, a resize of a mounted volume goes on in the mount; another one
/// leaves the volume as large as it was, or as it should be.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs resize /mnt              use the whole device
  nilfs resize /dev/sdb1 200G    make it 200 GiB, mounted or not
  nilfs resize -v disk.img 512M
  nilfs resize disk.img +500M    make it 500 MiB larger
  nilfs resize /mnt -1G          make it 1 GiB smaller

A SIZE is in bytes, or has a binary unit, such as 64M. With a sign, it is added to the size of the
volume, or taken from it.")]
pub struct Args {
    /// Say what was done in detail
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Any file or directory of the mount, or the device or image
    #[arg(value_name = "DIR|DEVICE")]
    path: PathBuf,
    /// The new size, instead of that of the device; with a sign, the change of the size
    #[arg(value_parser = Change::parse, allow_hyphen_values = true)]
    size: Option<Change>,
}

#[derive(Serialize)]
struct Record {
    size_bytes: u64,
    segments_before: u64,
    segments: u64,
    segment_bytes: u64,
    clean_segments: u64,
    segments_emptied: u64,
}

/// What the volume lies on.
struct Sizes {
    /// Of the device or image.
    bytes: u64,
    /// Of the volume on it.
    volume_bytes: u64,
    is_block_device: bool,
}

/// Does it, and prints what has become of the volume.
pub fn run(args: Args) -> anyhow::Result<()> {
    let place = Sizes::of(Target::find(&args.path)?.device())?;
    let bytes = place.wanted(args.size).with_context(|| args.path.display().to_string())?;
    if place.is_block_device && bytes > place.bytes {
        let message = format!(
            "{}: the device has {} ({} bytes), not {}; make it larger first",
            args.path.display(),
            ByteCount(place.bytes),
            place.bytes,
            ByteCount(bytes)
        );
        return Err(Failure::new(ExitStatus::Failed, message).into());
    }
    let record = on(&args.path, Purpose::Change, |volume| resize(volume, &args.path, bytes))?;
    if args.json {
        return output::json(&record);
    }
    let mut out = output::out();
    print(&mut out, &record, args.verbose)?;
    if place.is_block_device && bytes < place.bytes {
        writeln!(out, "the partition can be made smaller now, but keep {bytes} bytes of it")?;
    }
    Ok(())
}

impl Sizes {
    fn of(device: &Path) -> anyhow::Result<Self> {
        let opened = FileDevice::open(device, Access::Inspect)?;
        let superblocks = Volume::superblocks(&opened).on_volume(device)?;
        let is_block_device = fs::metadata(device)?.file_type().is_block_device();
        let volume_bytes = superblocks.best.raw().s_dev_size.get();
        Ok(Self { bytes: opened.size(), volume_bytes, is_block_device })
    }

    /// The size that the volume shall have, in bytes.
    fn wanted(&self, change: Option<Change>) -> anyhow::Result<u64> {
        let Some(change) = change else { return Ok(self.bytes) };
        let volume = ByteCount(self.volume_bytes);
        change.apply(self.volume_bytes).with_context(|| match change {
            Change::Shrink(by) => format!("the volume has {volume}, less than {}", ByteCount(by)),
            _ => format!("the volume has {volume}, and no file can be as large as asked"),
        })
    }
}

fn resize(volume: &dyn Administration, path: &Path, bytes: u64) -> anyhow::Result<Record> {
    let before = volume.status()?;
    let (path, is_served) = (path.display().to_string(), volume.is_served());
    interrupt::explain(move || match is_served {
        true => format!(
            "{path}: interrupted; the process that serves the volume goes on with the resize, and the \
             same command again waits for it"
        ),
        false => format!(
            "{path}: interrupted; the volume is as large as it was, or as it should be; the same \
             command again goes on"
        ),
    });
    let mut last = ResizeProgress::default();
    let bar = Progress::count("emptying", "segments");
    let done = volume.resize(bytes, &mut |progress| {
        last = progress;
        bar.set(progress.emptied, progress.to_empty);
    });
    drop(bar);
    done.map_err(|refusal| in_bytes(refusal, &before))?;
    let after = volume.status()?;
    Ok(Record {
        size_bytes: bytes,
        segments_before: before.geometry.nsegments,
        segments: after.geometry.nsegments,
        segment_bytes: after.geometry.segment_bytes(),
        clean_segments: after.clean_segments,
        // The last ones may have been emptied since somebody looked.
        segments_emptied: last.to_empty,
    })
}

/// Says how much is missing in a measure that one can act on.
fn in_bytes(refusal: Refusal, status: &Status) -> anyhow::Error {
    match refusal.reason {
        Reason::NoRoomToShrink { segments } => {
            let missing = segments.saturating_mul(status.geometry.segment_bytes());
            anyhow!("{refusal} ({}); nilfs df shows what takes the space", ByteCount(missing))
        }
        _ => refusal.into(),
    }
}

fn print(out: &mut impl Write, record: &Record, verbose: bool) -> io::Result<()> {
    let Record { segments_before: before, segments: after, .. } = *record;
    let each = ByteCount(record.segment_bytes);
    match before == after {
        true => writeln!(out, "{after} segments of {each}, as before")?,
        false => writeln!(out, "{after} segments of {each}, {before} before")?,
    }
    if verbose {
        writeln!(out, "{} had to be emptied", record.segments_emptied)?;
        writeln!(out, "{} are clean", record.clean_segments)?;
    }
    Ok(())
}
