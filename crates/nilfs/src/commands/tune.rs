//! `nilfs tune`: fields of the superblocks that may change while a volume is not mounted.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use nilfs_device::{Access, Device, FileDevice};
use nilfs_engine::Volume;
use nilfs_engine::mkfs::LABEL_MAX;
use nilfs_ondisk::superblock::{FEATURE_BLOCK_COUNT, RawSuperblock, STATE_ERROR};
use serde::Serialize;
use uuid::Uuid;

use crate::administration;
use crate::commands::info::{ROLL_FORWARD, features, label};
use crate::exit::{Failure, Status};
use crate::interrupt;
use crate::names;
use crate::output::{self, Rows, printable};
use crate::signature::{OnVolume, refuse_displaced};
use crate::{config, device};

/// Change label, identity and other settings of a volume that is not mounted
///
/// Both superblocks are changed, one after the other, so that the power may fail at any time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs tune --list disk.img
  nilfs tune -L photos -i 30 disk.img

A PERIOD is in seconds, or has units, such as 1m30s.")]
pub struct Args {
    /// Show the settings, after the changes if there are any
    #[arg(short, long)]
    list: bool,
    /// Change a volume although Linux has it mounted; never one that nilfs has mounted
    #[arg(short, long)]
    force: bool,
    /// Print JSON; implies --list
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    changes: Changes,
    /// The device or image
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// What is to be changed.
#[derive(Debug, Default, clap::Args)]
pub struct Changes {
    /// Time between checkpoints that are made without being asked for, such as 30 or 1m; 0: the
    /// default
    #[arg(short = 'i', long = "interval", value_name = "PERIOD", value_parser = whole_seconds)]
    pub interval: Option<u32>,
    /// Changed blocks after which Linux makes a checkpoint; 0: its default
    #[arg(short = 'm', long = "block-max", value_name = "BLOCKS")]
    pub block_max: Option<u32>,
    /// Name of the volume, at most 80 bytes
    #[arg(short = 'L', long = "label", value_name = "LABEL")]
    pub label: Option<OsString>,
    /// Switch features on, or off with a ^ before; block_count is the only one; none: all off
    #[arg(short = 'O', long = "features", value_name = "[^]FEATURE", value_delimiter = ',')]
    #[arg(value_parser = FeatureSwitch::parse)]
    pub features: Vec<FeatureSwitch>,
    /// Identity of the volume
    #[arg(short = 'U', long = "uuid", value_name = "UUID", value_parser = names::parse_uuid)]
    pub uuid: Option<Uuid>,
    /// Forget that an error was seen; check the volume first
    #[arg(long)]
    pub clear_error: bool,
}

/// What is to become of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureSwitch {
    /// All features off.
    None,
    /// The block and inode counters of checkpoints can be trusted, or not.
    BlockCount(bool),
}

impl FeatureSwitch {
    /// Reads one.
    pub fn parse(word: &str) -> Result<Self, String> {
        match word {
            "none" => Ok(Self::None),
            "block_count" => Ok(Self::BlockCount(true)),
            "^block_count" => Ok(Self::BlockCount(false)),
            _ if word.trim_start_matches('^') == ROLL_FORWARD => {
                Err("it is on while it is needed; nilfs recover switches it off".to_owned())
            }
            _ => Err("not a feature that can be switched; block_count is".to_owned()),
        }
    }

    /// The bits of `s_feature_compat_ro` after it.
    pub fn apply(self, bits: u64) -> u64 {
        match self {
            Self::BlockCount(true) => bits | FEATURE_BLOCK_COUNT,
            Self::None | Self::BlockCount(false) => bits & !FEATURE_BLOCK_COUNT,
        }
    }
}

impl Changes {
    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        let Self { interval, block_max, label, features, uuid, clear_error } = self;
        interval.is_none()
            && block_max.is_none()
            && label.is_none()
            && features.is_empty()
            && uuid.is_none()
            && !clear_error
    }

    /// Makes them on the device.
    pub fn apply(&self, device: &dyn Device) -> anyhow::Result<()> {
        let length = self.label.as_ref().map_or(0, |label| label.len());
        ensure!(
            length <= LABEL_MAX,
            Failure::new(
                Status::Usage,
                format!("the label has {length} bytes, but at most {LABEL_MAX} fit")
            )
        );
        if self.are_none() {
            return Ok(());
        }
        Ok(Volume::change_superblocks(device, |raw| self.apply_to(raw))?)
    }

    fn apply_to(&self, raw: &mut RawSuperblock) {
        if let Some(seconds) = self.interval {
            raw.s_c_interval.set(seconds);
        }
        if let Some(blocks) = self.block_max {
            raw.s_c_block_max.set(blocks);
        }
        if let Some(label) = &self.label {
            raw.s_volume_name = [0; LABEL_MAX];
            raw.s_volume_name[..label.len()].copy_from_slice(label.as_bytes());
        }
        for switch in &self.features {
            raw.s_feature_compat_ro.set(switch.apply(raw.s_feature_compat_ro.get()));
        }
        if let Some(uuid) = self.uuid {
            raw.s_uuid = *uuid.as_bytes();
        }
        if self.clear_error {
            raw.s_state.set(raw.s_state.get() & !STATE_ERROR);
        }
    }
}

/// A time as the superblock has it.
fn whole_seconds(text: &str) -> Result<u32, String> {
    let time = config::interval(text)?;
    let seconds = u32::try_from(time.as_secs()).ok().filter(|_| time.subsec_nanos() == 0);
    seconds.ok_or_else(|| format!("expected whole seconds, at most {}", u32::MAX))
}

#[derive(Serialize)]
struct Record {
    label: String,
    uuid: String,
    features: Vec<String>,
    error_seen: bool,
    interval_seconds: u32,
    block_max: u32,
}

/// Makes the changes and shows what there is then.
pub fn run(args: Args) -> anyhow::Result<()> {
    let list = args.list || args.json;
    if args.changes.are_none() && !list {
        let message = "nothing is to be changed or shown; see nilfs tune --help";
        return Err(Failure::new(Status::Usage, message).into());
    }
    if !args.changes.are_none() {
        let device = open_to_change(&args.device, args.force)?;
        let told = args.device.display().to_string();
        interrupt::explain(move || {
            format!("{told}: interrupted; the same command again changes both superblocks")
        });
        args.changes.apply(&device).on_volume(&args.device)?;
    }
    if !list {
        return Ok(());
    }
    let device = FileDevice::open(&args.device, Access::Inspect)?;
    let superblocks = Volume::superblocks(&device).on_volume(&args.device)?;
    let record = record(superblocks.best.raw());
    if args.json { output::json(&record) } else { print(record) }
}

/// Opens a device with a volume that is to be changed.
pub fn open_to_change(path: &Path, force: bool) -> anyhow::Result<FileDevice> {
    let device = open_unmounted(path, force)?;
    refuse_displaced(path, &device)?;
    Ok(device)
}

/// Opens a device to write to it, whatever it holds.
pub fn open_unmounted(path: &Path, force: bool) -> anyhow::Result<FileDevice> {
    if !force && let Some(mounted) = administration::mount_of(path)? {
        let (path, dir) = (path.display(), mounted.dir.display());
        let message = format!("{path} is mounted on {dir}; unmount it first");
        return Err(Failure::new(Status::Busy, message).into());
    }
    let access = if force { Access::Forced } else { Access::ReadWrite };
    device::open(path, access)
}

fn record(raw: &RawSuperblock) -> Record {
    Record {
        label: printable(label(raw)),
        uuid: Uuid::from_bytes(raw.s_uuid).to_string(),
        features: features(raw),
        error_seen: raw.s_state.get() & STATE_ERROR != 0,
        interval_seconds: raw.s_c_interval.get(),
        block_max: raw.s_c_block_max.get(),
    }
}

fn print(record: Record) -> anyhow::Result<()> {
    let or = |text: String, empty: &str| if text.is_empty() { empty.to_owned() } else { text };
    let unless_zero = |number: u32, unit: &str| match number {
        0 => "default of Linux".to_owned(),
        _ => format!("{number} {unit}"),
    };
    let mut rows = Rows::properties();
    let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
    row("label", or(record.label, "none"));
    row("uuid", record.uuid);
    row("features", or(record.features.join(" "), "none"));
    row("error seen", if record.error_seen { "yes" } else { "no" }.to_owned());
    row("interval", unless_zero(record.interval_seconds, "s"));
    row("block max", unless_zero(record.block_max, "blocks"));
    rows.print()
}
