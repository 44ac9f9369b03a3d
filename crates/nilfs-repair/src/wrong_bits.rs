//! Single bits that are wrong in what a volume says about itself. The checksums of summaries, super roots
//! and blocks tell which they are, so they are set right before anything else is judged by what it says.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;

use nilfs_check::{CheckError, Report};
use nilfs_device::{Device, IoSlice};
use nilfs_engine::Volume;
use nilfs_ondisk::crc::{BlockSum, WrongBit};
use nilfs_ondisk::summary::{self, BlockInfo, LogHeader, SR, parse_items};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::{BlockNr, Geometry, Ino, SegNum};

use crate::draft::{self, Draft};
use crate::{Concerned, Loss, Repair, Risk, superblocks};

/// Bytes that the summary of a log takes at most: of a segment of 8 MiB with a file for each block.
const LONGEST_SUMMARY: u64 = 128 << 10;

/// Sets wrong bits right in a draft of which a check has found this, if anything is wrong with it. Returns
/// whether there were any.
pub(crate) fn correct(draft: &mut Draft, found: &Result<Report, CheckError>) -> io::Result<bool> {
    let mut suspects = Suspects::default();
    match found {
        Ok(report) if report.is_consistent() => return Ok(false),
        Ok(report) => report.errors().for_each(|error| {
            suspects.files.extend(error.place.ino);
            suspects.logs.extend(error.place.log);
        }),
        Err(_) => {}
    }
    let Ok(superblock) = superblocks::best(&*draft.device) else { return Ok(false) };
    let (geometry, seed) = (superblock.geometry(), superblock.crc_seed());
    let before = draft.repairs.count();
    let mut bits = WrongBits { draft, geometry, seed, suspects, seen: HashSet::new() };
    // What leads to the newest checkpoint, so that it is known which segments are in use.
    for cursor in superblocks::cursors(&*bits.draft.device) {
        bits.correct_chain(cursor.block)?;
    }
    bits.correct_used()?;
    Ok(draft.repairs.count() > before)
}

/// Blocks that are looked at although they need not be metadata.
#[derive(Default)]
struct Suspects {
    /// Files with which something is wrong: their content may be names.
    files: BTreeSet<Ino>,
    /// Logs of which the content is not what was written.
    logs: BTreeSet<BlockNr>,
}

struct WrongBits<'a> {
    draft: &'a mut Draft,
    geometry: Geometry,
    seed: u32,
    suspects: Suspects,
    /// Logs that have been gone through.
    seen: HashSet<BlockNr>,
}

impl WrongBits<'_> {
    /// Goes through the logs from one on, and through the segments that follow.
    fn correct_chain(&mut self, from: BlockNr) -> io::Result<()> {
        let mut at = from;
        loop {
            let last =
                self.correct_logs(at, self.geometry.segment_end(self.geometry.segment_of(at)))?;
            let next = last.map(|header| header.next).filter(|next| self.geometry.has_block(*next));
            match next.filter(|next| !self.seen.contains(next)) {
                Some(next) => at = next,
                None => return Ok(()),
            }
        }
    }

    /// Goes through the logs of all segments that are in use; of all that there are, if it cannot be read
    /// which those are.
    fn correct_used(&mut self) -> io::Result<()> {
        let device = Arc::clone(&self.draft.device) as Arc<dyn Device>;
        let segments = Volume::open(device).and_then(|volume| volume.segments(SegNum(0)));
        let used: Vec<(SegNum, Option<u64>)> = match segments {
            Ok(all) => {
                let used = all.iter().filter(|it| it.blocks > 0);
                used.map(|it| (it.segment, Some(it.blocks))).collect()
            }
            Err(_) => (0..self.geometry.nsegments).map(|it| (SegNum(it), None)).collect(),
        };
        for (segment, blocks) in used {
            let start = self.geometry.segment_start(segment);
            let end = self.geometry.segment_end(segment);
            self.correct_logs(start, blocks.map_or(end, |blocks| start.plus(blocks).min(end)))?;
        }
        Ok(())
    }

    /// Goes through the logs from a block on, as far as they can be read. Returns the last.
    fn correct_logs(&mut self, from: BlockNr, end: BlockNr) -> io::Result<Option<LogHeader>> {
        let (mut at, mut last) = (from, None);
        while at < end {
            let Some(header) = self.correct_log(at)? else { break };
            if last.is_some_and(|last: LogHeader| last.seq != header.seq) {
                break;
            }
            at = at.plus(header.nblocks.into());
            last = Some(header);
        }
        Ok(last)
    }

    /// Sets bits of a log right: of its summary, its super root and its metadata. Returns its header.
    fn correct_log(&mut self, at: BlockNr) -> io::Result<Option<LogHeader>> {
        let geometry = self.geometry;
        let (size, per_segment) = (geometry.block_size, geometry.blocks_per_segment);
        let room = geometry.segment_end(geometry.segment_of(at)).0 - at.0;
        let count = room.min(LONGEST_SUMMARY / size.bytes64());
        let mut bytes = vec![0; count as usize * size.bytes()];
        if self.draft.device.read_at(at.0 * size.bytes64(), &mut bytes).is_err() {
            return Ok(None);
        }
        let header = |bytes: &[u8]| LogHeader::parse(bytes, size, per_segment).ok();
        let is_right = |it: &LogHeader| it.verify_summary(&bytes, self.seed).is_ok();
        let header = match header(&bytes).filter(is_right) {
            Some(header) => header,
            None => {
                let wrong = summary::wrong_bit(&bytes, size, per_segment, self.seed);
                let Some(wrong) = wrong else { return Ok(None) };
                wrong.flip(&mut bytes);
                let Some(header) = header(&bytes) else { return Ok(None) };
                self.set_right(
                    at,
                    wrong,
                    &bytes,
                    format!("the summary of the log at block {at}"),
                    None,
                )?;
                header
            }
        };
        if u64::from(header.nblocks) > room || !self.seen.insert(at) {
            return Ok(Some(header).filter(|header| u64::from(header.nblocks) <= room));
        }
        if header.has(SR) {
            let root = at.plus(u64::from(header.nblocks) - 1);
            self.correct_super_root(root)?;
            self.correct_size_of_super_root(root, (at, &header))?;
        }
        self.correct_metadata(at, &header, &bytes)?;
        Ok(Some(header))
    }

    fn correct_super_root(&mut self, at: BlockNr) -> io::Result<()> {
        let Some(mut block) = self.block(at) else { return Ok(()) };
        let Some(wrong) = SuperRoot::wrong_bit(&block, &self.geometry, self.seed) else {
            return Ok(());
        };
        wrong.flip(&mut block);
        self.set_right(at, wrong, &block, format!("the super root in block {at}"), None)
    }

    /// Sets the size of a super root, which has one possible value, if the super root is else what was written:
    /// its own checksum says so, or that of the log.
    fn correct_size_of_super_root(
        &mut self,
        root: BlockNr,
        (log, header): (BlockNr, &LogHeader),
    ) -> io::Result<()> {
        let (geometry, seed) = (self.geometry, self.seed);
        let Some(block) = self.block(root) else { return Ok(()) };
        if SuperRoot::parse(&block, &geometry, seed).is_ok() {
            return Ok(());
        }
        let Some(right) = SuperRoot::with_its_size(&block, &geometry, seed) else { return Ok(()) };
        let is_whole = || {
            let mut bytes = vec![0; header.nblocks as usize * geometry.block_size.bytes()];
            let start = log.0 * geometry.block_size.bytes64();
            let is_readable = self.draft.device.read_at(start, &mut bytes).is_ok();
            is_readable && draft::is_whole(&bytes, header, geometry.block_size, seed)
        };
        if right[..4] != block[..4] && !is_whole() {
            return Ok(());
        }
        let start = root.0 * geometry.block_size.bytes64();
        // The checksum of the log as it is shows that this is all that changes in it.
        self.draft.device.write_at(start + 4, &[IoSlice::new(&right[4..6])])?;
        self.draft.seal(&geometry, seed, log, header)?;
        self.draft.segments.insert(geometry.segment_of(log));
        self.draft.repairs.push(Repair {
            fault: format!("the super root in block {root} has no size that one can have"),
            action: "set it to the size of every super root".to_owned(),
            risk: Risk::Safe,
            concerned: Concerned::none(),
        });
        Ok(())
    }

    /// Sets bits right of the blocks of which the log has the checksums, unless these contradict its own.
    fn correct_metadata(
        &mut self,
        log: BlockNr,
        header: &LogHeader,
        bytes: &[u8],
    ) -> io::Result<()> {
        let size = self.geometry.block_size;
        let summary_blocks = header.summary_blocks(size);
        let Some(summary) = bytes.get(..summary_blocks as usize * size.bytes()) else {
            return Ok(());
        };
        let Ok(items) = parse_items(header, summary, size) else { return Ok(()) };
        let Some(sums) = items.sums else { return Ok(()) };
        let expected = header.sum_from(summary, &sums, size, self.seed);
        match (expected ^ header.datasum).count_ones() {
            0 => {}
            1 => self.correct_sum_of_log(log, header.datasum, expected)?,
            _ => return Ok(()),
        }
        let is_suspect = self.suspects.logs.contains(&log);
        let infos = items.files.iter().flat_map(|it| it.blocks.iter().map(|info| (it.ino, *info)));
        // The super root is the one that comes after them.
        let owners = infos.map(Some).chain(std::iter::once(None));
        let first = log.plus(summary_blocks);
        for (nth, (owner, sum)) in (0..).zip(owners.zip(&sums)) {
            if is_suspect || owner.is_none_or(|(ino, info)| self.is_of_interest(ino, info)) {
                let ino = owner.map(|(ino, _)| ino);
                self.correct_block(first.plus(nth), ino, *sum, (first, &sums))?;
            }
        }
        Ok(())
    }

    /// Whether checksums are of the blocks from one on: another of these than one that is wrong has its own. The
    /// summary may be that of another log, with an earlier version of the same blocks.
    fn is_at_home(&self, wrong: BlockNr, (first, sums): (BlockNr, &[BlockSum])) -> bool {
        let mut others = (first.0..).map(BlockNr).zip(sums).filter(|(at, _)| *at != wrong);
        let is_right = |(at, sum): (BlockNr, &BlockSum)| {
            self.block(at).is_some_and(|block| BlockSum::of(&block) == *sum)
        };
        sums.len() == 1 || others.any(is_right)
    }

    fn correct_sum_of_log(&mut self, log: BlockNr, found: u32, expected: u32) -> io::Result<()> {
        let bit = (found ^ expected).trailing_zeros();
        let wrong = WrongBit { byte: bit as usize / 8, bit: (bit % 8) as u8 };
        let what = format!("the log at block {log}");
        self.set_right(log, wrong, &expected.to_le_bytes(), what, None)
    }

    /// Whether a block says something about others.
    fn is_of_interest(&self, ino: Ino, info: BlockInfo) -> bool {
        info.is_node() || !ino.is_of_user() || self.suspects.files.contains(&ino)
    }

    fn correct_block(
        &mut self,
        at: BlockNr,
        ino: Option<Ino>,
        sum: BlockSum,
        of_log: (BlockNr, &[BlockSum]),
    ) -> io::Result<()> {
        let Some(mut block) = self.block(at).filter(|block| BlockSum::of(block) != sum) else {
            return Ok(());
        };
        let wrong = sum.wrong_bit(&block).filter(|_| self.is_at_home(at, of_log));
        let Some(wrong) = wrong else { return Ok(()) };
        wrong.flip(&mut block);
        let what = match ino {
            Some(ino) => format!("block {at} of inode {ino}"),
            None => format!("the super root in block {at}"),
        };
        self.set_right(at, wrong, &block, what, ino.filter(|ino| ino.is_of_user()))
    }

    fn block(&self, at: BlockNr) -> Option<Vec<u8>> {
        crate::dat::read(&*self.draft.device, &self.geometry, at)
    }

    /// Writes a byte into the draft, given where a bit was wrong in what begins in a block, and that as it
    /// should be.
    fn set_right(
        &mut self,
        start: BlockNr,
        wrong: WrongBit,
        bytes: &[u8],
        what: String,
        file: Option<Ino>,
    ) -> io::Result<()> {
        let offset = start.0 * self.geometry.block_size.bytes64() + wrong.byte as u64;
        let Some(byte) = bytes.get(wrong.byte..=wrong.byte) else { return Ok(()) };
        self.draft.device.write_at(offset, &[IoSlice::new(byte)])?;
        self.draft.segments.insert(self.geometry.segment_of(start));
        self.draft.repairs.push(Repair {
            fault: format!("{what} has another checksum than when it was written"),
            action: format!(
                "set bit {} of byte {} right, which the checksum tells",
                wrong.bit, wrong.byte
            ),
            risk: Risk::Safe,
            concerned: Concerned::new(file, Loss::Content),
        });
        Ok(())
    }
}
