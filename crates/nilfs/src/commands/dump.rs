//! `nilfs dump`: what the logs of a segment say about their blocks, and their roll-forward records.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use nilfs_engine::{Log, Volume};
use nilfs_ondisk::roll_forward::Records;
use nilfs_ondisk::summary::{self, BlockInfo};
use nilfs_ondisk::{BlockSize, SegNum};
use serde::Serialize;

use crate::exit;
use crate::image::{device_of, open_volume};
use crate::output::{self, exact_time, local_time};
use crate::roll_forward::Shown;

/// Show the logs of segments: every block, whose it is and where
///
/// A log that an fsync has written without a checkpoint has roll-forward records: what has changed
/// besides blocks. Logs are shown as far as their summaries are valid; after the last one that counts
/// there may be stale ones.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs dump disk.img 0
  nilfs dump --json disk.img 0 1")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image, or any file or directory of a mounted volume
    #[arg(value_name = "DEVICE|DIR")]
    device: PathBuf,
    /// The segments
    #[arg(value_name = "SEGMENT", required = true)]
    segments: Vec<u64>,
}

#[derive(Serialize)]
struct SegmentRecord {
    segment: u64,
    logs: Vec<LogRecord>,
}

#[derive(Serialize)]
struct LogRecord {
    block: u64,
    blocks: u32,
    sequence: u64,
    next_segment: u64,
    checkpoint: u64,
    #[serde(skip)]
    create: u64,
    created: String,
    flags: Vec<&'static str>,
    files: Vec<FileRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    roll_forward: Option<RollForward>,
    /// Where the logs begin of which it has copies of the summaries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    summary_copies: Vec<u64>,
}

/// The roll-forward records of a log.
#[derive(Serialize)]
#[serde(untagged)]
enum RollForward {
    Records {
        base_checkpoint: u64,
        number: u64,
        records: Vec<Shown>,
    },
    /// They are of a newer version, or damaged.
    Unreadable {
        error: String,
    },
}

#[derive(Serialize)]
struct FileRecord {
    inode: u64,
    checkpoint: u64,
    blocks: Vec<BlockRecord>,
}

#[derive(Serialize, Default)]
struct BlockRecord {
    block: u64,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    virtual_block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u8>,
}

/// Prints them.
pub fn run(args: Args) -> anyhow::Result<()> {
    let volume = open_volume(&device_of(&args.device)?)?;
    let segments: Vec<_> = args
        .segments
        .iter()
        .map(|segment| gather(&volume, SegNum(*segment)))
        .collect::<anyhow::Result<_>>()?;
    if args.json {
        return output::json(&segments);
    }
    let mut out = io::BufWriter::new(output::out());
    for segment in &segments {
        print(&mut out, segment)?;
    }
    Ok(out.flush()?)
}

fn gather(volume: &Volume, segment: SegNum) -> anyhow::Result<SegmentRecord> {
    let geometry = volume.geometry();
    let logs = volume.logs(segment).with_context(|| format!("segment {segment}"))?;
    let per_segment = u64::from(geometry.blocks_per_segment);
    let logs = logs.iter().map(|log| log_record(log, geometry.block_size, per_segment));
    Ok(SegmentRecord { segment: segment.0, logs: logs.collect() })
}

fn log_record(log: &Log, block_size: BlockSize, blocks_per_segment: u64) -> LogRecord {
    let header = &log.header;
    let mut block = log.start.0 + header.summary_blocks(block_size);
    let files = log.files.iter().map(|file| FileRecord {
        inode: file.ino.0,
        checkpoint: file.cno.0,
        blocks: file
            .blocks
            .iter()
            .map(|info| {
                block += 1;
                block_record(block - 1, info)
            })
            .collect(),
    });
    let files = files.collect();
    let names = [
        (summary::LOGBGN, "begin"),
        (summary::LOGEND, "end"),
        (summary::SR, "super-root"),
        (summary::SYNDT, "data-sync"),
        (summary::GC, "cleaner"),
    ];
    let set = names.iter().filter(|(flag, _)| header.has(*flag));
    LogRecord {
        block: log.start.0,
        blocks: header.nblocks,
        sequence: header.seq.0,
        next_segment: header.next.0 / blocks_per_segment,
        checkpoint: header.cno.0,
        create: header.create,
        created: exact_time(header.create as i64, 0),
        flags: set.map(|(_, name)| *name).collect(),
        files,
        roll_forward: roll_forward(log),
        summary_copies: log.summary_copies().iter().map(|copy| copy.start.0).collect(),
    }
}

fn roll_forward(log: &Log) -> Option<RollForward> {
    Some(match log.records().transpose()? {
        Ok(Records { base, number, records, .. }) => RollForward::Records {
            base_checkpoint: base.0,
            number,
            records: records.into_iter().map(Shown).collect(),
        },
        Err(error) => RollForward::Unreadable { error: exit::sentence(&error.into()) },
    })
}

fn block_record(block: u64, info: &BlockInfo) -> BlockRecord {
    match info {
        BlockInfo::Data { vblocknr, offset } => BlockRecord {
            block,
            kind: "data",
            virtual_block: Some(vblocknr.0),
            offset: Some(offset.0),
            ..Default::default()
        },
        BlockInfo::Node { vblocknr } => BlockRecord {
            block,
            kind: "node",
            virtual_block: Some(vblocknr.0),
            ..Default::default()
        },
        BlockInfo::DatData { offset } => {
            BlockRecord { block, kind: "data", offset: Some(offset.0), ..Default::default() }
        }
        BlockInfo::DatNode { key, level } => BlockRecord {
            block,
            kind: "node",
            key: Some(*key),
            level: Some(*level),
            ..Default::default()
        },
    }
}

fn print(out: &mut impl Write, segment: &SegmentRecord) -> io::Result<()> {
    writeln!(out, "segment {}", segment.segment)?;
    for log in &segment.logs {
        writeln!(
            out,
            "  log at block {}: {} blocks, checkpoint {}, {}, sequence {}, next segment {}, {}",
            log.block,
            log.blocks,
            log.checkpoint,
            local_time(log.create as i64),
            log.sequence,
            log.next_segment,
            if log.flags.is_empty() { "no flags".to_owned() } else { log.flags.join(" ") },
        )?;
        for file in &log.files {
            let count = file.blocks.len();
            writeln!(
                out,
                "    inode {}, checkpoint {}: {count} block{}",
                file.inode,
                file.checkpoint,
                if count == 1 { "" } else { "s" }
            )?;
            for block in &file.blocks {
                write!(out, "      {}  {}", block.block, block.kind)?;
                let properties = [
                    ("offset", block.offset),
                    ("virtual", block.virtual_block),
                    ("key", block.key),
                    ("level", block.level.map(u64::from)),
                ];
                for (name, value) in properties {
                    if let Some(value) = value {
                        write!(out, "  {name} {value}")?;
                    }
                }
                writeln!(out)?;
            }
        }
        print_records(out, log.roll_forward.as_ref())?;
        if !log.summary_copies.is_empty() {
            let starts: Vec<String> = log.summary_copies.iter().map(u64::to_string).collect();
            writeln!(out, "    copies of summaries: of logs at block {}", starts.join(", "))?;
        }
    }
    Ok(())
}

fn print_records(out: &mut impl Write, roll_forward: Option<&RollForward>) -> io::Result<()> {
    match roll_forward {
        None => Ok(()),
        Some(RollForward::Unreadable { error }) => writeln!(out, "    {error}"),
        Some(RollForward::Records { base_checkpoint, number, records }) => {
            writeln!(out, "    records, number {number} after checkpoint {base_checkpoint}")?;
            records.iter().try_for_each(|record| writeln!(out, "      {record}"))
        }
    }
}
