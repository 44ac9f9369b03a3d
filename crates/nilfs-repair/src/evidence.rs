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
use nilfs_engine::{RecoveryPlan, Verify, Volume};
use nilfs_ondisk::crc::Verdict;
use nilfs_ondisk::summary::{BlockInfo, FileInfo, Items, LogHeader, parse_items};
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, FileBlock, Ino};

use crate::draft::{Draft, is_whole};
use crate::{Concerned, Kept, Loss, Repair, Risk, Segments, paths, superblocks};

/// Parts of a file that are named; of more, it is said how many bytes there are.
const MOST_PARTS: usize = 4;

const ADVICE: &str = "nilfs restore brings back the version of a checkpoint in which it is whole; \
    writing it anew ends that, too, and so does nilfs fsck --accept, which takes it as it is";

/// Content of a file that is damaged, or may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub(crate) ino: Ino,
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
        match path {
            Some(path) => format!("{path}: {}", parts.join(", ")),
            None => format!("inode {}: {}", self.ino, parts.join(", ")),
        }
    }

    /// Returns it as something that stays as it is.
    pub(crate) fn kept(&self, path: Option<&str>) -> Kept {
        let what = match self.is_damaged {
            true => "not what was written, or it cannot be read",
            false => "it cannot be told any more whether that is what was written",
        };
        Kept { fault: self.place(path), why: format!("{what}; {ADVICE}") }
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
            risk: Risk::Loses,
            concerned: Concerned::new([self.ino], Loss::Content),
        }
    }
}

impl Draft {
    /// Returns what is damaged, or may be, in these segments, and lives.
    pub(crate) fn doubts_of(
        &self,
        segments: &Segments,
        newest: LogCursor,
    ) -> io::Result<Vec<Doubt>> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        let geometry = superblock.geometry();
        let mut found = Parts::default();
        for segment in segments {
            let (mut at, end) = (geometry.segment_start(*segment), geometry.segment_end(*segment));
            while at < end
                && let Some(header) = self.header(&geometry, at)?
            {
                // It is not known of what comes after the newest checkpoint whether all of that counts.
                if (header.seq, at) <= (newest.seq, newest.block) {
                    self.add_doubts(&mut found, (at, &header), newest)?;
                }
                at = at.plus(header.nblocks.into());
            }
        }
        Ok(found.into_doubts())
    }

    /// Returns what is damaged, or may be, in the sync logs that the engine rolls forward, but for what later
    /// ones have written over. In the checkpoint that comes of it, no log is left that tells.
    pub(crate) fn doubts_rolled_forward(&self, newest: LogCursor) -> io::Result<Vec<Doubt>> {
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let plan = Volume::open_with(device, Verify::None).and_then(|it| it.recovery_plan());
        // The engine tells why it cannot when it mounts the draft.
        let Ok(RecoveryPlan { applied, .. }) = plan else { return Ok(Vec::new()) };
        let mut found = Parts::default();
        for log in applied.iter().rev() {
            self.add_doubts(&mut found, (log.start, &log.header), newest)?;
            found.written_over.extend(log.files.iter().flat_map(|file| {
                file.blocks.iter().filter_map(|info| match info {
                    BlockInfo::Data { offset, .. } => Some((file.ino, *offset)),
                    _ => None,
                })
            }));
        }
        Ok(found.into_doubts())
    }

    /// As [`Draft::doubts_of`], of one log.
    pub(crate) fn doubts_in(&self, log: BlockNr, newest: LogCursor) -> io::Result<Vec<Doubt>> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        let mut found = Parts::default();
        if let Some(header) = self.header(&superblock.geometry(), log)? {
            self.add_doubts(&mut found, (log, &header), newest)?;
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
        let mut doubts = Vec::new();
        for log in logs {
            // What cannot be read says nothing.
            doubts.extend(self.doubts_in(log, report.newest_log).unwrap_or_default());
        }
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let paths = paths::newest(&device, doubts.iter().map(|doubt| doubt.ino).collect());
        let path = |ino| paths.get(&ino).map(|path| String::from_utf8_lossy(path));
        doubts.iter().map(|doubt| doubt.kept(path(doubt.ino).as_deref())).collect()
    }

    fn add_doubts(
        &self,
        found: &mut Parts,
        (log, header): (BlockNr, &LogHeader),
        newest: LogCursor,
    ) -> io::Result<()> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        let block_size = superblock.geometry().block_size;
        let size = block_size.bytes();
        let mut bytes = vec![0; header.described_blocks(block_size) as usize * size];
        let unreadable = self.read_blocks(log, &mut bytes, size);
        if unreadable.is_empty() && is_whole(&bytes, header, block_size, superblock.crc_seed()) {
            return Ok(());
        }
        let Ok(Items { files, sums, .. }) = parse_items(header, &bytes, block_size) else {
            return Ok(());
        };
        let Some(Some(mut dat)) = self.dat(newest) else { return Ok(()) };
        let is_synced = (header.seq, log) > (newest.seq, newest.block);
        let summary = header.summary_blocks(block_size);
        let blocks = files.iter().flat_map(|file| file.blocks.iter().map(|info| (file.ino, *info)));
        for (nth, (ino, info)) in blocks.enumerate() {
            let BlockInfo::Data { vblocknr, offset } = info else { continue };
            let block = log.plus(summary + nth as u64);
            let lives = |it: nilfs_ondisk::dat::DatEntry| it.block == block && it.start < it.end;
            // The DAT does not have yet what was synced since.
            let lives = is_synced || dat.entry(vblocknr).is_some_and(lives);
            let is_written_over = found.written_over.contains(&(ino, offset));
            if ino < Ino::FIRST_USER || !lives || is_written_over {
                continue;
            }
            let content = bytes.chunks(size).nth(summary as usize + nth).unwrap_or_default();
            let verdict = match sums.as_ref().and_then(|sums| sums.get(nth)) {
                _ if unreadable.contains(&block) => Verdict::Wrong,
                Some(sum) => sum.judge(content),
                None => Verdict::Unverified,
            };
            if verdict != Verdict::Right {
                let start = u128::from(offset.0) * size as u128;
                let part = start..start + size as u128;
                found.parts.entry((ino, verdict == Verdict::Wrong)).or_default().push(part);
            }
        }
        Ok(())
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

/// Parts of files.
#[derive(Default)]
struct Parts {
    /// Parts that are damaged or may be, by file and by whether they are known to be damaged.
    parts: BTreeMap<(Ino, bool), Vec<Range<u128>>>,
    /// Blocks that have come after those that are looked at.
    written_over: BTreeSet<(Ino, FileBlock)>,
}

impl Parts {
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
        let doubts = self.parts.into_iter();
        let doubt = |((ino, is_damaged), parts)| Doubt { ino, is_damaged, parts: joined(parts) };
        doubts.map(doubt).collect()
    }
}
