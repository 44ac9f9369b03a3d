//! `nilfs defrag`: makes files of a mounted volume contiguous.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use nilfs_engine::{Defragmented, Ino};
use nilfs_ondisk::ByteCount;
use serde::Serialize;

use crate::administration::{Administration, mount_around};
use crate::control::Client;
use crate::exit::{Failure, Status, sentence};
use crate::interrupt;
use crate::output::{self, Column, Rows, counted, printable};
use crate::progress::Progress;
use crate::size;

/// Bytes of a block of `st_blocks`.
const STAT_BLOCK: u64 = 512;

/// Make files of a mounted volume contiguous
///
/// Prints in how many pieces each file was before and is now, and how much was moved for that. A large
/// file has a piece in each segment at best, and one more if it begins in the middle of one: such a file
/// is in place, and so is each that was defragmented and not changed since. Of a file that has grown,
/// only the end is moved. Snapshots and checkpoints that share the blocks share them afterwards too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs defrag /mnt/database.db
  nilfs defrag -r --budget 10G /mnt/images

A SIZE is in bytes, or has a binary unit, such as 64M.")]
pub struct Args {
    /// Move no more than this; a file that is larger than the rest of it is left alone
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    budget: Option<u64>,
    /// Also everything that is in directories
    #[arg(short, long)]
    recursive: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Files on a volume that nilfs serves
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Record {
    path: String,
    #[serde(flatten)]
    done: Option<Pieces>,
    over_budget: bool,
}

#[derive(Serialize)]
struct Pieces {
    extents_before: u64,
    extents_after: u64,
    moved_bytes: u64,
}

/// Does it, and prints what has become of each file.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mut work = Work {
        recursive: args.recursive,
        budget: args.budget.unwrap_or(u64::MAX),
        records: Vec::new(),
        failed: 0,
        progress: Progress::tally("defragmenting", "files"),
    };
    for path in &args.paths {
        work.take_named(path);
    }
    drop(work.progress);
    match args.json {
        true => output::json(&work.records)?,
        false => print(&work.records)?,
    }
    if work.failed == 0 {
        return Ok(());
    }
    let message = format!("{} could not be defragmented", counted(work.failed, "file"));
    Err(Failure::new(Status::Failed, message).into())
}

/// Takes files one by one, and counts what did not work.
struct Work {
    recursive: bool,
    /// Bytes that may still be moved.
    budget: u64,
    records: Vec<Record>,
    failed: u64,
    progress: Progress,
}

impl Work {
    /// A file that the user names: it must be one that can be defragmented.
    fn take_named(&mut self, path: &Path) {
        let look = || {
            let metadata = fs::metadata(path)?;
            if metadata.is_dir() && !self.recursive {
                bail!("is a directory; use -r to take what is in it");
            }
            if !metadata.is_dir() && !metadata.is_file() {
                bail!("is not a regular file");
            }
            if mount_around(&metadata).is_none() {
                bail!("is not on a volume that is mounted by nilfs");
            }
            Ok(metadata)
        };
        match look() {
            Ok(metadata) if metadata.is_dir() => self.take_below(path, &metadata),
            Ok(metadata) => self.take(path, &metadata),
            Err(error) => self.fail(path, &error),
        }
    }

    /// All regular files below a directory, on the same volume.
    fn take_below(&mut self, top: &Path, volume: &Metadata) {
        let mut directories = vec![top.to_owned()];
        while let Some(directory) = directories.pop() {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) => {
                    self.fail(&directory, &error.into());
                    continue;
                }
            };
            for entry in entries {
                let found = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)));
                match found {
                    Ok((_, metadata)) if metadata.dev() != volume.dev() => {}
                    Ok((path, metadata)) if metadata.is_dir() => directories.push(path),
                    Ok((path, metadata)) if metadata.is_file() => self.take(&path, &metadata),
                    Ok(_) => {}
                    Err(error) => self.fail(&directory, &error.into()),
                }
            }
        }
    }

    fn take(&mut self, path: &Path, metadata: &Metadata) {
        let shown = printable(path.as_os_str().as_bytes());
        let done = self.records.iter().filter(|record| record.done.is_some()).count() as u64;
        interrupt::explain(move || {
            format!(
                "interrupted; {} done, and the process that serves the volume goes on with {shown}; the \
                 same command again sees to the rest",
                counted(done, "file")
            )
        });
        let over_budget = metadata.blocks().saturating_mul(STAT_BLOCK) > self.budget;
        let done = match over_budget {
            true => None,
            false => match defragment(path, metadata, self.budget) {
                Ok(done) => Some(done),
                Err(error) => return self.fail(path, &error),
            },
        };
        self.budget -= done.as_ref().map_or(0, |done| done.moved_bytes).min(self.budget);
        let path = path.to_string_lossy().into_owned();
        self.records.push(Record { path, done, over_budget });
        self.count();
    }

    fn fail(&mut self, path: &Path, error: &anyhow::Error) {
        self.failed += 1;
        let path = printable(path.as_os_str().as_bytes());
        self.progress.warn(&format!("nilfs: {path}: {}", sentence(error)));
        self.count();
    }

    fn count(&self) {
        self.progress.add(1);
    }
}

/// `budget`: in bytes.
fn defragment(path: &Path, metadata: &Metadata, budget: u64) -> anyhow::Result<Pieces> {
    let client = Client::new(path);
    // What stat(2) says is the page of the kernel.
    let block = client.status()?.geometry.block_size.bytes64();
    let Defragmented { extents_before, extents_after, moved, .. } =
        client.defragment(Ino(metadata.ino()), budget / block)?;
    Ok(Pieces { extents_before, extents_after, moved_bytes: moved.saturating_mul(block) })
}

fn print(records: &[Record]) -> anyhow::Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    let columns = ["BEFORE", "AFTER", "MOVED"].map(Column::Number);
    let mut rows = Rows::new(&[columns.as_slice(), &[Column::Text("FILE")]].concat());
    for record in records {
        let path = printable(record.path.as_bytes());
        rows.push(match &record.done {
            Some(done) => [
                done.extents_before.to_string(),
                done.extents_after.to_string(),
                match done.moved_bytes {
                    0 => "in place".into(),
                    moved => ByteCount(moved).to_string(),
                },
                path,
            ],
            None => ["-".into(), "-".into(), "over budget".into(), path],
        });
    }
    rows.print()
}
