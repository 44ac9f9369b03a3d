//! A mount under a random mix from many threads, with all background work on, for as long as there is
//! time: what comes back is compared with what was written, and nothing may grow without end, neither
//! what the process takes nor how long operations wait.

mod mix;
mod process;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nilfs_lab::cleanup::{Undo, register};

use self::mix::Worker;
use self::process::Vitals;
use crate::command;
use crate::mount::Mount;
use crate::site::output;

/// Small caches, so that what grows is seen; a cleaner that has something to do; a scrub again and
/// again; and a rule that keeps snapshots.
const MOUNT_OPTIONS: &str =
    "rw,pp=10,cache=32M,dirty=64M,scrub=1m,scrub-rate=4M,keep=hourly:3+daily:2";

/// Rows of the table.
const SAMPLES: u32 = 24;

/// How often it is looked whether it is time for a row.
const GLANCE: Duration = Duration::from_millis(50);

/// How many operations it takes to tell how long one of a hundred takes.
const FEWEST_OPERATIONS: usize = 100;

/// How many times as long operations may take in the end: other programs are at work on the machine.
const LATENCY_SLACK: u64 = 3;

/// How much longer any operation may take besides that.
const LATENCY_NOISE_MICROS: u64 = 5_000;

/// Snapshots that are kept at a time.
const SNAPSHOTS: usize = 3;

/// What to do, and for how long.
#[derive(Args)]
pub struct Options {
    /// How long.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// End after this many operations instead.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..))]
    operations: Option<u64>,
    /// How many threads work at the same time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// What chance begins with [default: another one each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Megabytes of the volume.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1024..))]
    size: u64,
    /// Directory for the image [default: the directory for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Our command.
    #[arg(long, value_name = "PATH", default_value = "target/release/nilfs")]
    nilfs: PathBuf,
}

/// Works, prints a row from time to time, and judges at the end.
pub fn run(options: &Options) -> Result<()> {
    let nilfs = std::path::absolute(&options.nilfs)?;
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = tempfile::Builder::new()
        .prefix("nilfs-soak-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?
        .keep();
    let _remove = register(Undo::Remove(scratch.clone()));
    let (image, dir) = (scratch.join("volume"), scratch.join("mnt"));
    std::fs::File::create(&image).and_then(|file| file.set_len(options.size << 20))?;
    std::fs::create_dir(&dir)?;
    command::run(Command::new(&nilfs).args(["mkfs", "-f", "-K"]).arg(&image))?;
    let mut daemon = Command::new(&nilfs);
    daemon.args(["mount", "--foreground", "-o", MOUNT_OPTIONS]).arg(&image).arg(&dir);
    let mount = Mount::by_daemon(&dir, &mut daemon)?;
    let process = mount.process().context("the mount has a process")?;

    let seed = options.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!(
        "{} threads on {}, seed {seed} (again with --seed {seed})",
        options.threads,
        dir.display()
    );
    let samples = soak(options, seed, &nilfs, &dir, process)?;

    mount.unmount().context("the soaked volume cannot be unmounted")?;
    let checked = output(Command::new(&nilfs).args(["check"]).arg(&image))?;
    println!("checked: {}", checked.lines().last().unwrap_or("nothing to say").trim());
    judge(&samples)
}

/// What was seen at one time.
#[derive(Clone, Copy)]
struct Sample {
    vitals: Vitals,
    /// Of a hundred operations since the last sample, the slowest but one took at least that long;
    /// `None` if there were too few.
    p99: Option<Duration>,
}

/// Lets everybody work to the end. Returns what was seen from time to time.
fn soak(
    options: &Options,
    seed: u64,
    nilfs: &Path,
    dir: &Path,
    process: u32,
) -> Result<Vec<Sample>> {
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut workers = Vec::new();
    for nth in 0..options.threads {
        let home = dir.join(format!("thread{nth}"));
        workers.push(Worker::new(&home, seed.wrapping_add(nth), &stop, &done)?);
    }
    let times: Vec<_> = workers.iter().map(Worker::times).collect();
    thread::scope(|scope| {
        let threads: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(|| worker.work())).collect();
        let watched = watch(options, &done, &stop, |samples: &mut Vec<Sample>, began: Instant| {
            let mut all: Vec<Duration> =
                times.iter().flat_map(|times| std::mem::take(&mut *times.lock())).collect();
            all.sort_unstable();
            let vitals = Vitals::of(process)?;
            print_row(
                began.elapsed(),
                done.load(Ordering::Relaxed),
                &all,
                &vitals,
                samples.is_empty(),
            );
            let p99 = (all.len() >= FEWEST_OPERATIONS).then(|| quantile(&all, 0.99)).flatten();
            samples.push(Sample { vitals, p99 });
            administer(nilfs, dir, samples.len())
        });
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            match thread.join() {
                Ok(worked) => worked?,
                Err(_) => bail!("a thread that worked on the volume panicked"),
            }
        }
        watched
    })
}

/// Calls for a row whenever it is time, until the end.
fn watch(
    options: &Options,
    done: &AtomicU64,
    stop: &AtomicBool,
    mut row: impl FnMut(&mut Vec<Sample>, Instant) -> Result<()>,
) -> Result<Vec<Sample>> {
    let (began, length) = (Instant::now(), Duration::from_secs(60 * options.minutes));
    let mut samples = Vec::new();
    loop {
        let part = match options.operations {
            Some(all) => done.load(Ordering::Relaxed) as f64 / all as f64,
            None => began.elapsed().as_secs_f64() / length.as_secs_f64(),
        };
        // A worker stops the others if something is wrong; it says what.
        let is_over = part >= 1.0 || stop.load(Ordering::Relaxed);
        if part * f64::from(SAMPLES) >= (samples.len() + 1) as f64 || is_over {
            row(&mut samples, began)?;
        }
        if is_over {
            return Ok(samples);
        }
        thread::sleep(GLANCE);
    }
}

fn print_row(elapsed: Duration, done: u64, times: &[Duration], vitals: &Vitals, first: bool) {
    if first {
        println!(
            "{:>8} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>5} {:>8}",
            "seconds", "operations", "p50", "p99", "p99.9", "max", "memory", "fds", "threads"
        );
    }
    let at = |part| quantile(times, part).map_or_else(String::new, |time| format!("{time:.1?}"));
    println!(
        "{:>8} {done:>11} {:>9} {:>9} {:>9} {:>9} {:>5} MiB {:>5} {:>8}",
        elapsed.as_secs(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        vitals.memory >> 20,
        vitals.files,
        vitals.threads
    );
}

/// The time that this part of the operations, sorted by their times, did not exceed.
fn quantile(times: &[Duration], part: f64) -> Option<Duration> {
    let nth = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
    times.get(nth).copied()
}

/// Makes a snapshot of this moment, and lets the oldest one go.
fn administer(nilfs: &Path, dir: &Path, nth: usize) -> Result<()> {
    let name = |nth: usize| format!("soak-{nth}");
    output(Command::new(nilfs).args(["snapshot", "create", "-m", &name(nth)]).arg(dir))?;
    if let Some(oldest) = nth.checked_sub(SNAPSHOTS).filter(|oldest| *oldest > 0) {
        output(Command::new(nilfs).args(["snapshot", "delete"]).arg(dir).arg(name(oldest)))?;
    }
    Ok(())
}

/// Whether the process has stayed as it was, and its answers as quick: no more at the end than in the
/// middle, after it has warmed up in the first quarter.
fn judge(samples: &[Sample]) -> Result<()> {
    let warm = &samples[samples.len() / 4..];
    let (middle, end) = warm.split_at(warm.len() / 2);
    let stays = |what: &str, of: fn(&Sample) -> Option<u64>, most: fn(u64) -> u64| {
        let (Some(before), Some(after)) = (median(middle, of), median(end, of)) else {
            return Ok(());
        };
        ensure!(
            after <= most(before),
            "it grows: {before} {what} in the middle, {after} at the end"
        );
        Ok(())
    };
    stays("bytes of memory", |it| Some(it.vitals.memory), |was| was + was / 4 + (16 << 20))?;
    stays("open files", |it| Some(it.vitals.files), |was| was + was / 4 + 16)?;
    stays("threads", |it| Some(it.vitals.threads), |was| was + was / 4 + 8)?;
    stays(
        "µs that one of a hundred operations takes",
        |it| Some(u64::try_from(it.p99?.as_micros()).unwrap_or(u64::MAX)),
        |was| was.saturating_mul(LATENCY_SLACK) + LATENCY_NOISE_MICROS,
    )?;
    println!("memory, open files, threads and latency stayed as they were");
    Ok(())
}

/// `None` if nothing is known of any sample.
fn median(samples: &[Sample], of: fn(&Sample) -> Option<u64>) -> Option<u64> {
    let mut values: Vec<u64> = samples.iter().filter_map(of).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Sample = Sample {
        vitals: Vitals { memory: 100 << 20, files: 10, threads: 20 },
        p99: Some(Duration::from_millis(20)),
    };

    fn judged(sample: impl Fn(u64) -> Sample) -> Result<()> {
        judge(&(0..24).map(sample).collect::<Vec<_>>())
    }

    fn with(vitals: Vitals) -> Sample {
        Sample { vitals, ..USUAL }
    }

    #[test]
    fn what_grows_without_end_is_noticed_and_what_warms_up_is_not() {
        let usual = USUAL.vitals;
        let memory = |memory| with(Vitals { memory, ..usual });
        assert!(judged(|nth| memory(nth.min(6) * (20 << 20))).is_ok());
        assert!(judged(|nth| with(Vitals { files: 10 + nth % 5, ..usual })).is_ok());
        assert!(judged(|nth| memory(nth * (20 << 20))).is_err());
        assert!(judged(|nth| with(Vitals { files: 10 + nth * 3, ..usual })).is_err());
        assert!(judged(|nth| with(Vitals { threads: 20 + nth * 3, ..usual })).is_err());
    }

    #[test]
    fn operations_that_take_longer_and_longer_are_noticed() {
        let taking = |millis| Sample { p99: Some(Duration::from_millis(millis)), ..USUAL };
        assert!(judged(|nth| taking(10 + nth * 7 % 30)).is_ok());
        assert!(judged(|nth| taking(if nth == 23 { 60_000 } else { 20 })).is_ok());
        assert!(judged(|nth| taking(2 << (nth / 2))).is_err());
        assert!(
            judged(|nth| Sample { p99: (nth < 16).then_some(Duration::ZERO), ..USUAL }).is_ok()
        );
    }
}
