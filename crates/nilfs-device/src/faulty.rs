//! A device whose requests fail as a test wants it, to see what becomes of its users.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Claim, Device, IoSlice};

/// The unit in which a part of a request is done, in bytes.
const SECTOR: usize = 512;

/// What a device is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// To read.
    Read,
    /// To write.
    Write,
    /// To make durable what was written.
    Flush,
    /// To discard a range.
    Discard,
}

/// A request to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub action: Action,
    /// With which bytes; none for a flush.
    pub bytes: Range<u64>,
}

impl Request {
    /// Whether it is about some of these bytes.
    #[must_use]
    pub fn touches(&self, bytes: &Range<u64>) -> bool {
        self.bytes.start < bytes.end && bytes.start < self.bytes.end
    }
}

/// What becomes of a request that is not served as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done, and an I/O error returned.
    Error,
    /// The first half of the bytes is read or written, in whole sectors, and an I/O error returned.
    Partial,
    /// A read succeeds with bytes that follow from this seed; all zeros if it is 0. Other requests
    /// have nothing to return, and fail.
    Garbage(u64),
}

type Rule = Box<dyn FnMut(&Request) -> Option<Fault> + Send>;

/// What is wrong with a [`FaultyDevice`]; nothing at first.
#[derive(Default)]
pub struct Faults {
    rule: Mutex<Option<Rule>>,
}

impl Faults {
    /// From now on, `rule` is asked about each request what becomes of it; `None`: it is served.
    pub fn set(&self, rule: impl FnMut(&Request) -> Option<Fault> + Send + 'static) {
        *self.rule.lock() = Some(Box::new(rule));
    }

    /// From now on, every request for one action fails.
    pub fn fail(&self, action: Action) {
        self.set(move |request| (request.action == action).then_some(Fault::Error));
    }

    /// From now on, every request that is meant fails once this many have been served.
    pub fn fail_after(
        &self,
        mut served: u64,
        is_meant: impl Fn(&Request) -> bool + Send + 'static,
    ) {
        self.set(move |request| {
            if !is_meant(request) {
                return None;
            }
            let left = served.checked_sub(1);
            served = left.unwrap_or(0);
            left.is_none().then_some(Fault::Error)
        });
    }

    /// From now on, these ranges of bytes cannot be read: each sector until it is written.
    pub fn scratch(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let sector = SECTOR as u64;
        let sectors = ranges.into_iter().flat_map(|it| it.start / sector..it.end.div_ceil(sector));
        let mut bad: BTreeSet<u64> = sectors.collect();
        self.set(move |Request { action, bytes }| {
            let touched = bytes.start / sector..bytes.end.div_ceil(sector);
            if *action == Action::Write {
                let whole = bytes.start.div_ceil(sector)..bytes.end / sector;
                bad.retain(|sector| !whole.contains(sector));
            }
            let fails = *action == Action::Read && bad.range(touched).next().is_some();
            fails.then_some(Fault::Error)
        });
    }

    /// From now on, every request is served.
    pub fn clear(&self) {
        *self.rule.lock() = None;
    }

    fn of(&self, action: Action, offset: u64, bytes: u64) -> Option<Fault> {
        let bytes = offset..offset.saturating_add(bytes);
        self.rule.lock().as_mut().and_then(|rule| rule(&Request { action, bytes }))
    }
}

/// A device that passes everything on unless its [`Faults`] say otherwise.
pub struct FaultyDevice<D> {
    below: D,
    faults: Arc<Faults>,
}

impl<D: Device> FaultyDevice<D> {
    /// A device over `below` without faults so far, and what decides about them.
    pub fn new(below: D) -> (Self, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        (Self { below, faults: Arc::clone(&faults) }, faults)
    }

    /// What decides about its faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The device below, which has no faults.
    pub fn below(&self) -> &D {
        &self.below
    }
}

fn failed(what: &str) -> io::Result<()> {
    Err(io::Error::other(format!("the device failed to {what} (injected)")))
}

/// How many of these bytes a request is done with that is done in part.
fn part_of(bytes: usize) -> usize {
    bytes / 2 / SECTOR * SECTOR
}

/// Fills a buffer with what an xorshift generator makes of the seed.
fn fill_with_garbage(buffer: &mut [u8], seed: u64) {
    let mut state = seed;
    for word in buffer.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

impl<D: Device> Device for FaultyDevice<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self.faults.of(Action::Read, offset, buffer.len() as u64) {
            None => self.below.read_at(offset, buffer),
            Some(Fault::Error) => failed("read"),
            Some(Fault::Partial) => {
                let part = part_of(buffer.len());
                self.below.read_at(offset, &mut buffer[..part])?;
                failed("read all")
            }
            Some(Fault::Garbage(seed)) => {
                fill_with_garbage(buffer, seed);
                Ok(())
            }
        }
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        match self.faults.of(Action::Write, offset, bytes as u64) {
            None => self.below.write_at(offset, pieces),
            Some(Fault::Error | Fault::Garbage(_)) => failed("write"),
            Some(Fault::Partial) => {
                let mut all: Vec<u8> =
                    pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
                all.truncate(part_of(bytes));
                if !all.is_empty() {
                    self.below.write_at(offset, &[IoSlice::new(&all)])?;
                }
                failed("write all")
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.faults.of(Action::Flush, 0, 0) {
            None => self.below.flush(),
            Some(_) => failed("flush"),
        }
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        match self.faults.of(Action::Discard, offset, bytes) {
            None => self.below.discard(offset, bytes),
            Some(_) => failed("discard"),
        }
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.below.resize(bytes)
    }

    fn is_read(&self) -> bool {
        self.below.is_read()
    }

    fn keep_readers_out(&self) -> Option<Claim> {
        self.below.keep_readers_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn device() -> FaultyDevice<MemoryDevice> {
        FaultyDevice::new(MemoryDevice::from(vec![7; 4096])).0
    }

    #[test]
    fn a_rule_sees_each_request_and_decides_about_it() {
        let device = device();
        let mut writes = 0;
        device.faults().set(move |request| {
            writes += u32::from(request.action == Action::Write);
            (writes == 2 && request.touches(&(1000..1001))).then_some(Fault::Error)
        });
        let write = |offset| device.write_at(offset, &[IoSlice::new(&[1; 500])]).is_ok();
        assert_eq!([write(900), write(900), write(900)], [true, false, true]);
        assert!(device.read_at(900, &mut [0; 500]).is_ok() && device.flush().is_ok());
        device.faults().fail(Action::Flush);
        assert!(device.flush().is_err() && write(0));
        device.faults().clear();
        assert!(device.flush().is_ok());
    }

    #[test]
    fn requests_fail_after_some_were_served_and_sectors_until_they_are_written() {
        let device = device();
        let write = |offset| device.write_at(offset, &[IoSlice::new(&[1; 512])]).is_ok();
        device.faults().fail_after(2, |request| request.action != Action::Read);
        assert_eq!(
            [write(0), device.flush().is_ok(), write(0), write(0)],
            [true, true, false, false]
        );
        device.faults().scratch([512..1024, 2048..2049]);
        let reads = |offset| device.read_at(offset, &mut [0; 512]).is_ok();
        assert_eq!(
            [reads(0), reads(100), reads(512), reads(1024), reads(2100)],
            [true, false, false, true, false]
        );
        assert!(
            write(512) && write(1900) && reads(512) && !reads(2048),
            "one was not written whole"
        );
    }

    #[test]
    fn a_part_is_whole_sectors_of_the_first_half_and_garbage_is_another_content() {
        let device = device();
        device.faults().set(|_| Some(Fault::Partial));
        assert!(device.write_at(0, &[IoSlice::new(&[1; 1000]), IoSlice::new(&[2; 2000])]).is_err());
        let content = device.below().snapshot();
        assert_eq!([content[999], content[1000], content[1023], content[1024]], [1, 2, 2, 7]);
        let mut buffer = [7; 1027];
        for seed in [0, 1] {
            device.faults().set(move |_| Some(Fault::Garbage(seed)));
            device.read_at(0, &mut buffer).unwrap();
            assert_eq!(buffer.iter().all(|byte| *byte == 0), seed == 0);
        }
        assert!(device.flush().is_err(), "a flush has nothing to return");
    }
}
