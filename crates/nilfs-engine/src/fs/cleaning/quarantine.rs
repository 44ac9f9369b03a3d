//! Segments that were cleaned and wait until nobody can be reading what was there.

use std::sync::{Arc, Weak};

use nilfs_ondisk::SegNum;

use crate::tree::Era;

/// In the order in which they were cleaned.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    waiting: Vec<Cleaned>,
    /// How many commits have freed segments.
    commits: u64,
}

#[derive(Debug)]
struct Cleaned {
    /// Alive while somebody holds a view in which the old places are valid.
    era: Weak<Era>,
    segments: Vec<SegNum>,
    /// The number of the commit that freed them.
    commit: u64,
    /// It is durable.
    durable: bool,
}

impl Quarantine {
    /// `segments` are cleaned by a commit that ends `era`.
    pub(crate) fn add(&mut self, era: &Arc<Era>, segments: &[SegNum]) {
        let (era, segments) = (Arc::downgrade(era), segments.to_vec());
        self.commits += 1;
        self.waiting.push(Cleaned { era, segments, commit: self.commits, durable: false });
    }

    /// How many commits have freed segments, for [`Quarantine::flushed`].
    pub(crate) fn commits(&self) -> u64 {
        self.commits
    }

    /// The first so many commits are durable.
    pub(crate) fn flushed(&mut self, commits: u64) {
        let durable = self.waiting.iter_mut().take_while(|cleaned| cleaned.commit <= commits);
        durable.for_each(|cleaned| cleaned.durable = true);
    }

    /// Takes out the segments that can be written again. A view of an era is also in the way of what
    /// was cleaned after it.
    pub(crate) fn take(&mut self) -> Vec<SegNum> {
        let free = |cleaned: &&Cleaned| cleaned.durable && cleaned.era.strong_count() == 0;
        let count = self.waiting.iter().take_while(free).count();
        self.waiting.drain(..count).flat_map(|cleaned| cleaned.segments).collect()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_waits_for_durability_and_for_every_earlier_reader() {
        let (first, second) = (Arc::new(Era(1)), Arc::new(Era(2)));
        let reader = Arc::clone(&first);
        let mut quarantine = Quarantine::default();
        quarantine.add(&first, &[SegNum(5)]);
        quarantine.add(&second, &[SegNum(6)]);
        drop((first, second));
        quarantine.flushed(quarantine.commits());
        assert_eq!(quarantine.take(), [], "a reader still has the first view");
        drop(reader);
        let third = Arc::new(Era(3));
        let before = quarantine.commits();
        quarantine.add(&third, &[SegNum(7)]);
        quarantine.flushed(before);
        drop(third);
        assert_eq!(quarantine.take(), [SegNum(5), SegNum(6)], "7 is not durable yet");
        quarantine.flushed(quarantine.commits());
        assert_eq!(quarantine.take(), [SegNum(7)]);
        assert!(quarantine.is_empty());
    }
}
