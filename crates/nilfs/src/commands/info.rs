//! `nilfs info`: what kind of volume it is and how it is.

use std::path::PathBuf;

use nilfs_engine::{CheckpointTotals, Volume};
use nilfs_ondisk::ByteCount;
use nilfs_ondisk::superblock::{
    FEATURE_BLOCK_COUNT, FEATURE_ROLL_FORWARD, RawSuperblock, STATE_ERROR,
};
use serde::Serialize;
use uuid::Uuid;

use crate::image::{self, open_volume};
use crate::output::{self, Rows, exact_time, local_time, printable};

/// Show what a volume is: label, geometry, features, state, space, checkpoints
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs info disk.img
  nilfs info --json /dev/sdb1 | jq .clean_segments")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image, or any file or directory of a mounted volume; without it, the current directory
    #[arg(value_name = "DEVICE|DIR", default_value = ".", hide_default_value = true)]
    device: PathBuf,
}

#[derive(Serialize)]
struct Info {
    label: String,
    uuid: String,
    state: &'static str,
    error_seen: bool,
    features: Vec<String>,
    size_bytes: u64,
    block_bytes: u64,
    segments: u64,
    segment_bytes: u64,
    clean_segments: u64,
    reserved_segments: u64,
    newest_checkpoint: u64,
    checkpoints: u64,
    snapshots: u64,
    created: String,
    mounted: Option<String>,
    written: String,
    mount_count: u16,
    crc_seed: u32,
    #[serde(skip)]
    times: Times,
}

/// Seconds since 1970.
struct Times {
    created: u64,
    mounted: u64,
    written: u64,
}

/// Prints it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let info = gather(&open_volume(&image::device_of(&args.device)?)?)?;
    if args.json { output::json(&info) } else { print(&info) }
}

fn gather(volume: &Volume) -> anyhow::Result<Info> {
    let raw = volume.superblock().raw();
    let geometry = volume.geometry();
    let CheckpointTotals { checkpoints, snapshots, .. } = volume.checkpoint_totals()?;
    let times = Times {
        created: raw.s_ctime.get(),
        mounted: raw.s_mtime.get(),
        written: raw.s_wtime.get(),
    };
    let exact = |seconds: u64| exact_time(seconds as i64, 0);
    Ok(Info {
        label: printable(label(raw)),
        uuid: Uuid::from_bytes(raw.s_uuid).to_string(),
        state: if volume.is_clean() { "clean" } else { "mounted, or not cleanly unmounted" },
        error_seen: raw.s_state.get() & STATE_ERROR != 0,
        features: features(raw),
        size_bytes: raw.s_dev_size.get(),
        block_bytes: geometry.block_size.bytes64(),
        segments: geometry.nsegments,
        segment_bytes: geometry.segment_bytes(),
        clean_segments: volume.clean_segments()?,
        reserved_segments: geometry.reserved_segments(),
        newest_checkpoint: volume.last_log().cno.0,
        checkpoints,
        snapshots,
        created: exact(times.created),
        mounted: (times.mounted != 0).then(|| exact(times.mounted)),
        written: exact(times.written),
        mount_count: raw.s_mnt_count.get(),
        crc_seed: volume.superblock().crc_seed(),
        times,
    })
}

/// The bytes of the label.
pub fn label(raw: &RawSuperblock) -> &[u8] {
    let end = raw.s_volume_name.iter().position(|byte| *byte == 0);
    &raw.s_volume_name[..end.unwrap_or(raw.s_volume_name.len())]
}

/// The name of the feature that is on while Linux must not write the volume.
pub const ROLL_FORWARD: &str = "roll_forward";

/// The names of feature bits; unknown ones by their number.
pub fn features(raw: &RawSuperblock) -> Vec<String> {
    let classes = [
        ("compat", raw.s_feature_compat.get()),
        ("compat_ro", raw.s_feature_compat_ro.get()),
        ("incompat", raw.s_feature_incompat.get()),
    ];
    let mut names = Vec::new();
    for (class, bits) in classes {
        for bit in (0..64).filter(|bit| bits & (1 << bit) != 0) {
            names.push(match (class, 1 << bit) {
                ("compat_ro", FEATURE_BLOCK_COUNT) => "block_count".to_owned(),
                ("compat_ro", FEATURE_ROLL_FORWARD) => ROLL_FORWARD.to_owned(),
                _ => format!("{class}:{bit}"),
            });
        }
    }
    names
}

fn print(info: &Info) -> anyhow::Result<()> {
    let mut rows = Rows::properties();
    let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
    let or_none = |text: String| {
        if text.is_empty() { "none".to_owned() } else { text }
    };
    let time = |seconds: u64| local_time(seconds as i64);
    row("label", or_none(info.label.clone()));
    row("uuid", info.uuid.clone());
    let error = if info.error_seen { ", an error was seen" } else { "" };
    row("state", format!("{}{error}", info.state));
    row("features", or_none(info.features.join(" ")));
    if info.features.iter().any(|feature| feature == ROLL_FORWARD) {
        let what = "mounts it with ro,norecovery only, until nilfs has unmounted or recovered it";
        row("Linux", what.to_owned());
    }
    row("size", format!("{} ({} bytes)", ByteCount(info.size_bytes), info.size_bytes));
    row("block size", format!("{} bytes", info.block_bytes));
    row("segments", format!("{} of {}", info.segments, ByteCount(info.segment_bytes)));
    row(
        "clean segments",
        format!("{} ({} kept back)", info.clean_segments, info.reserved_segments),
    );
    row("newest checkpoint", info.newest_checkpoint.to_string());
    row("checkpoints", format!("{} ({} of them snapshots)", info.checkpoints, info.snapshots));
    row("created", time(info.times.created));
    let mounted = if info.mounted.is_some() { time(info.times.mounted) } else { "never".into() };
    row("last mounted", mounted);
    row("last written", time(info.times.written));
    row("mount count", info.mount_count.to_string());
    row("checksum seed", format!("{:#010x}", info.crc_seed));
    rows.print()
}
