//! A rotating disk without a write cache, for contrast: what seeks and rotation cost.
//!
//! A request that begins where the last one ended goes on at the track's rate. Any other one
//! moves the arm, which takes longer with the square root of the way, and then waits for its place
//! to come round. The outermost track holds the first bytes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::{MICROSECONDS, Nonsense, RATE, within};
use super::range::on_device;
use super::time::{micros, rate, transfer};
use super::{Limits, Model, Wear};
use crate::trace::{DeviceRequest, Kind};

/// Parameters of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Rotations per minute.
    pub rotations_per_minute: u32,
    /// The shortest seek.
    pub track_to_track_us: u32,
    /// The mean of seeks between places at random.
    pub average_seek_us: u32,
    /// What a request costs besides.
    pub overhead_us: u32,
    /// At the outermost track.
    pub outer_bytes_per_second: u64,
    /// At the innermost track.
    pub inner_bytes_per_second: u64,
}

impl Disk {
    /// Finds fields that make no sense.
    pub(super) fn check(&self) -> Result<(), Nonsense> {
        within("disk.rotations_per_minute", self.rotations_per_minute, 60..=100_000)?;
        within("disk.average_seek_us", self.average_seek_us, MICROSECONDS)?;
        within(
            "disk.track_to_track_us",
            self.track_to_track_us,
            0..=u64::from(self.average_seek_us),
        )?;
        within("disk.overhead_us", self.overhead_us, MICROSECONDS)?;
        within("disk.outer_bytes_per_second", self.outer_bytes_per_second, RATE)?;
        let inner = RATE.start().to_owned()..=self.outer_bytes_per_second;
        within("disk.inner_bytes_per_second", self.inner_bytes_per_second, inner)
    }

    /// A disk of this kind and another size: seeks take as long as on the original, since it is
    /// the way in tracks that counts.
    pub(super) fn model(&self, device_bytes: u64) -> Result<DiskModel, Nonsense> {
        self.check()?;
        within("device size", device_bytes, 1..=1 << 50)?;
        let head = u64::MAX;
        Ok(DiskModel { disk: self.clone(), device_bytes, head, now: Duration::ZERO, written: 0 })
    }

    fn rotation(&self) -> Duration {
        Duration::from_nanos(60_000_000_000 / u64::from(self.rotations_per_minute))
    }

    /// How long the arm moves over this part of the way, in millionths.
    fn seek(&self, millionths: u64) -> Duration {
        let shortest = u64::from(self.track_to_track_us) * 1000;
        // The mean of the square root of the way between two random places is 8/15.
        let longest_more = u64::from(self.average_seek_us - self.track_to_track_us) * 1000 * 15 / 8;
        let root = (millionths * 1_000_000).isqrt();
        Duration::from_nanos(shortest + longest_more * root / 1_000_000)
    }

    fn rate(&self, offset: u64, device_bytes: u64) -> u64 {
        let slope = u128::from(self.outer_bytes_per_second - self.inner_bytes_per_second);
        let less = slope * u128::from(offset) / u128::from(device_bytes);
        self.outer_bytes_per_second - u64::try_from(less).unwrap_or(0)
    }
}

/// A disk.
#[derive(Debug)]
pub struct DiskModel {
    disk: Disk,
    device_bytes: u64,
    /// After the last byte that was read or written; nowhere at first.
    head: u64,
    /// When the last request ended: the disk turns on.
    now: Duration,
    written: u64,
}

impl Model for DiskModel {
    fn serve(&mut self, request: &DeviceRequest) -> Duration {
        self.now = self.now.max(request.at);
        let begin = self.now;
        if matches!(request.kind, Kind::Read | Kind::Write) {
            self.access(request);
        }
        self.now - begin
    }

    fn wear(&self) -> Wear {
        Wear { host_bytes: self.written, programmed_bytes: self.written, ..Wear::default() }
    }

    fn limits(&self, request_bytes: u64) -> Limits {
        let disk = &self.disk;
        let next = |bytes| micros(disk.overhead_us) + transfer(bytes, disk.outer_bytes_per_second);
        let anywhere = micros(disk.average_seek_us) + disk.rotation() / 2 + next(4096);
        Limits {
            sequential_read: rate(request_bytes, next(request_bytes)),
            sequential_write: rate(request_bytes, next(request_bytes)),
            small_read: anywhere.as_secs_f64(),
            small_write: next(4096).as_secs_f64(),
            flush: 0.0,
        }
    }
}

impl DiskModel {
    fn access(&mut self, request: &DeviceRequest) {
        let range = on_device(request, self.device_bytes);
        let rate = self.disk.rate(range.start, self.device_bytes);
        self.now += micros(self.disk.overhead_us);
        if range.start != self.head {
            self.now += self.disk.seek(self.way_to(range.start));
            self.now += self.until_below(range.start, rate);
        }
        self.now += transfer(range.end - range.start, rate);
        self.head = range.end;
        if request.kind == Kind::Write {
            self.written += range.end - range.start;
        }
    }

    /// The way from the head to a place, in millionths of all.
    fn way_to(&self, offset: u64) -> u64 {
        let way = self.head.min(self.device_bytes).abs_diff(offset);
        (u128::from(way) * 1_000_000 / u128::from(self.device_bytes)) as u64
    }

    /// How long until a place comes below the head.
    fn until_below(&self, offset: u64, rate: u64) -> Duration {
        let rotation = self.disk.rotation().as_nanos();
        let place = transfer(offset, rate).as_nanos() % rotation;
        let turned = self.now.as_nanos() % rotation;
        let wait = (place + rotation - turned) % rotation;
        Duration::from_nanos(u64::try_from(wait).unwrap_or(0))
    }
}
