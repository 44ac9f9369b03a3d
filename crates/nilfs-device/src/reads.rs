//! How much of a block device is read at a time, so that its driver need not divide it unevenly.
//!
//! The system fetches what is read in pieces, each when the one before is there, and the driver divides
//! a piece into requests. Where a request has 120 KiB, as with many USB sticks, each piece of 128 KiB
//! became two, and every second request was one of 8 KiB.

use std::fs;
use std::num::NonZeroUsize;

use crate::loops::directory_of;

/// What the system fetches is a multiple of this.
const PAGE: usize = 4096;

/// Bytes that fill whole requests of the block device `device`, and are fetched together; `None` if any
/// number will do.
pub(crate) fn at_once(device: u64) -> Option<NonZeroUsize> {
    let directory = directory_of(device);
    // A partition has those of the disk.
    let queue = ["queue", "../queue"].map(|queue| directory.join(queue));
    let queue = queue.into_iter().find(|queue| queue.is_dir())?;
    let bytes = |setting: &str| {
        let kib = fs::read_to_string(queue.join(setting)).ok()?.trim().parse::<usize>().ok()?;
        kib.checked_mul(1024)
    };
    whole_requests(bytes("max_sectors_kb")?, bytes("read_ahead_kb")?)
}

/// The same, from the most that a request can have, and what is fetched together at most unless a
/// request has more.
fn whole_requests(request: usize, fetched: usize) -> Option<NonZeroUsize> {
    let request = request / PAGE * PAGE;
    let rest = fetched.checked_rem(request)?;
    NonZeroUsize::new(fetched - rest).filter(|_| rest > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_that_do_not_divide_what_is_fetched_are_minded() {
        let kib = |request: usize, fetched: usize| {
            whole_requests(request << 10, fetched << 10).map(|bytes| bytes.get() >> 10)
        };
        assert_eq!(kib(120, 128), Some(120));
        assert_eq!(kib(127, 128), Some(124), "requests begin and end with pages");
        assert_eq!(kib(48, 128), Some(96));
        for request in [64, 128, 512, 1280, 0] {
            assert_eq!(kib(request, 128), None, "{request}");
        }
    }
}
