//! Reading a whole volume to see whether it still is what was written.
//!
//! Every log has a checksum over all of its blocks, and ours have one for each block as well. So the
//! segments that are in use are read log by log, in the order in which they lie on the device, and
//! nothing else is asked as long as all is well: neither the DAT nor any file. What is wrong with a
//! log matters only if a checkpoint still needs one of its damaged blocks, and `needs` finds that out.
//! Of a log without checksums of its blocks, as Linux writes them, it is not known which are damaged.
//!
//! The volume may be mounted and written meanwhile. The logs that count are those of the newest
//! checkpoint at the beginning; the cleaner may move their blocks and use their segments again. Until
//! it does, anything may be in a segment that is free, if the device was told so. So a segment in which
//! something is wrong is read once more, the newest checkpoint at the end says what is needed there, and
//! what was found in a segment that has been written anew by then does not count: what is needed there
//! are other blocks. No checkpoint has to be kept meanwhile, and nothing is written.
//!
//! A scrub that was ended can go on later: where it was, and which segments were damaged, is all that
//! has to be known of it.

pub(crate) mod copies;
pub(crate) mod moment;
pub(crate) mod needs;
mod window;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use nilfs_ondisk::crc::{BlockSum, Crc, Verdict};
use nilfs_ondisk::summary::LogHeader;
use nilfs_ondisk::{BlockNr, Cno, Ino, SegNum, Seq};

use self::moment::{Moment, UsedSegment};
use self::needs::Needs;
use self::window::Window;
use crate::error::Result;
use crate::log::reader::{self, Log};
use crate::tree::Extent;

/// What is to be read: everything, or what an earlier scrub has not read, with what it found damaged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The segments from this one on.
    pub from: SegNum,
    /// Segments before it.
    pub also: BTreeSet<SegNum>,
}

impl Selection {
    fn has(&self, segment: SegNum) -> bool {
        segment >= self.from || self.also.contains(&segment)
    }
}

/// What a scrub found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Scrubbed {
    /// The newest checkpoint when it began; later logs were not looked at.
    pub checkpoint: Cno,
    /// Bytes read.
    pub bytes: u64,
    /// Logs of which every byte is as it was written.
    pub sound_logs: u64,
    /// What is damaged and needed.
    pub damage: Vec<Damage>,
    /// Checkpoints, or logs of fsyncs, that are on the device, or should be, but that nothing leads to.
    pub unreached: Option<Unreached>,
    /// It was ended before it had read everything: the segment with which it has to go on.
    pub interrupted: Option<SegNum>,
}

/// Where a volume that is not mounted seems to end, though it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreached {
    /// The block in which a log should be.
    pub block: BlockNr,
    /// The newest checkpoint that is known to be there, or after it. `None`: what fsyncs have written
    /// after the one that was found, and a mount refuses.
    pub newest: Option<Cno>,
}

/// What is wrong at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device cannot read these blocks.
    Unreadable,
    /// These blocks can be read, but each has another checksum than what was written there.
    Content,
    /// The checksums of what was written in these blocks were lost before they were moved here.
    Unverified,
    /// All blocks of a log can be read, but its checksum does not fit: one of them, it is not known
    /// which, is not what was written.
    Checksum,
    /// There should be logs, but there is no valid summary.
    NoSummary,
}

/// Damage that a checkpoint suffers from.
#[derive(Debug)]
pub struct Damage {
    /// What is wrong.
    pub fault: Fault,
    /// The segment.
    pub segment: SegNum,
    /// Its blocks.
    pub blocks: Range<BlockNr>,
    /// The log, if there is a summary that tells what is in it.
    pub log: Option<BlockNr>,
    /// What needs these blocks, by inode number.
    pub needs: Vec<Need>,
    /// Whether everything that needs them has got what was written there.
    pub repaired: bool,
}

/// A file, or a part of the metadata, that needs damaged blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Its inode number; numbers below [`Ino::FIRST_USER`] are metadata. `None`: it cannot be told
    /// which files have these blocks.
    pub ino: Option<Ino>,
    /// A path of it from the root, in the newest checkpoint that needs the blocks. `None`: there is
    /// none, or it cannot be read.
    pub path: Option<Vec<u8>>,
    /// Which parts of it lie in these blocks, ascending.
    pub data: Vec<Extent>,
    /// How many other blocks: nodes of its block map, or such of which nothing is known.
    pub other_blocks: u64,
    /// The first checkpoint that needs one of the blocks.
    pub first: Cno,
    /// The last of them.
    pub last: Cno,
    /// Whether that is the newest of all.
    pub is_current: bool,
}

/// How far a scrub is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Bytes of logs gone through so far.
    pub done: u64,
    /// Bytes of all logs.
    pub all: u64,
    /// Bytes read so far, with those that were read twice.
    pub read: u64,
    /// Logs that are sound.
    pub sound_logs: u64,
    /// Where to go on if the scrub is cut off now: everything before this segment is sound, or was
    /// known to be damaged.
    pub from: SegNum,
}

/// What is called after each piece of at most a MiB, and may wait, or end the scrub.
pub type Observe<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Reads what is selected at a moment. `newest` finds the newest one at any time.
pub(crate) fn read(
    mut at_first: Moment,
    newest: &dyn Fn() -> Result<Moment>,
    selection: &Selection,
    observe: Observe<'_>,
) -> Result<Scrubbed> {
    let mut segments = at_first.used_segments()?;
    segments.retain(|it| selection.has(it.segment));
    at_first.let_go();
    let block_bytes = at_first.store.block_size().bytes64();
    let blocks: u64 = segments.iter().map(|segment| segment.blocks).sum();
    let all = blocks.saturating_mul(block_bytes);
    let mut reading = Reading {
        moment: &at_first,
        observe,
        progress: Progress { done: 0, all, read: 0, sound_logs: 0, from: SegNum(0) },
        interrupted: false,
        window: Window::new(&at_first.store),
    };
    let mut damaged: Vec<(SegNum, Suspect)> = Vec::new();
    for segment in &segments {
        if damaged.iter().all(|(segment, _)| selection.also.contains(segment)) {
            reading.progress.from = segment.segment;
        }
        let done = reading.progress.done;
        let (logs, suspects) = reading.segment(segment);
        reading.progress.sound_logs += logs;
        if !suspects.is_empty() {
            let (_, suspects) = reading.segment(segment);
            damaged.extend(suspects.into_iter().map(|suspect| (segment.segment, suspect)));
        }
        reading.progress.done = done + segment.blocks.saturating_mul(block_bytes);
        if reading.interrupted {
            // Damage in what came before is remembered by its segment.
            reading.progress.from = segment.segment;
            break;
        }
    }
    let Reading { progress, interrupted, .. } = reading;
    let mut found = Scrubbed {
        checkpoint: at_first.newest.cno,
        bytes: progress.read,
        sound_logs: progress.sound_logs,
        interrupted: interrupted.then_some(progress.from),
        ..Scrubbed::default()
    };
    if !damaged.is_empty() {
        let now = newest()?;
        let since = at_first.seq;
        damaged.retain(|(_, suspect)| !now.has_written_anew(&suspect.blocks, since));
        found.damage = Needs::of(&now).judge(damaged);
    }
    Ok(found)
}

/// A place where something is wrong, whether or not anything needs it.
struct Suspect {
    fault: Fault,
    blocks: Range<BlockNr>,
    /// What its summary says, if there is one.
    log: Option<Log>,
}

/// What a look at a place finds.
enum Look {
    /// A log that is as it was written.
    Sound(LogHeader),
    /// A log with a valid summary, and what is wrong with it.
    Damaged(LogHeader, Vec<Suspect>),
    /// No log.
    Nothing,
    /// A log that was written after the scrub began, or that comes after its end.
    Later,
}

struct Reading<'a> {
    moment: &'a Moment,
    observe: Observe<'a>,
    progress: Progress,
    interrupted: bool,
    window: Window<'a>,
}

impl Reading<'_> {
    /// Reads the logs of a segment. Returns how many are sound, and what is wrong.
    fn segment(&mut self, segment: &UsedSegment) -> (u64, Vec<Suspect>) {
        let geometry = self.moment.store.geometry();
        let mut at = geometry.segment_start(segment.segment);
        let end = at.plus(segment.blocks).min(geometry.segment_end(segment.segment));
        self.window.enter(&(at..end));
        let (mut seq, mut sound, mut suspects) = (None, 0, Vec::new());
        // A log has two blocks at least.
        while at.plus(1) < end && !self.interrupted {
            let header = match self.look(at, seq) {
                Look::Later => break,
                Look::Sound(header) => {
                    sound += 1;
                    header
                }
                Look::Damaged(header, found) => {
                    suspects.extend(found);
                    header
                }
                Look::Nothing => {
                    let next = self.next_log(at.plus(1)..end, seq);
                    let blocks = at..next;
                    suspects.push(Suspect { fault: Fault::NoSummary, blocks, log: None });
                    at = next;
                    continue;
                }
            };
            seq = Some(header.seq);
            at = at.plus(header.nblocks.into());
        }
        (sound, suspects)
    }

    /// Reads the log that should be at a block.
    fn look(&mut self, at: BlockNr, seq: Option<Seq>) -> Look {
        let store = &self.moment.store;
        let Some(header) = self.header(at) else { return Look::Nothing };
        if header.cno > self.moment.newest.cno {
            return Look::Later;
        }
        if seq.is_some_and(|seq| seq != header.seq) {
            return Look::Nothing;
        }
        let (sum, unreadable) = self.read_log(at, &header);
        if self.interrupted {
            return Look::Later;
        }
        let block_size = store.block_size();
        if unreadable.is_empty() && header.verify_log(sum, block_size).is_ok() {
            return Look::Sound(header);
        }
        let Ok(log) = reader::read(&self.moment.store, at, header) else { return Look::Nothing };
        let all = at..at.plus(header.described_blocks(block_size));
        let mut found = match &log.sums {
            Some(sums) => self.changed(all, sums),
            None if unreadable.is_empty() => vec![(Fault::Checksum, vec![all])],
            None => Vec::new(),
        };
        if self.interrupted {
            return Look::Later;
        }
        found.push((Fault::Unreadable, unreadable));
        let found = found.into_iter();
        let found = found.flat_map(|(fault, all)| all.into_iter().map(move |it| (fault, it)));
        let suspect = |(fault, blocks)| Suspect { fault, blocks, log: Some(log.clone()) };
        let mut suspects: Vec<Suspect> = found.map(suspect).collect();
        suspects.sort_by_key(|suspect| suspect.blocks.start);
        Look::Damaged(header, suspects)
    }

    /// Returns which readable blocks, of those of a log from its summary on, are not known to be what was
    /// written. `sums` are the checksums of the blocks after the summary.
    fn changed(
        &mut self,
        log: Range<BlockNr>,
        sums: &[BlockSum],
    ) -> Vec<(Fault, Vec<Range<BlockNr>>)> {
        let size = self.moment.store.block_size().bytes();
        let (mut changed, mut unverified) = (Vec::new(), Vec::new());
        let mut rest = BlockNr(log.end.0 - sums.len() as u64)..log.end;
        let mut sums = sums.iter();
        while !rest.is_empty() && !self.interrupted {
            let piece = self.piece(&rest);
            let unreadable = self.window.unreadable();
            let content = self.window.content(&piece).chunks_exact(size);
            for ((at, content), sum) in (piece.start.0..).map(BlockNr).zip(content).zip(&mut sums) {
                if unreadable.contains(&at) {
                    continue;
                }
                match sum.judge(content) {
                    Verdict::Right => {}
                    Verdict::Unverified => add(&mut unverified, at),
                    Verdict::Wrong => add(&mut changed, at),
                }
            }
            rest.start = piece.end;
        }
        vec![(Fault::Content, changed), (Fault::Unverified, unverified)]
    }

    /// The header of the log that should be at a block.
    fn header(&mut self, at: BlockNr) -> Option<LogHeader> {
        let block = at..at.plus(1);
        self.piece(&block);
        let is_readable = !self.window.unreadable().contains(&at);
        is_readable
            .then(|| reader::parse_header(&self.moment.store, at, self.window.content(&block)))?
    }

    /// Reads every block that a log describes. Returns their checksum and what cannot be read.
    fn read_log(&mut self, start: BlockNr, header: &LogHeader) -> (Crc, Vec<Range<BlockNr>>) {
        let store = &self.moment.store;
        let mut crc = Crc::new(store.seed());
        let mut rest = start..start.plus(header.described_blocks(store.block_size()));
        let mut unreadable = Vec::<Range<BlockNr>>::new();
        while !rest.is_empty() && !self.interrupted {
            let piece = self.piece(&rest);
            // The checksum does not cover itself.
            let skip = if piece.start == start { 4 } else { 0 };
            crc.update(&self.window.content(&piece)[skip..]);
            let lost = self.window.unreadable().iter().filter(|it| piece.contains(it));
            lost.for_each(|block| add(&mut unreadable, *block));
            rest.start = piece.end;
        }
        (crc, unreadable)
    }

    /// The first of these blocks, as many as are in memory, after reading them if they were not.
    fn piece(&mut self, blocks: &Range<BlockNr>) -> Range<BlockNr> {
        if !self.window.blocks().contains(&blocks.start) {
            let bytes = self.window.read(blocks.start);
            self.progress.read += bytes;
            self.progress.done = (self.progress.done + bytes).min(self.progress.all);
            self.interrupted |= (self.observe)(self.progress).is_break();
        }
        blocks.start..blocks.end.min(self.window.blocks().end)
    }

    /// The first block with a valid summary of the same use of the segment; the end if there is none.
    fn next_log(&self, blocks: Range<BlockNr>, seq: Option<Seq>) -> BlockNr {
        let store = &self.moment.store;
        let newest = self.moment.newest;
        let is_log = |at: &BlockNr| {
            reader::log_at(store, *at).is_some_and(|header| match seq {
                Some(seq) => header.seq == seq,
                None => header.seq <= newest.seq && header.cno <= newest.cno,
            })
        };
        (blocks.start.0..blocks.end.0).map(BlockNr).find(is_log).unwrap_or(blocks.end)
    }
}

/// Adds a block to ranges of which none goes beyond it.
fn add(ranges: &mut Vec<Range<BlockNr>>, block: BlockNr) {
    match ranges.last_mut() {
        Some(last) if last.end == block => last.end = block.plus(1),
        _ => ranges.push(block..block.plus(1)),
    }
}
