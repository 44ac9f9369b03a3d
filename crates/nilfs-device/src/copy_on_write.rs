//! A device that keeps what is written to it in memory, above another that stays as it is.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{Device, IoSlice, check_range};

/// Bytes that are kept together.
const PAGE: usize = 4096;

/// A view of a device that can be written without changing the device. What it costs in memory is
/// what has been written, in pages of 4 KiB.
pub struct CopyOnWriteDevice {
    below: Arc<dyn Device>,
    pages: RwLock<BTreeMap<u64, Box<[u8; PAGE]>>>,
}

impl CopyOnWriteDevice {
    /// A view of `below` as it is now.
    #[must_use]
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self { below, pages: RwLock::default() }
    }

    /// Reads a page of the device below; beyond its end there are zeros.
    fn page_below(&self, page: u64) -> io::Result<Box<[u8; PAGE]>> {
        let mut bytes = Box::new([0; PAGE]);
        let start = page * PAGE as u64;
        let length = (self.below.size() - start).min(PAGE as u64) as usize;
        self.below.read_at(start, &mut bytes[..length])?;
        Ok(bytes)
    }
}

/// The parts of a range that lie in one page each: the page, where in it, and how many bytes.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        let within = (at % PAGE as u64) as usize;
        let count = (end - at).min((PAGE - within) as u64) as usize;
        let part = (at / PAGE as u64, within, count);
        at += count as u64;
        (count > 0).then_some(part)
    })
}

impl Device for CopyOnWriteDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), offset, buffer.len() as u64)?;
        let pages = self.pages.read();
        let end = offset + buffer.len() as u64;
        let touched = offset / PAGE as u64..end.div_ceil(PAGE as u64);
        let kept = pages.range(touched.clone()).count() as u64;
        // A sector that cannot be read does not matter where it has been written since.
        if kept < touched.end.saturating_sub(touched.start) {
            self.below.read_at(offset, buffer)?;
        }
        if kept == 0 {
            return Ok(());
        }
        let mut done = 0;
        for (page, within, count) in parts(offset, buffer.len()) {
            if let Some(bytes) = pages.get(&page) {
                buffer[done..done + count].copy_from_slice(&bytes[within..within + count]);
            }
            done += count;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        check_range(self.size(), offset, total as u64)?;
        let mut pages = self.pages.write();
        let mut at = offset;
        for piece in pieces {
            let mut rest = &piece[..];
            for (page, within, count) in parts(at, piece.len()) {
                let (now, later) = rest.split_at(count);
                let bytes = match pages.entry(page) {
                    Entry::Occupied(kept) => kept.into_mut(),
                    Entry::Vacant(free) => {
                        let whole = count == PAGE;
                        free.insert(if whole {
                            Box::new([0; PAGE])
                        } else {
                            self.page_below(page)?
                        })
                    }
                };
                bytes[within..within + count].copy_from_slice(now);
                rest = later;
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
