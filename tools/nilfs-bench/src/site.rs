//! A place to compare a few things in turns, for tables that have no row for each file system.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::command;
use crate::mount::Mount;

/// Where and how often.
#[derive(Args)]
pub struct Options {
    /// How often to measure each.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Directory for the images, some GiB [default: the directory for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Our command.
    #[arg(long, value_name = "PATH", default_value = "target/release/nilfs")]
    nilfs: PathBuf,
}

/// The place where all of it happens.
pub struct Site {
    /// Our command.
    pub nilfs: PathBuf,
    /// A directory that goes away with it.
    pub dir: PathBuf,
    /// How often to measure each.
    pub runs: u32,
    _scratch: tempfile::TempDir,
}

/// A line of the table: something of ours, and what it is compared with.
pub struct Line {
    /// What of ours.
    pub what: String,
    /// How long it takes.
    pub ours: Duration,
    /// What it is compared with.
    pub than: String,
    /// How long that takes.
    pub theirs: Duration,
}

impl Site {
    /// An empty directory.
    pub fn new(options: &Options) -> Result<Self> {
        let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
        let scratch = tempfile::Builder::new()
            .prefix("nilfs-bench-")
            .tempdir_in(&parent)
            .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        let nilfs = std::path::absolute(&options.nilfs)?;
        let dir = scratch.path().to_owned();
        Ok(Self { nilfs, dir, runs: options.runs, _scratch: scratch })
    }

    /// Makes a volume of this many GiB.
    pub fn format(&self, name: &str, gigabytes: u64) -> Result<PathBuf> {
        let image = self.dir.join(name);
        File::create(&image)
            .and_then(|file| file.set_len(gigabytes << 30))
            .with_context(|| format!("cannot create {}", image.display()))?;
        self.format_again(&image)?;
        Ok(image)
    }

    /// Makes a new volume in the place of another.
    pub fn format_again(&self, image: &Path) -> Result<()> {
        command::run(Command::new(&self.nilfs).args(["mkfs", "-f", "-K"]).arg(image))
    }

    /// Mounts it. Returns where, too.
    pub fn mount(&self, image: &Path, options: &str) -> Result<(Mount, PathBuf)> {
        let dir = self.dir.join("mnt");
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let mut mount = Command::new(&self.nilfs);
        mount.args(["mount", "-o", options]).arg(image).arg(&dir);
        let mut unmount = Command::new(&self.nilfs);
        unmount.arg("umount").arg(&dir);
        Ok((Mount::by_command(&dir, &mut mount, Some(unmount))?, dir))
    }

    /// What our command prints.
    pub fn ask<A: AsRef<std::ffi::OsStr>>(&self, arguments: &[A]) -> Result<String> {
        output(Command::new(&self.nilfs).args(arguments))
    }

    /// Makes a checkpoint. Returns its number.
    pub fn checkpoint(&self, dir: &Path) -> Result<u64> {
        let number = self.ask(&["sync".as_ref(), dir.as_os_str()])?;
        number.trim().parse().context("the number of a checkpoint")
    }

    /// Metadata blocks that the process that serves a mount has read so far.
    pub fn blocks_read(&self, dir: &Path) -> Result<u64> {
        let metrics = self.ask(&["metrics".as_ref(), dir.as_os_str()])?;
        let line = metrics.lines().find_map(|line| line.strip_prefix("nilfs_cache_misses_total "));
        line.and_then(|number| number.parse().ok()).context("no count of blocks in the metrics")
    }

    /// The median of the times that pieces of work take, which are done in turns.
    pub fn in_turns<const N: usize>(
        &self,
        mut work: [&mut dyn FnMut() -> Result<Duration>; N],
    ) -> Result<[Duration; N]> {
        let mut times = [const { Vec::new() }; N];
        for _ in 0..self.runs {
            for (work, times) in work.iter_mut().zip(&mut times) {
                times.push(work()?);
            }
        }
        Ok(times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2]
        }))
    }
}

/// Prints the table.
pub fn print(site: &Site, lines: &[Line]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["", "TIME", "COMPARED WITH", "TIME", "RATIO"]);
    for Line { what, ours, than, theirs } in lines {
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        let ratio =
            if ratio < 0.1 { format!("1/{:.0}", 1.0 / ratio) } else { format!("{ratio:.2}") };
        table.add_row([what, &format!("{ours:.2?}"), than, &format!("{theirs:.2?}"), &ratio]);
    }
    for column in [1, 3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}\nmedians of {} runs", site.runs);
}

/// What a program prints.
pub fn output(command: &mut Command) -> Result<String> {
    let line = command::line_of(command);
    let output = command.output().with_context(|| format!("cannot run `{line}`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`{line}`: {}: {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The time that something takes. What others still had to write is written before.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<Duration> {
    rustix::fs::sync();
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Looks at everything below a directory. Returns how many files there are.
pub fn walk(dir: &Path) -> Result<u64> {
    let reading = || format!("cannot read {}", dir.display());
    let mut count = 0;
    for entry in dir.read_dir().with_context(reading)? {
        let entry = entry.with_context(reading)?;
        let metadata = entry.metadata().with_context(reading)?;
        count += 1;
        if metadata.is_dir() {
            count += walk(&entry.path())?;
        }
    }
    Ok(count)
}
