//! `nilfs mkfs`: makes a volume.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nilfs_device::{Access, Device, FileDevice};
use nilfs_engine::mkfs::{DEFAULT_BLOCKS_PER_SEGMENT, DEFAULT_RESERVED_PERCENT, Parameters};
use nilfs_ondisk::superblock::Superblock;
use nilfs_ondisk::{BlockSize, ByteCount};
use serde::Serialize;
use uuid::Uuid;

use crate::exit::{Failure, Status};
use crate::interrupt;
use crate::names;
use crate::output;
use crate::private;
use crate::progress::spinner;
use crate::signature;
use crate::size;
use crate::{administration, device};

/// Make a new volume on a device or in an image file
///
/// Everything on the device is lost. With the same --time, --seed, --uuid and --owner 0:0 the
/// volume is byte for byte that of mkfs.nilfs2 2.3.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs mkfs --size 4G disk.img         make an image file with a volume in it
  nilfs mkfs --label data /dev/sdb1     make a volume on a device
  nilfs mkfs -n --size 100M disk.img    only say what it would be

A SIZE is in bytes, or has a binary unit, such as 64M.")]
pub struct Args {
    /// Bytes in a block
    #[arg(short, long, value_name = "BYTES", default_value = "4096")]
    #[arg(value_parser = ["1024", "2048", "4096"])]
    block_size: String,
    /// Blocks in a segment: a power of two, at least 16
    #[arg(short = 'B', long, value_name = "N", default_value_t = DEFAULT_BLOCKS_PER_SEGMENT)]
    blocks_per_segment: u32,
    /// Percentage of the segments kept back for the cleaner: 1 to 99
    #[arg(short = 'm', long, value_name = "PERCENT", default_value_t = DEFAULT_RESERVED_PERCENT)]
    reserved: u32,
    /// Name of the volume, at most 80 bytes
    #[arg(short = 'L', long, value_name = "LABEL")]
    label: Option<OsString>,
    /// Identity of the volume; random if left out
    #[arg(short = 'U', long, value_name = "UUID", value_parser = names::parse_uuid)]
    uuid: Option<Uuid>,
    /// Create an image file of this size first, such as 512M or 4G, that only its owner may read
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Overwrite whatever is on the device
    #[arg(short, long)]
    force: bool,
    /// Only say what would be done; write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Keep unused blocks allocated: no discard, no holes
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Owner of the root directory; the user who runs the command if left out
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
    /// Time of creation in seconds since 1970; now if left out
    #[arg(long, value_name = "SECONDS")]
    time: Option<u64>,
    /// Seed of the checksums, such as 0x1f2e3d4c; random if left out
    #[arg(long, value_name = "NUMBER", value_parser = parse_seed)]
    seed: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// The volume, for programs.
#[derive(Serialize)]
struct Record {
    made: bool,
    uuid: String,
    size_bytes: u64,
    block_bytes: u64,
    segments: u64,
    segment_bytes: u64,
}

/// Makes the volume.
pub fn run(args: Args) -> anyhow::Result<()> {
    let parameters = parameters(&args)?;
    let path = &args.device;
    let exists = match fs::metadata(path) {
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(cannot("open", path, &error.to_string())),
    };
    let superblock = match args.size {
        Some(size) if !exists => in_new_image(path, size, &parameters, args.dry_run)?,
        None if !exists => {
            let hint = "No such file or directory; --size SIZE creates an image";
            return Err(cannot("open", path, hint));
        }
        wanted => on_device(&args, wanted, &parameters)?,
    };
    print(&args, &superblock)
}

/// Makes a volume on a device or image that exists.
fn on_device(
    args: &Args,
    wanted: Option<u64>,
    parameters: &Parameters,
) -> anyhow::Result<Superblock> {
    let path = &args.device;
    if let Some(mounted) = administration::mount_of(path)? {
        let (path, dir) = (path.display(), mounted.dir.display());
        let message = format!("{path} is mounted on {dir}; unmount it first");
        return Err(Failure::new(Status::Busy, message).into());
    }
    let access = if args.dry_run { Access::ReadOnly } else { Access::ReadWrite };
    let device = device::open(path, access)?;
    if let Some(wanted) = wanted.filter(|wanted| *wanted != device.size()) {
        let message = format!(
            "{} exists already and has {}, not {}; leave --size out to use it as it is",
            path.display(),
            ByteCount(device.size()),
            ByteCount(wanted)
        );
        return Err(Failure::new(Status::Refused, message).into());
    }
    let context = || path.display().to_string();
    let superblock = nilfs_engine::mkfs::plan(device.size(), parameters).with_context(context)?;
    if args.dry_run {
        return Ok(superblock);
    }
    if !args.force {
        let found = signature::find(path)?;
        if !found.is_empty() {
            confirm(path, &signature::list(&found))?;
        }
    }
    let told = path.display().to_string();
    interrupt::explain(move || {
        format!(
            "{told}: interrupted; there may be half a volume on it, which nilfs mkfs -f makes anew"
        )
    });
    // Discarding a large device takes its time.
    let _busy = spinner("writing");
    nilfs_engine::mkfs::format(&device, parameters).with_context(context)
}

/// Makes a volume in an image that does not exist yet, and no image if that fails.
fn in_new_image(
    path: &Path,
    size: u64,
    parameters: &Parameters,
    dry_run: bool,
) -> anyhow::Result<Superblock> {
    let context = || path.display().to_string();
    let superblock = nilfs_engine::mkfs::plan(size, parameters).with_context(context)?;
    if dry_run {
        return Ok(superblock);
    }
    let unfinished = path.to_owned();
    let create = || -> anyhow::Result<()> {
        private::create_new(path)
            .and_then(|image| {
                interrupt::explain(move || {
                    // If it cannot be removed, it can be seen.
                    let _ = fs::remove_file(&unfinished);
                    format!("{}: interrupted; no image was made", unfinished.display())
                });
                image.set_len(size)
            })
            .map_err(|error| cannot("create", path, &error.to_string()))?;
        let device = FileDevice::open(path, Access::ReadWrite)?;
        nilfs_engine::mkfs::format(&device, parameters).with_context(context)?;
        Ok(())
    };
    create().inspect_err(|_| {
        // It held nothing before; a failure to remove it changes nothing about the first error.
        let _ = fs::remove_file(path);
    })?;
    Ok(superblock)
}

fn parameters(args: &Args) -> anyhow::Result<Parameters> {
    let bytes = args.block_size.parse()?;
    let uuid = args.uuid.map_or_else(names::new_uuid, Ok)?;
    // The low half of a random UUID is as random as a seed has to be.
    let seed = args.seed.map_or_else(|| Ok(names::new_uuid()?.as_u128() as u32), anyhow::Ok)?;
    let time = match args.time {
        Some(time) => time,
        None => u64::try_from(jiff::Timestamp::now().as_second())
            .context("the clock stands before 1970; give --time")?,
    };
    let caller = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let label = args.label.as_ref().map(|label| label.as_bytes().to_vec());
    Ok(Parameters {
        block_size: BlockSize::from_bytes(bytes)?,
        blocks_per_segment: args.blocks_per_segment,
        reserved_percent: args.reserved,
        label: label.unwrap_or_default(),
        owner: args.owner.unwrap_or(caller),
        discard: !args.nodiscard,
        ..Parameters::new(*uuid.as_bytes(), seed, time)
    })
}

/// Asks whether data may be overwritten; without somebody to ask the answer is no.
fn confirm(path: &Path, found: &str) -> anyhow::Result<()> {
    let path = path.display();
    let refused = |message| Err(Failure::new(Status::Refused, message).into());
    if !io::stdin().is_terminal() {
        return refused(format!("{path} holds {found}; use -f to overwrite it"));
    }
    output::utter(format_args!("{path} holds {found}. Overwrite it? [y/N] "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        Ok(())
    } else {
        refused(format!("{path} was left as it is"))
    }
}

fn print(args: &Args, superblock: &Superblock) -> anyhow::Result<()> {
    let geometry = superblock.geometry();
    let size_bytes = superblock.raw().s_dev_size.get();
    let uuid = Uuid::from_bytes(superblock.raw().s_uuid);
    if args.json {
        return output::json(&Record {
            made: !args.dry_run,
            uuid: uuid.to_string(),
            size_bytes,
            block_bytes: geometry.block_size.bytes64(),
            segments: geometry.nsegments,
            segment_bytes: geometry.segment_bytes(),
        });
    }
    let verb = if args.dry_run { "would make" } else { "made" };
    writeln!(
        output::out(),
        "{verb} a NILFS2 volume on {}: {}, {} segments of {}, blocks of {} bytes, uuid {}",
        args.device.display(),
        ByteCount(size_bytes),
        geometry.nsegments,
        ByteCount(geometry.segment_bytes()),
        geometry.block_size,
        uuid
    )?;
    Ok(())
}

fn cannot(act: &str, path: &Path, why: &str) -> anyhow::Error {
    let message = format!("cannot {act} {}: {why}", path.display());
    Failure::new(Status::CannotOpen, message).into()
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').ok_or("not of the form UID:GID")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text} is not a number"));
    Ok((number(uid)?, number(gid)?))
}

fn parse_seed(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "not a number of 32 bits".to_owned())
}
