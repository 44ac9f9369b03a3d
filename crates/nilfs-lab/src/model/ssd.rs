//! Solid-state disks: flash behind a translation layer that maps small units, so that writes in any
//! order are logged, and stale ones are collected by the device.
//!
//! Writes go to a buffer and are acknowledged; flash is programmed behind the host's back until the
//! buffer is full or a flush waits for it. How coarse the mapping is decides what a small write
//! costs: the first generation mapped megabytes, and read and wrote all of them for 4 KiB.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::{MICROSECONDS, Nonsense, PAGE, RATE, multiple, within};
use super::range::{Covered, cells, on_device, whole_cells};
use super::time::{micros, rate, times, transfer};
use super::{Limits, Model, Wear, wear};
use crate::trace::{DeviceRequest, Kind};
use buffer::Buffer;
use channels::Channels;
use mapping::{LEAST_SPARE, Mapping, Work};

mod buffer;
mod channels;
mod mapping;

/// Parameters of a solid-state disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ssd {
    /// How many pages are read, programmed or erased at the same time: channels, times what
    /// interleaves on each of them.
    pub channels: u32,
    /// Size of a flash page.
    pub page_bytes: u64,
    /// Pages that are erased together, on each channel.
    pub pages_per_block: u32,
    /// What the translation layer maps: a part of a page, a page, or many. A smaller write reads
    /// and programs all of it.
    pub mapping_bytes: u64,
    /// Reading a page.
    pub read_us: u32,
    /// Programming a page.
    pub program_us: u32,
    /// Erasing a block.
    pub erase_us: u32,
    /// What a request costs besides its bytes.
    pub command_us: u32,
    /// The link to the host.
    pub link_bytes_per_second: u64,
    /// Memory for writes that are acknowledged.
    pub buffer_bytes: u64,
    /// What a flush costs besides what has to be programmed.
    pub flush_us: u32,
    /// Flash beyond the device's size, in percent of it.
    pub spare_percent: u8,
    /// Whether discarded units are forgotten.
    pub discard: bool,
    /// How long nothing must be asked before the device works ahead.
    pub idle_after_us: u32,
    /// The percentage of the flash that collecting keeps free while the disk is idle; 0: never.
    pub idle_free_percent: u8,
    /// The percentage that holds something already when the lab begins, in no particular order. A
    /// device that knows no discards has been written over since, until no flash was left that had
    /// not been collected.
    pub used_percent: u8,
}

/// What counts as a small request.
const SMALL: u64 = 4096;
/// The most units and slots, so that their numbers fit the tables.
const MOST_UNITS: u64 = 1 << 30;

impl Ssd {
    /// Finds fields that make no sense.
    pub(super) fn check(&self) -> Result<(), Nonsense> {
        self.check_sizes()?;
        for (field, value) in [
            ("ssd.read_us", self.read_us),
            ("ssd.program_us", self.program_us),
            ("ssd.erase_us", self.erase_us),
            ("ssd.command_us", self.command_us),
            ("ssd.flush_us", self.flush_us),
            ("ssd.idle_after_us", self.idle_after_us),
        ] {
            within(field, value, MICROSECONDS)?;
        }
        within("ssd.link_bytes_per_second", self.link_bytes_per_second, RATE)?;
        within("ssd.spare_percent", self.spare_percent, 1..=200)?;
        // Collecting for more than what is spare would never end.
        let spare = u64::from(self.spare_percent);
        within("ssd.idle_free_percent", self.idle_free_percent, 0..=spare / 2)?;
        within("ssd.used_percent", self.used_percent, 0..=100)
    }

    fn check_sizes(&self) -> Result<(), Nonsense> {
        within("ssd.channels", self.channels, 1..=1024)?;
        within("ssd.page_bytes", self.page_bytes, PAGE)?;
        within("ssd.pages_per_block", self.pages_per_block, 1..=16_384)?;
        within("ssd.mapping_bytes", self.mapping_bytes, 512..=self.stripe_bytes())?;
        multiple(
            "ssd.mapping_bytes",
            self.mapping_bytes.max(self.page_bytes),
            self.mapping_bytes.min(self.page_bytes),
            "page_bytes, or a part of it",
        )?;
        let stripe = "a divisor of channels * pages_per_block * page_bytes";
        if !self.stripe_bytes().is_multiple_of(self.mapping_bytes) {
            let reason = format!("is {}, must be {stripe}", self.mapping_bytes);
            return Err(Nonsense::new("ssd.mapping_bytes", reason));
        }
        // Less could not keep all channels busy.
        let least = 2 * self.mapping_bytes.max(self.page_bytes * u64::from(self.channels));
        within("ssd.buffer_bytes", self.buffer_bytes, least..=1 << 34)
    }

    /// The erase blocks of all channels that are used together.
    fn stripe_bytes(&self) -> u64 {
        u64::from(self.channels) * u64::from(self.pages_per_block) * self.page_bytes
    }

    /// How many of them there are, the spare ones included.
    fn stripes(&self, device_bytes: u64) -> u64 {
        let bytes = u128::from(device_bytes);
        let spare = bytes * u128::from(self.spare_percent) / 100;
        let stripe = u128::from(self.stripe_bytes());
        let needed = bytes.div_ceil(stripe);
        let spare = spare.div_ceil(stripe).max(u128::from(LEAST_SPARE));
        u64::try_from(needed + spare).unwrap_or(u64::MAX)
    }

    /// A device of this kind and size. A small one has three stripes of erase blocks to spare at
    /// least, which can be more than the original's share.
    pub(super) fn model(&self, device_bytes: u64) -> Result<SsdModel, Nonsense> {
        self.check()?;
        // The spare flash is at most twice the device, which the tables have to hold as well.
        let most = MOST_UNITS.saturating_mul(self.mapping_bytes);
        within("device size", device_bytes, 1..=most)?;
        let mut mapping = Mapping::new(self, device_bytes);
        mapping.use_up(self.used_percent, !self.discard);
        Ok(SsdModel {
            mapping,
            channels: Channels::new(self.channels),
            buffer: Buffer::new(self.mapping_bytes, self.buffer_bytes),
            ssd: self.clone(),
            device_bytes,
            now: Duration::ZERO,
            read_end: None,
            background: Duration::ZERO,
            host_bytes: 0,
            programmed_bytes: 0,
        })
    }

    /// Bytes per second that flash takes, erasing included.
    fn programming(&self) -> f64 {
        let program = times(micros(self.program_us), self.pages_per_block.into());
        self.stripe_bytes() as f64 / (program + micros(self.erase_us)).as_secs_f64()
    }

    /// Bytes per second that flash gives.
    fn reading(&self) -> f64 {
        let pages = f64::from(self.channels) * self.page_bytes as f64;
        pages / micros(self.read_us).as_secs_f64()
    }
}

/// A solid-state disk.
#[derive(Debug)]
pub struct SsdModel {
    ssd: Ssd,
    device_bytes: u64,
    mapping: Mapping,
    channels: Channels,
    buffer: Buffer,
    /// When the last request ended; within a request, how far it is.
    now: Duration,
    /// After the last byte read.
    read_end: Option<u64>,
    /// How long flash was programmed between requests.
    background: Duration,
    host_bytes: u64,
    programmed_bytes: u64,
}

impl Model for SsdModel {
    fn serve(&mut self, request: &DeviceRequest) -> Duration {
        self.idle_until(request.at);
        self.now = self.now.max(request.at);
        let begin = self.now;
        let range = on_device(request, self.device_bytes);
        self.now += micros(self.ssd.command_us);
        match request.kind {
            Kind::Read => self.read(range),
            Kind::Write => self.write(range),
            Kind::Flush => self.flush(),
            Kind::Discard => self.discard(&range),
        }
        self.now - begin
    }

    fn background(&self) -> Duration {
        self.background
    }

    fn wear(&self) -> Wear {
        let erases = self.mapping.erases().iter().copied();
        let width = self.ssd.channels.into();
        wear::of_blocks(self.host_bytes, self.programmed_bytes, erases, width)
    }

    fn limits(&self, request_bytes: u64) -> Limits {
        let (ssd, command) = (&self.ssd, micros(self.ssd.command_us));
        let linked = |bytes| command + transfer(bytes, ssd.link_bytes_per_second);
        let read = Duration::from_secs_f64(request_bytes as f64 / ssd.reading());
        let sequential_read = rate(request_bytes, linked(request_bytes).max(command + read));
        let sequential_write = rate(request_bytes, linked(request_bytes)).min(ssd.programming());
        Limits {
            sequential_read,
            sequential_write,
            small_read: (micros(ssd.read_us) + linked(SMALL)).as_secs_f64(),
            small_write: linked(SMALL).as_secs_f64().max(SMALL as f64 / ssd.programming()),
            flush: (command + micros(ssd.flush_us)).as_secs_f64(),
        }
    }
}

impl SsdModel {
    /// A read that goes on where the last one ended was read ahead.
    fn read(&mut self, range: Range<u64>) {
        let pages = self.pages_in_flash(&range);
        let rounds = pages.div_ceil(self.ssd.channels.into());
        let link = transfer(range.end - range.start, self.ssd.link_bytes_per_second);
        let page = micros(self.ssd.read_us);
        let time = if self.read_end == Some(range.start) {
            times(page, rounds).max(link)
        } else {
            times(page, rounds.min(1)) + times(page, rounds.saturating_sub(1)).max(link)
        };
        self.channels.delay(self.now, times(page, rounds));
        self.now += time;
        self.read_end = Some(range.end);
    }

    /// Pages of a range that are not in the buffer.
    fn pages_in_flash(&self, range: &Range<u64>) -> u64 {
        let step = self.ssd.mapping_bytes.max(self.ssd.page_bytes);
        cells(range.clone(), step)
            .filter(|(cell, part)| {
                let unit = (cell * step + part.start) / self.ssd.mapping_bytes;
                !self.buffer.holds(unit as u32)
            })
            .map(|(_, part)| cells(part, self.ssd.page_bytes).count() as u64)
            .sum()
    }

    /// Flash is programmed while what comes next still is on the link.
    fn write(&mut self, range: Range<u64>) {
        for (unit, part) in cells(range, self.ssd.mapping_bytes) {
            let bytes = part.end - part.start;
            self.host_bytes += bytes;
            self.now += transfer(bytes, self.ssd.link_bytes_per_second);
            self.buffer.add(unit as u32, part);
            while self.buffer.is_half_full() {
                self.program_oldest(self.now);
            }
            self.now = self.buffer.fits_at(self.now);
        }
    }

    fn flush(&mut self) {
        while self.program_oldest(self.now) {}
        let work = self.mapping.pad();
        self.work(self.now, work);
        self.now = self.buffer.empty_at(self.now) + micros(self.ssd.flush_us);
    }

    fn discard(&mut self, range: &Range<u64>) {
        if !self.ssd.discard {
            return;
        }
        for unit in whole_cells(range, self.ssd.mapping_bytes, self.device_bytes) {
            self.buffer.forget(unit as u32);
            self.mapping.forget(unit as u32);
        }
    }

    /// What the device does of itself before then.
    fn idle_until(&mut self, then: Duration) {
        let from = self.now + micros(self.ssd.idle_after_us);
        let mut counted = self.now;
        self.count_background(&mut counted, self.now, then);
        while self.channels.earliest().max(from) < then {
            let start = self.channels.earliest().max(from);
            if self.program_oldest(start) {
                self.count_background(&mut counted, start, then);
            } else if !self.collect(start) {
                break;
            }
        }
    }

    /// Counts what is programmed between `start`, or what is counted already, and `then`.
    fn count_background(&mut self, counted: &mut Duration, start: Duration, then: Duration) {
        let end = self.channels.latest().min(then);
        self.background += end.saturating_sub(start.max(*counted));
        *counted = end.max(*counted);
    }

    fn collect(&mut self, from: Duration) -> bool {
        if !self.mapping.is_short_of(self.ssd.idle_free_percent) {
            return false;
        }
        let work = self.mapping.collect();
        self.work(from, work.unwrap_or_default());
        work.is_some()
    }

    /// Programs the unit that has waited for longest, if there is one.
    fn program_oldest(&mut self, from: Duration) -> bool {
        let Some((unit, covered)) = self.buffer.oldest() else { return false };
        let read = self.pages_to_keep(unit, &covered);
        let mut work = self.mapping.write(unit);
        work.read += read;
        self.work(from, work);
        true
    }

    /// Pages of a unit that have to be read because it was not written entirely.
    fn pages_to_keep(&self, unit: u32, covered: &Covered) -> u64 {
        let begin = u64::from(unit) * self.ssd.mapping_bytes;
        let bytes = self.ssd.mapping_bytes.min(self.device_bytes.saturating_sub(begin));
        if covered.is_whole(bytes) || !self.mapping.is_mapped(unit) {
            return 0;
        }
        covered.missing_pages(bytes, self.ssd.page_bytes)
    }

    /// Gives work to the channels: first reads, then erases, then programs.
    fn work(&mut self, from: Duration, work: Work) {
        let ready = self.channels.pages(from, work.read, micros(self.ssd.read_us));
        self.channels.all(ready, times(micros(self.ssd.erase_us), work.erased));
        let done = self.channels.pages(ready, work.programmed, micros(self.ssd.program_us));
        self.programmed_bytes += work.programmed * self.ssd.page_bytes;
        if work.programmed > 0 {
            let page = self.ssd.page_bytes.max(self.ssd.mapping_bytes);
            self.buffer.leaves(done, page);
        }
    }
}
