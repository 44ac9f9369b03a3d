//! `nilfs checkpoints`: the past of a volume.

use std::path::PathBuf;

use nilfs_engine::CheckpointInfo;
use nilfs_ondisk::Cno;
use serde::Serialize;

use crate::image::open_volume;
use crate::output::{self, Column, Rows, exact_time, local_time};

/// List the checkpoints of a volume, oldest first
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Start with this checkpoint
    #[arg(long, value_name = "CNO", default_value_t = 1)]
    from: u64,
    /// Show at most so many
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

#[derive(Serialize)]
struct Record {
    checkpoint: u64,
    created: String,
    snapshot: bool,
    minor: bool,
    blocks: u64,
    inodes: u64,
    increment: u64,
}

/// Prints them.
pub fn run(args: Args) -> anyhow::Result<()> {
    let volume = open_volume(&args.device)?;
    let list = volume.checkpoints(Cno(args.from), args.limit.unwrap_or(usize::MAX))?;
    if args.json {
        return output::json(&list.iter().map(record).collect::<Vec<_>>());
    }
    let mut rows = Rows::new(&[
        Column::Number("CHECKPOINT"),
        Column::Text("CREATED"),
        Column::Text("KIND"),
        Column::Number("BLOCKS"),
        Column::Number("INODES"),
    ]);
    for checkpoint in &list {
        let kind = match (checkpoint.snapshot, checkpoint.minor) {
            (true, _) => "snapshot",
            (false, true) => "minor",
            (false, false) => "checkpoint",
        };
        rows.push([
            checkpoint.cno.to_string(),
            local_time(checkpoint.created as i64),
            kind.to_owned(),
            checkpoint.blocks.to_string(),
            checkpoint.inodes.to_string(),
        ]);
    }
    rows.print()
}

fn record(checkpoint: &CheckpointInfo) -> Record {
    Record {
        checkpoint: checkpoint.cno.0,
        created: exact_time(checkpoint.created as i64, 0),
        snapshot: checkpoint.snapshot,
        minor: checkpoint.minor,
        blocks: checkpoint.blocks,
        inodes: checkpoint.inodes,
        increment: checkpoint.increment,
    }
}
