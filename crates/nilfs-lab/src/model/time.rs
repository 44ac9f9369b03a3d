//! Times as whole nanoseconds: sums of them are exact, whatever the order.

use std::time::Duration;

/// How long `bytes` take at a rate, to the nanosecond below.
pub(super) fn transfer(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// Bytes per second, if that many take so long.
pub(super) fn rate(bytes: u64, takes: Duration) -> f64 {
    bytes as f64 / takes.as_secs_f64()
}

/// Microseconds as presets give them.
pub(super) fn micros(microseconds: u32) -> Duration {
    Duration::from_micros(u64::from(microseconds))
}

/// A duration this many times.
pub(super) fn times(one: Duration, count: u64) -> Duration {
    let nanoseconds = one.as_nanos() * u128::from(count);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}
