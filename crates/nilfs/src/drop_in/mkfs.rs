//! `mkfs.nilfs2`: makes a volume. It speaks on standard error only.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use nilfs_device::{Access, Device};
use nilfs_engine::Volume;
use nilfs_engine::mkfs::{
    DEFAULT_BLOCKS_PER_SEGMENT, DEFAULT_RESERVED_PERCENT, MkfsError, Parameters, format, plan,
};
use nilfs_ondisk::BlockSize;
use nilfs_ondisk::geometry::MIN_BLOCKS_PER_SEGMENT;
use nilfs_ondisk::superblock::FEATURE_BLOCK_COUNT;

use super::words::{Word, Words};
use super::{Ended, FAILED, Tool, confirmed, nilfs_tune, number, volume};
use crate::administration;
use crate::device;
use crate::names;
use crate::output::{self, say};
use crate::progress::Progress;
use crate::signature::{self, Signature};

pub(super) const TOOL: Tool =
    Tool { name: "mkfs.nilfs2", usage: USAGE, long: &[], complaint: "Error: ", run };

const USAGE: &str = "\
Usage: mkfs.nilfs2 [-b SIZE] [-B BLOCKS] [-L LABEL] [-m PERCENT] [-O FEATURE[,...]] [-P TIME]
                   [-cfhKnqvV] DEVICE
Make a NILFS2 volume on a device or in an image file.

  -b   bytes of a block: 1024, 2048 or 4096 (default)
  -B   blocks of a segment (default: 2048)
  -c   read the whole device first
  -f   overwrite whatever is on the device
  -h   this help
  -K   do not discard the device's content
  -L   label, at most 80 bytes
  -m   percentage of segments that is kept back (default: 5)
  -n   write nothing
  -O   features: block_count (default), ^block_count, none
  -P   time of creation, in seconds since 1970
  -q   say nothing when it works
  -v   say more
  -V   the version
";

/// Bytes read at a time by -c.
const READ_BYTES: usize = 1 << 20;
/// What is overwritten at the start of a device in any case, or must stay.
const BOOT_AREA: u64 = 4096;

/// What the command line asks for.
#[derive(Debug)]
struct Options {
    block_size: i64,
    blocks_per_segment: i64,
    reserved_percent: i64,
    label: Vec<u8>,
    /// As they were given.
    features: Option<OsString>,
    created: Option<u64>,
    check: bool,
    force: bool,
    nodiscard: bool,
    dry_run: bool,
    quiet: bool,
    verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block_size: BlockSize::DEFAULT.bytes() as i64,
            blocks_per_segment: DEFAULT_BLOCKS_PER_SEGMENT.into(),
            reserved_percent: DEFAULT_RESERVED_PERCENT.into(),
            label: Vec::new(),
            features: None,
            created: None,
            check: false,
            force: false,
            nodiscard: false,
            dry_run: false,
            quiet: false,
            verbose: false,
        }
    }
}

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let tool = words.tool();
    let (options, device) = read(&mut words)?;
    match make(&device, &options) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.is::<Ended>() => Err(error),
        Err(error) => {
            // An error is shown under the version, however quiet the rest is to be.
            say!("{}", tool.version());
            match error.downcast_ref() {
                Some(MkfsError::TooSmall { size, least, .. }) => {
                    tool.complain("too small device.");
                    say!(
                        "       device size={size} bytes, required size={least} bytes.\n       \
                         Please enlarge the device, or shorten segments with -B option."
                    );
                    Err(Ended(FAILED).into())
                }
                _ => Err(error),
            }
        }
    }
}

fn read(words: &mut Words) -> anyhow::Result<(Options, PathBuf)> {
    let mut options = Options::default();
    let mut device = None;
    while let Some(word) = words.next()? {
        match word {
            Word::Option('b') => options.block_size = number::signed(&words.value()?),
            Word::Option('B') => options.blocks_per_segment = number::signed(&words.value()?),
            Word::Option('m') => options.reserved_percent = number::signed(&words.value()?),
            Word::Option('L') => options.label = nilfs_tune::label(words.value()?).into_vec(),
            Word::Option('O') => options.features = Some(words.value()?),
            Word::Option('P') => options.created = Some(number::leading(&words.value()?)),
            Word::Option('c') => options.check = true,
            Word::Option('f') => options.force = true,
            Word::Option('K') => options.nodiscard = true,
            Word::Option('n') => options.dry_run = true,
            Word::Option('q') => options.quiet = true,
            Word::Option('v') => options.verbose = true,
            Word::Option(letter) => return Err(words.invalid(letter)),
            // What follows the device is ignored: once it was the number of blocks.
            Word::Operand(operand) => drop(device.get_or_insert(PathBuf::from(operand))),
        }
    }
    match device {
        Some(device) => Ok((options, device)),
        None => {
            output::utter(USAGE);
            Err(Ended(FAILED).into())
        }
    }
}

fn make(path: &Path, options: &Options) -> anyhow::Result<()> {
    let parameters = parameters(options)?;
    let features = features(options.features.as_deref())?;
    let metadata = fs::metadata(path).map_err(|error| {
        anyhow!("cannot find {}: {}", path.display(), volume::why(&error.into()))
    })?;
    if !metadata.is_file() && !metadata.file_type().is_block_device() {
        bail!("device must be a block device or a file");
    }
    if administration::mount_of(path)?.is_some() {
        bail!(
            "{} is currently mounted. You cannot make a filesystem on this device.",
            path.display()
        );
    }
    let access = if options.dry_run { Access::Inspect } else { Access::ReadWrite };
    let device = device::open(path, access)?;
    let size = device.size();
    plan(size, &parameters)?;
    if options.check {
        say!("checking blocks");
        read_all(&device)?;
    }
    if !options.force {
        confirm(path)?;
    }
    if !options.quiet {
        say!("{}", TOOL.version());
        say!("Start writing file system initial data to the device");
        say!(
            "       Blocksize:{}  Device:{}  Device Size:{size}",
            options.block_size,
            path.display()
        );
    }
    if !options.dry_run {
        write(&device, options, &parameters, features)?;
    }
    if !options.quiet {
        say!("File system initialization succeeded !! ");
    }
    Ok(())
}

fn parameters(options: &Options) -> anyhow::Result<Parameters> {
    let created = match options.created {
        Some(created) => created,
        None => u64::try_from(jiff::Timestamp::now().as_second())?,
    };
    let block_size = match options.block_size {
        size @ (1024 | 2048 | 4096) => BlockSize::from_bytes(size as u64)?,
        size => bail!("invalid blocksize: {size}"),
    };
    let per_segment = options.blocks_per_segment;
    if per_segment < MIN_BLOCKS_PER_SEGMENT.into() {
        bail!("too few blocks per segment: {per_segment}");
    }
    let blocks_per_segment =
        u32::try_from(per_segment).ok().filter(|number| number.is_power_of_two());
    let Some(blocks_per_segment) = blocks_per_segment else {
        bail!("invalid number of blocks per segment: {per_segment}");
    };
    let reserved_percent = match options.reserved_percent {
        percent @ ..1 => bail!("too small reserved segments percentage: {percent}"),
        percent @ 1..=99 => percent as u32,
        percent => bail!("too large reserved segments percentage: {percent}"),
    };
    // The low half of a random UUID is as random as a seed has to be.
    let seed = names::new_uuid()?.as_u128() as u32;
    Ok(Parameters {
        block_size,
        blocks_per_segment,
        reserved_percent,
        label: options.label.clone(),
        // So that its outcome can be told, it is done here.
        discard: false,
        ..Parameters::new(*names::new_uuid()?.as_bytes(), seed, created)
    })
}

/// The bits of `s_feature_compat_ro` that are asked for.
fn features(word: Option<&OsStr>) -> anyhow::Result<u64> {
    let Some(word) = word else { return Ok(FEATURE_BLOCK_COUNT) };
    let switches = nilfs_tune::features(word)
        .ok_or_else(|| anyhow!("invalid feature set option: {}", word.to_string_lossy()))?;
    Ok(switches.iter().fold(FEATURE_BLOCK_COUNT, |bits, switch| switch.apply(bits)))
}

fn read_all(device: &dyn Device) -> anyhow::Result<()> {
    let progress = Progress::count("reading", "bytes");
    let mut buffer = vec![0; READ_BYTES];
    for at in (0..device.size()).step_by(READ_BYTES) {
        let piece = (device.size() - at).min(READ_BYTES as u64) as usize;
        device.read_at(at, &mut buffer[..piece]).map_err(|error| {
            anyhow!("the device cannot be read at byte {at}: {}", volume::why(&error.into()))
        })?;
        progress.set(at + piece as u64, device.size());
    }
    Ok(())
}

/// Asks before data are overwritten.
fn confirm(path: &Path) -> anyhow::Result<()> {
    let found = signature::find(path)?;
    let found = match &found[..] {
        [] => return Ok(()),
        [Signature { kind: Some(kind), is_table: false, .. }] => {
            format!("an existing {kind} superblock")
        }
        several => signature::list(several),
    };
    let path = path.display();
    let question = format!(
        "WARNING: Device {path} appears to contain {found}.\n\
         WARNING: All data will be lost after format!\n\n\
         DO YOU REALLY WANT TO FORMAT DEVICE {path}?\n\n\
         Continue? [y/N] "
    );
    if confirmed(&question)? {
        return Ok(());
    }
    say!("{}\nAbort format of device {path}", TOOL.version());
    Err(Ended(FAILED).into())
}

fn write(
    device: &dyn Device,
    options: &Options,
    parameters: &Parameters,
    features: u64,
) -> anyhow::Result<()> {
    let size = device.size();
    if !options.nodiscard {
        let discarded = device.discard(BOOT_AREA, size - BOOT_AREA);
        if options.verbose && !options.quiet {
            let outcome = if discarded.is_ok() { "succeeded" } else { "failed" };
            say!("Discard device from 0 to {size}: {outcome}.");
        }
    }
    format(device, parameters)?;
    if features != FEATURE_BLOCK_COUNT {
        Volume::change_superblocks(device, |raw| raw.s_feature_compat_ro.set(features))?;
    }
    Ok(())
}
