//! Room that only somebody outside of the engine can give back: that of files without a name which
//! nobody has open any more, and of checkpoints which are kept because somebody looks at them. It
//! knows nothing of either.

use std::sync::OnceLock;

use super::Filesystem;
use crate::host::atomic::{AtomicU64, Ordering};
use crate::host::{Mutex, Rank};

/// Is told that there is no room, and returns whether it has let go of something.
type Witness = Box<dyn Fn(&Filesystem) -> bool + Send + Sync>;

/// Who is told of a shortage, and how often somebody has let go of something for that.
pub(super) struct Shortage {
    witness: OnceLock<Witness>,
    /// Locked while it is told.
    telling: Mutex<()>,
    releases: AtomicU64,
}

impl Default for Shortage {
    fn default() -> Self {
        let telling = Mutex::new(Rank::Shortage, ());
        Self { witness: OnceLock::new(), telling, releases: AtomicU64::new(0) }
    }
}

impl Shortage {
    /// How often somebody has let go of something so far.
    pub(super) fn releases(&self) -> u64 {
        self.releases.load(Ordering::Acquire)
    }
}

impl Filesystem {
    /// Has `witness` told when an operation finds no room, before it fails. If it returns that it has
    /// let go of something, the operation is tried again. Only the first call counts.
    ///
    /// It may look for [files without a name](Filesystem::held_without_name), say that they are
    /// [let go of](Filesystem::expect_let_go), and drop trees.
    pub fn tell_of_shortage(&self, witness: impl Fn(&Self) -> bool + Send + Sync + 'static) {
        // A volume has one front end.
        let _ = self.shortage.witness.set(Box::new(witness));
    }

    /// Whether somebody has let go of something since there were the `seen` releases, which it
    /// updates. What one operation gets, all others may use that found no room at the same time.
    pub(super) fn others_let_go(&self, seen: &mut u64) -> bool {
        let Shortage { witness, telling, releases } = &self.shortage;
        let _one_at_a_time = telling.lock();
        let is_news = self.shortage.releases() == *seen;
        if is_news && witness.get().is_some_and(|witness| witness(self)) {
            releases.fetch_add(1, Ordering::Release);
        }
        let now = self.shortage.releases();
        std::mem::replace(seen, now) != now
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::fixtures::{empty_volume, mount};

    /// One of them lets it go, and the others found nothing more and failed.
    #[test]
    fn what_is_let_go_of_is_there_for_all_who_found_no_room_before() {
        let fs = mount(&empty_volume(16));
        let there_is_something = AtomicBool::new(true);
        fs.tell_of_shortage(move |_| there_is_something.swap(false, Ordering::Relaxed));
        let (mut one, mut other) = (fs.shortage.releases(), fs.shortage.releases());
        assert!(fs.others_let_go(&mut one));
        assert!(fs.others_let_go(&mut other));
        assert!(!fs.others_let_go(&mut one));
        assert!(!fs.others_let_go(&mut other));
    }
}
