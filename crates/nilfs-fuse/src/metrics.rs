//! How often each kind of request comes, how it ends and how long it takes. All that come are counted,
//! except for the first and the last one.
//!
//! Noting a request costs two clock readings and two additions that no lock guards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds of the buckets, in nanoseconds: powers of four from 1 µs to 17 s. What takes longer
/// is in one more bucket.
const BOUNDS: [u64; 13] = {
    let mut bounds = [1000; 13];
    let mut nth = 1;
    while nth < bounds.len() {
        bounds[nth] = bounds[nth - 1] * 4;
        nth += 1;
    }
    bounds
};

macro_rules! operations {
    ($($name:ident = $word:literal,)*) => {
        /// A kind of request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Operation {
            $($name,)*
        }

        const WORDS: &[&str] = &[$($word,)*];
    };
}

operations! {
    Lookup = "lookup",
    GetAttr = "getattr",
    SetAttr = "setattr",
    ReadLink = "readlink",
    Create = "create",
    CreateNameless = "tmpfile",
    MkNod = "mknod",
    MkDir = "mkdir",
    Symlink = "symlink",
    Link = "link",
    Unlink = "unlink",
    Rmdir = "rmdir",
    Rename = "rename",
    Open = "open",
    Release = "release",
    Read = "read",
    Write = "write",
    Copy = "copy_file_range",
    Seek = "seek",
    Fsync = "fsync",
    SyncFs = "syncfs",
    StatFs = "statfs",
    ReadDir = "readdir",
    ReadDirPlus = "readdirplus",
    Ioctl = "ioctl",
    Forget = "forget",
    Unsupported = "unsupported",
}

/// Counts of all kinds since the mount.
#[derive(Debug)]
pub struct Metrics {
    operations: [Counts; WORDS.len()],
}

#[derive(Debug, Default)]
struct Counts {
    errors: AtomicU64,
    nanoseconds: AtomicU64,
    buckets: [AtomicU64; BOUNDS.len() + 1],
}

/// What has become of the requests of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationCounts {
    /// The kind, in the words of FUSE.
    pub operation: &'static str,
    /// How many there were.
    pub count: u64,
    /// How many of them failed. That there is no such name is an answer to a lookup.
    pub errors: u64,
    /// How long all of them took together.
    pub time: Duration,
    /// Those that took about the same time, the fastest first.
    pub buckets: Vec<LatencyBucket>,
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Failed,
    /// It will be tried again, and counted then.
    Postponed,
}

/// Requests that took longer than those of the bucket before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyBucket {
    /// What the slowest of them can have taken; `None`: any time.
    pub up_to: Option<Duration>,
    /// How many there were.
    pub count: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { operations: std::array::from_fn(|_| Counts::default()) }
    }
}

impl Metrics {
    /// Runs an operation and notes how it went, which `judge` says of its result.
    pub(crate) fn measure<T>(
        &self,
        operation: Operation,
        judge: impl FnOnce(&T) -> Outcome,
        work: impl FnOnce() -> T,
    ) -> T {
        let begin = Instant::now();
        let result = work();
        let outcome = judge(&result);
        if outcome == Outcome::Postponed {
            return result;
        }
        let nanoseconds = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let counts = &self.operations[operation as usize];
        let bucket = BOUNDS.partition_point(|bound| *bound < nanoseconds);
        counts.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        counts.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        if outcome == Outcome::Failed {
            counts.errors.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// The counts of each kind so far.
    #[must_use]
    pub fn operations(&self) -> Vec<OperationCounts> {
        let bounds = BOUNDS.iter().map(|bound| Some(Duration::from_nanos(*bound)));
        let bounds: Vec<_> = bounds.chain([None]).collect();
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let each = WORDS.iter().zip(&self.operations);
        each.map(|(operation, counts)| {
            let buckets = bounds.iter().zip(counts.buckets.iter().map(load));
            let buckets: Vec<_> =
                buckets.map(|(up_to, count)| LatencyBucket { up_to: *up_to, count }).collect();
            OperationCounts {
                operation,
                count: buckets.iter().map(|bucket| bucket.count).sum(),
                errors: load(&counts.errors),
                time: Duration::from_nanos(load(&counts.nanoseconds)),
                buckets,
            }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_counted_once_under_its_kind() {
        let metrics = Metrics::default();
        for outcome in [Outcome::Failed, Outcome::Postponed, Outcome::Done] {
            metrics.measure(Operation::Ioctl, |()| outcome, || ());
        }
        let counts = metrics.operations();
        let (ioctl, others): (Vec<_>, Vec<_>) =
            counts.iter().partition(|counts| counts.operation == "ioctl");
        assert_eq!((ioctl[0].count, ioctl[0].errors), (2, 1));
        assert_eq!(ioctl[0].buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 2);
        assert!(others.iter().all(|other| other.count == 0));
    }

    #[test]
    fn a_slow_request_is_not_in_a_bucket_of_fast_ones() {
        let metrics = Metrics::default();
        let pause = Duration::from_millis(2);
        metrics.measure(Operation::Fsync, |()| Outcome::Done, || std::thread::sleep(pause));
        let counts = metrics.operations();
        let fsync = counts.iter().find(|counts| counts.operation == "fsync").unwrap();
        assert!(fsync.time >= pause);
        let is_fast = |bucket: &LatencyBucket| bucket.up_to.is_some_and(|bound| bound < pause);
        assert!(fsync.buckets.iter().all(|bucket| !is_fast(bucket) || bucket.count == 0));
    }
}
