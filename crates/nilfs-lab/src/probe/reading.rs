//! What can be found out by reading.

use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::target::{MAX_REQUEST_BYTES, Target};
use super::{Timing, median, rate};
use crate::trace::Kind;

/// How often each kind of request is timed.
const TIMES: usize = 32;
/// The smallest request of most devices.
const SECTOR: u64 = 512;
/// Requests that lie across a boundary are this large.
const CROSSING_BYTES: u64 = 2 * SECTOR;
const SEED: u64 = 0x7265_6164;

/// What reading tells.
#[derive(Debug, Clone)]
pub struct Reading {
    /// 1 MiB requests one after the other, bytes per second.
    pub sequential: f64,
    /// Single requests anywhere, by size.
    pub latencies: Vec<Timing>,
    /// Requests at boundaries of pages, erase blocks and units, whatever these are.
    pub crossings: Vec<Crossing>,
    /// Bytes per second without what a request costs.
    pub rate: f64,
    /// What a request costs besides its bytes.
    pub overhead: Duration,
}

/// Reads of 1 KiB at multiples of a power of two. Where it takes longer to read across than on
/// either side, something begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing {
    /// The power of two.
    pub boundary: u64,
    /// Ends there.
    pub before: Duration,
    /// Lies across.
    pub across: Duration,
    /// Begins there.
    pub after: Duration,
}

pub(super) fn probe(target: &mut dyn Target) -> Result<Reading> {
    let mut random = StdRng::seed_from_u64(SEED);
    let mut latencies = Vec::new();
    for bytes in powers(SECTOR, MAX_REQUEST_BYTES) {
        let places = target.bytes() / bytes;
        let times = (0..TIMES)
            .map(|_| target.time(Kind::Read, random.random_range(0..places) * bytes, bytes));
        latencies.push(Timing { bytes, time: median(times.collect::<Result<_>>()?) });
    }
    let sequential = sequential(target)?;
    let crossings = powers(2 * CROSSING_BYTES, target.bytes() / 4)
        .map(|boundary| crossing(target, boundary, &mut random))
        .collect::<Result<_>>()?;
    let (small, large) = (latencies[3], latencies[latencies.len() - 1]);
    let rate = rate(small, large);
    let bytes_time = Duration::from_secs_f64(small.bytes as f64 / rate);
    let overhead = small.time.saturating_sub(bytes_time);
    Ok(Reading { sequential, latencies, crossings, rate, overhead })
}

fn sequential(target: &mut dyn Target) -> Result<f64> {
    let requests = (target.bytes() / MAX_REQUEST_BYTES).min(2 * TIMES as u64);
    let times = (0..requests)
        .map(|number| target.time(Kind::Read, number * MAX_REQUEST_BYTES, MAX_REQUEST_BYTES));
    let total = times.sum::<Result<Duration>>()?;
    let seconds = total.max(Duration::from_nanos(1)).as_secs_f64();
    Ok((requests * MAX_REQUEST_BYTES) as f64 / seconds)
}

fn crossing(target: &mut dyn Target, boundary: u64, random: &mut StdRng) -> Result<Crossing> {
    let (mut before, mut across, mut after) = (Vec::new(), Vec::new(), Vec::new());
    // Odd multiples: others are boundaries of more.
    let places = target.bytes() / boundary / 2;
    for _ in 0..TIMES {
        let at = (random.random_range(0..places) * 2 + 1) * boundary;
        before.push(target.time(Kind::Read, at - CROSSING_BYTES, CROSSING_BYTES)?);
        across.push(target.time(Kind::Read, at - CROSSING_BYTES / 2, CROSSING_BYTES)?);
        after.push(target.time(Kind::Read, at, CROSSING_BYTES)?);
    }
    let [before, across, after] = [before, across, after].map(median);
    Ok(Crossing { boundary, before, across, after })
}

/// Powers of two from one to another, which is included.
fn powers(from: u64, to: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(from), |size| size.checked_mul(2))
        .take_while(move |&size| size <= to)
}
