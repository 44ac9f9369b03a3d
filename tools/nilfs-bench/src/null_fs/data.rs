//! The data of files, kept on an image: each block at the place that was next when it was first
//! written. A place is never given back, not even by a file that is cut off or removed. Knows the
//! numbers of files and nothing else of them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nilfs_engine::Ino;
use parking_lot::Mutex;
use rustix::io::Errno;

const BLOCK_BYTES: u64 = 4096;

/// Bytes of the largest file: each of its blocks takes memory, holes too.
const MAX_SIZE: u64 = 64 << 30;

/// The image, and what lies where.
pub struct Data {
    image: File,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    /// For each block of a file its number on the image, 0 for a hole.
    files: HashMap<Ino, Vec<u64>>,
    /// The last block of the image that was assigned.
    last: u64,
}

/// A part of a buffer, and the byte of the image where it begins; none for a hole.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    part: Range<usize>,
    at: Option<u64>,
}

impl Data {
    /// On an image, over whatever it holds.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn on(image: &Path) -> io::Result<Self> {
        let image = File::options().read(true).write(true).open(image)?;
        Ok(Self { image, places: Mutex::default() })
    }

    /// Fills a buffer from a file.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let runs = self.places.lock().runs(ino, offset, buffer.len());
        runs.into_iter().try_for_each(|Run { part, at }| match at {
            Some(at) => self.image.read_exact_at(&mut buffer[part], at),
            None => {
                buffer[part].fill(0);
                Ok(())
            }
        })
    }

    /// Writes to a file.
    ///
    /// # Errors
    /// The file would be too large, or the image cannot be written.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset.saturating_add(data.len() as u64) > MAX_SIZE {
            return Err(Errno::FBIG.into());
        }
        let runs = {
            let mut places = self.places.lock();
            places.take(ino, offset, data.len());
            places.runs(ino, offset, data.len())
        };
        let mut runs = runs.into_iter().filter_map(|run| Some((run.part, run.at?)));
        runs.try_for_each(|(part, at)| self.image.write_all_at(&data[part], at))
    }

    /// Makes all of it durable.
    ///
    /// # Errors
    /// The image cannot be synced.
    pub fn sync(&self) -> io::Result<()> {
        self.image.sync_data()
    }
}

impl Places {
    /// Assigns a place to each block of a range that has none yet.
    fn take(&mut self, ino: Ino, offset: u64, bytes: usize) {
        let blocks = self.files.entry(ino).or_default();
        let end = (offset + bytes as u64).div_ceil(BLOCK_BYTES) as usize;
        blocks.resize(blocks.len().max(end), 0);
        for block in &mut blocks[(offset / BLOCK_BYTES) as usize..end] {
            if *block == 0 {
                self.last += 1;
                *block = self.last;
            }
        }
    }

    /// Where the bytes of a range lie, in as few runs as possible.
    fn runs(&self, ino: Ino, offset: u64, bytes: usize) -> Vec<Run> {
        let blocks = self.files.get(&ino).map_or(&[][..], Vec::as_slice);
        let mut runs: Vec<Run> = Vec::new();
        let mut from = 0;
        while from < bytes {
            let position = offset + from as u64;
            let within = position % BLOCK_BYTES;
            let to = bytes.min(from + (BLOCK_BYTES - within) as usize);
            let block = blocks.get((position / BLOCK_BYTES) as usize).copied().filter(|it| *it > 0);
            let at = block.map(|block| block * BLOCK_BYTES + within);
            match runs.last_mut() {
                Some(last) if follows(last, at) => last.part.end = to,
                _ => runs.push(Run { part: from..to, at }),
            }
            from = to;
        }
        runs
    }
}

/// Whether what lies at `at` continues a run.
fn follows(run: &Run, at: Option<u64>) -> bool {
    run.at.map(|start| start + run.part.len() as u64) == at
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = BLOCK_BYTES as usize;

    #[test]
    fn what_was_written_is_read_and_holes_are_zeros() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let data = Data::on(image.path()).unwrap();
        let content: Vec<u8> = (0..3 * BLOCK).map(|nth| (nth % 251) as u8).collect();
        data.write(Ino(20), 100, &content).unwrap();
        data.write(Ino(21), 0, b"another file").unwrap();
        data.write(Ino(20), 5 * BLOCK_BYTES, b"after a hole").unwrap();
        data.write(Ino(20), 101, b"again").unwrap();
        data.sync().unwrap();

        let mut expected = vec![0; 5 * BLOCK + 12];
        expected[100..100 + content.len()].copy_from_slice(&content);
        expected[101..106].copy_from_slice(b"again");
        expected[5 * BLOCK..].copy_from_slice(b"after a hole");
        let mut read = vec![1; expected.len()];
        data.read(Ino(20), 0, &mut read).unwrap();
        assert!(read == expected);
    }

    #[test]
    fn a_write_far_away_is_refused() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let data = Data::on(image.path()).unwrap();
        for offset in [MAX_SIZE, u64::MAX] {
            let refused = data.write(Ino(20), offset, b"x").unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::FBIG));
        }
    }

    #[test]
    fn what_is_written_in_order_lies_in_order() {
        let mut places = Places::default();
        for nth in 0..4 {
            places.take(Ino(20), nth * BLOCK_BYTES, BLOCK);
        }
        let runs = places.runs(Ino(20), 10, 3 * BLOCK);
        assert_eq!(runs, [Run { part: 0..3 * BLOCK, at: Some(BLOCK_BYTES + 10) }]);
    }
}
