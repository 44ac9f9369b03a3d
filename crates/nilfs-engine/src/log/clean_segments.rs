//! Whether a segment that its usage entry calls clean holds something that is needed. The entry is one
//! witness, and may be wrong: a bit, a bad block of the sufile, an old version of one. What is written over
//! is gone, so there are two others, which cost nothing where nothing was ever written:
//!
//! * the old summaries in the segment say which blocks lie there, and the DAT whether one of these lives in
//!   any checkpoint;
//! * the chain of logs, from the one that the superblock names to the newest checkpoint, is in it or not.
//!
//! A segment that this mount has freed itself needs no second look: the cleaner has just asked for the life
//! of each of its blocks. So a segment is looked at once in a mount, before it is taken first.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use nilfs_ondisk::{BlockNr, SegNum};

use super::reader;
use crate::dat::Dat;
use crate::log::segment_reader::is_in_a_checkpoint;
use crate::store::Store;

/// Bytes that are read together at most of a segment, where logs are so short that each begins in what was
/// read for the one before, or right after that. Of a long one, the summary alone is read.
const MOST_READ: usize = 256 << 10;

/// Clean segments of which more is known than that.
#[derive(Debug, Default)]
pub(crate) struct CleanSegments {
    /// The segments that were looked at, each with the reason not to write there, if there is one.
    known: RefCell<BTreeMap<SegNum, Option<Refusal>>>,
}

/// Reason not to write a clean segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// This is there, and needed.
    Needed(String),
    /// Damage, or a device error, in what would tell whether it is needed.
    Unjudged(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Needed(what) => write!(
                f,
                "although its usage entry says that it is clean, {what}; nilfs fsck corrects the entry"
            ),
            Self::Unjudged(damage) => write!(
                f,
                "whether anything in it is needed cannot be told: {damage}; nilfs fsck says what can be \
                 done about that"
            ),
        }
    }
}

impl CleanSegments {
    /// Whether a clean segment holds nothing that is needed. It is looked at if that has not been done.
    pub(crate) fn is_free(&self, store: &Store, dat: &Dat, segment: SegNum) -> bool {
        if let Some(refusal) = self.known.borrow().get(&segment) {
            return refusal.is_none();
        }
        let refusal = refusal_of(store, dat, segment);
        let is_free = refusal.is_none();
        self.note(segment, refusal);
        is_free
    }

    /// A segment holds what is needed, although it is clean.
    pub(crate) fn refuse(&self, segment: SegNum, needed: &str) {
        if self.refusal(segment).is_none() {
            self.note(segment, Some(Refusal::Needed(needed.to_owned())));
        }
    }

    /// No block lives in a segment, as the whole DAT says.
    pub(crate) fn judge_free(&self, segment: SegNum) {
        self.known.borrow_mut().entry(segment).or_insert(None);
    }

    fn note(&self, segment: SegNum, refusal: Option<Refusal>) {
        if let Some(refusal) = &refusal {
            tracing::error!("segment {segment} is not written: {refusal}");
        }
        self.known.borrow_mut().insert(segment, refusal);
    }

    /// Returns damage because of which a segment cannot be told to be free, if there is any.
    pub(crate) fn damage(&self) -> Option<String> {
        self.known.borrow().values().flatten().find_map(|refusal| match refusal {
            Refusal::Unjudged(damage) => Some(damage.clone()),
            Refusal::Needed(_) => None,
        })
    }

    /// This mount has freed a segment.
    pub(crate) fn freed(&self, segment: SegNum) {
        self.known.borrow_mut().insert(segment, None);
    }

    /// Returns the reason not to write a segment, if one was found.
    pub(crate) fn refusal(&self, segment: SegNum) -> Option<Refusal> {
        self.known.borrow().get(&segment).cloned().flatten()
    }

    /// Returns the segments that are not written, as far as segments were looked at.
    pub(crate) fn refused(&self) -> Vec<SegNum> {
        let known = self.known.borrow();
        known.iter().filter(|(_, refusal)| refusal.is_some()).map(|(segment, _)| *segment).collect()
    }
}

/// Returns the reason not to write a segment, if there is one, as its old summaries and the DAT say.
fn refusal_of(store: &Store, dat: &Dat, segment: SegNum) -> Option<Refusal> {
    let mut summaries = Summaries::new(store, segment);
    while let Some(log) = summaries.next() {
        for described in log.blocks(store.block_size()) {
            match is_in_a_checkpoint(store, dat, &described) {
                Ok(false) => {}
                Ok(true) => {
                    let (block, ino) = (described.block, described.ino);
                    let needed = format!("block {block} is one of inode {ino} in a checkpoint");
                    return Some(Refusal::Needed(needed));
                }
                Err(error) => return Some(Refusal::Unjudged(error.to_string())),
            }
        }
    }
    None
}

/// The summaries in a segment, of any use of it, as far as they can be read. Where the first block is no
/// header of a log, nothing there can be needed, and no more than that block is read.
struct Summaries<'a> {
    store: &'a Store,
    at: BlockNr,
    end: BlockNr,
    buffer: Vec<u8>,
    /// The block with which the buffer begins.
    first: BlockNr,
}

impl<'a> Summaries<'a> {
    fn new(store: &'a Store, segment: SegNum) -> Self {
        let (at, end) =
            (store.geometry().segment_start(segment), store.geometry().segment_end(segment));
        Self { store, at, end, buffer: Vec::new(), first: at }
    }

    fn next(&mut self) -> Option<reader::Log> {
        let (store, block_size) = (self.store, self.store.block_size());
        while self.at < self.end {
            let start = self.at;
            let header = reader::parse_header(store, start, self.blocks(start, 1)?)?;
            self.at = start.plus(header.nblocks.into());
            let summary = self.blocks(start, header.summary_blocks(block_size) as usize)?;
            // One that is damaged says all the same where the next log begins.
            if let Ok(log) = reader::parse(store, start, header, summary) {
                return Some(log);
            }
        }
        None
    }

    /// Returns blocks from `start` on, none if they cannot be read.
    fn blocks(&mut self, start: BlockNr, count: usize) -> Option<&[u8]> {
        let block_bytes = self.store.block_size().bytes();
        let in_buffer = self.buffer.len() / block_bytes;
        let offset = usize::try_from(start.0 - self.first.0).ok()?;
        if offset + count > in_buffer {
            let bytes = match offset <= in_buffer && in_buffer > 0 {
                true => (2 * self.buffer.len()).min(MOST_READ),
                false => block_bytes,
            };
            let left = usize::try_from(self.end.0.saturating_sub(start.0)).ok()?;
            let blocks = (bytes / block_bytes).max(count).min(left);
            self.buffer.resize(blocks * block_bytes, 0);
            self.first = start;
            self.store.read_run(start, &mut self.buffer).ok()?;
        }
        let offset = (start.0 - self.first.0) as usize * block_bytes;
        self.buffer.get(offset..offset + count * block_bytes)
    }
}

#[cfg(test)]
mod tests;
