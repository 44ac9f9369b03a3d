//! `nilfs segments`: how the space of a volume is used.

use std::path::PathBuf;

use nilfs_engine::SegmentInfo;
use nilfs_ondisk::SegNum;
use serde::Serialize;

use crate::image::{device_of, open_volume};
use crate::output::{self, Column, Rows, exact_time, local_time};

/// List the segments of a volume that are in use
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs segments disk.img
  nilfs segments --all --json disk.img | jq 'map(select(.dirty)) | length'")]
pub struct Args {
    /// Show clean segments too
    #[arg(short, long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image, or any file or directory of a mounted volume; without it, the current directory
    #[arg(value_name = "DEVICE|DIR", default_value = ".", hide_default_value = true)]
    device: PathBuf,
}

#[derive(Serialize)]
struct Record {
    segment: u64,
    written: Option<String>,
    active: bool,
    dirty: bool,
    bad: bool,
    blocks: u64,
}

/// Prints them.
pub fn run(args: Args) -> anyhow::Result<()> {
    let volume = open_volume(&device_of(&args.device)?)?;
    let is_shown =
        |segment: &SegmentInfo| args.all || segment.active || segment.dirty || segment.bad;
    let mut list = volume.segments(SegNum(0))?;
    list.retain(is_shown);
    if args.json {
        return output::json_list(list.iter().map(record));
    }
    let geometry = volume.geometry();
    let mut rows = Rows::new(&[
        Column::Number("SEGMENT"),
        Column::Text("WRITTEN"),
        Column::Text("STATE"),
        Column::Number("BLOCKS"),
        Column::Number("FULL"),
    ]);
    for segment in &list {
        let written = match segment.last_modified {
            0 => "-".to_owned(),
            seconds => local_time(seconds as i64),
        };
        let number = segment.segment;
        let room = geometry.segment_end(number).0 - geometry.segment_start(number).0;
        rows.push([
            number.to_string(),
            written,
            state(segment),
            segment.blocks.to_string(),
            format!("{}%", segment.blocks * 100 / room.max(1)),
        ]);
    }
    rows.print()
}

fn state(segment: &SegmentInfo) -> String {
    let flags = [(segment.active, "active"), (segment.dirty, "in use"), (segment.bad, "bad")];
    let words: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect();
    if words.is_empty() { "clean".to_owned() } else { words.join(", ") }
}

fn record(segment: &SegmentInfo) -> Record {
    Record {
        segment: segment.segment.0,
        written: (segment.last_modified != 0).then(|| exact_time(segment.last_modified as i64, 0)),
        active: segment.active,
        dirty: segment.dirty,
        bad: segment.bad,
        blocks: segment.blocks,
    }
}
