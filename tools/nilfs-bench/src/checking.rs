//! What checking a volume costs: compared with reading its metadata once, and with the checkers of
//! others on the same files; and a scrub compared with reading everything.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use rustix::fs::SeekFrom;

use crate::command;
use crate::file_systems::{FileSystem, kernel::Kernel};
use crate::site::{self, Line, Site, print};
use crate::stage::{forget, settle};

/// Files of a directory.
const PER_DIRECTORY: u64 = 500;
/// Bytes of a file.
const FILE_BYTES: usize = 1024;
/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// Files on each volume.
    #[arg(long, default_value_t = 200_000)]
    files: u64,
    /// Checkpoints of ours, in each of which files have changed.
    #[arg(long, default_value_t = 1_000)]
    checkpoints: u64,
    /// Size of each volume, in GiB; what is not written is a hole.
    #[arg(long, default_value_t = 8)]
    gigabytes: u64,
    #[command(flatten)]
    site: site::Options,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    let site = Site::new(&options.site)?;
    let ours = site.format("ours.img", options.gigabytes)?;
    let (mount, root) = site.mount(&ours, "nogc")?;
    fill(&root, options.files)?;
    let fresh = site.checkpoint(&root)?;
    for number in 0..options.checkpoints {
        change(&root, options.files, number)?;
        site.checkpoint(&root)?;
    }
    mount.unmount()?;
    let peers = [peer(&site, options, &Kernel::EXT4)?, peer(&site, options, &Kernel::BTRFS)?];
    let metadata = metadata_of(&site, &ours)?;
    let everything = ranges_of(&ours)?;
    let [check, e2fsck, btrfs, reading] = site.in_turns([
        &mut || cold(&ours, || command::run(Command::new(&site.nilfs).arg("check").arg(&ours))),
        &mut || {
            cold(&peers[0], || {
                command::run(Command::new("e2fsck").args(["-f", "-n"]).arg(&peers[0]))
            })
        },
        &mut || {
            let mut check = Command::new("btrfs");
            cold(&peers[1], || command::run(check.args(["check", "--readonly"]).arg(&peers[1])))
        },
        &mut || cold(&ours, || read(&ours, &metadata)),
    ])?;
    let [scrub, reading_all] = site.in_turns([
        &mut || cold(&ours, || command::run(Command::new(&site.nilfs).arg("scrub").arg(&ours))),
        &mut || cold(&ours, || read(&ours, &everything)),
    ])?;
    let what =
        format!("fsck, {} files, {} checkpoints", options.files, fresh + options.checkpoints);
    let metadata_bytes: u64 = metadata.iter().map(|(_, bytes)| bytes).sum();
    let compared = [
        (
            what.clone(),
            check,
            format!("reading its {} MiB of metadata once", metadata_bytes >> 20),
            reading,
        ),
        (what.clone(), check, "e2fsck -f, the same files".to_owned(), e2fsck),
        (what, check, "btrfs check, the same files".to_owned(), btrfs),
        ("scrub".to_owned(), scrub, "reading all that was written once".to_owned(), reading_all),
    ];
    let lines = compared.map(|(what, ours, than, theirs)| Line { what, ours, than, theirs });
    print(&site, &lines);
    Ok(())
}

/// Makes many small files.
fn fill(root: &Path, files: u64) -> Result<()> {
    for number in 0..files {
        let path = path_of(root, number);
        if number.is_multiple_of(PER_DIRECTORY)
            && let Some(directory) = path.parent()
        {
            std::fs::create_dir(directory).context("cannot make a directory")?;
        }
        std::fs::write(path, [1; FILE_BYTES]).context("cannot write a file")?;
    }
    settle(root)
}

/// Changes one file of many, and makes another.
fn change(root: &Path, files: u64, number: u64) -> Result<()> {
    // Far from the one that was changed before.
    let path = path_of(root, number * 7919 % files);
    std::fs::write(&path, [2; FILE_BYTES]).context("cannot write a file")?;
    let new = path.with_extension(format!("new-{number}"));
    std::fs::write(new, []).context("cannot make a file")
}

fn path_of(root: &Path, number: u64) -> PathBuf {
    root.join(format!("dir-{}", number / PER_DIRECTORY)).join(format!("file-{number}"))
}

/// The same files on a file system of the kernel.
fn peer(site: &Site, options: &Options, system: &Kernel) -> Result<PathBuf> {
    let image = site.dir.join(format!("{}.img", system.name()));
    File::create(&image)
        .and_then(|file| file.set_len(options.gigabytes << 30))
        .with_context(|| format!("cannot create {}", image.display()))?;
    system.format(&image)?;
    let root = site.dir.join("peer");
    std::fs::create_dir_all(&root).context("cannot make a directory")?;
    let mount = system.mount(&image, &root)?;
    fill(&root, options.files)?;
    mount.unmount()?;
    Ok(image)
}

/// Times work on an image of which nothing is in memory.
fn cold(image: &Path, work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    forget(image)?;
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Where the metadata of a volume is: what `nilfs image` copies, which is not the checker's view of
/// it.
fn metadata_of(site: &Site, image: &Path) -> Result<Vec<(u64, u64)>> {
    let copy = site.dir.join("metadata.img");
    command::run(Command::new(&site.nilfs).arg("image").arg(image).arg(&copy))?;
    let ranges = ranges_of(&copy)?;
    std::fs::remove_file(&copy).context("cannot remove the copy of the metadata")?;
    Ok(ranges)
}

/// Offset and length of what is no hole in a file.
fn ranges_of(path: &Path) -> Result<Vec<(u64, u64)>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut ranges = Vec::new();
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(ranges),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        at = rustix::fs::seek(&file, SeekFrom::Hole(start))?;
        ranges.push((start, at - start));
    }
}

/// Reads parts of a file one after the other.
fn read(path: &Path, ranges: &[(u64, u64)]) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut buffer = vec![0; READ_BYTES];
    for (start, bytes) in ranges {
        for done in (0..*bytes).step_by(READ_BYTES) {
            let piece = &mut buffer[..(bytes - done).min(READ_BYTES as u64) as usize];
            file.read_exact_at(piece, start + done).context("cannot read an image")?;
        }
    }
    Ok(())
}
