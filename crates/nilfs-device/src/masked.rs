//! A device of which some parts are not to be read: what a rescue of its content could not read, or
//! what has been overwritten since.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::{Device, IoSlice};

/// A device that is only read, and of which some parts fail as a bad sector does.
pub struct MaskedDevice {
    below: Arc<dyn Device>,
    /// In bytes; ascending, and none touches the next.
    masked: Vec<Range<u64>>,
    /// Error for a reader of such a part.
    why: &'static str,
}

impl MaskedDevice {
    /// The device `below` without these ranges of bytes, which may overlap and come in any order.
    pub fn new(below: Arc<dyn Device>, masked: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<_> = masked.into_iter().filter(|range| !range.is_empty()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut masked: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match masked.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => masked.push(range),
            }
        }
        Self { below, masked, why: "that part of the device cannot be read" }
    }

    /// Returns a device with another error for a reader of such a part.
    #[must_use]
    pub fn because(self, why: &'static str) -> Self {
        Self { why, ..self }
    }
}

impl Device for MaskedDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(buffer.len() as u64);
        let next = self.masked.partition_point(|range| range.end <= offset);
        match self.masked.get(next) {
            Some(range) if range.start < end => Err(io::Error::other(self.why)),
            _ => self.below.read_at(offset, buffer),
        }
    }

    fn write_at(&self, _offset: u64, _pieces: &[IoSlice<'_>]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn only_what_touches_a_masked_range_cannot_be_read() {
        let below = Arc::new(MemoryDevice::from(vec![7; 100]));
        let device = MaskedDevice::new(below, [50..60, 20..30, 25..35, 40..40]);
        let reads = |offset, bytes| {
            let mut buffer = vec![0; bytes];
            let read = device.read_at(offset, &mut buffer).is_ok();
            assert!(!read || buffer.iter().all(|byte| *byte == 7));
            read
        };
        for (offset, bytes, expected) in [
            (0, 20, true),
            (0, 21, false),
            (19, 1, true),
            (34, 1, false),
            (35, 15, true),
            (35, 16, false),
            (10, 80, false),
            (60, 40, true),
        ] {
            assert_eq!(reads(offset, bytes), expected, "{bytes} bytes at {offset}");
        }
    }

    #[test]
    fn nothing_is_written() {
        let below = Arc::new(MemoryDevice::from(vec![7; 100]));
        let device = MaskedDevice::new(Arc::clone(&below) as _, []);
        assert!(device.is_read_only());
        assert!(device.write_at(0, &[IoSlice::new(b"x")]).is_err());
        assert!(device.discard(0, 10).is_err());
        assert_eq!(below.snapshot(), vec![7; 100]);
    }
}
