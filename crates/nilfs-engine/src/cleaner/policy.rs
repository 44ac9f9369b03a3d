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
/// read and written. Old content has lost already what it would lose soon.
fn benefit(candidate: &Candidate, per_segment: u64) -> f64 {
    let gain = candidate.gain(per_segment) as f64;
    let cost = 1.0 + 2.0 * candidate.live as f64;
    gain * (1.0 + candidate.age as f64) / cost
}

#[cfg(test)]
mod tests {
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
}
