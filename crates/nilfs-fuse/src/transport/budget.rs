//! How large requests may be, and how many of them may be under way, so that they take no more memory than
//! they are allowed to.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of data in the largest request; `fs.fuse.max_pages_limit` allows no more.
pub(super) const LARGEST: u32 = 1 << 20;

/// Bytes of data in the largest request where there is little memory: as much as the largest page that
/// Linux has, and as a name or a message needs.
pub(super) const SMALLEST: u32 = 64 << 10;

/// Returns how many bytes of data requests may have so that this many of them take no more than `memory`;
/// `None` if not even the smallest are small enough.
pub(super) fn size_of_requests(memory: u64, count: usize) -> Option<u32> {
    let halved = |size: &u32| Some(size / 2).filter(|size| *size >= SMALLEST);
    let mut sizes = iter::successors(Some(LARGEST), halved);
    sizes.find(|size| u64::from(*size).saturating_mul(count as u64) <= memory)
}

/// Bytes that may be in use.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0) })
    }

    /// Takes a part of it; `None` if there is not so much left.
    pub fn claim(self: &Arc<Self>, bytes: u64) -> Option<Claim> {
        let add = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Claim { budget: Arc::clone(self), bytes })
    }
}

/// A part of a budget, which returns to it when this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_large_as_their_number_allows() {
        assert_eq!(size_of_requests(u64::MAX, 512), Some(LARGEST));
        assert_eq!(size_of_requests(16 << 20, 16), Some(LARGEST));
        assert_eq!(size_of_requests((16 << 20) - 1, 16), Some(LARGEST / 2));
        assert_eq!(size_of_requests(1 << 20, 16), Some(SMALLEST));
        assert_eq!(size_of_requests(1 << 20, 17), None);
    }

    #[test]
    fn no_more_is_claimed_than_there_is() {
        let budget = Budget::new(10);
        let first = budget.claim(6);
        assert!(first.is_some() && budget.claim(5).is_none() && budget.claim(u64::MAX).is_none());
        let second = budget.claim(4);
        assert!(second.is_some() && budget.claim(1).is_none() && budget.claim(0).is_some());
        drop(first);
        assert!(budget.claim(6).is_some());
    }
}
