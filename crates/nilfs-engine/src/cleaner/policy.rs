//! Which segments to clean first.

use nilfs_ondisk::SegNum;

use super::options::Policy;

/// A segment that could be cleaned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) segment: SegNum,
    /// Blocks that its logs take, counted from its start.
    pub(crate) filled: u64,
    /// Blocks that must be kept.
    pub(crate) live: u64,
    /// When its content was last modified (s since 1970).
    pub(crate) modified: u64,
    /// Blocks written by the volume since its content was modified.
    pub(crate) age: u64,
}

impl Candidate {
    /// Blocks that cleaning it gives back.
    pub(crate) fn gain(&self, per_segment: u64) -> u64 {
        per_segment.saturating_sub(self.live)
    }
}

/// Puts the best victims first.
pub(crate) fn rank(policy: Policy, candidates: &mut [Candidate], per_segment: u64) {
    match policy {
        Policy::Timestamp => candidates.sort_by_key(|it| (it.modified, it.segment)),
        Policy::Greedy => candidates.sort_by_key(|it| (it.live, it.segment)),
        Policy::CostBenefit => {
            candidates.sort_by(|a, b| benefit(b, per_segment).total_cmp(&benefit(a, per_segment)))
        }
    }
}

/// What cleaning gains, weighted by how long it will last, over what it costs: the live blocks are
/// read and written. Old content has lost already what it would lose soon. Its age counts by its
/// root: in proportion to it, a segment that is nearly full and old would come before one that is
/// half empty, and where all blocks are equally likely to be overwritten, that is a loss.
fn benefit(candidate: &Candidate, per_segment: u64) -> f64 {
    let gain = candidate.gain(per_segment) as f64;
    let cost = 1.0 + 2.0 * candidate.live as f64;
    gain * (1.0 + candidate.age as f64).sqrt() / cost
}

/// Blocks that the commit at the end of a step takes, besides those of the DAT: the super root and
/// what leads to it, and blocks of the sufile, the cpfile and the ifile.
const COMMIT_BLOCKS: u64 = 24;

/// How many of the victims, from the first on, give room back at the least cost. A few good ones
/// are cheap to move, but the commit after them costs as much as that after many. `dat` is the
/// size of the DAT in blocks.
pub(crate) fn cheapest(victims: &[Candidate], per_segment: u64, dat: u64) -> usize {
    let (mut moved, mut gained) = (0, 0);
    let costs = victims.iter().map(|victim| {
        moved += victim.live;
        gained += victim.gain(per_segment);
        // An entry changes for each block that is moved, and for each dead one that is let go.
        let entries = scattered(moved + gained, dat);
        ((moved + COMMIT_BLOCKS) as f64 + entries) / gained.max(1) as f64
    });
    let best = costs.enumerate().min_by(|(_, one), (_, other)| one.total_cmp(other));
    best.map_or(0, |(nth, _)| nth + 1)
}

/// Blocks of the DAT that hold the entries of this many blocks, if these are anywhere in it.
fn scattered(blocks: u64, dat: u64) -> f64 {
    let dat = dat.max(1) as f64;
    dat * -(-(blocks as f64) / dat).exp_m1()
}

#[cfg(test)]
mod tests;
