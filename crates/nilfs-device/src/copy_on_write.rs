//! A device that keeps what is written to it in memory, above another that stays as it is.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{Device, IoSlice, check_range};

/// Bytes that are kept together.
const PAGE: usize = 4096;

/// Bytes that a device reads or fails to read together.
const SECTOR: usize = 512;

/// A view of a device that can be written without changing the device. What it costs in memory is
/// what has been written, in pages of 4 KiB.
pub struct CopyOnWriteDevice {
    below: Arc<dyn Device>,
    pages: RwLock<BTreeMap<u64, Page>>,
}

/// A page of which something has been written.
struct Page {
    bytes: Box<[u8; PAGE]>,
    /// The sectors that have been: the others are as on the device below.
    written: u8,
}

impl Default for Page {
    fn default() -> Self {
        Self { bytes: Box::new([0; PAGE]), written: 0 }
    }
}

impl Page {
    fn has(&self, sectors: Range<usize>) -> bool {
        sectors.into_iter().all(|sector| self.written & 1 << sector != 0)
    }
}

impl CopyOnWriteDevice {
    /// A view of `below` as it is now.
    #[must_use]
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self { below, pages: RwLock::default() }
    }

    /// Reads what has not been written of a part of a page, sector by sector: one that cannot be read
    /// does not matter where it has been written since.
    fn read_around(
        &self,
        page: u64,
        kept: Option<&Page>,
        part: Range<usize>,
        to: &mut [u8],
    ) -> io::Result<()> {
        for sector in sectors(&part) {
            let (start, end) =
                (part.start.max(sector * SECTOR), part.end.min((sector + 1) * SECTOR));
            if kept.is_none_or(|kept| !kept.has(sector..sector + 1)) {
                let piece = &mut to[start - part.start..end - part.start];
                self.below.read_at(page * PAGE as u64 + start as u64, piece)?;
            }
        }
        Ok(())
    }
}

/// The sectors of a page that a part of it touches.
fn sectors(part: &Range<usize>) -> Range<usize> {
    part.start / SECTOR..part.end.div_ceil(SECTOR)
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
        let has = |(page, within, count): (u64, usize, usize)| {
            pages.get(&page).is_some_and(|kept| kept.has(sectors(&(within..within + count))))
        };
        // What has been written comes on top of what is below, as far as that is needed and can be read.
        if !parts(offset, buffer.len()).all(has) && self.below.read_at(offset, buffer).is_err() {
            let mut done = 0;
            for (page, within, count) in parts(offset, buffer.len()) {
                let to = &mut buffer[done..done + count];
                self.read_around(page, pages.get(&page), within..within + count, to)?;
                done += count;
            }
        }
        let mut done = 0;
        for (page, within, count) in parts(offset, buffer.len()) {
            if let Some(kept) = pages.get(&page) {
                let part = within..within + count;
                for sector in sectors(&part).filter(|sector| kept.has(*sector..sector + 1)) {
                    let start = part.start.max(sector * SECTOR);
                    let end = part.end.min((sector + 1) * SECTOR);
                    let to = &mut buffer[done + start - within..done + end - within];
                    to.copy_from_slice(&kept.bytes[start..end]);
                }
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
                let part = within..within + count;
                let kept = pages.entry(page).or_default();
                // What is written in part only keeps its other part.
                for sector in sectors(&part) {
                    if kept.has(sector..sector + 1) {
                        continue;
                    }
                    let all = sector * SECTOR..(sector + 1) * SECTOR;
                    if part.start > all.start || part.end < all.end {
                        let start = page * PAGE as u64 + all.start as u64;
                        let length = (self.below.size() - start).min(SECTOR as u64) as usize;
                        let to = &mut kept.bytes[all.start..all.start + length];
                        self.below.read_at(start, to)?;
                    }
                    kept.written |= 1 << sector;
                }
                kept.bytes[part].copy_from_slice(now);
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
