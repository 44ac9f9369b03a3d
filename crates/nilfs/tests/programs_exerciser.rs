//! Random operations on files in every way that the kernel offers - calls, mappings, direct I/O -
//! against a copy in memory. `NILFS_TEST_SEED` repeats what a seed did, `NILFS_TEST_SCALE`
//! multiplies the number of seeds.

mod common {
    pub mod mapping;
    pub mod ours;
}

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;

use common::mapping::Mapping;
use common::ours::{Image, scale};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rustix::fs::{Advice, OFlags, SeekFrom};

const MOST_BYTES: usize = 600_000;
const OPERATIONS: usize = 2000;
/// Files that are worked on at the same time.
const FILES: u64 = 3;
/// Of how many of the last operations a failure tells.
const REMEMBERED: usize = 30;

/// A file, and what must be in it.
struct Exerciser {
    file: File,
    direct: File,
    mapping: Mapping,
    expected: Vec<u8>,
    random: StdRng,
    history: VecDeque<String>,
}

impl Exerciser {
    fn new(path: &Path, seed: u64) -> io::Result<Self> {
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            options.custom_flags(flags.bits() as i32).open(path)
        };
        let file = open(OFlags::empty())?;
        Ok(Self {
            mapping: Mapping::new(&file, MOST_BYTES)?,
            file,
            direct: open(OFlags::DIRECT)?,
            expected: Vec::new(),
            random: StdRng::seed_from_u64(seed),
            history: VecDeque::new(),
        })
    }

    /// Works; the error tells what had been done.
    fn run(&mut self, path: &Path) -> Result<(), String> {
        for number in 0..OPERATIONS {
            let outcome = match self.random.random_range(0..100) {
                0 => self.reopen(path),
                _ => self.step(),
            };
            if let Err(error) = outcome.and_then(|()| self.has_right_size()) {
                let history: Vec<String> = self.history.drain(..).collect();
                return Err(format!("operation {number}: {error}\n{}", history.join("\n")));
            }
        }
        Ok(())
    }

    fn step(&mut self) -> io::Result<()> {
        match self.random.random_range(0..20) {
            0..2 => self.read(),
            2..6 => self.write(),
            6 => self.append(),
            7..9 => self.truncate(),
            9..11 => self.read_mapped(),
            11..14 => self.write_mapped(),
            14 => self.read_direct(),
            15 => self.write_direct(),
            16 => self.copy(),
            17 => self.sync(),
            18 => self.look_for_holes(),
            _ => self.forget(),
        }
    }

    fn did(&mut self, what: &str, range: &Range<usize>) {
        if self.history.len() == REMEMBERED {
            self.history.pop_front();
        }
        let line = format!("{what} {:#x}..{:#x} of {:#x}", range.start, range.end, self.size());
        self.history.push_back(line);
    }

    fn size(&self) -> usize {
        self.expected.len()
    }

    /// A position up to `limit`, often near the border of a block.
    fn position(&mut self, limit: usize) -> usize {
        let position = self.random.random_range(0..=limit);
        match self.random.random_range(0..4) {
            0 => position.next_multiple_of(1024).saturating_sub(self.random.random_range(0..3)),
            1 => position / 4096 * 4096 + self.random.random_range(0..3),
            _ => position,
        }
        .min(limit)
    }

    /// A range below `limit`, mostly a short one.
    fn range(&mut self, limit: usize) -> Range<usize> {
        let start = self.position(limit);
        let longest = if self.random.random_range(0..5) == 0 { 200_000 } else { 9000 };
        let end = start + self.position(longest.min(limit - start));
        start..end
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    fn note(&mut self, start: usize, bytes: &[u8]) {
        // Nothing is written, hence nothing grows.
        if !bytes.is_empty() {
            self.expected.resize(self.size().max(start + bytes.len()), 0);
            self.expected[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn compare(&self, what: &str, start: usize, found: &[u8]) -> io::Result<()> {
        let end = self.size().min(start + found.len());
        let expected = &self.expected[start.min(end)..end];
        let differs = expected.iter().zip(found).position(|(expected, found)| expected != found);
        match differs {
            None => Ok(()),
            Some(at) => Err(io::Error::other(format!(
                "{what}: at {:#x} is {:#x}, expected {:#x}",
                start + at,
                found[at],
                expected[at]
            ))),
        }
    }

    fn has_right_size(&self) -> io::Result<()> {
        let found = self.file.metadata()?.len();
        if found == self.size() as u64 {
            return Ok(());
        }
        Err(io::Error::other(format!("{found:#x} bytes long, expected {:#x}", self.size())))
    }

    /// Writes back what was written by the mapping, if the file is about to grow by a call. Linux 6.18 takes the
    /// old end for that of the file when it writes back the last page meanwhile, and fills the rest of the page with
    /// zeros, on every file system in user space: they take the place of what the call has written.
    fn before_growing_to(&self, end: usize) -> io::Result<()> {
        if end > self.size() { self.mapping.sync() } else { Ok(()) }
    }

    fn read(&mut self) -> io::Result<()> {
        let range = self.range(self.size());
        self.did("read", &range);
        let mut found = vec![0; range.len()];
        self.file.read_exact_at(&mut found, range.start as u64)?;
        self.compare("read", range.start, &found)
    }

    fn write(&mut self) -> io::Result<()> {
        let range = self.range(MOST_BYTES);
        self.before_growing_to(range.end)?;
        self.did("write", &range);
        let bytes = self.bytes(range.len());
        self.file.write_all_at(&bytes, range.start as u64)?;
        self.note(range.start, &bytes);
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let start = self.size();
        let end = start + self.position(5000.min(MOST_BYTES - start));
        self.before_growing_to(end)?;
        self.did("append", &(start..end));
        let bytes = self.bytes(end - start);
        self.file.write_all_at(&bytes, start as u64)?;
        self.note(start, &bytes);
        Ok(())
    }

    fn truncate(&mut self) -> io::Result<()> {
        let limit = if self.random.random() { self.size() } else { MOST_BYTES };
        let end = self.position(limit);
        self.did("truncate", &(0..end));
        self.file.set_len(end as u64)?;
        self.expected.resize(end, 0);
        Ok(())
    }

    fn read_mapped(&mut self) -> io::Result<()> {
        let range = self.range(self.size());
        self.did("read mapped", &range);
        let mut found = vec![0; range.len()];
        self.mapping.read(range.start, &mut found);
        self.compare("read mapped", range.start, &found)
    }

    fn write_mapped(&mut self) -> io::Result<()> {
        let range = self.range(self.size());
        self.did("write mapped", &range);
        let bytes = self.bytes(range.len());
        self.mapping.write(range.start, &bytes);
        self.note(range.start, &bytes);
        Ok(())
    }

    fn read_direct(&mut self) -> io::Result<()> {
        let range = aligned(self.range(self.size()));
        self.did("read direct", &range);
        let mut found = vec![0; range.len()];
        let length = self.direct.read_at(&mut found, range.start as u64)?;
        if length != self.size().clamp(range.start, range.end) - range.start {
            return Err(io::Error::other(format!("read direct: {length:#x} bytes")));
        }
        self.compare("read direct", range.start, &found[..length])
    }

    fn write_direct(&mut self) -> io::Result<()> {
        let range = aligned(self.range(MOST_BYTES - 512));
        self.before_growing_to(range.end)?;
        self.did("write direct", &range);
        let bytes = self.bytes(range.len());
        self.direct.write_all_at(&bytes, range.start as u64)?;
        self.note(range.start, &bytes);
        Ok(())
    }

    /// Lets the kernel copy within the file; the ranges must not overlap.
    fn copy(&mut self) -> io::Result<()> {
        let from = self.range(self.size());
        let start = self.position(MOST_BYTES - from.len());
        let to = start..start + from.len();
        if from.is_empty() || (from.start < to.end && to.start < from.end) {
            return Ok(());
        }
        self.before_growing_to(to.end)?;
        self.did("copy from", &from);
        self.did("copy to", &to);
        let (mut source, mut target) = (from.start as u64, to.start as u64);
        while target < to.end as u64 {
            let left = to.end - target as usize;
            let file = &self.file;
            rustix::fs::copy_file_range(file, Some(&mut source), file, Some(&mut target), left)?;
        }
        let bytes = self.expected[from].to_vec();
        self.note(to.start, &bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let way = self.random.random_range(0..4);
        let what = ["fsync", "fdatasync", "msync", "syncfs"][way];
        self.did(what, &(0..0));
        match way {
            0 => self.file.sync_all(),
            1 => self.file.sync_data(),
            2 => self.mapping.sync(),
            _ => Ok(rustix::fs::syncfs(&self.file)?),
        }
    }

    /// What the file calls a hole must be empty. Sparse copies rely on it.
    fn look_for_holes(&mut self) -> io::Result<()> {
        self.did("look for holes", &(0..0));
        // FUSE does not learn of changes by a mapping before they are written.
        self.mapping.sync()?;
        let mut at = 0;
        while at < self.size() {
            let data = match rustix::fs::seek(&self.file, SeekFrom::Data(at as u64)) {
                Err(rustix::io::Errno::NXIO) => self.size(),
                data => data? as usize,
            };
            self.compare("hole", at, &vec![0; data - at])?;
            if data == self.size() {
                return Ok(());
            }
            at = rustix::fs::seek(&self.file, SeekFrom::Hole(data as u64))? as usize;
        }
        Ok(())
    }

    /// Lets the kernel forget what it need not write.
    fn forget(&mut self) -> io::Result<()> {
        let range = self.range(self.size());
        self.did("forget", &range);
        let length = std::num::NonZero::new(range.len() as u64);
        Ok(rustix::fs::fadvise(&self.file, range.start as u64, length, Advice::DontNeed)?)
    }

    fn reopen(&mut self, path: &Path) -> io::Result<()> {
        self.did("reopen", &(0..0));
        let Self { file, direct, mapping, .. } = Self::new(path, 0)?;
        (self.file, self.direct, self.mapping) = (file, direct, mapping);
        self.compare("reopened", 0, &fs::read(path)?)
    }
}

/// Both ends at sectors, as direct I/O wants it.
fn aligned(range: Range<usize>) -> Range<usize> {
    range.start / 512 * 512..range.end.next_multiple_of(512)
}

/// Some files at a time, each with its own seed; afterwards all must still be there.
fn exercise(block_size: u32, seeds: impl Iterator<Item = u64>) {
    let image = Image::ours(&format!("--size 1G -b {block_size}"));
    let mounted = image.mount("rw");
    let work = |seed: u64| {
        let path = mounted.join(&format!("file{seed}"));
        let mut exerciser = Exerciser::new(&path, seed).map_err(|error| error.to_string())?;
        exerciser.run(&path)?;
        Ok((seed, exerciser.expected))
    };
    let results: Vec<Result<(u64, Vec<u8>), String>> = thread::scope(|scope| {
        let workers: Vec<_> = seeds.map(|seed| (seed, scope.spawn(move || work(seed)))).collect();
        let join = |(seed, worker): (u64, thread::ScopedJoinHandle<'_, Result<_, String>>)| {
            worker.join().unwrap().map_err(|error| format!("seed {seed}: {error}"))
        };
        workers.into_iter().map(join).collect()
    });
    let files: Vec<(u64, Vec<u8>)> = results
        .into_iter()
        .map(|result| match result {
            Ok(file) => file,
            Err(error) => panic!("blocks of {block_size}: {error}"),
        })
        .collect();
    mounted.unmount();
    image.check();
    let mounted = image.mount("ro");
    for (seed, expected) in files {
        let found = fs::read(mounted.join(&format!("file{seed}"))).unwrap();
        assert!(found == expected, "blocks of {block_size}, seed {seed}: changed by the remount");
    }
    mounted.unmount();
}

#[test]
fn files_hold_what_was_put_into_them() {
    let block_sizes = [4096, 2048, 1024];
    if let Ok(seed) = std::env::var("NILFS_TEST_SEED") {
        let seed = seed.parse().expect("NILFS_TEST_SEED");
        block_sizes.into_iter().for_each(|size| exercise(size, [seed].into_iter()));
        return;
    }
    for round in 0..u64::from(scale()) {
        for (nth, block_size) in (0..).zip(block_sizes) {
            let first = (round * 3 + nth) * FILES;
            exercise(block_size, first..first + FILES);
        }
    }
}
