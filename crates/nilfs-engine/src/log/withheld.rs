//! Which clean segments may not be written yet, and what each of them waits for.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use nilfs_ondisk::SegNum;

use super::clean_segments::{CleanSegments, Refusal};
use crate::dat::Dat;
use crate::error::Error;
use crate::store::Store;
use crate::tree::Era;

/// What has to happen before a clean segment is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The checkpoint is written that takes the blocks over which the cleaner has moved here.
    Adopted,
    /// Nobody can be reading what was here, and the checkpoint that freed it is durable.
    Unread,
}

/// Clean segments that nobody may take.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    segments: BTreeMap<SegNum, Until>,
    /// Freed segments, in the order in which they were freed.
    freed: Vec<Freed>,
    /// How many checkpoints have freed segments.
    frees: u64,
    /// The volume is about to end here.
    end: Option<NewEnd>,
    /// Clean segments in which something is needed all the same.
    clean: CleanSegments,
}

/// Segments that one checkpoint has freed.
#[derive(Debug)]
struct Freed {
    /// Alive while somebody holds a view in which the old places are valid.
    era: Weak<Era>,
    segments: Vec<SegNum>,
    /// The number of the checkpoint among those that freed segments.
    nth: u64,
    durable: bool,
}

/// Where a volume that shrinks will end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewEnd {
    /// The first segment that will be gone.
    pub(crate) segment: SegNum,
    /// Clean segments from there on.
    pub(crate) clean: u64,
}

impl Withheld {
    /// Whether a clean segment may not be taken.
    pub(crate) fn has(&self, segment: SegNum) -> bool {
        self.segments.contains_key(&segment)
            || self.end.is_some_and(|end| segment >= end.segment)
            || self.clean.refusal(segment).is_some()
    }

    /// Whether a clean segment may be taken. It is looked at first, unless it is known to be free.
    pub(crate) fn allows(&self, store: &Store, dat: &Dat, segment: SegNum) -> bool {
        !self.has(segment) && self.clean.is_free(store, dat, segment)
    }

    /// Returns the reason not to write a segment that holds, or may hold, what is needed. The segment is
    /// looked at first, unless it is known to be free.
    pub(crate) fn refusal(&self, store: &Store, dat: &Dat, segment: SegNum) -> Option<Refusal> {
        match self.clean.is_free(store, dat, segment) {
            true => None,
            false => self.clean.refusal(segment),
        }
    }

    /// Returns what an error comes from: where there is no room because of damage, that.
    pub(crate) fn cause(&self, error: Error) -> Error {
        match (error, self.clean.damage()) {
            (Error::NoSpace, Some(damage)) => Error::Inconsistent(format!(
                "no segment can be written, because it cannot be told in which of them anything is \
                 needed: {damage}"
            )),
            (error, _) => error,
        }
    }

    /// A clean segment is not taken as long as the volume is mounted, because `needed` is there.
    pub(crate) fn refuse(&self, segment: SegNum, needed: &str) {
        self.clean.refuse(segment, needed);
    }

    /// So many blocks of checkpoints lie in a clean segment, as the whole DAT says.
    pub(crate) fn judge(&self, segment: SegNum, live: u64) {
        match live {
            0 => self.clean.judge_free(segment),
            _ if self.segments.contains_key(&segment) => {}
            _ => self.clean.refuse(segment, &format!("{live} blocks of checkpoints lie there")),
        }
    }

    /// Returns the clean segments in which something is needed, as far as they were looked at.
    pub(crate) fn refused(&self) -> Vec<SegNum> {
        self.clean.refused()
    }

    /// How many of the clean segments these are, at least, without those in which something is needed.
    pub(crate) fn count(&self) -> u64 {
        self.segments.len() as u64 + self.end.map_or(0, |end| end.clean)
    }

    /// The cleaner writes moved blocks into a segment.
    pub(crate) fn claim(&mut self, segment: SegNum) {
        let before = self.segments.insert(segment, Until::Adopted);
        assert!(before.is_none(), "segment {segment} was taken although it waits: {before:?}");
    }

    /// A claimed segment is in use, or was not used.
    pub(crate) fn unclaim(&mut self, segment: SegNum) {
        if let Some(until) = self.segments.remove(&segment) {
            assert_eq!(until, Until::Adopted, "segment {segment} was never claimed");
        }
    }

    /// A checkpoint that ends `era` has freed segments.
    pub(crate) fn free(&mut self, era: &Arc<Era>, segments: &[SegNum]) {
        for &segment in segments {
            let before = self.segments.insert(segment, Until::Unread);
            assert!(before.is_none(), "segment {segment} was freed although it waits: {before:?}");
            self.clean.freed(segment);
        }
        self.frees += 1;
        let (era, segments) = (Arc::downgrade(era), segments.to_vec());
        self.freed.push(Freed { era, segments, nth: self.frees, durable: false });
    }

    /// How many checkpoints have freed segments, for [`Withheld::durable`].
    pub(crate) fn frees(&self) -> u64 {
        self.frees
    }

    /// The first `frees` checkpoints that freed segments are durable.
    pub(crate) fn durable(&mut self, frees: u64) {
        assert!(frees <= self.frees, "only {} checkpoints have freed segments", self.frees);
        let durable = self.freed.iter_mut().take_while(|freed| freed.nth <= frees);
        durable.for_each(|freed| freed.durable = true);
    }

    /// Releases the freed segments that can be written again, and returns them. A view of an era is
    /// also in the way of what was freed after it.
    pub(crate) fn release(&mut self) -> Vec<SegNum> {
        let unread = |freed: &&Freed| freed.durable && freed.era.strong_count() == 0;
        let count = self.freed.iter().take_while(unread).count();
        let segments: Vec<SegNum> =
            self.freed.drain(..count).flat_map(|freed| freed.segments).collect();
        for segment in &segments {
            let until = self.segments.remove(segment);
            assert_eq!(until, Some(Until::Unread), "segment {segment} was taken while it waited");
        }
        segments
    }

    /// Whether freed segments wait.
    pub(crate) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Nothing may be taken from this end on; `None`: the volume ends where it ends.
    pub(crate) fn set_end(&mut self, end: Option<NewEnd>) {
        self.end = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_segment_waits_for_durability_and_for_every_earlier_reader() {
        let (first, second) = (Arc::new(Era(1)), Arc::new(Era(2)));
        let reader = Arc::clone(&first);
        let mut withheld = Withheld::default();
        withheld.free(&first, &[SegNum(5)]);
        withheld.free(&second, &[SegNum(6)]);
        drop((first, second));
        withheld.durable(withheld.frees());
        assert_eq!(withheld.release(), [], "a reader still has the first view");
        drop(reader);
        let third = Arc::new(Era(3));
        let before = withheld.frees();
        withheld.free(&third, &[SegNum(7)]);
        withheld.durable(before);
        drop(third);
        assert_eq!(withheld.release(), [SegNum(5), SegNum(6)], "7 is not durable yet");
        assert!(withheld.has(SegNum(7)) && !withheld.has(SegNum(6)));
        withheld.durable(withheld.frees());
        assert_eq!(withheld.release(), [SegNum(7)]);
        assert!(!withheld.has_freed());
        assert_eq!(withheld.count(), 0);
    }

    #[test]
    fn each_segment_waits_for_its_own_reason() {
        let mut withheld = Withheld::default();
        withheld.free(&Arc::new(Era(1)), &[SegNum(2)]);
        withheld.claim(SegNum(4));
        withheld.set_end(Some(NewEnd { segment: SegNum(8), clean: 2 }));
        assert_eq!(withheld.count(), 4);
        let has = |withheld: &Withheld| -> Vec<u64> {
            (0..10).filter(|&segment| withheld.has(SegNum(segment))).collect()
        };
        assert_eq!(has(&withheld), [2, 4, 8, 9]);
        withheld.durable(withheld.frees());
        assert_eq!(withheld.release(), [SegNum(2)]);
        assert_eq!(has(&withheld), [4, 8, 9]);
        withheld.unclaim(SegNum(4));
        withheld.set_end(None);
        assert_eq!(has(&withheld), [0; 0]);
    }

    #[test]
    #[should_panic(expected = "segment 4 was freed although it waits")]
    fn a_segment_that_the_cleaner_fills_cannot_be_freed() {
        let mut withheld = Withheld::default();
        withheld.claim(SegNum(4));
        withheld.free(&Arc::new(Era(1)), &[SegNum(4)]);
    }
}
