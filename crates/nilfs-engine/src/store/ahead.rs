//! Which blocks the device is asked for ahead of their use.
//!
//! A commit writes what belongs together next to each other, but it is read by turns: a node of a
//! file's map, the DAT's blocks for it, content, the next node. The system, which looks for one
//! sequence, takes that for scattered. So the device is asked for a whole region at the second read
//! that goes there, or at the first one, if the region before has been asked for. Where one region is
//! read on after another, the next one is asked for as well, so that nobody has to wait for it. It knows
//! addresses, and nothing of what the blocks are.

use std::ops::Range;

use crate::host::atomic::{AtomicU64, Ordering};

/// Bytes of a region. A card takes about as long for them as for three requests.
const REGION: u64 = 64 << 10;

/// Regions that are remembered: those of a gibibyte.
const REGIONS: u64 = 16 << 10;

/// The reads after which the rest of a region is asked for.
const ENOUGH: u64 = 2;

/// The reads after which the next region is asked for, if the one before was read too.
const MANY: u64 = 8;

/// The reads after which the region is likely to have been dropped from memory, and is as new.
const ALL: u64 = 32;

/// The bits of an entry that count reads.
const COUNT: u32 = 8;

/// How often each of the regions that were read last has been read.
pub(super) struct ReadAhead {
    /// Numbers of regions, with their reads in the lowest bits. Readers need no lock: a count that is
    /// lost costs a request.
    regions: Box<[AtomicU64]>,
}

impl ReadAhead {
    pub(super) fn new() -> Self {
        Self { regions: (0..REGIONS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The bytes to ask for before `bytes` bytes are read from `start` on, if more than these are worth
    /// it: `least` bytes always are.
    pub(super) fn ask(&self, start: u64, bytes: u64, least: u64) -> Option<Range<u64>> {
        // Long reads are what their sequence needs.
        if bytes >= REGION {
            return None;
        }
        let region = start / REGION;
        let before = region.checked_sub(1).map_or(0, |before| self.reads(before));
        let reads = match self.reads(region) {
            0 if before >= ENOUGH => ENOUGH,
            ALL => 1,
            reads => reads + 1,
        };
        self.count(region, reads);
        let all_of = |region: u64| {
            region.saturating_mul(REGION)..region.saturating_add(1).saturating_mul(REGION)
        };
        let next = region.saturating_add(1);
        match reads {
            ENOUGH => Some(all_of(region)),
            MANY if before >= ENOUGH && self.reads(next) == 0 => {
                self.count(next, ENOUGH);
                Some(all_of(next))
            }
            1 if least > bytes => Some(start..start.saturating_add(least)),
            _ => None,
        }
    }

    /// Those bytes were not read after all.
    pub(super) fn take_back(&self, start: u64, bytes: u64) {
        let region = start / REGION;
        let reads = self.reads(region);
        if bytes < REGION && reads > 0 {
            self.count(region, reads - 1);
        }
    }

    fn count(&self, region: u64, reads: u64) {
        self.entry(region).store(region << COUNT | reads, Ordering::Relaxed);
    }

    fn entry(&self, region: u64) -> &AtomicU64 {
        &self.regions[(region % REGIONS) as usize]
    }

    /// How often a region has been read, 0 if that is not known any more.
    fn reads(&self, region: u64) -> u64 {
        let entry = self.entry(region).load(Ordering::Relaxed);
        if entry >> COUNT == region { entry & ((1 << COUNT) - 1) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;
    const LEAST: u64 = 4 * BLOCK;

    #[test]
    fn scattered_reads_ask_for_nothing_more() {
        let ahead = ReadAhead::new();
        for nth in [7, 3, 5, 1, 9] {
            assert_eq!(ahead.ask(nth * REGION, BLOCK, 0), None);
        }
    }

    #[test]
    fn a_region_is_asked_for_once_when_it_is_read_again() {
        let ahead = ReadAhead::new();
        let start = 5 * REGION;
        assert_eq!(ahead.ask(start + 3 * BLOCK, BLOCK, 0), None);
        assert_eq!(ahead.ask(start + 9 * BLOCK, BLOCK, 0), Some(start..start + REGION));
        for nth in 0..8 {
            assert_eq!(ahead.ask(start + nth * BLOCK, BLOCK, 0), None);
        }
    }

    #[test]
    fn what_is_read_in_order_is_asked_for_before_it_is_read() {
        let ahead = ReadAhead::new();
        let mut asked = Vec::new();
        // Two sequences by turns, each with a beginning that tells nothing yet.
        for nth in 0..10 * REGION / BLOCK {
            for start in [nth * BLOCK, 100 * REGION + nth * BLOCK] {
                let is_there = asked.iter().any(|asked: &Range<u64>| asked.contains(&start));
                assert!(is_there || nth * BLOCK <= REGION, "{start}");
                asked.extend(ahead.ask(start, BLOCK, 0));
            }
        }
        assert_eq!(asked.len(), 2 * 11, "each region once");
    }

    #[test]
    fn the_least_is_asked_for_at_first() {
        let ahead = ReadAhead::new();
        let start = 2 * REGION + BLOCK;
        assert_eq!(ahead.ask(start, BLOCK, LEAST), Some(start..start + LEAST));
    }

    #[test]
    fn a_region_that_was_read_often_is_as_new() {
        let ahead = ReadAhead::new();
        let asked = (0..2 * ALL).filter(|_| ahead.ask(0, BLOCK, 0).is_some());
        assert_eq!(asked.count(), 2);
    }

    #[test]
    fn what_was_not_read_after_all_is_asked_for_as_if_it_had_not_been() {
        let ahead = ReadAhead::new();
        let asked: Vec<_> = [9, 4, 7]
            .map(|nth| {
                let start = 5 * REGION + nth * BLOCK;
                let first = ahead.ask(start, BLOCK, LEAST);
                ahead.take_back(start, BLOCK);
                assert_eq!(ahead.ask(start, BLOCK, LEAST), first);
                first.map(|asked| asked.end - asked.start)
            })
            .into();
        assert_eq!(asked, [Some(LEAST), Some(REGION), None]);
    }

    #[test]
    fn a_region_is_forgotten_for_another_one() {
        let ahead = ReadAhead::new();
        assert_eq!(ahead.ask(REGION, BLOCK, 0), None);
        assert_eq!(ahead.ask((REGIONS + 1) * REGION, BLOCK, 0), None);
        assert_eq!(ahead.ask(REGION, BLOCK, 0), None);
    }

    #[test]
    fn long_reads_and_the_end_of_what_has_an_address_are_no_matter() {
        let ahead = ReadAhead::new();
        for _ in 0..3 {
            assert_eq!(ahead.ask(0, REGION, 0), None);
        }
        ahead.ask(u64::MAX - BLOCK, BLOCK, LEAST);
        ahead.ask(u64::MAX - BLOCK, BLOCK, LEAST);
    }
}
