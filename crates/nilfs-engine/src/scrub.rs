//! Reading a whole volume to see whether it still is what was written.
//!
//! File data has no checksums of its own, but every log has one over all of its blocks. So the
//! segments that are in use are read log by log, in the order in which they lie on the device, and
//! nothing else is asked as long as all is well: neither the DAT nor any file. What is wrong with a
//! log matters only if a checkpoint still needs one of its blocks, and `needs` finds that out.
//!
//! The volume may be mounted and written meanwhile. The logs that count are those of the newest
//! checkpoint at the beginning; the cleaner may move their blocks and use their segments again. So a
//! segment in which something is wrong is read once more, and then it is the newest checkpoint at
//! that time that says what is needed there: blocks that it needs have not been written over. No
//! checkpoint has to be kept for that, and nothing is written.

mod needs;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use nilfs_device::Device;
use nilfs_ondisk::crc::Crc;
use nilfs_ondisk::summary::LogHeader;
use nilfs_ondisk::{BlockNr, Cno, Ino, SegNum, Seq};

use self::needs::Needs;
use crate::error::Result;
use crate::log::reader::{self, Log};
use crate::tree::Extent;
use crate::volume::{SegmentInfo, Volume};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

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
    /// It was ended before it had read everything.
    pub interrupted: bool,
}

/// What is wrong at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device cannot read these blocks.
    Unreadable,
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
    /// What needs these blocks, by inode number.
    pub needs: Vec<Need>,
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
}

/// Reads all logs of the volume on a device. `observe` is called after each piece of at most a MiB,
/// and may wait, or end it.
///
/// # Errors
/// [`NotAVolume`](crate::Error::NotAVolume), [`Feature`](crate::Error::Feature), or it cannot be told
/// which segments are in use.
pub fn scrub(
    device: &Arc<dyn Device>,
    observe: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Scrubbed> {
    let volume = Volume::open(Arc::clone(device))?;
    let segments = volume.segments(SegNum(0))?;
    let segments: Vec<_> = segments.into_iter().filter(|it| it.dirty).collect();
    let block_bytes = volume.geometry().block_size.bytes64();
    let blocks: u64 = segments.iter().map(|segment| segment.blocks).sum();
    let checkpoint = volume.last_log().cno;
    let mut reading = Reading {
        volume: &volume,
        observe,
        progress: Progress { done: 0, all: blocks.saturating_mul(block_bytes), read: 0 },
        found: Scrubbed { checkpoint, ..Scrubbed::default() },
        buffer: vec![0; READ_BYTES.max(block_bytes as usize)],
    };
    let mut damaged = Vec::new();
    for segment in &segments {
        let done = reading.progress.done;
        let (logs, suspects) = reading.segment(segment);
        reading.found.sound_logs += logs;
        if !suspects.is_empty() {
            let (_, suspects) = reading.segment(segment);
            damaged.extend(suspects.into_iter().map(|suspect| (segment.segment, suspect)));
        }
        reading.progress.done = done + segment.blocks.saturating_mul(block_bytes);
        if reading.found.interrupted {
            break;
        }
    }
    let mut found = reading.found;
    if !damaged.is_empty() {
        let newest = Volume::open(Arc::clone(device))?;
        found.damage = Needs::of(&newest).judge(damaged);
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
    volume: &'a Volume,
    observe: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
    progress: Progress,
    found: Scrubbed,
    buffer: Vec<u8>,
}

impl Reading<'_> {
    /// Reads the logs of a segment. Returns how many are sound, and what is wrong.
    fn segment(&mut self, segment: &SegmentInfo) -> (u64, Vec<Suspect>) {
        let geometry = self.volume.geometry();
        let mut at = geometry.segment_start(segment.segment);
        let end = at.plus(segment.blocks).min(geometry.segment_end(segment.segment));
        let (mut seq, mut sound, mut suspects) = (None, 0, Vec::new());
        // A log has two blocks at least.
        while at.plus(1) < end && !self.found.interrupted {
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
        let store = &self.volume.store;
        let Ok(Some(header)) = reader::header(store, at) else { return Look::Nothing };
        if header.cno > self.found.checkpoint {
            return Look::Later;
        }
        if seq.is_some_and(|seq| seq != header.seq) {
            return Look::Nothing;
        }
        let (sum, unreadable) = self.read_log(at, &header);
        if self.found.interrupted {
            return Look::Later;
        }
        if unreadable.is_empty() && sum == header.datasum {
            return Look::Sound(header);
        }
        let Ok(log) = reader::read(&self.volume.store, at, header) else { return Look::Nothing };
        let suspect = |fault, blocks| Suspect { fault, blocks, log: Some(log.clone()) };
        let suspects = match unreadable.is_empty() {
            true => vec![suspect(Fault::Checksum, at..at.plus(header.nblocks.into()))],
            false => {
                unreadable.into_iter().map(|blocks| suspect(Fault::Unreadable, blocks)).collect()
            }
        };
        Look::Damaged(header, suspects)
    }

    /// Reads every block of a log. Returns its checksum and what cannot be read.
    fn read_log(&mut self, start: BlockNr, header: &LogHeader) -> (u32, Vec<Range<BlockNr>>) {
        let store = Arc::clone(&self.volume.store);
        let block_bytes = store.block_size().bytes();
        let end = start.plus(header.nblocks.into());
        let most = (self.buffer.len() / block_bytes) as u64;
        let mut crc = Crc::new(store.seed());
        let (mut at, mut unreadable) = (start, Vec::<Range<BlockNr>>::new());
        while at < end && !self.found.interrupted {
            let blocks = most.min(end.0 - at.0);
            let piece = &mut self.buffer[..blocks as usize * block_bytes];
            // What is in a cache says nothing about the device.
            store.device().forget_cached(at.0 * block_bytes as u64, piece.len() as u64);
            let is_read = store.read_run(at, piece).is_ok();
            if is_read {
                // The checksum does not cover itself.
                let skip = if at == start { 4 } else { 0 };
                crc.update(&piece[skip..]);
            } else {
                for (block, content) in (at.0..).map(BlockNr).zip(piece.chunks_mut(block_bytes)) {
                    if store.read_run(block, content).is_ok() {
                        continue;
                    }
                    match unreadable.last_mut() {
                        Some(last) if last.end == block => last.end = block.plus(1),
                        _ => unreadable.push(block..block.plus(1)),
                    }
                }
            }
            let bytes = piece.len() as u64;
            at = at.plus(blocks);
            self.found.bytes += bytes;
            self.progress.read += bytes;
            self.progress.done = (self.progress.done + bytes).min(self.progress.all);
            self.found.interrupted |= (self.observe)(self.progress).is_break();
        }
        (crc.value(), unreadable)
    }

    /// The first block with a valid summary of the same use of the segment; the end if there is none.
    fn next_log(&self, blocks: Range<BlockNr>, seq: Option<Seq>) -> BlockNr {
        let store = &self.volume.store;
        let newest = self.volume.last_log();
        let is_log = |at: &BlockNr| {
            let header = reader::header(store, *at).ok().flatten();
            let header = header.filter(|header| match seq {
                Some(seq) => header.seq == seq,
                None => header.seq <= newest.seq && header.cno <= newest.cno,
            });
            header.is_some_and(|header| reader::read(store, *at, header).is_ok())
        };
        (blocks.start.0..blocks.end.0).map(BlockNr).find(is_log).unwrap_or(blocks.end)
    }
}
