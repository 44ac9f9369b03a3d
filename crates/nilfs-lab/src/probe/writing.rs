//! What can be found out by writing. Everything on the device is lost.

use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::target::{MAX_REQUEST_BYTES, Target};
use super::{Timing, mean, median, rate};
use crate::trace::Kind;

/// How often each kind of request is timed.
const TIMES: u64 = 32;
/// The smallest request of most devices.
const SECTOR: u64 = 512;
/// What file systems write at least.
const SMALL: u64 = 4096;
/// The largest of the small writes.
const MEDIUM: u64 = 64 << 10;
/// Distances at which it is tried whether writes fall into the same unit.
const STRIDES: std::ops::RangeInclusive<u64> = 128 << 10..=64 << 20;
/// Writes at each distance: more than units can be open, twice over. Few at first, because each
/// may take as long as copying a unit; devices that need many are fast.
const STRIDE_WRITES: [u64; 2] = [96, 320];
/// Fewer say nothing.
const LEAST_STRIDE_WRITES: u64 = 8;
/// With more units than this, nobody notices a limit.
const MOST_OPEN: u64 = 256;
/// What costs this many times more has made the device copy.
const CLIFF: u32 = 3;
/// How many units from the beginning are tried for a special mapping.
const AREAS: u64 = 4;
const SEED: u64 = 0x7772_6974;

/// What writing tells.
#[derive(Debug, Clone)]
pub struct Writing {
    /// Bytes per second without what a request costs.
    pub rate: f64,
    /// 1 MiB requests one after the other, bytes per second.
    pub sequential: f64,
    /// What a request costs besides its bytes.
    pub overhead: Duration,
    /// A flush with nothing to do.
    pub flush: Duration,
    /// Small requests one after the other, each with a flush, by size.
    pub small: Vec<Timing>,
    /// What is programmed at least, if that was seen.
    pub page_bytes: Option<u64>,
    /// Whether small requests one after the other are gathered.
    pub gathers: bool,
    /// Single writes at a distance from each other, by distance: they take twice as long from one
    /// to the next until each falls into a unit of its own.
    pub strides: Vec<Timing>,
    /// Units, if there are.
    pub units: Option<Units>,
}

/// Allocation units.
#[derive(Debug, Clone)]
pub struct Units {
    /// Their size.
    pub bytes: u64,
    /// Writing to several in turn, by their number: the mean of a write.
    pub in_turn: Vec<Turn>,
    /// How many can be open at once; more if no limit was found.
    pub open: u64,
    /// What it takes to close one, if a limit was found.
    pub closing: Option<Duration>,
    /// Whether writes within a unit have to ascend.
    pub linear: bool,
    /// Small writes anywhere in one unit; in a usual one, then in the first ones of the device.
    pub scattered: Duration,
    /// See `scattered`.
    pub first: Vec<Duration>,
    /// Bytes at the beginning of the device where scattered writes are cheaper: where the file
    /// allocation table is.
    pub fat_bytes: u64,
}

/// Writing to several units in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The number of units.
    pub units: u64,
    /// The mean of a write.
    pub time: Duration,
}

/// A device, and where on it the next thing is tried.
struct Probe<'a> {
    target: &'a mut dyn Target,
    /// Beyond what may be mapped in a special way.
    start: u64,
    /// Pages of a unit that have been used for writing in turn.
    round: u64,
    random: StdRng,
}

pub(super) fn probe(target: &mut dyn Target) -> Result<Writing> {
    let start = (target.bytes() / 8).min(64 << 20) / MAX_REQUEST_BYTES * MAX_REQUEST_BYTES;
    let mut probe = Probe { target, start, round: 0, random: StdRng::seed_from_u64(SEED) };
    let flush = probe.flush()?;
    let mut small = Vec::new();
    let mut size = SECTOR;
    while size <= MEDIUM {
        small.push(Timing { bytes: size, time: probe.small(size)?.saturating_sub(flush) });
        size *= 2;
    }
    let large = probe.ascending(MAX_REQUEST_BYTES)?;
    let medium = Timing { bytes: MEDIUM, time: probe.ascending(MEDIUM)? };
    let rate = rate(medium, Timing { bytes: MAX_REQUEST_BYTES, time: large });
    let time_of = |bytes: u64| Duration::from_secs_f64(bytes as f64 / rate);
    let page_bytes = page_of(&small, time_of);
    let ungathered = small[0].time;
    let gathers = probe.ascending(SECTOR)? * 2 < ungathered;
    let page = page_bytes.unwrap_or(SMALL);
    let mut strides = Vec::new();
    let mut unit = None;
    for writes in STRIDE_WRITES {
        strides = probe.strides(page, writes)?;
        unit = unit_of(&strides, page, time_of);
        if unit.is_some() {
            break;
        }
    }
    let units = unit.map(|bytes| probe.units(bytes, page)).transpose()?;
    Ok(Writing {
        rate,
        sequential: MAX_REQUEST_BYTES as f64 / large.max(Duration::from_nanos(1)).as_secs_f64(),
        overhead: medium.time.saturating_sub(time_of(MEDIUM)),
        flush,
        small,
        page_bytes,
        gathers,
        strides,
        units,
    })
}

/// The size from which on twice as much takes clearly longer.
fn page_of(small: &[Timing], time_of: impl Fn(u64) -> Duration) -> Option<u64> {
    let pair = small
        .windows(2)
        .find(|pair| pair[1].time.saturating_sub(pair[0].time) * 2 >= time_of(pair[0].bytes))?;
    Some(pair[0].bytes)
}

/// The distance up to which the time of a write doubles and beyond which it stays, if that time is
/// one in which much is copied.
fn unit_of(strides: &[Timing], page: u64, time_of: impl Fn(u64) -> Duration) -> Option<u64> {
    let unit = strides.windows(3).find(|three| {
        let [half, unit, double] = [three[0], three[1], three[2]];
        let copies = unit.time > time_of(unit.bytes) / 4 && unit.time > time_of(page) * CLIFF;
        copies && unit.time * 2 > half.time * 3 && double.time * 5 < unit.time * 7
    })?;
    Some(unit[1].bytes)
}

impl Probe<'_> {
    fn write(&mut self, offset: u64, bytes: u64) -> Result<Duration> {
        self.target.time(Kind::Write, offset, bytes)
    }

    /// A write, and what makes it durable.
    fn write_durably(&mut self, offset: u64, bytes: u64) -> Result<Duration> {
        Ok(self.write(offset, bytes)? + self.target.time(Kind::Flush, 0, 0)?)
    }

    fn flush(&mut self) -> Result<Duration> {
        self.write_durably(self.start, SMALL)?;
        let times = (0..TIMES).map(|_| self.target.time(Kind::Flush, 0, 0));
        Ok(median(times.collect::<Result<_>>()?))
    }

    fn small(&mut self, bytes: u64) -> Result<Duration> {
        let times = (0..TIMES).map(|number| self.write_durably(self.start + number * bytes, bytes));
        Ok(median(times.collect::<Result<_>>()?))
    }

    /// Writes one after the other, without flushes.
    fn ascending(&mut self, bytes: u64) -> Result<Duration> {
        let count = TIMES.min((self.target.bytes() - self.start) / bytes);
        let times = (0..count).map(|number| self.write(self.start + number * bytes, bytes));
        Ok(median(times.collect::<Result<_>>()?))
    }

    fn strides(&mut self, page: u64, writes: u64) -> Result<Vec<Timing>> {
        let mut strides: Vec<Timing> = Vec::new();
        let mut stride = *STRIDES.start();
        let room = self.target.bytes() - self.start;
        while stride <= *STRIDES.end() && room / stride >= LEAST_STRIDE_WRITES {
            let count = writes.min(room / stride);
            let mut times = Vec::new();
            // The first round closes what was open.
            for round in 0..2 {
                times.clear();
                for number in 0..count {
                    let offset = self.start + number * stride + round * page;
                    times.push(self.write(offset, page)?);
                }
            }
            strides.push(Timing { bytes: stride, time: mean(&times) });
            stride *= 2;
        }
        Ok(strides)
    }

    fn units(&mut self, bytes: u64, page: u64) -> Result<Units> {
        let first = self.start.next_multiple_of(bytes);
        let count = (self.target.bytes().saturating_sub(first) / bytes).max(1);
        let (in_turn, open) = self.open_units(first, bytes, MOST_OPEN.min(count), page)?;
        let one_more = in_turn.iter().find(|turn| turn.units > open);
        let closing = one_more.map(|turn| turn.time.saturating_sub(in_turn[0].time));
        let linear = self.is_linear(first, bytes, page)?;
        let scattered = self.scattered(first, bytes)?;
        let areas = AREAS.min(first / bytes);
        let areas = (0..areas).map(|area| self.scattered(area * bytes, bytes));
        let areas = areas.collect::<Result<Vec<_>>>()?;
        let cheap = areas.iter().take_while(|&&time| time * 10 < scattered * 7).count();
        let fat_bytes = cheap as u64 * bytes;
        Ok(Units { bytes, in_turn, open, closing, linear, scattered, first: areas, fat_bytes })
    }

    /// Writes to ever more units in turn, up to the most that can be, which is also given, and the
    /// first number that cannot.
    fn open_units(
        &mut self,
        first: u64,
        bytes: u64,
        most: u64,
        page: u64,
    ) -> Result<(Vec<Turn>, u64)> {
        let single = self.in_turn(first, bytes, 1, page)?;
        let mut turns = vec![single];
        // This many can be open, and that many cannot.
        let (mut open, mut too_many) = (1, most + 1);
        while too_many - open > 1 {
            let doubled = open * 2;
            let units = if doubled < too_many { doubled } else { open.midpoint(too_many) };
            let turn = self.in_turn(first, bytes, units, page)?;
            turns.push(turn);
            match turn.time > single.time * CLIFF {
                true => too_many = units,
                false => open = units,
            }
        }
        turns.sort_unstable_by_key(|turn| turn.units);
        Ok((turns, open))
    }

    /// Writes pages to some units in turn, ascending in each.
    fn in_turn(&mut self, first: u64, bytes: u64, units: u64, page: u64) -> Result<Turn> {
        let mut times = Vec::new();
        let pages = bytes / page;
        // The first round opens them.
        for round in 0..3 {
            times.clear();
            for unit in 0..units {
                let offset = (self.round + round) % pages * page;
                times.push(self.write(first + unit * bytes + offset, page)?);
            }
        }
        self.round += 3;
        Ok(Turn { units, time: mean(&times) })
    }

    fn is_linear(&mut self, first: u64, bytes: u64, page: u64) -> Result<bool> {
        let pages = TIMES.min(bytes / page);
        let mut ascending = Vec::new();
        let mut descending = Vec::new();
        for number in 0..pages {
            ascending.push(self.write(first + number * page, page)?);
        }
        for number in (0..pages).rev() {
            descending.push(self.write(first + number * page, page)?);
        }
        // Now and then a unit is full and closed in either order.
        Ok(median(descending) > median(ascending) * CLIFF)
    }

    fn scattered(&mut self, area: u64, bytes: u64) -> Result<Duration> {
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let offset = area + self.random.random_range(0..bytes / SMALL) * SMALL;
            times.push(self.write_durably(offset, SMALL)?);
        }
        Ok(median(times))
    }
}
