//! The plane of time and address, divided into cells.

use std::time::Duration;

use crate::trace::{DeviceRequest, Kind, Trace};

/// Degrees of opacity.
pub(super) const LEVELS: usize = 3;
/// Parts of a cell's bytes from which on it has the second and the third degree.
const PARTS: [f64; LEVELS - 1] = [0.02, 0.25];
/// Flushes in a column from which on it has the second and the third degree.
const FLUSHES: [u32; LEVELS - 1] = [4, 32];

/// What was asked for, by kind, column and row.
pub(super) struct Cells {
    columns: usize,
    /// Where rows begin, and where the last one ends.
    bounds: Vec<u64>,
    duration: Duration,
    reads: Vec<u64>,
    writes: Vec<u64>,
    discards: Vec<u64>,
    flushes: Vec<u32>,
}

impl Cells {
    pub(super) fn of(trace: &Trace, columns: usize, rows: usize) -> Self {
        let last_request = trace.requests.iter().map(|request| request.at).max();
        let last_mark = trace.marks.iter().map(|mark| mark.at).max();
        let bound = |row| (u128::from(trace.device_bytes) * row as u128 / rows as u128) as u64;
        let mut cells = Self {
            columns,
            bounds: (0..=rows).map(bound).collect(),
            duration: last_request.max(last_mark).unwrap_or_default().max(Duration::from_micros(1)),
            reads: vec![0; columns * rows],
            writes: vec![0; columns * rows],
            discards: vec![0; columns * rows],
            flushes: vec![0; columns],
        };
        trace.requests.iter().for_each(|request| cells.add(request));
        cells
    }

    /// The time that the columns stand for.
    pub(super) fn seconds(&self) -> f64 {
        self.duration.as_secs_f64()
    }

    /// How opaque a cell is; `None` if nothing of the kind happened there.
    pub(super) fn level(&self, kind: Kind, column: usize, row: usize) -> Option<usize> {
        let bytes = self.of_kind(kind).get(row * self.columns + column).copied().unwrap_or(0);
        let part = bytes as f64 / (self.bounds[row + 1] - self.bounds[row]) as f64;
        (bytes > 0).then(|| PARTS.iter().filter(|&&from| part >= from).count())
    }

    /// How opaque a column of flushes is; `None` if there was none.
    pub(super) fn flush_level(&self, column: usize) -> Option<usize> {
        let flushes = self.flushes[column];
        (flushes > 0).then(|| FLUSHES.iter().filter(|&&from| flushes >= from).count())
    }

    fn of_kind(&self, kind: Kind) -> &[u64] {
        match kind {
            Kind::Read => &self.reads,
            Kind::Write => &self.writes,
            Kind::Discard => &self.discards,
            Kind::Flush => &[],
        }
    }

    fn add(&mut self, request: &DeviceRequest) {
        let part = request.at.as_secs_f64() / self.seconds();
        let column = ((part * self.columns as f64) as usize).min(self.columns - 1);
        let cells = match request.kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
            Kind::Discard => &mut self.discards,
            Kind::Flush => {
                self.flushes[column] += 1;
                return;
            }
        };
        let (start, end) = (request.offset, request.offset.saturating_add(request.bytes));
        let first = self.bounds.partition_point(|&bound| bound <= start).saturating_sub(1);
        for (row, bounds) in self.bounds.windows(2).enumerate().skip(first) {
            if bounds[0] >= end {
                break;
            }
            let share = end.min(bounds[1]).saturating_sub(start.max(bounds[0]));
            cells[row * self.columns + column] += share;
        }
    }
}
