//! What a device holds after the power was cut.
//!
//! Everything before the last flush is there. Of each write since then, the device may have kept
//! all, nothing, or any of its sectors: that is all it promises, so that is all we assume. So it is
//! with discards: any of the sectors may still be as they were. Devices differ in the size of their
//! sectors, and one size is no weaker than the other: what is torn into large ones alone hardly ever
//! comes about where chance decides about small ones.

use std::ops::Range;

use nilfs_device::Event;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::medium::DISCARDED;

/// The unit in which a device writes: each is written or it is not. They begin at multiples of their
/// size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sector {
    /// Of 512 bytes, as disks have had for long.
    Of512,
    /// Of 4096 bytes, as the disks of today have, and so the pages of most flash.
    Of4096,
}

impl Sector {
    /// All there are.
    pub const ALL: [Sector; 2] = [Self::Of512, Self::Of4096];

    fn bytes(self) -> u64 {
        match self {
            Self::Of512 => 512,
            Self::Of4096 => 4096,
        }
    }

    /// The parts of a range that lie in one sector each.
    fn parts(self, offset: u64, bytes: u64) -> impl Iterator<Item = Range<u64>> {
        let (size, end) = (self.bytes(), offset + bytes);
        (offset / size..end.div_ceil(size))
            .map(move |nth| (nth * size).max(offset)..((nth + 1) * size).min(end))
    }
}

/// Which of the writes that were not flushed survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// None.
    None,
    /// All.
    All,
    /// Only the last one.
    Last,
    /// All but the first one.
    AllButFirst,
    /// Of each write every other sector.
    EvenSectors(Sector),
    /// Chance decides, from this seed, for each write and for each sector.
    Random(Sector, u64),
}

impl Survivors {
    /// The choices that find most, before chance is tried.
    pub const CORNERS: [Survivors; 6] = [
        Self::None,
        Self::All,
        Self::Last,
        Self::AllButFirst,
        Self::EvenSectors(Sector::Of512),
        Self::EvenSectors(Sector::Of4096),
    ];

    /// What chance leaves on a device with sectors of a size that is up to chance, too.
    pub fn by_chance(random: &mut impl Rng) -> Self {
        let sector = if random.random() { Sector::Of512 } else { Sector::Of4096 };
        Self::Random(sector, random.random())
    }

    /// In what units writes are torn. Where none are, any will do.
    fn sector(self) -> Sector {
        match self {
            Self::EvenSectors(sector) | Self::Random(sector, _) => sector,
            Self::None | Self::All | Self::Last | Self::AllButFirst => Sector::Of512,
        }
    }
}

/// A device's content while its record is played, with what a cut at any point leaves of it.
#[derive(Debug, Clone)]
pub struct Disk {
    durable: Vec<u8>,
    pending: Vec<Event>,
}

impl Disk {
    /// A device with this content, all of it durable.
    #[must_use]
    pub fn new(content: Vec<u8>) -> Self {
        Self { durable: content, pending: Vec::new() }
    }

    /// Plays one more event.
    pub fn play(&mut self, event: &Event) {
        if *event != Event::Flush {
            return self.pending.push(event.clone());
        }
        for event in std::mem::take(&mut self.pending) {
            apply(&mut self.durable, &event, Sector::Of4096, |_| true);
        }
    }

    /// Whether there are writes that a cut could lose.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// What is found after a cut at this moment.
    #[must_use]
    pub fn after_cut(&self, survivors: Survivors) -> Vec<u8> {
        let mut content = self.durable.clone();
        let mut random = match survivors {
            Survivors::Random(_, seed) => StdRng::seed_from_u64(seed),
            _ => StdRng::seed_from_u64(0),
        };
        let sector = survivors.sector();
        let last = self.pending.len().saturating_sub(1);
        for (nth, event) in self.pending.iter().enumerate() {
            match survivors {
                Survivors::None => {}
                Survivors::All => apply(&mut content, event, sector, |_| true),
                Survivors::Last => apply(&mut content, event, sector, |_| nth == last),
                Survivors::AllButFirst => apply(&mut content, event, sector, |_| nth > 0),
                Survivors::EvenSectors(_) => apply(&mut content, event, sector, |nth| nth % 2 == 0),
                Survivors::Random(..) => apply_randomly(&mut content, event, sector, &mut random),
            }
        }
        content
    }
}

/// Does what is left of `event`: those of its sectors, counted from its start, that are kept.
fn apply(
    content: &mut Vec<u8>,
    event: &Event,
    sector: Sector,
    mut keeps: impl FnMut(usize) -> bool,
) {
    let mut kept = |offset, bytes| -> Vec<Range<u64>> {
        let parts = sector.parts(offset, bytes).enumerate();
        parts.filter_map(|(nth, part)| keeps(nth).then_some(part)).collect()
    };
    match event {
        Event::Write { offset, bytes } => {
            for part in kept(*offset, bytes.len() as u64) {
                let (at, end) = (part.start as usize, part.end as usize);
                // A write beyond the end makes an image larger.
                content.resize(content.len().max(end), 0);
                let from = at - *offset as usize;
                content[at..end].copy_from_slice(&bytes[from..from + end - at]);
            }
        }
        Event::Discard { offset, bytes } => {
            for part in kept(*offset, *bytes) {
                let end = content.len().min(part.end as usize);
                content[end.min(part.start as usize)..end].fill(DISCARDED);
            }
        }
        Event::Resize { bytes } => {
            if keeps(0) {
                content.resize(*bytes as usize, 0);
            }
        }
        Event::Flush => {}
    }
}

fn apply_randomly(content: &mut Vec<u8>, event: &Event, sector: Sector, random: &mut StdRng) {
    let count = match event {
        Event::Write { offset, bytes } => sector.parts(*offset, bytes.len() as u64).count(),
        Event::Discard { offset, bytes } => sector.parts(*offset, *bytes).count(),
        Event::Resize { .. } | Event::Flush => 1,
    };
    let mut keep = |keeps: &mut dyn FnMut(usize) -> bool| apply(content, event, sector, keeps);
    match random.random_range(0..6) {
        0 => {}
        1..3 => keep(&mut |_| true),
        3 => {
            let end = random.random_range(0..=count);
            keep(&mut |nth| nth < end);
        }
        4 => {
            let lost = random.random_range(0..count.max(1));
            keep(&mut |nth| nth != lost);
        }
        _ => keep(&mut |_| random.random()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: usize = 512;

    fn write(offset: u64, byte: u8) -> Event {
        Event::Write { offset, bytes: vec![byte; 2 * SECTOR] }
    }

    fn firsts(disk: &Disk, survivors: Survivors) -> Vec<u8> {
        disk.after_cut(survivors).chunks(SECTOR).map(|sector| sector[0]).collect()
    }

    #[test]
    fn what_was_flushed_is_never_lost_and_what_was_not_may_be() {
        let mut disk = Disk::new(vec![0; 4 * SECTOR]);
        disk.play(&write(0, 1));
        disk.play(&Event::Flush);
        disk.play(&write(512, 2));
        assert!(disk.has_pending());
        let firsts = |survivors| firsts(&disk, survivors);
        assert_eq!(firsts(Survivors::None), [1, 1, 0, 0]);
        assert_eq!(firsts(Survivors::All), [1, 2, 2, 0]);
        assert_eq!(firsts(Survivors::EvenSectors(Sector::Of512)), [1, 2, 0, 0]);
        for seed in 0..20 {
            for sector in Sector::ALL {
                let found = firsts(Survivors::Random(sector, seed));
                assert_eq!(found[0], 1);
                assert!(found[1] >= 1 && found[3] == 0);
            }
        }
    }

    /// What a write is torn into lies where the device's sectors lie, wherever the write begins.
    #[test]
    fn a_large_sector_is_written_as_a_whole() {
        let mut disk = Disk::new(vec![0; 32 * SECTOR]);
        let bytes = vec![1; 20 * SECTOR];
        disk.play(&Event::Write { offset: 6 * SECTOR as u64, bytes });
        let torn = (0..100).map(|seed| firsts(&disk, Survivors::Random(Sector::Of4096, seed)));
        for sectors in torn.chain([firsts(&disk, Survivors::EvenSectors(Sector::Of4096))]) {
            for (within, whole) in
                [(6..8, 0..8), (8..16, 8..16), (16..24, 16..24), (24..26, 24..32)]
            {
                let first = sectors[within.start];
                assert!(sectors[within.clone()].iter().all(|it| *it == first), "{sectors:?}");
                let outside = whole.filter(|nth| !within.contains(nth));
                assert!(outside.into_iter().all(|nth| sectors[nth] == 0), "{sectors:?}");
            }
        }
        let even = firsts(&disk, Survivors::EvenSectors(Sector::Of4096));
        assert_eq!([even[6], even[8], even[16], even[24]], [1, 0, 1, 0]);
    }

    #[test]
    fn what_was_discarded_may_be_gone_at_once_and_is_gone_after_a_flush() {
        let mut disk = Disk::new(vec![1; 4 * SECTOR]);
        disk.play(&Event::Discard { offset: 0, bytes: 2 * SECTOR as u64 });
        assert_eq!(firsts(&disk, Survivors::None), [1, 1, 1, 1]);
        assert_eq!(firsts(&disk, Survivors::All), [DISCARDED, DISCARDED, 1, 1]);
        assert_eq!(firsts(&disk, Survivors::EvenSectors(Sector::Of512)), [DISCARDED, 1, 1, 1]);
        disk.play(&Event::Flush);
        assert_eq!(firsts(&disk, Survivors::None), [DISCARDED, DISCARDED, 1, 1]);
    }
}
