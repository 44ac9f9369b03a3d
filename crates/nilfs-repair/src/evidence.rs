//! Evidence: content that a repair moves, and of which it is not known that it is what was written. Nothing
//! makes a checksum right over that but its owner, by saying so.
//!
//! What follows from the rest of the volume is corrected, and its checksum with it. The content of a file
//! follows from nothing. If its own checksum is wrong, this one moves along with it; if it has none, and
//! that of its log is wrong or was lost, it moves as unverified (docs/format.md §4.3).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use nilfs_check::{Report, Rule};
use nilfs_device::Device;
use nilfs_engine::{SyncedContent, Verify, Volume};
use nilfs_ondisk::crc::Verdict;
use nilfs_ondisk::summary::{BlockInfo, FileInfo, Items, LogHeader, parse_items};
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, VBlockNr};

use crate::dat::Dat;
use crate::draft::{Draft, is_whole};
use crate::{Concerned, Kept, Loss, Repair, Risk, Segments, paths, superblocks};

/// Parts of a file that are named; of more, it is said how many bytes there are.
const MOST_PARTS: usize = 4;

const ADVICE: &str = "nilfs restore brings back the version of a checkpoint in which it is whole; \
    writing it anew ends that, too, and so does nilfs fsck --accept, which takes it as it is";

const ADVICE_ON_THE_PAST: &str = "that ends when no checkpoint has it any more";

/// Content of a file that is damaged, or may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub(crate) ino: Ino,
    /// The last checkpoint that may have it, unless the present does: another file may have the number now.
    last: Option<Cno>,
    /// Whether it is known to be damaged.
    is_damaged: bool,
    /// Where in the file, in bytes, ascending.
    parts: Vec<Range<u128>>,
}

/// Whether each block that a log has of a file is content of it.
pub(crate) fn contents(file: &FileInfo) -> impl Iterator<Item = bool> {
    let is_users = file.ino >= Ino::FIRST_USER;
    file.blocks.iter().map(move |info| is_users && matches!(info, BlockInfo::Data { .. }))
}

/// Whether a log has content of a file.
pub(crate) fn has_content(file: &FileInfo) -> bool {
    contents(file).any(|is_content| is_content)
}

impl Doubt {
    fn place(&self, path: Option<&str>) -> String {
        let bytes = self.parts.iter().map(|part| part.end - part.start).sum::<u128>();
        let part = |it: &Range<u128>| format!("{} bytes at byte {}", it.end - it.start, it.start);
        let parts: Vec<String> = match self.parts.len() {
            0..=MOST_PARTS => self.parts.iter().map(part).collect(),
            many => vec![format!("{bytes} bytes in {many} parts")],
        };
        match (self.last, path) {
            (Some(cno), _) => format!("checkpoint {cno}, inode {}: {}", self.ino, parts.join(", ")),
            (None, Some(path)) => format!("{path}: {}", parts.join(", ")),
            (None, None) => format!("inode {}: {}", self.ino, parts.join(", ")),
        }
    }

    /// Returns it as something that stays as it is.
    pub(crate) fn kept(&self, path: Option<&str>) -> Kept {
        let what = match self.is_damaged {
            true => "not what was written, or it cannot be read",
            false => "it cannot be told any more whether that is what was written",
        };
        let advice = if self.last.is_some() { ADVICE_ON_THE_PAST } else { ADVICE };
        Kept { fault: self.place(path), why: format!("{what}; {advice}") }
    }

    /// Returns it as something that its owner takes as it is.
    pub(crate) fn accepted(&self) -> Repair {
        let what = match self.is_damaged {
            true => "not what was written",
            false => "perhaps not what was written",
        };
        Repair {
            fault: format!("{}, {what}", self.place(None)),
            action: "take what is there for what was written".to_owned(),
            risk: Risk::Accepted,
            concerned: Concerned::new([self.ino], Loss::Content),
        }
    }
}

impl Draft {
    /// Returns what is damaged, or may be, and lives, in segments that are emptied and in the logs from which
    /// the engine takes over what fsyncs have written. In the checkpoint that comes of it, no log is left that
    /// tells.
    pub(crate) fn doubts_of(
        &self,
        emptied: &Segments,
        newest: LogCursor,
    ) -> io::Result<Vec<Doubt>> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        let geometry = superblock.geometry();
        let mut living = self.living(newest);
        let taken_over = living.synced.placed.keys().map(|block| geometry.segment_of(*block));
        let segments: Segments = emptied.iter().copied().chain(taken_over).collect();
        let mut found = Parts::default();
        let mut described = BTreeSet::new();
        for segment in segments {
            let (mut at, end) = (geometry.segment_start(segment), geometry.segment_end(segment));
            while at < end {
                let Some(header) = self.header(&geometry, at) else {
                    at = at.plus(1);
                    continue;
                };
                let next = at.plus(header.nblocks.into());
                if self.add_doubts(&mut found, (at, &header), &mut living)? {
                    described.extend(living.synced.placed.range(at..next).map(|(block, _)| *block));
                }
                at = next;
            }
        }
        let size = geometry.block_size.bytes64();
        for (block, place) in &living.synced.placed {
            if !described.contains(block) {
                found.add(*place, None, Verdict::Unverified, size);
            }
        }
        living.synced.lost.iter().for_each(|place| found.add(*place, None, Verdict::Wrong, size));
        Ok(found.into_doubts())
    }

    /// Returns where content lives, as the newest checkpoint has it and what fsyncs have written after that.
    fn living(&self, newest: LogCursor) -> Living<'_> {
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let synced = Volume::open_with(device, Verify::Rescue).and_then(|it| it.synced_content());
        // The engine tells why it cannot when it mounts the draft.
        Living { dat: self.dat(newest).flatten(), synced: synced.unwrap_or_default() }
    }

    /// As [`Draft::doubts_of`], of one log.
    pub(crate) fn doubts_in(&self, log: BlockNr, newest: LogCursor) -> io::Result<Vec<Doubt>> {
        self.doubts_in_log(log, &mut self.living(newest))
    }

    fn doubts_in_log(&self, log: BlockNr, living: &mut Living<'_>) -> io::Result<Vec<Doubt>> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        let mut found = Parts::default();
        if let Some(header) = self.header(&superblock.geometry(), log) {
            self.add_doubts(&mut found, (log, &header), living)?;
        }
        Ok(found.into_doubts())
    }

    /// Returns the content in the logs that a check has found damaged, as something that stays as it is.
    pub(crate) fn damaged_content(&self, report: &Report) -> BTreeSet<Kept> {
        let logs: BTreeSet<BlockNr> = report
            .findings
            .iter()
            .filter(|it| matches!(it.rule, Rule::Log | Rule::RollForward))
            .filter_map(|it| it.place.log)
            .collect();
        if logs.is_empty() {
            return BTreeSet::new();
        }
        let mut living = self.living(report.newest_log);
        // What cannot be read says nothing.
        let doubts_in = |log| self.doubts_in_log(log, &mut living).unwrap_or_default();
        let doubts: Vec<Doubt> = logs.into_iter().flat_map(doubts_in).collect();
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let paths = paths::newest(&device, doubts.iter().map(|doubt| doubt.ino).collect());
        let path = |ino| paths.get(&ino).map(|path| String::from_utf8_lossy(path));
        doubts.iter().map(|doubt| doubt.kept(path(doubt.ino).as_deref())).collect()
    }

    /// Adds what is damaged, or may be, in a log. Returns whether the log says of which files its blocks are.
    fn add_doubts(
        &self,
        found: &mut Parts,
        (log, header): (BlockNr, &LogHeader),
        living: &mut Living<'_>,
    ) -> io::Result<bool> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        let block_size = superblock.geometry().block_size;
        let size = block_size.bytes();
        let mut bytes = vec![0; header.described_blocks(block_size) as usize * size];
        let unreadable = self.read_blocks(log, &mut bytes, size);
        if unreadable.is_empty() && is_whole(&bytes, header, block_size, superblock.crc_seed()) {
            return Ok(true);
        }
        let Ok(Items { files, sums, .. }) = parse_items(header, &bytes, block_size) else {
            return Ok(false);
        };
        let summary = header.summary_blocks(block_size);
        let blocks = files.iter().flat_map(|file| file.blocks.iter().map(|info| (file.ino, *info)));
        for (nth, (ino, info)) in blocks.enumerate() {
            let BlockInfo::Data { vblocknr, offset } = info else { continue };
            let block = log.plus(summary + nth as u64);
            if ino < Ino::FIRST_USER {
                continue;
            }
            let Some(last) = living.last(block, vblocknr, (ino, offset)) else { continue };
            let content = bytes.chunks(size).nth(summary as usize + nth).unwrap_or_default();
            let verdict = match sums.as_ref().and_then(|sums| sums.get(nth)) {
                _ if unreadable.contains(&block) => Verdict::Wrong,
                Some(sum) => sum.judge(content),
                None => Verdict::Unverified,
            };
            found.add((ino, offset), Some(last).filter(|it| *it < Cno::MAX), verdict, size as u64);
        }
        Ok(true)
    }

    /// Reads blocks, each alone if they cannot be read together. Returns those that cannot be read.
    fn read_blocks(&self, first: BlockNr, bytes: &mut [u8], size: usize) -> BTreeSet<BlockNr> {
        let read = |block: BlockNr, bytes: &mut [u8]| {
            self.device.read_at(block.0 * size as u64, bytes).is_ok()
        };
        if read(first, bytes) {
            return BTreeSet::new();
        }
        let blocks = (first.0..).map(BlockNr).zip(bytes.chunks_mut(size));
        blocks.filter_map(|(block, bytes)| (!read(block, bytes)).then_some(block)).collect()
    }
}

/// Content that lives.
struct Living<'a> {
    dat: Option<Dat<'a>>,
    /// What the DAT does not have yet.
    synced: SyncedContent,
}

impl Living<'_> {
    /// The last checkpoint that may have a block that a log has of a file, if it is still that: that with the
    /// highest number there can be, if the present has it.
    fn last(&mut self, block: BlockNr, vblock: VBlockNr, place: (Ino, FileBlock)) -> Option<Cno> {
        if self.synced.placed.get(&block) == Some(&place) {
            return Some(Cno::MAX);
        }
        let entry = self.dat.as_mut().and_then(|dat| dat.entry(vblock));
        let entry = entry.filter(|it| it.block == block && it.start < it.end)?;
        Some(if entry.end == Cno::MAX { Cno::MAX } else { Cno(entry.end.0 - 1) })
    }
}

/// Parts of files that are damaged or may be, by file, by the last checkpoint that has them if the present has
/// not, and by whether they are known to be damaged.
#[derive(Default)]
struct Parts(BTreeMap<(Ino, Option<Cno>, bool), Vec<Range<u128>>>);

impl Parts {
    /// Adds a block of a file, unless it is right.
    fn add(
        &mut self,
        (ino, offset): (Ino, FileBlock),
        last: Option<Cno>,
        verdict: Verdict,
        size: u64,
    ) {
        if verdict != Verdict::Right {
            let start = u128::from(offset.0) * u128::from(size);
            let parts = self.0.entry((ino, last, verdict == Verdict::Wrong)).or_default();
            parts.push(start..start + u128::from(size));
        }
    }

    fn into_doubts(self) -> Vec<Doubt> {
        let joined = |mut parts: Vec<Range<u128>>| {
            parts.sort_unstable_by_key(|part| part.start);
            let mut joined: Vec<Range<u128>> = Vec::new();
            for part in parts {
                match joined.last_mut() {
                    Some(last) if last.end >= part.start => last.end = last.end.max(part.end),
                    _ => joined.push(part),
                }
            }
            joined
        };
        let doubts = self.0.into_iter();
        let doubt = |((ino, last, is_damaged), parts)| Doubt {
            ino,
            last,
            is_damaged,
            parts: joined(parts),
        };
        doubts.map(doubt).collect()
    }
}
