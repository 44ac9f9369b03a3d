//! A trace as a picture for a report: a few kilobytes, whatever was recorded.
//!
//! Time is the device's own, so that a slow processor leaves no gaps, and places that nobody read
//! or wrote are left out, so that little on a large device can be seen. What is kept are the paths
//! of the strokes; the report gives them colours.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cells::{Cells, LEVELS};
use super::runs;
use crate::trace::{DeviceRequest, Kind, Mark, Trace};

/// Cells along the time and along the address: the size of a picture's plane.
pub const COLUMNS: usize = 240;
/// See [`COLUMNS`].
pub const ROWS: usize = 48;

/// The device is divided into this many pieces, of which those are left out that nobody touched.
const PIECES: u64 = 4096;

/// A small picture of a trace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// How long the device was busy, in seconds: the picture's width.
    pub seconds: f64,
    /// Bytes of the parts of the device that were read or written: the picture's height.
    pub bytes: u64,
    /// What is drawn, from the bottom up.
    pub strokes: Vec<Strokes>,
    /// Where the steps begin that were measured: a part of the width, and the name.
    pub steps: Vec<(f64, String)>,
}

/// All strokes of one colour and opacity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strokes {
    /// What was asked for.
    pub kind: Kind,
    /// How much of the cells was asked for: from 0, little, to 2.
    pub level: u8,
    /// An SVG path on a plane of [`COLUMNS`] by [`ROWS`].
    pub path: String,
}

impl Picture {
    /// Draws a trace; `times` is how long the device was busy with each request, and `steps` the
    /// names of the marks to show. What comes before the first of them, such as the format, is left
    /// out.
    #[must_use]
    pub fn of(trace: &Trace, times: &[Duration], steps: &[String]) -> Self {
        let first = trace.marks.iter().position(|mark| steps.contains(&mark.name)).unwrap_or(0);
        let trace = from_mark(trace, first);
        let times = &times[times.len().saturating_sub(trace.requests.len())..];
        let touched = Touched::of(&trace);
        let squeezed = squeeze(&trace, times, &touched);
        let cells = Cells::of(&squeezed, COLUMNS, ROWS);
        let seconds = cells.seconds();
        let named = squeezed.marks.iter().filter(|mark| steps.contains(&mark.name));
        Self {
            seconds,
            bytes: squeezed.device_bytes,
            strokes: strokes(&cells),
            steps: named.map(|mark| (mark.at.as_secs_f64() / seconds, mark.name.clone())).collect(),
        }
    }
}

fn strokes(cells: &Cells) -> Vec<Strokes> {
    let mut all = Vec::new();
    for kind in [Kind::Discard, Kind::Read, Kind::Write] {
        for level in 0..LEVELS {
            let mut path = String::new();
            for row in 0..ROWS {
                // Addresses grow upwards.
                let y = (ROWS - 1 - row) as f64 + 0.5;
                runs(&mut path, (0.0, y), COLUMNS, 1.0, |column| {
                    cells.level(kind, column, row) == Some(level)
                });
            }
            if !path.is_empty() {
                all.push(Strokes { kind, level: level as u8, path });
            }
        }
    }
    all
}

/// What comes after a mark; all, if there is none of that number.
fn from_mark(trace: &Trace, number: usize) -> Trace {
    let marks = trace.marks.get(number..).unwrap_or_default();
    let from = marks.first().map_or(0, |mark| mark.before.min(trace.requests.len()));
    let moved = |mark: &Mark| Mark { before: mark.before.saturating_sub(from), ..mark.clone() };
    Trace {
        device_bytes: trace.device_bytes,
        requests: trace.requests[from..].to_vec(),
        marks: marks.iter().map(moved).collect(),
    }
}

/// The same requests at the times at which the device began with them, without what nobody touched
/// in between. The last mark is the end.
fn squeeze(trace: &Trace, times: &[Duration], touched: &Touched) -> Trace {
    let mut begins = Vec::with_capacity(times.len() + 1);
    let mut now = Duration::ZERO;
    begins.push(now);
    for time in times {
        now += *time;
        begins.push(now);
    }
    let begin = |number: usize| begins.get(number).copied().unwrap_or(now);
    let squeezed = |(number, request): (usize, &DeviceRequest)| {
        let offset = touched.squeezed(request.offset);
        let end = touched.squeezed(request.offset.saturating_add(request.bytes));
        DeviceRequest { offset, bytes: end - offset, at: begin(number), ..*request }
    };
    let mut marks: Vec<Mark> = trace.marks.clone();
    marks.iter_mut().for_each(|mark| mark.at = begin(mark.before));
    marks.push(Mark { before: trace.requests.len(), at: now, name: String::new() });
    Trace {
        device_bytes: touched.squeezed(u64::MAX),
        requests: trace.requests.iter().enumerate().map(squeezed).collect(),
        marks,
    }
}

/// The pieces of a device that were read or written, in order.
struct Touched {
    piece_bytes: u64,
    pieces: Vec<u64>,
}

impl Touched {
    fn of(trace: &Trace) -> Self {
        let piece_bytes = trace.device_bytes.div_ceil(PIECES).max(1);
        let mut pieces = BTreeSet::new();
        for request in &trace.requests {
            let end = request.offset.saturating_add(request.bytes).min(trace.device_bytes);
            if matches!(request.kind, Kind::Read | Kind::Write) && request.offset < end {
                pieces.extend(request.offset / piece_bytes..=(end - 1) / piece_bytes);
            }
        }
        Self { piece_bytes, pieces: pieces.into_iter().collect() }
    }

    /// Where an address is when the other pieces are left out.
    fn squeezed(&self, address: u64) -> u64 {
        let piece = address / self.piece_bytes;
        let before = self.pieces.partition_point(|&touched| touched < piece);
        let inside = match self.pieces.get(before) {
            Some(&touched) if touched == piece => address % self.piece_bytes,
            _ => 0,
        };
        before as u64 * self.piece_bytes + inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: Kind, offset: u64, bytes: u64) -> DeviceRequest {
        // All of them wait for a slow processor for an hour.
        DeviceRequest { kind, offset, bytes, at: Duration::from_secs(3600) }
    }

    #[test]
    fn little_on_a_large_device_fills_the_picture() {
        // After the format, four pieces, far apart; the last one takes half of the device's time.
        let device_bytes = PIECES << 20;
        let requests: Vec<DeviceRequest> =
            [50, 3, 1000, 2000, 4000].map(|at| request(Kind::Write, at << 20, 1 << 20)).to_vec();
        let times = [9, 1, 1, 1, 3].map(Duration::from_secs);
        let marks = [(0, "format"), (1, "first"), (4, "last")].map(|(before, name)| Mark {
            before,
            at: Duration::ZERO,
            name: name.to_owned(),
        });
        let trace = Trace { device_bytes, requests, marks: marks.to_vec() };
        let steps = ["first", "last"].map(str::to_owned);
        let picture = Picture::of(&trace, &times, &steps);
        assert_eq!((picture.seconds, picture.bytes), (6.0, 4 << 20));
        assert_eq!(picture.steps, [(0.0, "first".to_owned()), (0.5, "last".to_owned())]);
        let [strokes] = &picture.strokes[..] else { panic!("one colour: {picture:?}") };
        let drawn: Vec<&str> = strokes.path.split('M').skip(1).collect();
        assert_eq!(drawn.len(), ROWS, "each row has one of them");
        assert!(drawn[0].starts_with("0 47.5h"), "the first is below");
        assert!(drawn[ROWS - 1].starts_with("120 0.5h"), "the last from the middle on, on top");
    }

    #[test]
    fn a_discarded_device_does_not_hide_what_was_written() {
        let requests =
            vec![request(Kind::Discard, 0, 1 << 30), request(Kind::Write, 512 << 20, 4096)];
        let trace = Trace { device_bytes: 1 << 30, requests, marks: Vec::new() };
        let picture = Picture::of(&trace, &[Duration::from_secs(1); 2], &[]);
        assert_eq!(picture.bytes, (1 << 30) / PIECES);
        assert_eq!(picture.strokes.len(), 2);
    }

    #[test]
    fn a_million_scattered_requests_make_a_picture_of_kilobytes() {
        let requests: Vec<DeviceRequest> = (0..1_000_000u64)
            .map(|i| request(Kind::Write, i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 46 << 12, 4096))
            .collect();
        let times = vec![Duration::from_micros(100); requests.len()];
        let trace = Trace { device_bytes: 1 << 30, requests, marks: Vec::new() };
        let picture = Picture::of(&trace, &times, &[]);
        let bytes: usize = picture.strokes.iter().map(|strokes| strokes.path.len()).sum();
        assert!(bytes < 100_000, "{bytes}");
    }

    #[test]
    fn any_trace_can_be_drawn() {
        let odd = vec![request(Kind::Write, u64::MAX, u64::MAX), request(Kind::Flush, 0, 0)];
        for trace in [
            Trace::default(),
            Trace { device_bytes: 0, requests: odd.clone(), marks: Vec::new() },
            Trace { device_bytes: u64::MAX, requests: odd, marks: Vec::new() },
        ] {
            let picture = Picture::of(&trace, &[], &[]);
            assert!(picture.seconds.is_finite(), "{picture:?}");
        }
    }
}
