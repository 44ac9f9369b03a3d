//! What people and presets are told of a probe.

use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};

use super::target::MAX_REQUEST_BYTES;
use super::writing::{Units, Writing};
use super::{Findings, Timing};
use crate::model::card::{self, Card};
use crate::model::preset::{self, Preset};

/// Units of a device on which no limit was found: all of it can be open.
const NO_LIMIT: (u64, u32) = (4 << 20, 4096);
/// Where no page was seen, what file systems write.
const USUAL_PAGE: u64 = 4096;

impl Findings {
    /// Everything, for reading.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["What", "Found"]);
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut row = |what: String, found: String| {
            table.add_row([what, found]);
        };
        row("size".into(), size(self.bytes));
        row("sequential read".into(), rate(self.reading.sequential));
        for timing in &self.reading.latencies {
            row(format!("read {} anywhere", size(timing.bytes)), time(timing.time));
        }
        for crossing in &self.reading.crossings {
            let around = (crossing.before + crossing.after) / 2;
            row(
                format!("read 1 KiB across {}, and beside", size(crossing.boundary)),
                format!("{}, {}", time(crossing.across), time(around)),
            );
        }
        if let Some(writing) = &self.writing {
            writing.rows(&mut row);
        }
        table.to_string()
    }

    /// A preset of a card like this device.
    ///
    /// # Errors
    /// It was only read.
    pub fn preset(&self, name: &str) -> Result<Preset> {
        let writing = self
            .writing
            .as_ref()
            .context("a preset says how a device writes: that takes a destructive probe")?;
        Ok(Preset {
            name: name.to_owned(),
            title: format!("{name}, as probed"),
            about: "Found by a destructive probe. Not probed, but assumed: the device had been \
                    full before, and discards are not passed on."
                .to_owned(),
            sources: vec!["nilfs-lab probe".to_owned()],
            capacity: self.bytes,
            request_bytes: MAX_REQUEST_BYTES,
            queue_depth: 1,
            card: Some(self.card(writing)),
            ssd: None,
            disk: None,
        })
    }

    /// The preset as a file.
    ///
    /// # Errors
    /// It was only read, or something, which is named, cannot be in a preset.
    pub fn preset_toml(&self, name: &str) -> Result<String> {
        let text = toml::to_string(&self.preset(name)?).context("cannot write the preset")?;
        // What is given to people can be read again.
        preset::parse(name, &text)?;
        Ok(text)
    }

    fn card(&self, writing: &Writing) -> Card {
        let page_bytes = writing.page_bytes.unwrap_or(USUAL_PAGE);
        let units = writing.units.as_ref();
        let (unit_bytes, open_units) =
            units.map_or(NO_LIMIT, |units| (units.bytes, units.open.max(1) as u32));
        let write_rate = per_second(writing.rate);
        Card {
            unit_bytes,
            open_units,
            writing: match units {
                Some(units) if units.linear => card::Writing::Linear,
                _ => card::Writing::Random,
            },
            page_bytes,
            log_spare_bytes: 0,
            page_buffer: writing.gathers,
            read_overhead_us: micros(self.reading.overhead),
            write_overhead_us: micros(writing.overhead),
            read_bytes_per_second: per_second(self.reading.rate),
            write_bytes_per_second: write_rate,
            copy_bytes_per_second: units.and_then(Units::copy_rate).map_or(write_rate, per_second),
            fat_bytes: units.map_or(0, |units| units.fat_bytes),
            fat_page_bytes: page_bytes.min(USUAL_PAGE),
            flush_us: micros(writing.flush),
            discard: false,
            used: true,
        }
    }
}

impl Units {
    /// Bytes per second at which the device copies what was not written anew, if it was seen to.
    fn copy_rate(&self) -> Option<f64> {
        let closing = self.closing.filter(|time| !time.is_zero())?;
        Some(self.bytes as f64 / closing.as_secs_f64())
    }
}

impl Writing {
    fn rows(&self, row: &mut impl FnMut(String, String)) {
        row("sequential write".into(), rate(self.sequential));
        row("flush with nothing to do".into(), time(self.flush));
        for Timing { bytes, time: taken } in &self.small {
            row(format!("write {} and flush", size(*bytes)), time(*taken));
        }
        let page = self.page_bytes.map_or_else(|| "not seen".to_owned(), size);
        row("page".into(), page);
        let gathers = if self.gathers { "yes" } else { "no" };
        row("small writes are gathered".into(), gathers.into());
        for Timing { bytes, time: taken } in &self.strides {
            row(format!("writes {} apart", size(*bytes)), time(*taken));
        }
        match &self.units {
            Some(units) => units.rows(row),
            None => row("allocation unit".into(), "not seen".into()),
        }
    }
}

impl Units {
    fn rows(&self, row: &mut impl FnMut(String, String)) {
        row("allocation unit".into(), size(self.bytes));
        for turn in &self.in_turn {
            row(format!("writes to {} units in turn", turn.units), time(turn.time));
        }
        let limit = if self.closing.is_none() { " or more" } else { "" };
        row("open units".into(), format!("{}{limit}", self.open));
        let order = if self.linear { "ascending only" } else { "any" };
        row("order of writes in a unit".into(), order.into());
        row("write 4 KiB and flush, anywhere in a unit".into(), time(self.scattered));
        for (number, taken) in (1..).zip(&self.first) {
            row(format!("the same in unit {number} of the device"), time(*taken));
        }
        row("file allocation table area".into(), size(self.fat_bytes));
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from((time.as_nanos() + 500) / 1000).unwrap_or(u32::MAX)
}

fn per_second(rate: f64) -> u64 {
    rate.round() as u64
}

fn size(bytes: u64) -> String {
    match bytes {
        small if small % (1 << 10) != 0 || small == 0 => format!("{small} B"),
        medium if medium % (1 << 20) != 0 => format!("{} KiB", medium >> 10),
        large => format!("{} MiB", large >> 20),
    }
}

fn rate(bytes_per_second: f64) -> String {
    format!("{:.1} MB/s", bytes_per_second / 1e6)
}

fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        long if long >= 1.0 => format!("{long:.2} s"),
        medium if medium >= 1e-3 => format!("{:.2} ms", medium * 1e3),
        short => format!("{:.1} µs", short * 1e6),
    }
}
