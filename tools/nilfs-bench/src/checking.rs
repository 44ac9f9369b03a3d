//! What checking a volume costs: compared with reading its metadata once, and with the checkers of
//! others on the same files; and a scrub compared with reading everything. All of that with images as
//! fast as the host has them, and as a flash device of the lab.

mod card;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use rustix::fs::SeekFrom;

use self::card::Card;
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
    #[command(flatten)]
    extent: Extent,
    /// The volume that the targets are about: 64 GiB, 2 million files, 10 000 checkpoints.
    #[arg(long, conflicts_with_all = ["files", "checkpoints", "gigabytes"])]
    full: bool,
    /// The flash device, by its name in `nilfs-lab list`.
    #[arg(long, value_name = "NAME", default_value = "microsd-a1")]
    device: String,
    /// The lab's command.
    #[arg(long, value_name = "PATH", default_value = "target/release/nilfs-lab")]
    lab: PathBuf,
    #[command(flatten)]
    site: site::Options,
}

/// How much there is.
#[derive(Args, Clone, Copy)]
struct Extent {
    /// Files on each volume.
    #[arg(long, default_value_t = 200_000)]
    files: u64,
    /// Checkpoints of ours, in each of which files have changed.
    #[arg(long, default_value_t = 1_000)]
    checkpoints: u64,
    /// Size of each volume, in GiB; what is not written is a hole.
    #[arg(long, default_value_t = 8)]
    gigabytes: u64,
}

/// What the targets are about.
const FULL: Extent = Extent { files: 2_000_000, checkpoints: 10_000, gigabytes: 64 };
/// A check may take at most this many times as long as reading the metadata once.
const MOST_OF_CHECK: f64 = 1.3;
/// A scrub reads at least at this part of the rate at which everything can be read.
const LEAST_OF_SCRUB: f64 = 0.9;

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    let site = Site::new(&options.site)?;
    let Extent { files, checkpoints, gigabytes } = if options.full { FULL } else { options.extent };
    let ours = site.format("ours.img", gigabytes)?;
    let (mount, root) = site.mount(&ours, "nogc")?;
    fill(&root, files)?;
    let fresh = site.checkpoint(&root)?;
    for number in 0..checkpoints {
        change(&root, files, number)?;
        site.checkpoint(&root)?;
    }
    mount.unmount()?;
    let peer = |system| peer(&site, (files, gigabytes), system);
    let peers = [peer(&Kernel::EXT4)?, peer(&Kernel::BTRFS)?];
    let metadata = metadata_of(&site, &ours)?;
    let everything = ranges_of(&ours)?;
    let what = format!("fsck, {} files, {} checkpoints", files, fresh + checkpoints);
    let volumes = Volumes { ours, peers, metadata, everything, what };
    let as_it_is = volumes.lines(&site, &|image, work| {
        forget(image)?;
        timed(|| work(image))
    })?;
    let on_flash = volumes.lines(&site, &|image, work| {
        let card = Card::new(&options.lab, &options.device, image)?;
        timed(|| work(card.device()))
    })?;
    println!("Images in {}:", site.dir.display());
    print(&site, &as_it_is);
    print_targets(&as_it_is);
    println!("The same on {}:", options.device);
    print(&site, &on_flash);
    print_targets(&on_flash);
    Ok(())
}

/// Says whether the targets are met.
fn print_targets([check, .., scrub]: &[Line; 4]) {
    let times = |line: &Line| line.ours.as_secs_f64() / line.theirs.as_secs_f64();
    let (check, scrub) = (times(check), times(scrub).recip());
    let verdict = |is_met| if is_met { "met" } else { "missed" };
    println!(
        "fsck: {check:.2} times the time to read the metadata, at most {MOST_OF_CHECK}: {}",
        verdict(check <= MOST_OF_CHECK)
    );
    println!(
        "scrub: {scrub:.2} of the rate of reading, at least {LEAST_OF_SCRUB}: {}",
        verdict(scrub >= LEAST_OF_SCRUB)
    );
}

/// Does work on an image of which nothing is in memory, by the path at which it is shown. Returns how long
/// that took.
type Cold<'a> = &'a dyn Fn(&Path, &dyn Fn(&Path) -> Result<()>) -> Result<Duration>;

/// What is checked.
struct Volumes {
    ours: PathBuf,
    /// The same files on ext4 and btrfs.
    peers: [PathBuf; 2],
    /// Where metadata is on ours, and where anything is.
    metadata: Vec<(u64, u64)>,
    everything: Vec<(u64, u64)>,
    what: String,
}

impl Volumes {
    /// Compares our checker with the others, and our scrub with reading.
    fn lines(&self, site: &Site, cold: Cold<'_>) -> Result<[Line; 4]> {
        let ours = |work: &dyn Fn(&Path) -> Result<()>| cold(&self.ours, work);
        let run = |command: &mut Command, image: &Path| command::run(command.arg(image));
        let [check, e2fsck, btrfs, reading] = site.in_turns([
            &mut || ours(&|image| run(Command::new(&site.nilfs).arg("check"), image)),
            &mut || {
                let check = |image: &Path| run(Command::new("e2fsck").args(["-f", "-n"]), image);
                cold(&self.peers[0], &check)
            },
            &mut || {
                let check =
                    |image: &Path| run(Command::new("btrfs").args(["check", "--readonly"]), image);
                cold(&self.peers[1], &check)
            },
            &mut || ours(&|image| read(image, &self.metadata)),
        ])?;
        let [scrub, reading_all] = site.in_turns([
            &mut || ours(&|image| run(Command::new(&site.nilfs).arg("scrub"), image)),
            &mut || ours(&|image| read(image, &self.everything)),
        ])?;
        let bytes: u64 = self.metadata.iter().map(|(_, bytes)| bytes).sum();
        let than = format!("reading its {} MiB of metadata once", bytes >> 20);
        let compared = [
            (self.what.as_str(), check, than.as_str(), reading),
            (&self.what, check, "e2fsck -f, the same files", e2fsck),
            (&self.what, check, "btrfs check, the same files", btrfs),
            ("scrub", scrub, "reading all that was written once", reading_all),
        ];
        Ok(compared.map(|(what, ours, than, theirs)| Line {
            what: what.to_owned(),
            ours,
            than: than.to_owned(),
            theirs,
        }))
    }
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
fn peer(site: &Site, (files, gigabytes): (u64, u64), system: &Kernel) -> Result<PathBuf> {
    let image = site.dir.join(format!("{}.img", system.name()));
    File::create(&image)
        .and_then(|file| file.set_len(gigabytes << 30))
        .with_context(|| format!("cannot create {}", image.display()))?;
    system.format(&image)?;
    let root = site.dir.join("peer");
    std::fs::create_dir_all(&root).context("cannot make a directory")?;
    let mount = system.mount(&image, &root)?;
    fill(&root, files)?;
    mount.unmount()?;
    Ok(image)
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
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
