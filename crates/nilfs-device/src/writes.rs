//! What was written to a device that stays as it is: in the order in which it was, and by where it
//! is.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::scratch::{Scratch, ScratchFile};
use crate::{Device, IoSlice};

/// Bytes that a device reads or fails to read together.
const SECTOR: u64 = 512;

/// Writes and flushes. Their bytes are in a scratch file; in memory are some 80 bytes for each
/// write.
#[derive(Default)]
pub struct Writes {
    scratch: Arc<Scratch>,
    kept: RwLock<Kept>,
}

#[derive(Default)]
struct Kept {
    /// There is one as soon as something is written.
    file: Option<ScratchFile>,
    steps: Vec<Step>,
    /// What was written last, in whole sectors, by where it ends on the device.
    newest: BTreeMap<u64, Extent>,
}

enum Step {
    Write { offset: u64, length: usize, position: u64 },
    Flush,
}

/// Bytes of the device that lie in the file.
#[derive(Clone, Copy)]
struct Extent {
    /// Where on the device.
    start: u64,
    /// Where in the file.
    position: u64,
}

impl Writes {
    /// Nothing yet; bytes will be kept in a scratch file that is made here.
    #[must_use]
    pub fn new(scratch: &Arc<Scratch>) -> Self {
        Self { scratch: Arc::clone(scratch), kept: RwLock::default() }
    }

    /// Whether nothing was written or flushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.read().steps.is_empty()
    }

    /// Bytes that were written, those of the same place each time.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of_step = |step: &Step| match step {
            Step::Write { length, .. } => *length as u64,
            Step::Flush => 0,
        };
        self.kept.read().steps.iter().map(of_step).sum()
    }

    /// Does the same with a device, in the same order. Calls `progress` with the bytes of each
    /// write.
    ///
    /// # Errors
    /// The device or the scratch file fails.
    pub fn replay(&self, device: &dyn Device, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
        let kept = self.kept.read();
        for step in &kept.steps {
            match step {
                Step::Write { offset, length, position } => {
                    let mut bytes = vec![0; *length];
                    kept.read_file(*position, &mut bytes)?;
                    device.write_at(*offset, &[IoSlice::new(&bytes)])?;
                    progress(*length as u64);
                }
                Step::Flush => device.flush()?,
            }
        }
        Ok(())
    }

    /// Reads what has been written, and what has not from `below`.
    pub(crate) fn read(
        &self,
        below: &dyn Device,
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        self.kept.read().read(below, offset, buffer)
    }

    /// Writes above `below`: a sector of which a part is written keeps its other part.
    pub(crate) fn write(
        &self,
        below: &dyn Device,
        offset: u64,
        pieces: &[IoSlice<'_>],
    ) -> io::Result<()> {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        if length == 0 {
            return Ok(());
        }
        let end = offset + length as u64;
        let sectors = offset / SECTOR * SECTOR..end.next_multiple_of(SECTOR).min(below.size());
        let mut kept = self.kept.write();
        let before = kept.read_range(below, sectors.start..offset)?;
        let after = kept.read_range(below, end..sectors.end)?;
        let file = match &mut kept.file {
            Some(file) => file,
            none => none.insert(self.scratch.file()?),
        };
        let position = file.end();
        file.append(&before)?;
        pieces.iter().try_for_each(|piece| file.append(piece))?;
        file.append(&after)?;
        let within = position + before.len() as u64;
        kept.steps.push(Step::Write { offset, length, position: within });
        kept.cover(sectors, position);
        Ok(())
    }

    pub(crate) fn flush(&self) {
        self.kept.write().steps.push(Step::Flush);
    }
}

impl Kept {
    fn read(&self, below: &dyn Device, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        let within = |at: u64| (at - offset) as usize;
        let mut at = offset;
        for (extent_end, extent) in self.newest.range(offset + 1..) {
            let (from, to) = (extent.start.max(offset), end.min(*extent_end));
            if from >= end {
                break;
            }
            read_unless_empty(below, at, &mut buffer[within(at)..within(from)])?;
            let position = extent.position + (from - extent.start);
            self.read_file(position, &mut buffer[within(from)..within(to)])?;
            at = to;
        }
        read_unless_empty(below, at, &mut buffer[within(at)..])
    }

    fn read_range(&self, below: &dyn Device, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read(below, range.start, &mut bytes)?;
        Ok(bytes)
    }

    fn read_file(&self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.read_at(position, buffer))
    }

    /// Lets a range of the device be what lies at a position of the file.
    fn cover(&mut self, range: Range<u64>, position: u64) {
        let after_start = self.newest.range(range.start + 1..);
        let covered: Vec<_> = after_start
            .take_while(|(_, extent)| extent.start < range.end)
            .map(|(end, extent)| (*end, *extent))
            .collect();
        for (end, extent) in covered {
            self.newest.remove(&end);
            if extent.start < range.start {
                self.newest.insert(range.start, extent);
            }
            if range.end < end {
                let position = extent.position + (range.end - extent.start);
                self.newest.insert(end, Extent { start: range.end, position });
            }
        }
        self.newest.insert(range.end, Extent { start: range.start, position });
    }
}

/// A device that fails should not be asked for nothing.
fn read_unless_empty(device: &dyn Device, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    if buffer.is_empty() { Ok(()) } else { device.read_at(offset, buffer) }
}
