//! What a request needs from the device, read in the order in which it lies there. A file that was
//! overwritten here and there lies in several places of the log, in each of them in order: its blocks
//! alternate between a few long reads. It knows no files.

use std::ops::Range;

use nilfs_device::Part;
use nilfs_ondisk::{BlockNr, BlockSize};

use crate::error::Result;
use crate::store::{Store, Verify};

/// Bytes that are read for nothing rather than asked for twice: a card takes about as long for them as
/// for another request.
const BRIDGED: u64 = 8 << 10;

/// Bytes that are wanted, where they lie, and where they go.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    first: BlockNr,
    /// The first byte of the first block that is wanted.
    within: usize,
    part: Range<usize>,
}

impl Run {
    /// The block after the last one.
    fn end(&self, block_size: BlockSize) -> BlockNr {
        let blocks = block_size.blocks_for((self.within + self.part.len()) as u64);
        BlockNr(self.first.0.saturating_add(blocks))
    }

    fn is_whole_blocks(&self, block_size: BlockSize) -> bool {
        self.within == 0 && self.part.len().is_multiple_of(block_size.bytes())
    }
}

/// The parts of a buffer that come from the device.
#[derive(Debug, Default)]
pub(super) struct DeviceReads {
    runs: Vec<Run>,
}

impl DeviceReads {
    /// Adds a part of the buffer, which lies in one block from the byte `within` on.
    pub(super) fn add(
        &mut self,
        block_size: BlockSize,
        block: BlockNr,
        within: usize,
        part: Range<usize>,
    ) {
        if let Some(last) = self.runs.last_mut()
            && last.part.end == part.start
            && within == 0
            && last.end(block_size) == block
        {
            last.part.end = part.end;
            return;
        }
        self.runs.push(Run { first: block, within, part });
    }

    /// Fills these parts. Returns in how many places they lay. If the device has been `asked` for them,
    /// they are not read past what the system has in memory or is about to have.
    pub(super) fn read(mut self, store: &Store, buffer: &mut [u8], asked: bool) -> Result<usize> {
        let mut places = 0;
        for runs in self.places(store.block_size()) {
            places += 1;
            let mut read = |runs: &[Run]| read_together(store, runs, buffer, asked);
            match read(runs) {
                // What is between them may be unreadable, and nobody needs it.
                Err(error) if error.is_of_block() && runs.len() > 1 => {
                    runs.chunks(1).try_for_each(read)?;
                }
                done => done?,
            }
        }
        Ok(places)
    }

    /// Asks for these parts, which will be read soon.
    pub(super) fn ask(mut self, store: &Store) {
        let block_size = store.block_size();
        for runs in self.places(block_size) {
            let (Some(first), Some(last)) = (runs.first(), runs.last()) else { continue };
            store.will_need(&(first.first..last.end(block_size)));
        }
    }

    /// The runs in the order in which they lie there, those together that are worth one read.
    fn places(&mut self, block_size: BlockSize) -> impl Iterator<Item = &[Run]> {
        let bridged = BRIDGED / block_size.bytes64();
        self.runs.sort_unstable_by_key(|run| run.first);
        self.runs.chunk_by(move |one, next| {
            let gap = next.first.0.checked_sub(one.end(block_size).0);
            gap.is_some_and(|blocks| blocks <= bridged)
        })
    }
}

/// Reads runs that lie near each other, in the order in which they lie there, with what is between them.
fn read_together(store: &Store, runs: &[Run], buffer: &mut [u8], asked: bool) -> Result<()> {
    let block_size = store.block_size();
    let Some(first) = runs.first() else { return Ok(()) };
    if let ([run], true) = (runs, first.is_whole_blocks(block_size)) {
        let buffer = &mut buffer[run.part.clone()];
        read_blocks(store, run.first, buffer, asked)?;
        return store.check_content(run.first, buffer);
    }
    if matches!(store.verify(), Verify::Rescue | Verify::All) {
        return read_checked(store, runs, buffer, asked);
    }
    let byte = |block: BlockNr| (block.0 - first.first.0) as usize * block_size.bytes();
    let mut parts = Vec::with_capacity(2 * runs.len() + 1);
    let mut at = 0;
    for (run, wanted) in runs.iter().zip(wanted(runs, buffer)) {
        let start = byte(run.first) + run.within;
        parts.extend(skipped(at..start));
        parts.push(Part::Wanted(wanted));
        at = start + run.part.len();
    }
    let end = runs.last().map_or(at, |run| byte(run.end(block_size)));
    parts.extend(skipped(at..end));
    store.read_parts(first.first, &mut parts, asked)
}

/// As [`read_together`], with all bytes of blocks of which parts are wanted: their checksums need them.
fn read_checked(store: &Store, runs: &[Run], buffer: &mut [u8], asked: bool) -> Result<()> {
    let block_size = store.block_size();
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(()) };
    let byte = |block: BlockNr| (block.0 - first.first.0) as usize * block_size.bytes();
    let mut bytes = vec![0; byte(last.end(block_size))];
    read_blocks(store, first.first, &mut bytes, asked)?;
    for run in runs {
        let blocks = &mut bytes[byte(run.first)..byte(run.end(block_size))];
        store.check_content(run.first, blocks)?;
        let wanted = &blocks[run.within..run.within + run.part.len()];
        buffer[run.part.clone()].copy_from_slice(wanted);
    }
    Ok(())
}

fn read_blocks(store: &Store, first: BlockNr, buffer: &mut [u8], asked: bool) -> Result<()> {
    match asked {
        true => store.read_run(first, buffer),
        false => store.read_content(first, buffer),
    }
}

fn skipped<'a>(bytes: Range<usize>) -> Option<Part<'a>> {
    (!bytes.is_empty()).then(|| Part::Skipped(bytes.len()))
}

/// Where in the buffer each run goes.
fn wanted<'a>(runs: &[Run], buffer: &'a mut [u8]) -> Vec<&'a mut [u8]> {
    let mut by_place: Vec<usize> = (0..runs.len()).collect();
    by_place.sort_unstable_by_key(|nth| runs[*nth].part.start);
    let (mut rest, mut at) = (buffer, 0);
    let mut wanted: Vec<(usize, &mut [u8])> = Vec::with_capacity(runs.len());
    for nth in by_place {
        let part = &runs[nth].part;
        let (found, after) = rest.split_at_mut(part.end - at);
        wanted.push((nth, &mut found[part.start - at..]));
        (rest, at) = (after, part.end);
    }
    wanted.sort_unstable_by_key(|(nth, _)| *nth);
    wanted.into_iter().map(|(_, wanted)| wanted).collect()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use nilfs_device::{Device, IoSlice};

    use super::*;
    use crate::fixtures::{BLOCK, block_size, empty_volume, open};
    use crate::host::{Mutex, Rank};

    /// Each block is full of its number. Which blocks were read, and which cannot be.
    struct Numbered {
        reads: Mutex<Vec<Range<u64>>>,
        unreadable: Vec<u64>,
    }

    impl Numbered {
        fn new(unreadable: &[u64]) -> Arc<Self> {
            let reads = Mutex::new(Rank::BlockPool, Vec::new());
            Arc::new(Self { reads, unreadable: unreadable.to_vec() })
        }
    }

    impl Device for Numbered {
        fn size(&self) -> u64 {
            1 << 30
        }

        fn is_read_only(&self) -> bool {
            true
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            let first = offset / BLOCK as u64;
            let blocks = first..first + (buffer.len() / BLOCK) as u64;
            self.reads.lock().push(blocks.clone());
            for (block, content) in blocks.zip(buffer.chunks_mut(BLOCK)) {
                if self.unreadable.contains(&block) {
                    return Err(io::Error::other("a bad block"));
                }
                content.fill(block as u8);
            }
            Ok(())
        }

        fn write_at(&self, _: u64, _: &[IoSlice<'_>]) -> io::Result<()> {
            unreachable!("nothing is written")
        }

        fn flush(&self) -> io::Result<()> {
            unreachable!("nothing is written")
        }

        fn discard(&self, _: u64, _: u64) -> io::Result<()> {
            unreachable!("nothing is written")
        }
    }

    /// Reads these blocks, the first and the last of them in part, asked for or not.
    fn read(device: &Arc<Numbered>, blocks: &[u64]) -> Result<()> {
        let volume = open(&empty_volume(60));
        let store = Store::new(Arc::clone(device) as _, volume.store.geometry(), 0, Verify::None);
        let mut expected: Vec<u8> = blocks.iter().flat_map(|block| [*block as u8; BLOCK]).collect();
        expected.drain(..7);
        expected.truncate(expected.len() - (BLOCK - 5));
        for asked in [false, true] {
            let mut reads = DeviceReads::default();
            let mut filled = 0;
            for (nth, block) in blocks.iter().enumerate() {
                let within = if nth == 0 { 7 } else { 0 };
                let end = if nth + 1 == blocks.len() { 5 } else { BLOCK };
                reads.add(block_size(), BlockNr(*block), within, filled..filled + end - within);
                filled += end - within;
            }
            let mut buffer = vec![0xff; filled];
            reads.read(&store, &mut buffer, asked)?;
            assert!(buffer == expected, "{blocks:?}");
        }
        Ok(())
    }

    #[test]
    fn blocks_that_alternate_between_places_are_read_in_one_go_each() {
        let device = Numbered::new(&[]);
        read(&device, &[100, 200, 101, 102, 201, 104, 202, 203, 105]).unwrap();
        assert_eq!(*device.reads.lock(), [100..106, 200..204, 100..106, 200..204]);
    }

    /// Only a damaged map has it so.
    #[test]
    fn a_block_may_be_wanted_twice() {
        let device = Numbered::new(&[]);
        read(&device, &[100, 100, 101, 100]).unwrap();
    }

    #[test]
    fn what_nobody_needs_may_be_unreadable() {
        let device = Numbered::new(&[101]);
        read(&device, &[100, 102, 103]).unwrap();
        read(&device, &[103, 102, 100]).unwrap();
        assert!(read(&device, &[100, 101]).is_err());
    }
}
