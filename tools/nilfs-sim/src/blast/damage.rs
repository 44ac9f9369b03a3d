//! Damage to a volume: one block or a run of bytes goes bad.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use nilfs_device::{Device, FaultyDevice, MemoryDevice};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::blocks::{Block, Holds};
use super::cost::Cost;
use super::samples::Sample;

/// Kind of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// One bit is flipped, among those that mean something.
    Bit,
    /// It is zeros.
    Zeros,
    /// It is noise.
    Garbage,
    /// Reading it fails, until it is written.
    Unreadable,
    /// It is what it was before it was written last.
    Stale,
    /// It and its neighbour have each other's content.
    Swapped,
}

impl Harm {
    /// All there are.
    pub const ALL: [Self; 6] =
        [Self::Bit, Self::Zeros, Self::Garbage, Self::Unreadable, Self::Stale, Self::Swapped];

    fn name(self) -> &'static str {
        match self {
            Self::Bit => "bit",
            Self::Zeros => "zeros",
            Self::Garbage => "garbage",
            Self::Unreadable => "unreadable",
            Self::Stale => "stale",
            Self::Swapped => "swapped",
        }
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Harm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|harm| harm.name() == text);
        found.ok_or_else(|| {
            format!("{text} is none of bit, zeros, garbage, unreadable, stale, swapped")
        })
    }
}

/// Damaged bytes of a device, and how they are damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Kind of the damage.
    pub harm: Harm,
    /// Bytes of the device.
    pub bytes: Range<u64>,
}

/// A volume that is damaged.
#[derive(Debug, Clone)]
pub struct Patient {
    /// Content of the device.
    pub content: Vec<u8>,
    /// Bytes that cannot be read.
    pub unreadable: Vec<Range<u64>>,
}

/// A device with a damaged volume, as it is written on.
pub type Bed = FaultyDevice<MemoryDevice>;

impl Patient {
    /// A device with this volume.
    #[must_use]
    pub fn device(&self) -> Arc<Bed> {
        let (device, faults) = FaultyDevice::new(MemoryDevice::from(self.content.clone()));
        if !self.unreadable.is_empty() {
            faults.scratch(self.unreadable.iter().cloned());
        }
        Arc::new(device)
    }

    /// A device with this volume, for whoever knows devices only.
    #[must_use]
    pub fn dyn_device(&self) -> Arc<dyn Device> {
        self.device()
    }
}

impl Damage {
    /// Damages one block.
    #[must_use]
    pub fn of_block(sample: &Sample, number: u64, harm: Harm) -> Self {
        let size = sample.block_bytes();
        Self { harm, bytes: number * size..(number + 1) * size }
    }

    /// All that is damaged: of two blocks that are swapped, both.
    #[must_use]
    pub fn touched(&self) -> Range<u64> {
        let length = self.bytes.end - self.bytes.start;
        match self.harm {
            Harm::Swapped => self.bytes.start..self.bytes.end + length,
            _ => self.bytes.clone(),
        }
    }

    /// The blocks in use that are damaged.
    pub fn blocks<'a>(&'a self, sample: &'a Sample) -> impl Iterator<Item = &'a Block> {
        let (size, touched) = (sample.block_bytes(), self.touched());
        let is_touched = move |block: &&Block| {
            let meant = &block.meant;
            let at = block.number * size;
            at + (meant.start as u64) < touched.end && touched.start < at + meant.end as u64
        };
        sample.blocks.iter().filter(is_touched)
    }

    /// Whether a power cut may have left just this: nothing had said that the blocks were durable, so they may be
    /// anything, but for a single bit of them.
    #[must_use]
    pub fn may_be_torn(&self, sample: &Sample) -> bool {
        let mut blocks = self.blocks(sample).map(|block| block.number).peekable();
        self.harm != Harm::Bit
            && blocks.peek().is_some()
            && blocks.all(|number| sample.unflushed.contains(&number))
    }

    /// Whether the end of the log has become zeros, from some block on: then nothing tells that it was ever written.
    #[must_use]
    pub fn has_unwritten_the_end(&self, sample: &Sample) -> bool {
        let touched: BTreeSet<u64> = self.blocks(sample).map(|block| block.number).collect();
        let written = |block: u64| sample.written.get(&block).copied();
        let first = touched.iter().filter_map(|block| written(*block)).min();
        let in_logs = sample.blocks.iter().filter(|block| block.holds != Holds::Superblock);
        let mut later = in_logs.filter(|block| written(block.number) >= first);
        self.harm == Harm::Zeros && first.is_some() && later.all(|it| touched.contains(&it.number))
    }

    /// Returns what it may cost.
    #[must_use]
    pub fn cost(&self, sample: &Sample) -> Cost {
        let mut cost = Cost::default();
        self.blocks(sample).for_each(|block| cost.add(&block.cost));
        cost
    }

    /// The volume with the damage. `None` if that is as it was.
    #[must_use]
    pub fn inflict(&self, sample: &Sample, seed: u64) -> Option<Patient> {
        let mut content = sample.content.clone();
        let mut random = StdRng::seed_from_u64(seed ^ self.bytes.start);
        let (start, end) =
            (self.bytes.start as usize, (self.bytes.end as usize).min(content.len()));
        let here = start..end;
        match self.harm {
            Harm::Bit => {
                let block = self.blocks(sample).next()?;
                let at = start + random.random_range(block.meant.clone());
                content[at] ^= 1 << random.random_range(0..8);
            }
            Harm::Zeros => content[here].fill(0),
            Harm::Garbage => random.fill(&mut content[here]),
            Harm::Unreadable => {}
            Harm::Stale => content[here.clone()].copy_from_slice(&sample.former[here]),
            Harm::Swapped => {
                let size = end - start;
                let (one, other) = content.get_mut(start..end + size)?.split_at_mut(size);
                one.swap_with_slice(other);
            }
        }
        let unreadable = match self.harm {
            Harm::Unreadable => vec![self.bytes.clone()],
            _ if content == sample.content => return None,
            _ => Vec::new(),
        };
        Some(Patient { content, unreadable })
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.bytes;
        write!(f, "{} at bytes {start}..{end}", self.harm)
    }
}
