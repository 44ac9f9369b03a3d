//! How long an fsync takes while the cleaner is busy, compared with how long it takes while it is
//! idle: on one image, in one run, with the engine in this process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use nilfs_device::{Access, Device, FileDevice};
use nilfs_engine::mkfs::{self, Parameters};
use nilfs_engine::{
    Amount, CleanerOptions, CleanerOrder, Filesystem, InodeRef, ManualRun, MountOptions, NewInode,
};

const BLOCK: usize = 4096;
/// `S_IFREG`.
const REGULAR: u16 = 0o100_000;

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// Megabytes of the volume.
    #[arg(long, default_value_t = 2048)]
    size: u64,
    /// Writes with an fsync each, in either state of the cleaner.
    #[arg(long, default_value_t = 2000)]
    writes: usize,
    /// Directory for the image [default: the directory for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    let dir = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let image = tempfile::NamedTempFile::new_in(&dir)
        .with_context(|| format!("cannot make an image in {}", dir.display()))?;
    image.as_file().set_len(options.size << 20)?;
    let device = FileDevice::open(image.path(), Access::ReadWrite)?;
    let mut parameters = Parameters::new([1; 16], 1, 1);
    parameters.discard = false;
    mkfs::format(&device, &parameters)?;
    let device: Arc<dyn Device> = Arc::new(device);
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    let fs = Filesystem::mount(device, MountOptions { cleaner, ..MountOptions::default() })?;
    let file = make(&fs, "file")?;
    spoil(&fs, options.size << 20)?;
    let threads = fs.start_background()?;
    let idle = measure(&fs, &file, options.writes, false)?;
    let busy = measure(&fs, &file, options.writes, true)?;
    drop(threads);
    fs.unmount()?;
    println!("fsync of 4 KiB   p50        p99        max");
    for (name, times) in [("cleaner idle", &idle), ("cleaner busy", &busy)] {
        println!(
            "{name}     {}",
            [0.5, 0.99, 1.0].map(|part| format!("{:9.2?}", at(times, part))).join("  ")
        );
    }
    let ratio = |part| at(&busy, part).as_secs_f64() / at(&idle, part).as_secs_f64();
    println!("busy / idle      {:8.2}x  {:8.2}x  {:8.2}x", ratio(0.5), ratio(0.99), ratio(1.0));
    Ok(())
}

/// Fills two thirds of the volume with pairs of files, and deletes one of each pair's blocks.
fn spoil(fs: &Filesystem, bytes: u64) -> Result<()> {
    let root = fs.root()?.inode;
    let count = bytes * 2 / 3 / (1 << 20);
    let content = vec![1; 1 << 19];
    for nth in 0..count {
        for kind in ["keep", "drop"] {
            fs.write(&make(fs, &format!("{kind} {nth}"))?, 0, &content)?;
        }
    }
    fs.sync()?;
    for nth in 0..count {
        fs.unlink(&root, format!("drop {nth}").as_bytes())?;
    }
    Ok(fs.sync()?)
}

fn make(fs: &Filesystem, name: &str) -> Result<InodeRef> {
    let new = NewInode { mode: REGULAR | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    Ok(fs.create(&fs.root()?.inode, name.as_bytes(), &new)?.inode)
}

/// The times of writes with an fsync each, sorted.
fn measure(fs: &Filesystem, file: &InodeRef, count: usize, busy: bool) -> Result<Vec<Duration>> {
    let freed = fs.status().cleaner.segments_freed;
    let everything = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
    let mut times = Vec::with_capacity(count);
    for nth in 0..count {
        if busy && !fs.status().run.running {
            fs.order_cleaner(CleanerOrder::Run(everything))?;
        }
        let start = Instant::now();
        fs.write(file, (nth * BLOCK) as u64, &[nth as u8; BLOCK])?;
        fs.sync_file(file)?;
        times.push(start.elapsed());
    }
    if busy && fs.status().cleaner.segments_freed == freed {
        bail!("the cleaner had nothing to do");
    }
    times.sort_unstable();
    Ok(times)
}

/// The time that so large a part of all does not exceed.
fn at(times: &[Duration], part: f64) -> Duration {
    let nth = ((times.len() as f64 * part) as usize).min(times.len() - 1);
    times[nth]
}
