//! Byte ranges of requests, cut to the device and into pieces.

use std::ops::Range;

use crate::trace::DeviceRequest;

/// The bytes of a request that are on a device of this size.
pub(super) fn on_device(request: &DeviceRequest, device_bytes: u64) -> Range<u64> {
    let end = request.offset.saturating_add(request.bytes).min(device_bytes);
    request.offset.min(end)..end
}

/// The pieces that a grid of `step` bytes cuts a range into: number of the cell, bytes within it.
pub(super) fn cells(range: Range<u64>, step: u64) -> impl Iterator<Item = (u64, Range<u64>)> {
    let first = range.start / step;
    let last = if range.is_empty() { first } else { range.end.div_ceil(step) };
    (first..last).map(move |cell| {
        let base = cell * step;
        let from = range.start.max(base) - base;
        (cell, from..(range.end - base).min(step))
    })
}

/// The cells of a grid that lie in a range entirely.
pub(super) fn whole_cells(range: &Range<u64>, step: u64, device_bytes: u64) -> Range<u64> {
    // The last cell may reach over the device's end.
    let last = if range.end == device_bytes { range.end.div_ceil(step) } else { range.end / step };
    let first = range.start.div_ceil(step);
    first..last.max(first)
}

/// Parts of a cell that were written, in order and apart from each other.
#[derive(Debug, Default)]
pub(super) struct Covered(Vec<Range<u64>>);

impl Covered {
    /// Adds a part, joining those that it touches.
    pub(super) fn add(&mut self, part: Range<u64>) {
        let touches = |other: &Range<u64>| other.start <= part.end && part.start <= other.end;
        let mut joined = part.clone();
        for other in self.0.iter().filter(|other| touches(other)) {
            joined = joined.start.min(other.start)..joined.end.max(other.end);
        }
        self.0.retain(|other| !touches(other));
        let at = self.0.partition_point(|other| other.start < joined.start);
        self.0.insert(at, joined);
    }

    /// Whether it is one part with all of the first `bytes` of the cell.
    pub(super) fn is_whole(&self, bytes: u64) -> bool {
        self.0.first().is_some_and(|part| part.start == 0 && part.end >= bytes)
    }

    /// How many of the pages of a cell of `bytes` are not covered entirely.
    pub(super) fn missing_pages(&self, bytes: u64, page_bytes: u64) -> u64 {
        let covered: u64 = self
            .0
            .iter()
            .map(|part| (part.end / page_bytes).saturating_sub(part.start.div_ceil(page_bytes)))
            .sum();
        bytes.div_ceil(page_bytes).saturating_sub(covered)
    }
}
