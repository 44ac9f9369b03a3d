//! What a workload is handed: a volume of one file system, a clock, and nothing of the others.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::Advice;

use crate::command;
use crate::file_systems::FileSystem;
use crate::fixtures::Fixtures;
use crate::mount::Mount;
use crate::service::Service;
use crate::sizes::Sizes;

/// Seconds that everything takes: a clock that did not move must not make an infinite rate.
pub const SHORTEST_TIME: f64 = 1e-9;

/// One measurement: an amount of work, in the unit of its workload, and the time that it took.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Work done, in the unit of the workload.
    pub amount: u64,
    /// The time that it took.
    pub elapsed: Duration,
    /// The time that its reads of the image take on their own, where that was measured.
    pub reads: Option<Duration>,
    /// What the process that serves the mount has done, where there is one.
    pub service: Option<Service>,
}

impl Sample {
    /// Work per second.
    pub fn rate(&self) -> f64 {
        self.amount as f64 / self.elapsed.as_secs_f64().max(SHORTEST_TIME)
    }
}

/// The place where one workload runs once on one file system.
pub struct Stage<'a> {
    /// The file system under test.
    pub system: &'a dyn FileSystem,
    /// The amounts of work.
    pub sizes: &'a Sizes,
    /// Material made once per execution.
    pub fixtures: &'a Fixtures,
    /// The archive of the kernel's source, if the user named one.
    pub kernel_source: Option<&'a Path>,
    copy: PathBuf,
    root: PathBuf,
    mount: Option<Mount>,
}

impl<'a> Stage<'a> {
    /// A stage in `dir`, which must be empty but for the fixtures. Nothing is mounted yet.
    pub fn new(
        dir: &Path,
        system: &'a dyn FileSystem,
        sizes: &'a Sizes,
        fixtures: &'a Fixtures,
        kernel_source: Option<&'a Path>,
    ) -> Result<Self> {
        let root = dir.join("mnt");
        std::fs::create_dir_all(&root)
            .with_context(|| format!("cannot create {}", root.display()))?;
        let copy = dir.join("copy.img");
        Ok(Self { system, sizes, fixtures, kernel_source, copy, root, mount: None })
    }

    /// Where volumes are mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Formats and mounts a volume; returns the directory where it is mounted.
    pub fn mount_fresh(&mut self) -> Result<PathBuf> {
        let image = self.image()?;
        self.system.format(&image)?;
        self.mount = Some(self.system.mount_by_child(&image, &self.root)?);
        Ok(self.root.clone())
    }

    /// The image that all fresh volumes lie on, each over the one before. All its blocks are
    /// allocated, as those of a device are: in a sparse file, every block that is written for the
    /// first time costs a change of the host's metadata, which a log-structured file system would
    /// pay at each fsync and no device asks for.
    fn image(&self) -> Result<PathBuf> {
        let bytes = self.sizes.volume_bytes;
        self.fixtures.get("volume.img", |path| write_zeros(path, bytes))
    }

    /// A copy of a prepared image, with the same holes; it goes away with the stage.
    pub fn copy_of(&self, prepared: &Path) -> Result<PathBuf> {
        let mut copy = Command::new("cp");
        command::run(copy.arg("--sparse=always").arg(prepared).arg(&self.copy))?;
        Ok(self.copy.clone())
    }

    /// Mounts an image with nothing of it in memory, and times that.
    pub fn time_mount_of(&mut self, image: &Path) -> Result<Sample> {
        forget(image)?;
        let start = Instant::now();
        self.mount = Some(self.system.mount(image, &self.root)?);
        Ok(Sample { amount: 1, elapsed: start.elapsed(), reads: None, service: None })
    }

    /// Forgets all that is in memory: the next read comes from the device.
    pub fn cool_down(&mut self) -> Result<()> {
        if self.system.persistent() {
            if let Some(mount) = self.mount.take() {
                mount.unmount()?;
            }
            self.mount = Some(self.system.mount_by_child(&self.image()?, &self.root)?);
        }
        drop_caches()
    }

    /// Makes the machine have `bytes` of memory at hand. A virtual machine's memory is often
    /// backed only when it is first touched, at some milliseconds for each MiB, and taken back
    /// soon after it was freed; without this, a run with much data would mostly time that. More
    /// than is free is not touched: what is in use is backed already.
    pub fn warm_memory(&self, bytes: u64) {
        let system = rustix::system::sysinfo();
        let free = system.freeram * u64::from(system.mem_unit);
        // Some is left to whatever needs it at this moment.
        let bytes = bytes.min(free / 4 * 3);
        drop(black_box(vec![1_u8; bytes as usize]));
    }

    /// Times `work`, which does `amount` of the workload's unit. What others still had to write
    /// is written before the clock starts.
    pub fn timed(&self, amount: u64, work: impl FnOnce() -> Result<()>) -> Result<Sample> {
        rustix::fs::sync();
        let before = self.service()?;
        let start = Instant::now();
        work()?;
        let elapsed = start.elapsed();
        let service = self.service()?.zip(before).map(|(after, before)| after.since(&before));
        Ok(Sample { amount, elapsed, reads: None, service })
    }

    /// What the process that serves the mount has done so far.
    fn service(&self) -> Result<Option<Service>> {
        let server = self.mount.as_ref().and_then(Mount::process);
        server.map(|pid| Service::so_far(self.system, &self.root, pid)).transpose()
    }

    /// Unmounts. A file system that cannot unmount has not done its work.
    pub fn finish(mut self) -> Result<()> {
        self.mount.take().map_or(Ok(()), Mount::unmount)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        drop(self.mount.take());
        // Most workloads have made none.
        let _ = std::fs::remove_file(&self.copy);
    }
}

/// Makes everything below a mount durable. syncfs(2) does not reach a FUSE daemon, an fsync of the
/// root directory does; together they are the whole of it on every file system.
pub fn settle(root: &Path) -> Result<()> {
    let dir = std::fs::File::open(root)
        .with_context(|| format!("cannot open the directory {}", root.display()))?;
    rustix::fs::syncfs(&dir).with_context(|| format!("cannot sync {}", root.display()))?;
    dir.sync_all().with_context(|| format!("cannot fsync {}", root.display()))
}

/// Makes a file of zeros that are really there.
fn write_zeros(path: &Path, bytes: u64) -> Result<()> {
    const PIECE_BYTES: u64 = 1 << 20;
    let zeros = vec![0; PIECE_BYTES as usize];
    let write = || {
        let mut file = File::create_new(path)?;
        for written in (0..bytes).step_by(PIECE_BYTES as usize) {
            file.write_all(&zeros[..PIECE_BYTES.min(bytes - written) as usize])?;
        }
        file.sync_all()
    };
    write().with_context(|| format!("cannot write the image {}", path.display()))
}

/// Makes the kernel forget what an image holds; programs and all else stay in memory.
pub fn forget(image: &Path) -> Result<()> {
    let forget = || {
        let file = File::open(image)?;
        // What is still to be written would be kept.
        file.sync_all()?;
        std::io::Result::Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?)
    };
    forget().with_context(|| format!("cannot empty the cache of {}", image.display()))
}

/// Makes the kernel forget all that it could read again.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .context("cannot drop the kernel's caches (root can), so nothing can be measured cold")
}
