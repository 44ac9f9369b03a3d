//! One large file: written, read back, overwritten block by block.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngCore, SeedableRng};

use crate::sizes::SEED;
use crate::stage::{Sample, Stage};

const PIECE_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 4096;

/// How often the file's data are in memory at the same time: in the file system's cache, in its
/// daemon, and in the image's cache.
const COPIES_IN_MEMORY: u64 = 3;

/// Sequential write and fsync.
pub fn write(stage: &mut Stage<'_>) -> Result<Sample> {
    let file = stage.mount_fresh()?.join("large");
    let bytes = stage.sizes.file_bytes;
    stage.warm_memory(COPIES_IN_MEMORY * bytes);
    stage.timed(bytes, || fill(&file, bytes))
}

/// Sequential read of a file that is nowhere in memory.
pub fn read(stage: &mut Stage<'_>) -> Result<Sample> {
    let file = stage.mount_fresh()?.join("large");
    let bytes = stage.sizes.file_bytes;
    fill(&file, bytes)?;
    stage.cool_down()?;
    stage.warm_memory(COPIES_IN_MEMORY * bytes);
    stage.timed(bytes, || read_all(&file, bytes))
}

/// Every block of the file overwritten once, in random order, then one fsync.
pub fn overwrite(stage: &mut Stage<'_>) -> Result<Sample> {
    let path = stage.mount_fresh()?.join("large");
    let bytes = stage.sizes.file_bytes;
    fill(&path, bytes)?;
    let mut random = StdRng::seed_from_u64(SEED);
    let mut blocks: Vec<u64> = (0..bytes / BLOCK_BYTES as u64).collect();
    blocks.shuffle(&mut random);
    let data = random_bytes(BLOCK_BYTES);
    stage.warm_memory(COPIES_IN_MEMORY * bytes);
    stage.timed(blocks.len() as u64, || {
        let file = OpenOptions::new().write(true).open(&path).context("cannot open the file")?;
        for block in &blocks {
            file.write_all_at(&data, block * BLOCK_BYTES as u64).context("cannot overwrite")?;
        }
        file.sync_all().context("cannot fsync")
    })
}

/// Creates a file of `bytes`, written in order and made durable.
pub fn fill(path: &Path, bytes: u64) -> Result<()> {
    let data = random_bytes(PIECE_BYTES);
    let mut file =
        File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(PIECE_BYTES as u64);
        file.write_all(&data[..piece as usize]).context("cannot write")?;
        left -= piece;
    }
    file.sync_all().context("cannot fsync")
}

fn read_all(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut seen = 0;
    loop {
        match file.read(&mut buffer).context("cannot read")? {
            0 => break,
            count => seen += count as u64,
        }
    }
    ensure!(seen == bytes, "read {seen} bytes of a file that should have {bytes}");
    Ok(())
}

/// Data that no file system can shrink.
pub fn random_bytes(count: usize) -> Vec<u8> {
    let mut data = vec![0; count];
    StdRng::seed_from_u64(SEED).fill_bytes(&mut data);
    data
}
