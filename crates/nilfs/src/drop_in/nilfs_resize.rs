//! `nilfs-resize`: what `nilfs resize` does, with the questions and the words of nilfs-utils.
//! Unlike theirs it takes image files, and volumes that are not mounted.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{anyhow, ensure};
use nilfs_device::{Access, Device, FileDevice};
use nilfs_engine::{ResizeProgress, Volume};
use nilfs_ondisk::geometry::secondary_superblock;

use super::words::{Word, Words};
use super::{Ended, FAILED, Tool, confirmed, number, volume};
use crate::administration::{Reason, Refusal};
use crate::output::{self, say};

pub(super) const TOOL: Tool = Tool {
    name: "nilfs-resize",
    usage: "\
Usage: nilfs-resize [OPTION]... DEVICE [SIZE]
Make a NILFS2 volume as large as its device, or give it another size.

  -v, --verbose            say more
  -y, --yes, --assume-yes  do not ask
  -h, --help               this help
  -V, --version            the version

SIZE is a number of bytes, or has one of the units s (512 bytes) K M G T P.
",
    long: &[("verbose", 'v'), ("yes", 'y'), ("assume-yes", 'y')],
    complaint: "Error: ",
    run,
};

/// Superblocks know the size of a volume in such pieces.
const SECTOR: u64 = 512;

/// Characters of the whole bar.
const BAR: usize = 60;

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let (mut verbose, mut assume_yes) = (false, false);
    let mut operands = Vec::new();
    while let Some(word) = words.next()? {
        match word {
            Word::Option('v') => verbose = true,
            Word::Option('y') => assume_yes = true,
            Word::Option(letter) => return Err(words.invalid(letter)),
            Word::Operand(operand) => operands.push(operand),
        }
    }
    let mut operands = operands.into_iter();
    let Some(device) = operands.next() else {
        output::utter(words.tool().usage);
        return Err(Ended(FAILED).into());
    };
    let size = operands.next();
    ensure!(operands.next().is_none(), "too many arguments.");
    let plan = Plan::new(device, size.as_deref())?;
    if plan.new == plan.old {
        say!("No need to resize the filesystem on {}.", plan.name());
        say!("It already fits the device.");
        return Ok(ExitCode::SUCCESS);
    }
    plan.print(verbose);
    if (assume_yes || confirmed("Do you wish to proceed (y/N)? ")?) && plan.execute(verbose)? {
        say!("Done.");
        return Ok(ExitCode::SUCCESS);
    }
    say!("Aborted.");
    Err(Ended(FAILED).into())
}

/// What is to be done to which volume.
struct Plan {
    device: OsString,
    /// Bytes of what the volume lies on.
    room: u64,
    /// Bytes of the volume, as it is and as it should be.
    old: u64,
    new: u64,
    segments: u64,
    new_segments: u64,
    segment_bytes: u64,
    /// Segments that the new volume keeps back.
    reserved: u64,
    clean_segments: u64,
}

impl Plan {
    fn new(device: OsString, size: Option<&OsStr>) -> anyhow::Result<Self> {
        let path = Path::new(&device);
        fs::metadata(path).map_err(|error| {
            anyhow!("cannot find {}: {}.", path.display(), volume::why(&error.into()))
        })?;
        let source = volume::target_to_change(path)
            .map_err(|error| anyhow!("cannot open NILFS on {}: {error}", path.display()))?;
        let room = FileDevice::open(source.device(), Access::Inspect)?.size();
        let new = size.map_or(Ok(room), |size| bytes(size, room))?;
        let look = |volume: &Volume| Ok((*volume.superblock(), volume.clean_segments()?));
        let (superblock, clean_segments) = volume::look(Some(&device), look)?;
        let mut geometry = superblock.geometry();
        let (segments, segment_bytes) = (geometry.nsegments, geometry.segment_bytes());
        let new_segments = secondary_superblock(new).unwrap_or(0) / segment_bytes;
        geometry.nsegments = new_segments;
        Ok(Self {
            device,
            room,
            old: superblock.raw().s_dev_size.get(),
            new,
            segments,
            new_segments,
            segment_bytes,
            reserved: geometry.reserved_segments(),
            clean_segments,
        })
    }

    fn name(&self) -> impl std::fmt::Display {
        Path::new(&self.device).display()
    }

    /// Says what will be done.
    fn print(&self, verbose: bool) {
        let shrinks = self.new < self.old;
        let verb = if shrinks { "Shrink" } else { "Extend" };
        say!("Partition size = {} bytes.", self.room);
        say!("{verb} the filesystem size from {} bytes to {} bytes.", self.old, self.new);
        if !shrinks {
            return;
        }
        let truncated = self.segments.saturating_sub(self.new_segments);
        let left = self.clean_segments.checked_sub(truncated + self.reserved);
        if let Some(left) = left.filter(|_| verbose) {
            let bytes = left * self.segment_bytes;
            say!("{left} free segments ({bytes} bytes) will be left after shrinkage.");
        }
        match truncated {
            0 => say!("No segments will be truncated."),
            _ => {
                let first = self.new_segments;
                say!("{truncated} segments will be truncated from segnum {first}.");
            }
        }
    }

    /// Does it; says so if that is not possible.
    fn execute(&self, verbose: bool) -> anyhow::Result<bool> {
        let mut bar = Bar::default();
        let done = volume::administer(Some(&self.device), |volume| {
            Ok(volume.resize(self.new, &mut |progress| bar.set(progress)))
        })?;
        bar.finish();
        match &done {
            Ok(()) if verbose && self.new < self.old => say!("Truncating segments."),
            Ok(()) => {}
            Err(refusal) => self.complain(refusal),
        }
        Ok(done.is_ok())
    }

    fn complain(&self, refusal: &Refusal) {
        match refusal.reason {
            Reason::NoRoomToShrink { segments } => {
                // The second superblock comes after the segments.
                let least = (self.new_segments + segments) * self.segment_bytes + 4096;
                say!("Error: Insufficient free space (needs {segments} more segments).");
                say!("       The device size must be at least {least} bytes.");
            }
            _ => {
                let verb = if self.new < self.old { "shrink" } else { "extend" };
                say!("Error: failed to {verb} the filesystem: {refusal}");
            }
        }
    }
}

/// A size as nilfs-resize reads it, which fits the device.
fn bytes(word: &OsStr, room: u64) -> anyhow::Result<u64> {
    let shown = word.to_string_lossy();
    let digits = shown.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &shown[digits.len()..] {
        "" => Some(0),
        "s" => Some(9),
        "K" => Some(10),
        "M" => Some(20),
        "G" => Some(30),
        "T" => Some(40),
        "P" => Some(50),
        _ => None,
    };
    let number = number::exact(digits.as_bytes()).filter(|_| !digits.is_empty());
    let size = number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift));
    let size = size.ok_or_else(|| anyhow!("bad size argument: {shown}"))?;
    ensure!(size <= room, "size larger than partition size ({room} bytes).");
    let rounded = size - size % SECTOR;
    if rounded != size {
        say!("size {size} is not aligned to sector size. truncated to {rounded}.");
    }
    Ok(rounded)
}

/// The bar that grows while segments are emptied.
#[derive(Default)]
struct Bar {
    begun: bool,
}

impl Bar {
    fn set(&mut self, progress: ResizeProgress) {
        let ResizeProgress { emptied, to_empty } = progress;
        if to_empty == 0 {
            return;
        }
        if !self.begun {
            let plural = if to_empty > 1 { "s" } else { "" };
            say!("Moving {to_empty} in-use segment{plural}.");
            self.begun = true;
        }
        let full = (emptied.min(to_empty) * BAR as u64 / to_empty) as usize;
        let (done, left) = ("*".repeat(full), "-".repeat(BAR - full));
        output::utter(format_args!("\rprogress   |{done}{left}|"));
    }

    fn finish(self) {
        if self.begun {
            say!("");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_nilfs_resize_reads_them() {
        let of = |word| bytes(OsStr::new(word), 1 << 60).map_err(|error| error.to_string());
        for (word, size) in
            [("4096", 4096), ("1000", 512), ("3s", 1536), ("150M", 150 << 20), ("1P", 1 << 50)]
        {
            assert_eq!(of(word), Ok(size), "{word}");
        }
        for word in ["", "M", "1k", "1MB", "x", "-1", "99999999999P"] {
            assert_eq!(of(word), Err(format!("bad size argument: {word}")));
        }
        let beyond = bytes(OsStr::new("2K"), 1024).unwrap_err().to_string();
        assert_eq!(beyond, "size larger than partition size (1024 bytes).");
    }
}
