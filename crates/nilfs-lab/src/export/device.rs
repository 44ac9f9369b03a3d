//! The device behind the file: image, model, recording.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use parking_lot::Mutex;

use super::Snapshot;
use super::keep::{Keeper, punch};
use crate::model::{Model, Wear, serve};
use crate::trace::{DeviceRequest, Kind, Mark, Trace};

/// The most that one request reads or writes: what FUSE lets through.
pub(super) const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// A device. Requests are given to it by one thread; anybody may look at it meanwhile.
pub(super) struct Device {
    image: File,
    bytes: u64,
    began: Instant,
    powered: AtomicBool,
    recording: Mutex<Recording>,
    content: Mutex<Content>,
}

struct Recording {
    model: Option<Box<dyn Model>>,
    requests: Vec<DeviceRequest>,
    marks: Vec<Mark>,
    /// Sum of the times that the model took, and worked behind the host's back.
    busy: Duration,
    /// When the model will have done all that was asked of it, since the recording began.
    busy_until: Duration,
}

struct Content {
    keeper: Option<Keeper>,
    /// The first error of the image or of what is kept.
    failure: Option<String>,
}

impl Device {
    pub(super) fn new(
        image: File,
        bytes: u64,
        model: Option<Box<dyn Model>>,
        keeper: Option<Keeper>,
    ) -> Self {
        let recording = Recording {
            model,
            requests: Vec::new(),
            marks: Vec::new(),
            busy: Duration::ZERO,
            busy_until: Duration::ZERO,
        };
        Self {
            image,
            bytes,
            began: Instant::now(),
            powered: AtomicBool::new(true),
            recording: Mutex::new(recording),
            content: Mutex::new(Content { keeper, failure: None }),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts the power, or restores it.
    pub(super) fn set_power(&self, on: bool) {
        self.powered.store(on, Ordering::Relaxed);
    }

    pub(super) fn is_powered(&self) -> bool {
        self.powered.load(Ordering::Relaxed)
    }

    /// The time since the recording began.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// A time since the recording began, by the clock of this machine.
    pub(super) fn instant(&self, time: Duration) -> Instant {
        self.began + time
    }

    /// How much of a range lies on the device.
    pub(super) fn within(&self, offset: u64, bytes: u64) -> u64 {
        bytes.min(self.bytes.saturating_sub(offset))
    }

    /// Each of the following does one request, which arrived at `at`, and says when the device
    /// has done it.
    pub(super) fn read(
        &self,
        offset: u64,
        bytes: u64,
        at: Duration,
    ) -> io::Result<(Vec<u8>, Duration)> {
        let mut data = vec![0; bytes as usize];
        self.noted(self.image.read_exact_at(&mut data, offset))?;
        Ok((data, self.record(DeviceRequest { kind: Kind::Read, offset, bytes, at })))
    }

    pub(super) fn write(&self, offset: u64, data: &[u8], at: Duration) -> io::Result<Duration> {
        self.noted(self.image.write_all_at(data, offset))?;
        self.keep(|keeper| keeper.add(data))?;
        let bytes = data.len() as u64;
        Ok(self.record(DeviceRequest { kind: Kind::Write, offset, bytes, at }))
    }

    /// Nothing is flushed on this machine: the model's flash is as durable as the image.
    pub(super) fn flush(&self, at: Duration) -> Duration {
        self.record(DeviceRequest { kind: Kind::Flush, offset: 0, bytes: 0, at })
    }

    pub(super) fn discard(&self, offset: u64, bytes: u64, at: Duration) -> io::Result<Duration> {
        self.punch(offset, bytes)?;
        Ok(self.record(DeviceRequest { kind: Kind::Discard, offset, bytes, at }))
    }

    pub(super) fn zero(&self, offset: u64, bytes: u64, at: Duration) -> io::Result<Duration> {
        self.punch(offset, bytes)?;
        self.keep(|keeper| keeper.add_zeros(bytes))?;
        let end = offset + bytes;
        let pieces = (offset..end).step_by(MAX_REQUEST_BYTES as usize).map(|offset| {
            let bytes = (end - offset).min(u64::from(MAX_REQUEST_BYTES));
            self.record(DeviceRequest { kind: Kind::Write, offset, bytes, at })
        });
        Ok(pieces.last().unwrap_or(at))
    }

    /// A file system without holes says so, and that is passed on: no failure of the image.
    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        match punch(&self.image, offset, bytes) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(error),
            result => self.noted(result),
        }
    }

    fn keep(&self, add: impl FnOnce(&mut Keeper) -> io::Result<()>) -> io::Result<()> {
        let result = self.content.lock().keeper.as_mut().map_or(Ok(()), add);
        self.noted(result)
    }

    /// Remembers the first failure: the recording is worth nothing then.
    fn noted<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            self.content.lock().failure.get_or_insert_with(|| error.to_string());
        }
        result
    }

    fn record(&self, request: DeviceRequest) -> Duration {
        let mut recording = self.recording.lock();
        let model = recording.model.as_mut();
        let (time, busy) =
            model.map_or_else(Default::default, |model| serve(&mut **model, &request));
        recording.requests.push(request);
        recording.busy += busy;
        recording.busy_until = recording.busy_until.max(request.at) + time;
        recording.busy_until
    }

    pub(super) fn mark(&self, name: &str) -> Snapshot {
        let mut recording = self.recording.lock();
        // Taken under the lock: marks and requests have one order.
        let at = self.now();
        let requests = recording.requests.len();
        recording.marks.push(Mark { before: requests, at, name: name.to_owned() });
        let wear = recording.model.as_ref().map_or_else(Wear::default, |model| model.wear());
        Snapshot { requests, busy: recording.busy, wear, at }
    }

    pub(super) fn requests(&self, range: Range<usize>) -> Vec<DeviceRequest> {
        let recording = self.recording.lock();
        let end = range.end.min(recording.requests.len());
        recording.requests.get(range.start..end).unwrap_or_default().to_vec()
    }

    pub(super) fn failure(&self) -> Option<String> {
        let failure = self.content.lock().failure.clone();
        failure.map(|failure| format!("the device's image could not be read or written: {failure}"))
    }

    /// Gives the recording away.
    pub(super) fn finish(&self) -> Result<Trace> {
        if let Some(failure) = self.failure() {
            bail!(failure);
        }
        let mut recording = self.recording.lock();
        Ok(Trace {
            device_bytes: self.bytes,
            requests: std::mem::take(&mut recording.requests),
            marks: std::mem::take(&mut recording.marks),
        })
    }
}
