//! Cards and sticks: devices that manage their flash in allocation units of megabytes.
//!
//! Only a few units can be open for writing. Writing to another one closes the one that was not
//! written for longest, and what was not written anew in it has to be copied. That makes them fast
//! for few streams and slow for scattered writes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::{MICROSECONDS, Nonsense, PAGE, RATE, multiple, within};
use super::range::{Covered, cells, on_device, whole_cells};
use super::time::{micros, rate, times, transfer};
use super::{Limits, Model, Wear, wear};
use crate::trace::{DeviceRequest, Kind};
use units::Units;

mod pages;
mod pool;
mod units;

/// Parameters of a card or stick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Size of an allocation unit.
    pub unit_bytes: u64,
    /// How many units can be open at once.
    pub open_units: u32,
    /// In which order the pages of an open unit can be written.
    pub writing: Writing,
    /// Random writing: what the log of an open unit can take beyond the unit's size before it has
    /// to be brought together, for pages that are written more than once.
    pub log_spare_bytes: u64,
    /// What is programmed at least: smaller writes cost a whole page.
    pub page_bytes: u64,
    /// Whether a page that is not complete yet waits in the controller's memory for the writes that
    /// continue it, until another page is written or a flush comes.
    pub page_buffer: bool,
    /// What a read costs besides its bytes.
    pub read_overhead_us: u32,
    /// What a write costs besides its bytes; also a discard.
    pub write_overhead_us: u32,
    /// Reading.
    pub read_bytes_per_second: u64,
    /// Writing whole pages.
    pub write_bytes_per_second: u64,
    /// Copying pages within the card, and writing a page of which a part has to be read first.
    pub copy_bytes_per_second: u64,
    /// So much at the beginning, where the file allocation table is, is mapped finely: small
    /// writes cost no more than their bytes there, in any order.
    pub fat_bytes: u64,
    /// What a write there is rounded up to.
    pub fat_page_bytes: u64,
    /// What a flush costs, besides a page that waits.
    pub flush_us: u32,
    /// Whether discarded pages need not be copied any more.
    pub discard: bool,
    /// Whether all pages hold something at first, as after the device has been full once.
    pub used: bool,
}

/// The order in which the pages of an open unit can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writing {
    /// Any: pages are logged.
    Random,
    /// Ascending: going back closes the unit.
    Linear,
}

/// The most pages a device can have: a bit for each fits memory, and their numbers 32 bits.
const MOST_PAGES: u64 = 1 << 30;

impl Card {
    /// Finds fields that make no sense.
    pub(super) fn check(&self) -> Result<(), Nonsense> {
        within("card.page_bytes", self.page_bytes, PAGE)?;
        within("card.unit_bytes", self.unit_bytes, self.page_bytes..=1 << 30)?;
        multiple("card.unit_bytes", self.unit_bytes, self.page_bytes, "page_bytes")?;
        within("card.open_units", self.open_units, 1..=4096)?;
        within("card.log_spare_bytes", self.log_spare_bytes, 0..=1 << 30)?;
        multiple("card.log_spare_bytes", self.log_spare_bytes, self.page_bytes, "page_bytes")?;
        within("card.read_overhead_us", self.read_overhead_us, MICROSECONDS)?;
        within("card.write_overhead_us", self.write_overhead_us, MICROSECONDS)?;
        within("card.flush_us", self.flush_us, MICROSECONDS)?;
        within("card.read_bytes_per_second", self.read_bytes_per_second, RATE)?;
        within("card.write_bytes_per_second", self.write_bytes_per_second, RATE)?;
        within("card.copy_bytes_per_second", self.copy_bytes_per_second, RATE)?;
        within("card.fat_page_bytes", self.fat_page_bytes, 512..=self.page_bytes)?;
        multiple("card.fat_bytes", self.fat_bytes, self.unit_bytes, "unit_bytes")
    }

    /// A device of this kind and size.
    pub(super) fn model(&self, device_bytes: u64) -> Result<CardModel, Nonsense> {
        self.check()?;
        within("device size", device_bytes, 1..=MOST_PAGES.saturating_mul(self.page_bytes))?;
        Ok(CardModel {
            units: Units::new(self, device_bytes),
            card: self.clone(),
            device_bytes,
            waiting: None,
            fat_unit: Recurring::new(self.unit_bytes, self.fat_bytes.min(device_bytes)),
            host_bytes: 0,
            programmed_bytes: 0,
        })
    }

    /// How long it takes to copy this many pages.
    fn copying(&self, pages: u64) -> Duration {
        times(transfer(self.page_bytes, self.copy_bytes_per_second), pages)
    }

    /// How long it takes to write a page; `alter`: a part of it has to be kept.
    fn programming(&self, alter: bool) -> Duration {
        let rate = if alter { self.copy_bytes_per_second } else { self.write_bytes_per_second };
        transfer(self.page_bytes, rate)
    }

    /// The mean over the writes that fill a page bit by bit, 4 KiB each, one after the other.
    fn small_write(&self) -> Duration {
        let overhead = micros(self.write_overhead_us);
        if self.page_buffer || self.page_bytes <= SMALL {
            return overhead + transfer(SMALL, self.write_bytes_per_second);
        }
        let writes = self.page_bytes / SMALL;
        let first = self.programming(self.used);
        let others = times(self.programming(true), writes - 1);
        overhead + (first + others) / writes as u32
    }
}

/// What counts as a small request.
const SMALL: u64 = 4096;

/// A device with allocation units.
#[derive(Debug)]
pub struct CardModel {
    card: Card,
    device_bytes: u64,
    units: Units,
    /// The page in the controller's memory.
    waiting: Option<(u64, Covered)>,
    /// Which unit of the FAT area's is erased next.
    fat_unit: Recurring,
    host_bytes: u64,
    programmed_bytes: u64,
}

impl Model for CardModel {
    fn serve(&mut self, request: &DeviceRequest) -> Duration {
        let range = on_device(request, self.device_bytes);
        let bytes = range.end - range.start;
        match request.kind {
            Kind::Read => {
                micros(self.card.read_overhead_us)
                    + transfer(bytes, self.card.read_bytes_per_second)
            }
            Kind::Write => self.write(range),
            Kind::Flush => self.program_waiting() + micros(self.card.flush_us),
            Kind::Discard => self.discard(&range),
        }
    }

    fn wear(&self) -> Wear {
        let erases = self.units.erases().iter().copied();
        wear::of_blocks(self.host_bytes, self.programmed_bytes, erases, 1)
    }

    fn limits(&self, request_bytes: u64) -> Limits {
        let card = &self.card;
        let read =
            |bytes| micros(card.read_overhead_us) + transfer(bytes, card.read_bytes_per_second);
        let write =
            |bytes| micros(card.write_overhead_us) + transfer(bytes, card.write_bytes_per_second);
        Limits {
            sequential_read: rate(request_bytes, read(request_bytes)),
            sequential_write: rate(request_bytes, write(request_bytes)),
            small_read: read(SMALL).as_secs_f64(),
            small_write: card.small_write().as_secs_f64(),
            flush: micros(card.flush_us).as_secs_f64(),
        }
    }
}

impl CardModel {
    fn write(&mut self, range: std::ops::Range<u64>) -> Duration {
        self.host_bytes += range.end - range.start;
        let fat_end = self.card.fat_bytes.clamp(range.start, range.end);
        let mut time = micros(self.card.write_overhead_us) + self.write_fat(range.start..fat_end);
        for (page, part) in cells(fat_end..range.end, self.card.page_bytes) {
            time += self.write_page(page, part);
        }
        time
    }

    fn write_fat(&mut self, range: std::ops::Range<u64>) -> Duration {
        let page_bytes = self.card.fat_page_bytes;
        let bytes = cells(range, page_bytes).count() as u64 * page_bytes;
        self.programmed_bytes += bytes;
        for unit in self.fat_unit.advance(bytes) {
            self.units.renew(unit);
        }
        transfer(bytes, self.card.write_bytes_per_second)
    }

    fn write_page(&mut self, page: u64, part: std::ops::Range<u64>) -> Duration {
        let (mut time, mut covered) = match self.waiting.take() {
            Some((waiting, covered)) if waiting == page => (Duration::ZERO, covered),
            Some((other, covered)) => (self.program(other, &covered), Covered::default()),
            None => (Duration::ZERO, Covered::default()),
        };
        covered.add(part);
        if self.card.page_buffer && !covered.is_whole(self.card.page_bytes) {
            self.waiting = Some((page, covered));
        } else {
            time += self.program(page, &covered);
        }
        time
    }

    fn program_waiting(&mut self) -> Duration {
        match self.waiting.take() {
            Some((page, covered)) => self.program(page, &covered),
            None => Duration::ZERO,
        }
    }

    fn program(&mut self, page: u64, covered: &Covered) -> Duration {
        let alter = !covered.is_whole(self.card.page_bytes) && self.units.is_valid(page);
        let copied = self.units.write(page);
        self.programmed_bytes += (1 + copied) * self.card.page_bytes;
        self.card.copying(copied) + self.card.programming(alter)
    }

    fn discard(&mut self, range: &std::ops::Range<u64>) -> Duration {
        if !self.card.discard {
            return Duration::ZERO;
        }
        for page in whole_cells(range, self.card.page_bytes, self.device_bytes) {
            self.units.discard(page);
        }
        micros(self.card.write_overhead_us)
    }
}

/// Units that are erased in turn, one whenever a certain number of bytes was written to them in
/// all.
#[derive(Debug)]
struct Recurring {
    unit_bytes: u64,
    units: u64,
    written: u64,
}

impl Recurring {
    fn new(unit_bytes: u64, area_bytes: u64) -> Self {
        Self { unit_bytes, units: area_bytes.div_ceil(unit_bytes).max(1), written: 0 }
    }

    /// The units that are erased for this many bytes.
    fn advance(&mut self, bytes: u64) -> impl Iterator<Item = u64> + use<> {
        let before = self.written.div_ceil(self.unit_bytes);
        self.written += bytes;
        let (after, units) = (self.written.div_ceil(self.unit_bytes), self.units);
        (before..after).map(move |count| count % units)
    }
}
