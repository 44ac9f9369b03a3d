//! What a workload is handed: a volume of one file system, a clock, and nothing of the others.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::command;
use crate::file_systems::FileSystem;
use crate::fixtures::Fixtures;
use crate::mount::Mount;
use crate::sizes::Sizes;

/// One measurement: an amount of work, in the unit of its workload, and the time that it took.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Work done, in the unit of the workload.
    pub amount: u64,
    /// The time that it took.
    pub elapsed: Duration,
}

impl Sample {
    /// Work per second.
    pub fn rate(&self) -> f64 {
        // A clock that did not move must not make an infinite rate.
        self.amount as f64 / self.elapsed.as_secs_f64().max(1e-9)
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
    image: PathBuf,
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
        let image = dir.join("image");
        Ok(Self { system, sizes, fixtures, kernel_source, image, root, mount: None })
    }

    /// Where volumes are mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Formats and mounts a volume; returns the directory where it is mounted.
    pub fn mount_fresh(&mut self) -> Result<PathBuf> {
        self.system.format(&self.image, self.sizes.volume_bytes)?;
        self.mount = Some(self.system.mount(&self.image, &self.root)?);
        Ok(self.root.clone())
    }

    /// Mounts a copy of a prepared image with nothing of it in memory, and times that.
    pub fn time_mount_of(&mut self, prepared: &Path) -> Result<Sample> {
        copy_sparse(prepared, &self.image)?;
        drop_caches()?;
        let start = Instant::now();
        self.mount = Some(self.system.mount(&self.image, &self.root)?);
        Ok(Sample { amount: 1, elapsed: start.elapsed() })
    }

    /// Forgets all that is in memory: the next read comes from the device.
    pub fn cool_down(&mut self) -> Result<()> {
        if self.system.persistent() {
            if let Some(mount) = self.mount.take() {
                mount.unmount()?;
            }
            self.mount = Some(self.system.mount(&self.image, &self.root)?);
        }
        drop_caches()
    }

    /// Times `work`, which does `amount` of the workload's unit. What others still had to write
    /// is written before the clock starts.
    pub fn timed(&self, amount: u64, work: impl FnOnce() -> Result<()>) -> Result<Sample> {
        rustix::fs::sync();
        let start = Instant::now();
        work()?;
        Ok(Sample { amount, elapsed: start.elapsed() })
    }

    /// Unmounts. A file system that cannot unmount has not done its work.
    pub fn finish(mut self) -> Result<()> {
        self.mount.take().map_or(Ok(()), Mount::unmount)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        drop(self.mount.take());
        // A missing image is the rule for a file system that has none.
        let _ = std::fs::remove_file(&self.image);
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

/// Copies an image without filling its holes.
fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    command::run(Command::new("cp").arg("--sparse=always").arg(from).arg(to))
}

fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .context("cannot drop the kernel's caches (root can), so nothing can be measured cold")
}
