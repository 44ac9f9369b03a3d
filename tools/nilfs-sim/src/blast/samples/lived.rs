//! The life of a volume: how it began, and all that was written on its device.

use std::collections::{BTreeMap, BTreeSet};

use nilfs_device::Event;
use nilfs_ondisk::{BlockNr, Seq};

use super::super::blocks::Synced;

/// A volume that has lived.
pub(super) struct Lived {
    /// Content of the device before.
    pub(super) start: Vec<u8>,
    /// Whatever the device was told since.
    pub(super) events: Vec<Event>,
    /// Content that only sync logs have.
    pub(super) synced: BTreeMap<(BlockNr, Seq), Synced>,
}

impl Lived {
    /// A volume of which nothing is in sync logs.
    pub(super) fn without_syncs(start: Vec<u8>, events: Vec<Event>) -> Self {
        Self { start, events, synced: BTreeMap::new() }
    }

    /// Content of the device now.
    pub(super) fn content(&self) -> Vec<u8> {
        let mut content = self.start.clone();
        for event in &self.events {
            if let Event::Write { offset, bytes } = event {
                let at = *offset as usize;
                content[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        content
    }

    /// Blocks that were written after the last flush.
    pub(super) fn unflushed(&self, size: u64) -> BTreeSet<u64> {
        let since = self.events.iter().rev().take_while(|event| !matches!(event, Event::Flush));
        let blocks = since.filter_map(|event| match event {
            Event::Write { offset, bytes } => {
                Some(offset / size..(offset + bytes.len() as u64).div_ceil(size))
            }
            _ => None,
        });
        blocks.flatten().collect()
    }

    /// When each block was written last: the number of the write, and of the block.
    pub(super) fn written(&self, size: u64) -> BTreeMap<u64, (usize, u64)> {
        let mut written = BTreeMap::new();
        for (nth, event) in self.events.iter().enumerate() {
            let Event::Write { offset, bytes } = event else { continue };
            let blocks = offset / size..(offset + bytes.len() as u64).div_ceil(size);
            written.extend(blocks.map(|block| (block, (nth, block))));
        }
        written
    }

    /// Content of each block before it got the content that it has now.
    pub(super) fn former(&self, size: usize) -> Vec<u8> {
        let (mut now, mut former) = (self.start.clone(), vec![0; self.start.len()]);
        for event in &self.events {
            let Event::Write { offset, bytes } = event else { continue };
            let (at, end) = (*offset as usize, *offset as usize + bytes.len());
            let before = now[at / size * size..end.next_multiple_of(size).min(now.len())].to_vec();
            now[at..end].copy_from_slice(bytes);
            for (nth, old) in before.chunks(size).enumerate() {
                let at = (at / size + nth) * size;
                if now[at..at + old.len()] != *old {
                    former[at..at + old.len()].copy_from_slice(old);
                }
            }
        }
        former
    }
}
