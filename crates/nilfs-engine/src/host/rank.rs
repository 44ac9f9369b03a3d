//! The order in which locks are taken, and its enforcement.
//!
//! A thread waits only for locks that come after all those that it holds. So no two threads ever
//! wait for each other. What is only tried may be taken out of order, since nobody waits for it.
//! The locks inside a device, and inside the library of the caches, come after all of these:
//! nothing of the engine is called while they are held. Builds with debug assertions check it at
//! every lock, whether or not another thread is there to be waited for; other builds know no ranks.

/// Every lock of the engine, in the order in which a thread may wait for them. A thread holds at
/// most one of each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// One change of the volume's size, of all its files, or of whether it can be written, at a time.
    Remaking,
    /// Somebody outside of the engine is told that there is no room.
    Shortage,
    /// What one step of the cleaner leaves to the next; held during a step.
    CleanerStep,
    /// Held by the thread that gathers what the cleaner knows of the blocks.
    CleanerGathering,
    /// One piece of file data is on its way to the device before a commit freezes it.
    WritingAhead,
    /// The end of the log and what its writer knows; held during a commit.
    Log,
    /// Shared by every operation that changes something; exclusive for the moment in which a commit
    /// freezes what has changed.
    Transactions,
    /// Shared by operations on one directory and one file in it; exclusive for those on more.
    Names,
    /// The state of one inode.
    Inode,
    /// Every inode in memory.
    Table,
    /// Which inode numbers are taken.
    Numbers,
    /// Names and inodes that have changed and are in no log yet.
    Journal,
    /// The newest checkpoint. Taken after the state of the inode that is looked at: a commit
    /// publishes the new DAT before the new maps of inodes, so the view is never older than the
    /// map.
    View,
    /// What the cleaner knows of the blocks of all segments.
    LiveBlocks,
    /// The checkpoints that somebody looks at.
    KeptTrees,
    /// What the cleaner's thread is to do and is doing.
    CleanerControl,
    /// What the cleaner has done since the mount.
    CleanerTotals,
    /// The account of space.
    Space,
    /// When checkpoints were made.
    Times,
    /// Why nothing is written.
    Stopped,
    /// What the thread that makes checkpoints waits for.
    Wakeup,
    /// Files that threads wait for to become durable.
    SyncRequests,
    /// Files that are being read in order.
    Sequences,
    /// Blocks that a mount has read before they are asked for.
    ReadAhead,
    /// The checksums of the blocks of a segment.
    Checksums,
    /// Memory of blocks that are in use no more.
    BlockPool,
}

#[cfg(debug_assertions)]
mod checked {
    use std::cell::RefCell;

    use super::Rank;
    use crate::host::machine::thread_local;

    thread_local! {
        /// The ranks of the locks that the thread holds, in the order in which it took them.
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// The rank of a lock.
    #[derive(Debug, Clone, Copy)]
    pub(in crate::host) struct Ranked(Rank);

    /// A lock that this thread holds.
    #[derive(Debug)]
    pub(in crate::host) struct Held(Rank);

    impl Ranked {
        pub(in crate::host) fn new(rank: Rank) -> Self {
            Self(rank)
        }

        /// To be called before waiting for the lock.
        #[track_caller]
        pub(in crate::host) fn before_waiting(self) {
            let highest = HELD.with(|held| held.borrow().iter().max().copied());
            if let Some(highest) = highest {
                assert!(highest < self.0, "{:?} is locked while {highest:?} is held", self.0);
            }
        }

        /// To be called with the lock held.
        pub(in crate::host) fn locked(self) -> Held {
            HELD.with(|held| held.borrow_mut().push(self.0));
            Held(self.0)
        }
    }

    impl Held {
        /// To be called before giving the lock up until a condition is signalled.
        #[track_caller]
        pub(in crate::host) fn before_sleeping(&self) {
            HELD.with(|held| {
                assert_eq!(
                    held.borrow()[..],
                    [self.0],
                    "a thread sleeps while it holds other locks"
                );
            });
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with(|held| {
                let mut held = held.borrow_mut();
                let last = held.iter().rposition(|rank| *rank == self.0);
                held.remove(last.expect("a lock that is released was taken by this thread"));
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod checked {
    use super::Rank;

    #[derive(Debug, Clone, Copy)]
    pub(in crate::host) struct Ranked;

    #[derive(Debug)]
    pub(in crate::host) struct Held;

    impl Ranked {
        pub(in crate::host) fn new(_: Rank) -> Self {
            Self
        }

        pub(in crate::host) fn before_waiting(self) {}

        pub(in crate::host) fn locked(self) -> Held {
            Held
        }
    }

    impl Held {
        pub(in crate::host) fn before_sleeping(&self) {}
    }
}

pub(super) use self::checked::{Held, Ranked};
