//! One file under random reads, writes, truncations and mappings, against its image in memory.
//!
//! A failure prints its seed; with `NILFS_SEED` set to it, the same operations run again.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nilfs_fuse::Settings;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::OFlags;
use rustix::mm::MapFlags;

use crate::client;
use crate::content::Mapping;
use crate::support::{World, open};

const ROUNDS: u64 = 6;
/// In a round.
const OPERATIONS: usize = 500;
const LARGEST: usize = 600_000;
/// What direct access asks of offsets, lengths and memory.
const ALIGNED: usize = 4096;

const SEED: &str = "NILFS_SEED";
const EXPECTED: &str = "NILFS_TEST_EXPECTED";

/// The file, and what should be in it.
struct Subject {
    file: File,
    direct: File,
    expected: Vec<u8>,
    random: StdRng,
}

impl Subject {
    fn open(path: &Path, expected: Vec<u8>, random: StdRng) -> Self {
        let file = open(path, OFlags::CREATE).unwrap();
        let direct = open(path, OFlags::DIRECT).unwrap();
        Self { file, direct, expected, random }
    }

    fn step(&mut self) -> String {
        match self.random.random_range(0..100) {
            0..25 => self.write(),
            25..45 => self.read(),
            45..55 => self.truncate(),
            55..67 => self.write_mapped(),
            67..77 => self.read_mapped(),
            77..85 => self.write_direct(),
            85..92 => self.read_direct(),
            92..96 => self.sync(),
            _ => self.append(),
        }
    }

    /// A range that begins within `limit` and is mostly small.
    fn range(&mut self, limit: usize) -> (usize, usize) {
        let most = if self.random.random_bool(0.1) { 200_000 } else { 10_000 };
        let start = self.random.random_range(0..limit);
        (start, self.random.random_range(1..=most.min(limit - start)))
    }

    fn noise(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.random.fill(&mut bytes[..]);
        bytes
    }

    fn expect(&mut self, start: usize, bytes: &[u8]) {
        let end = start + bytes.len();
        if self.expected.len() < end {
            self.expected.resize(end, 0);
        }
        self.expected[start..end].copy_from_slice(bytes);
    }

    fn write(&mut self) -> String {
        let (start, length) = self.range(LARGEST);
        let bytes = self.noise(length);
        self.file.write_all_at(&bytes, start as u64).unwrap();
        self.expect(start, &bytes);
        format!("write {start}+{length}")
    }

    fn append(&mut self) -> String {
        let start = self.expected.len().min(LARGEST);
        let length = self.random.random_range(1..10_000);
        let bytes = self.noise(length);
        self.file.write_all_at(&bytes, start as u64).unwrap();
        self.expect(start, &bytes);
        format!("append {start}+{length}")
    }

    fn read(&mut self) -> String {
        let (start, length) = self.range(LARGEST);
        let mut bytes = vec![0; length];
        let count = self.file.read_at(&mut bytes, start as u64).unwrap();
        let end = self.expected.len().min(start + length);
        let what = format!("read {start}+{length}");
        assert_eq!(count, end.saturating_sub(start), "{what}");
        assert!(count == 0 || bytes[..count] == self.expected[start..end], "{what}");
        what
    }

    fn truncate(&mut self) -> String {
        let size = self.random.random_range(0..LARGEST);
        self.file.set_len(size as u64).unwrap();
        self.expected.resize(size, 0);
        format!("truncate {size}")
    }

    fn write_mapped(&mut self) -> String {
        let size = self.expected.len();
        if size == 0 {
            return "nothing to map".into();
        }
        let (start, length) = self.range(size);
        let bytes = self.noise(length);
        let mut mapping = Mapping::of_file(&self.file, size, MapFlags::SHARED);
        mapping.bytes_mut()[start..start + length].copy_from_slice(&bytes);
        self.expect(start, &bytes);
        format!("write mapped {start}+{length}")
    }

    fn read_mapped(&mut self) -> String {
        let size = self.expected.len();
        if size == 0 {
            return "nothing to map".into();
        }
        let mapping = Mapping::of_file(&self.file, size, MapFlags::SHARED);
        let what = format!("read mapped, size {size}");
        assert!(mapping.bytes() == self.expected, "{what}");
        what
    }

    fn aligned_range(&mut self) -> (usize, usize) {
        let (start, length) = self.range(LARGEST);
        (start / ALIGNED * ALIGNED, length.next_multiple_of(ALIGNED))
    }

    fn write_direct(&mut self) -> String {
        let (start, length) = self.aligned_range();
        let bytes = self.noise(length);
        let mut memory = Mapping::anonymous(length);
        memory.bytes_mut().copy_from_slice(&bytes);
        self.direct.write_all_at(memory.bytes(), start as u64).unwrap();
        self.expect(start, &bytes);
        format!("write directly {start}+{length}")
    }

    fn read_direct(&mut self) -> String {
        let (start, length) = self.aligned_range();
        let mut memory = Mapping::anonymous(length);
        let count = self.direct.read_at(memory.bytes_mut(), start as u64).unwrap();
        let end = self.expected.len().min(start + length);
        let what = format!("read directly {start}+{length}");
        assert_eq!(count, end.saturating_sub(start), "{what}");
        assert!(count == 0 || memory.bytes()[..count] == self.expected[start..end], "{what}");
        what
    }

    fn sync(&mut self) -> String {
        if self.random.random_bool(0.5) {
            self.file.sync_all().unwrap();
            return "fsync".into();
        }
        self.file.sync_data().unwrap();
        "fdatasync".into()
    }
}

/// One round, in a process of its own. It begins with what the file has, and leaves what it should
/// have in the file that `EXPECTED` names.
pub fn exercise(path: &Path) {
    let seed: u64 = std::env::var(SEED).unwrap().parse().unwrap();
    let random = StdRng::seed_from_u64(seed);
    let mut subject = Subject::open(path, fs::read(path).unwrap(), random);
    for nth in 0..OPERATIONS {
        println!("{nth}: {}", subject.step());
    }
    fs::write(std::env::var_os(EXPECTED).unwrap(), &subject.expected).unwrap();
}

fn rounds(settings: Settings) {
    let seed: u64 = match std::env::var(SEED) {
        Ok(seed) => seed.parse().expect("NILFS_SEED is a number"),
        Err(_) => rand::random::<u32>().into(),
    };
    println!("{SEED}={seed}");
    let mut world = World::with_settings(settings);
    let path = world.file("file", "");
    let expected = tempfile::NamedTempFile::new().unwrap();
    for round in 0..ROUNDS {
        let file = expected.path().display().to_string();
        let variables = [(SEED, (seed + round).to_string()), (EXPECTED, file)];
        client::run("exercise", &path, &variables);
        let expected = fs::read(expected.path()).unwrap();
        assert!(fs::read(&path).unwrap() == expected, "after round {round}");
        world.remount();
        assert!(fs::read(&path).unwrap() == expected, "after round {round} and a remount");
    }
}

#[test]
fn a_file_is_what_was_made_of_it() {
    rounds(Settings::default());
}

#[test]
fn a_file_is_what_was_made_of_it_through_the_write_back_cache() {
    rounds(Settings { writeback: true });
}
