//! Segments that were cleaned and wait until nobody can be reading what was there.

use std::sync::{Arc, Weak};

use nilfs_ondisk::SegNum;

use crate::tree::Era;

/// In the order in which they were cleaned.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    waiting: Vec<Cleaned>,
}

#[derive(Debug)]
struct Cleaned {
    /// Alive while somebody holds a view in which the old places are valid.
    era: Weak<Era>,
    segments: Vec<SegNum>,
    /// The commit that freed them is durable.
    durable: bool,
}

impl Quarantine {
    /// `segments` are cleaned by a commit that ends `era`.
    pub(crate) fn add(&mut self, era: &Arc<Era>, segments: &[SegNum]) {
        let (era, segments) = (Arc::downgrade(era), segments.to_vec());
        self.waiting.push(Cleaned { era, segments, durable: false });
    }

    /// Everything written so far is durable.
    pub(crate) fn flushed(&mut self) {
        self.waiting.iter_mut().for_each(|cleaned| cleaned.durable = true);
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
        quarantine.flushed();
        assert_eq!(quarantine.take(), [], "a reader still has the first view");
        drop(reader);
        let third = Arc::new(Era(3));
        quarantine.add(&third, &[SegNum(7)]);
        drop(third);
        assert_eq!(quarantine.take(), [SegNum(5), SegNum(6)], "7 is not durable yet");
        quarantine.flushed();
        assert_eq!(quarantine.take(), [SegNum(7)]);
        assert!(quarantine.is_empty());
    }
}
