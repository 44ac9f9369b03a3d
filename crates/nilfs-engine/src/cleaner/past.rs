//! How much of the past is given up where there is no room (docs/cleaning.md).
//!
//! The oldest checkpoints go first. The blocks that only they need may lie here and there, in
//! segments full of blocks that are kept, and these must be moved to gain the others: the less of
//! the past goes, the more is moved. It is kept up to a price.

use nilfs_ondisk::Cno;

use super::policy::Candidate;
use super::segment_table::SegmentTable;
use crate::protection::Protection;

/// What the past may cost.
#[derive(Debug, Clone, Copy)]
struct Price {
    /// The blocks that are moved, in quarters of those that would be if nothing but snapshots were
    /// kept.
    quarters: u64,
    /// If at least one block in `one_dead_in` is dead, no more is given up, however much has to be
    /// moved: in the emptiest segments, the share of dead blocks is no smaller than in all.
    one_dead_in: u64,
}

/// For a past that reaches back for a while: no more than two blocks are moved for each that is
/// gained.
const OF_LONG_PAST: Price = Price { quarters: 8, one_dead_in: 3 };
/// For one that does not. The volume is overwritten so fast that nobody could count on such a past,
/// and everybody waits for the cleaner.
const OF_SHORT_PAST: Price = Price { quarters: 5, one_dead_in: 2 };

/// Blocks that can be gained by giving the past up.
pub(super) struct Past {
    /// Live blocks of each candidate as long as nothing is given up.
    lives: Vec<u64>,
    /// What only the past needs, the oldest first: the checkpoint from which on it is dead, the
    /// candidate, and blocks.
    young: Vec<(Cno, usize, u64)>,
    /// The first protected checkpoint.
    from: Cno,
    per_segment: u64,
}

impl Past {
    pub(super) fn new(
        table: &SegmentTable,
        protection: &Protection,
        candidates: &[Candidate],
    ) -> Self {
        let of = |(nth, candidate): (usize, &Candidate)| {
            let blocks = table.only_young(candidate.segment, protection);
            blocks.map(move |(end, blocks)| (end, nth, blocks)).collect::<Vec<_>>()
        };
        let mut young: Vec<_> = candidates.iter().enumerate().flat_map(of).collect();
        young.sort_unstable();
        let lives = candidates.iter().map(|candidate| candidate.live).collect();
        Self { lives, young, from: protection.from, per_segment: table.segment_blocks() }
    }

    /// From which checkpoint on the past can be kept if `wanted` blocks are to be gained. One that
    /// would begin at `recent` or later is short.
    pub(super) fn kept_from(&self, wanted: u64, recent: Cno) -> Cno {
        match self.affordable_from(wanted, OF_LONG_PAST) {
            from if from < recent => from,
            _ => self.affordable_from(wanted, OF_SHORT_PAST),
        }
    }

    fn affordable_from(&self, wanted: u64, price: Price) -> Cno {
        let Some(least) = self.moved(self.young.len(), wanted) else { return Cno::MAX };
        let acceptable = (wanted / 4).max(price.quarters * least / 4);
        let is_enough = |count: usize| {
            let moved = self.moved(count, wanted);
            moved.is_some_and(|moved| moved <= acceptable || self.enough_is_dead(count, price))
        };
        let (mut low, mut high) = (0, self.young.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match is_enough(middle) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        let last = high.checked_sub(1).and_then(|nth| self.young.get(nth));
        last.map_or(self.from, |(end, ..)| self.from.max(*end))
    }

    /// Blocks that are moved to gain what is wanted, if this many entries of the past are given up;
    /// `None`: it cannot be gained.
    fn moved(&self, count: usize, wanted: u64) -> Option<u64> {
        let mut lives = self.lives.clone();
        self.young[..count].iter().for_each(|&(_, nth, blocks)| lives[nth] -= blocks);
        lives.sort_unstable();
        let (mut moved, mut gained) = (0, 0);
        for live in lives {
            if gained >= wanted {
                break;
            }
            moved += live;
            gained += self.per_segment.saturating_sub(live);
        }
        (gained >= wanted).then_some(moved)
    }

    /// Whether enough blocks are dead once the first `count` entries are given up.
    fn enough_is_dead(&self, count: usize, price: Price) -> bool {
        let all = self.per_segment * self.lives.len() as u64;
        let live: u64 = self.lives.iter().map(|&live| live.min(self.per_segment)).sum();
        let given_up: u64 = self.young[..count].iter().map(|(.., blocks)| blocks).sum();
        price.one_dead_in * (all - live + given_up) >= all
    }
}

#[cfg(test)]
mod tests {
    use nilfs_ondisk::SegNum;

    use super::super::segment_table::tests::{NEVER, PER_SEGMENT, table, young};
    use super::*;

    fn past(segments: &[&[(u64, u64, u64)]]) -> Past {
        let table = table(segments);
        let candidate = |segment| Candidate {
            segment: SegNum(segment),
            filled: PER_SEGMENT,
            live: table.live(SegNum(segment), &young()),
            modified: 0,
            age: 0,
        };
        let candidates: Vec<_> = (0..segments.len() as u64).map(candidate).collect();
        Past::new(&table, &young(), &candidates)
    }

    /// For a past that reaches back for long.
    fn from(past: &Past, wanted: u64) -> u64 {
        past.kept_from(wanted, Cno::MAX).0
    }

    #[test]
    fn no_more_is_given_up_than_is_wanted_and_the_oldest_first() {
        let past = past(&[
            &[(90, 6, 9), (9, 1, NEVER)],
            &[(100, 8, 20)],
            &[(100, 8, 30)],
            &[(100, 8, 40)],
        ]);
        assert_eq!(from(&past, 50), 10, "dead blocks are enough");
        assert_eq!(from(&past, 150), 20);
        assert_eq!(from(&past, 250), 30);
        assert_eq!(from(&past, 391), 40);
        assert_eq!(from(&past, 500), NEVER, "there is not so much");
    }

    #[test]
    fn what_only_a_snapshot_keeps_is_not_given_up() {
        let past = past(&[&[(100, 1, 20)], &[(100, 8, 30)]]);
        assert_eq!(from(&past, 100), 30, "a snapshot has the other");
    }

    /// The oldest dead blocks lie in segments full of live ones.
    #[test]
    fn more_is_given_up_where_moving_would_be_dear() {
        let full: &[_] = &[(10, 8, 20), (90, 8, NEVER)];
        let mut segments = vec![full; 10];
        segments.push(&[(100, 8, 30)]);
        assert_eq!(from(&past(&segments), 80), 30);
    }

    /// Nine segments of a hundred blocks, `dead` of which are dead in each, and a tenth segment that only
    /// the past needs.
    fn dead_here_and_there(dead: u64) -> Past {
        let here_and_there = [(dead, 6, 9), (100 - dead, 8, NEVER)];
        let mut segments = vec![&here_and_there[..]; 9];
        segments.push(&[(100, 8, 30)]);
        past(&segments)
    }

    #[test]
    fn no_more_is_given_up_where_a_third_is_dead_anyway() {
        assert_eq!(from(&dead_here_and_there(40), 80), 10);
    }

    /// A program that overwrites the volume in minutes would wait for the moving again and again.
    #[test]
    fn of_a_past_of_minutes_more_is_given_up() {
        let past = dead_here_and_there(40);
        assert_eq!(past.kept_from(80, Cno(11)), Cno(10), "some of it is older than that");
        assert_eq!(past.kept_from(80, Cno(10)), Cno(30));
    }

    #[test]
    fn even_of_such_a_past_no_more_is_given_up_where_half_is_dead() {
        assert_eq!(dead_here_and_there(60).kept_from(80, Cno(10)), Cno(10));
    }
}
