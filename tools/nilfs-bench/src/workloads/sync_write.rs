//! Small writes that must be durable one by one: logs (append) and databases (overwrite).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::large_file::{fill, random_bytes};
use crate::sizes::SEED;
use crate::stage::{Sample, Stage, settle};

const BLOCK_BYTES: usize = 4096;

#[derive(Clone, Copy)]
enum Pattern {
    Append,
    Random,
}

/// Appends by one thread.
pub fn append_1(stage: &mut Stage<'_>) -> Result<Sample> {
    sync_writes(stage, Pattern::Append, 1)
}

/// Appends by eight threads.
pub fn append_8(stage: &mut Stage<'_>) -> Result<Sample> {
    sync_writes(stage, Pattern::Append, 8)
}

/// Overwrites by one thread.
pub fn random_1(stage: &mut Stage<'_>) -> Result<Sample> {
    sync_writes(stage, Pattern::Random, 1)
}

/// Overwrites by eight threads.
pub fn random_8(stage: &mut Stage<'_>) -> Result<Sample> {
    sync_writes(stage, Pattern::Random, 8)
}

/// Every thread has a file of its own: on a shared one the kernel's inode lock would serialise
/// them, and the file system would never see two fsyncs at once.
fn sync_writes(stage: &mut Stage<'_>, pattern: Pattern, threads: u64) -> Result<Sample> {
    let root = stage.mount_fresh()?;
    let file_bytes = match pattern {
        Pattern::Append => 0,
        Pattern::Random => stage.sizes.sync_file_bytes,
    };
    for thread in 0..threads {
        fill(&root.join(thread.to_string()), file_bytes)?;
    }
    settle(&root)?;
    // Several threads share twice the work of one: enough to be measured, not eight times as long.
    let each = stage.sizes.sync_writes * threads.min(2) / threads;
    stage.timed(each * threads, || run_threads(&root, pattern, threads, each, file_bytes))
}

fn run_threads(
    root: &Path,
    pattern: Pattern,
    threads: u64,
    each: u64,
    file_bytes: u64,
) -> Result<()> {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let path = root.join(thread.to_string());
                scope.spawn(move || match pattern {
                    Pattern::Append => append(&path, each),
                    Pattern::Random => overwrite(&path, each, file_bytes, SEED + thread),
                })
            })
            .collect();
        // All are joined before any error is passed on.
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        results
            .into_iter()
            .try_for_each(|result| result.map_err(|_| anyhow!("a writing thread panicked"))?)
    })
}

fn append(path: &Path, count: u64) -> Result<()> {
    let file = open(path)?;
    let data = random_bytes(BLOCK_BYTES);
    for block in 0..count {
        write_durably(&file, &data, block)?;
    }
    Ok(())
}

fn overwrite(path: &Path, count: u64, file_bytes: u64, seed: u64) -> Result<()> {
    let file = open(path)?;
    let data = random_bytes(BLOCK_BYTES);
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..count {
        write_durably(&file, &data, random.random_range(0..file_bytes / BLOCK_BYTES as u64))?;
    }
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .write(true)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}

fn write_durably(file: &File, data: &[u8], block: u64) -> Result<()> {
    file.write_all_at(data, block * BLOCK_BYTES as u64).context("cannot write")?;
    file.sync_all().context("cannot fsync")
}
