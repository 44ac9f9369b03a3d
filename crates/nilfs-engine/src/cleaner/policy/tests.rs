//! Each policy's taste, and what the default costs in the long run: on a log of nothing but data,
//! where the limits are known. What metadata add is measured on real volumes, by nilfs-bench.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

fn order(policy: Policy) -> Vec<u64> {
    let candidate = |segment, live, modified, age| Candidate {
        segment: SegNum(segment),
        filled: 100,
        live,
        modified,
        age,
    };
    let mut candidates =
        [candidate(1, 50, 30, 10), candidate(2, 90, 10, 1000), candidate(3, 60, 20, 900)];
    rank(policy, &mut candidates, 100);
    candidates.iter().map(|candidate| candidate.segment.0).collect()
}

#[test]
fn each_policy_has_its_favourite() {
    assert_eq!(order(Policy::Timestamp), [2, 3, 1], "the oldest first");
    assert_eq!(order(Policy::Greedy), [1, 3, 2], "the emptiest first");
    assert_eq!(order(Policy::CostBenefit), [3, 2, 1], "the emptiest among the cold first");
}

#[test]
fn a_step_takes_as_many_victims_as_make_it_cheap() {
    let victim = |live| Candidate { segment: SegNum(0), filled: 100, live, modified: 0, age: 0 };
    let equal = [victim(50); 8];
    assert_eq!(cheapest(&equal, 100, 1000), 8, "they share one commit");
    let one_good = [victim(10), victim(95), victim(95), victim(95)];
    assert_eq!(cheapest(&one_good, 100, 1000), 1, "the others cost more than they give");
    assert_eq!(cheapest(&[], 100, 1000), 0);
}

const SEGMENTS: usize = 512;
const PER_SEGMENT: usize = 64;
/// Clean segments that the cleaner sees to at each commit.
const KEPT_CLEAN: usize = 30;
/// Of these, what a volume keeps back.
const RESERVED: usize = 21;
/// Victims of a step.
const VICTIMS: usize = 16;
/// Blocks that programs write between two commits.
const COMMIT: usize = 512;

/// A log of data blocks, with a stream for what programs write and one for what is moved.
struct DataLog {
    /// Where each block is, and which is where.
    place: Vec<usize>,
    held: Vec<Option<usize>>,
    live: Vec<usize>,
    /// When each segment's content was modified, by the clock.
    modified: Vec<u64>,
    clock: u64,
    clean: Vec<usize>,
    fresh: (usize, usize),
    moved: (usize, usize),
    written: u64,
}

impl DataLog {
    fn new(blocks: usize) -> Self {
        let mut clean: Vec<usize> = (0..SEGMENTS).rev().collect();
        let mut open = || (clean.pop().unwrap(), 0);
        let (fresh, moved) = (open(), open());
        let mut log = Self {
            place: vec![usize::MAX; blocks],
            held: vec![None; SEGMENTS * PER_SEGMENT],
            live: vec![0; SEGMENTS],
            modified: vec![0; SEGMENTS],
            clock: 0,
            clean,
            fresh,
            moved,
            written: 0,
        };
        (0..blocks).for_each(|block| log.write(block));
        log
    }

    fn write(&mut self, block: usize) {
        self.clock += 1;
        self.fresh = self.put(block, self.fresh, self.clock);
    }

    fn put(&mut self, block: usize, stream: (usize, usize), modified: u64) -> (usize, usize) {
        let (mut segment, mut filled) = stream;
        if filled == PER_SEGMENT {
            (segment, filled) = (self.clean.pop().expect("a clean segment is left"), 0);
        }
        if let Some(held) = self.held.get_mut(self.place[block]) {
            *held = None;
            self.live[self.place[block] / PER_SEGMENT] -= 1;
        }
        self.place[block] = segment * PER_SEGMENT + filled;
        self.held[self.place[block]] = Some(block);
        self.live[segment] += 1;
        self.modified[segment] = modified;
        self.written += 1;
        (segment, filled + 1)
    }

    fn step(&mut self) {
        let busy = [self.fresh.0, self.moved.0];
        let mut candidates: Vec<Candidate> = (0..SEGMENTS)
            .filter(|segment| !busy.contains(segment) && !self.clean.contains(segment))
            .map(|segment| Candidate {
                segment: SegNum(segment as u64),
                filled: PER_SEGMENT as u64,
                live: self.live[segment] as u64,
                modified: 0,
                age: self.clock - self.modified[segment],
            })
            .collect();
        rank(Policy::CostBenefit, &mut candidates, PER_SEGMENT as u64);
        candidates.truncate(VICTIMS);
        let live: u64 = candidates.iter().map(|victim| victim.live).sum();
        let ages: u64 = candidates.iter().map(|victim| victim.live * victim.age).sum();
        let modified = self.clock - ages / live.max(1);
        for victim in candidates {
            let segment = victim.segment.0 as usize;
            for place in segment * PER_SEGMENT..(segment + 1) * PER_SEGMENT {
                if let Some(block) = self.held[place] {
                    self.moved = self.put(block, self.moved, modified);
                }
            }
            self.clean.insert(0, segment);
        }
    }
}

/// Blocks written for each that programs write, in the long run, with this many percent of what a
/// volume has for programs in use.
fn amplification(live: usize, next: impl Fn(&mut SmallRng, usize) -> usize) -> f64 {
    let blocks = (SEGMENTS - RESERVED) * PER_SEGMENT * live / 100;
    let turn = SEGMENTS * PER_SEGMENT;
    let mut random = SmallRng::seed_from_u64(1);
    let mut log = DataLog::new(blocks);
    let mut before = 0;
    for nth in 0..6 * turn {
        if nth == 3 * turn {
            before = log.written;
        }
        if nth % COMMIT == 0 {
            while log.clean.len() < KEPT_CLEAN {
                log.step();
            }
        }
        log.write(next(&mut random, blocks));
    }
    (log.written - before) as f64 / (3 * turn) as f64
}

#[test]
fn the_default_comes_near_the_limits_of_uniform_writes() {
    for (live, limit) in [(50, 1.26), (70, 1.88), (80, 2.69)] {
        let found = amplification(live, |random, blocks| random.random_range(0..blocks));
        assert!(found < 1.12 * limit, "{live} % live: {found:.2}, at best {limit}");
    }
}

/// A tenth of the blocks gets nine tenths of the writes. One stream for all writes 3.6 at 80 %.
#[test]
fn the_default_keeps_cold_blocks_out_of_the_way() {
    let hot_or_cold = |random: &mut SmallRng, blocks: usize| match random.random_bool(0.9) {
        true => random.random_range(0..blocks / 10),
        false => random.random_range(blocks / 10..blocks),
    };
    for (live, most) in [(50, 1.2), (70, 1.7), (80, 2.1)] {
        let found = amplification(live, hot_or_cold);
        assert!(found < most, "{live} % live: {found:.2}");
    }
}
