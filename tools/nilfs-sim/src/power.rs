//! What a device holds after the power was cut.
//!
//! Everything before the last flush is there. Of each write since then, the device may have kept
//! all, nothing, or any of its sectors: that is all it promises, so that is all we assume. So it is
//! with discards: any of the sectors may still be as they were.

use nilfs_device::Event;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::medium::DISCARDED;

/// The unit in which a device writes, in bytes: a sector is written or it is not.
const SECTOR: usize = 512;

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
    EvenSectors,
    /// Chance decides, from this seed, for each write and for each sector.
    Random(u64),
}

impl Survivors {
    /// The choices that find most, before chance is tried.
    pub const CORNERS: [Survivors; 5] =
        [Self::None, Self::All, Self::Last, Self::AllButFirst, Self::EvenSectors];
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
            apply(&mut self.durable, &event, |_| true);
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
            Survivors::Random(seed) => StdRng::seed_from_u64(seed),
            _ => StdRng::seed_from_u64(0),
        };
        let last = self.pending.len().saturating_sub(1);
        for (nth, event) in self.pending.iter().enumerate() {
            match survivors {
                Survivors::None => {}
                Survivors::All => apply(&mut content, event, |_| true),
                Survivors::Last => apply(&mut content, event, |_| nth == last),
                Survivors::AllButFirst => apply(&mut content, event, |_| nth > 0),
                Survivors::EvenSectors => apply(&mut content, event, |sector| sector % 2 == 0),
                Survivors::Random(_) => apply_randomly(&mut content, event, &mut random),
            }
        }
        content
    }
}

/// Does what is left of `event`: those of its sectors, counted from its start, that are kept.
fn apply(content: &mut Vec<u8>, event: &Event, mut keeps: impl FnMut(usize) -> bool) {
    match event {
        Event::Write { offset, bytes } => {
            for (nth, sector) in bytes.chunks(SECTOR).enumerate() {
                if keeps(nth) {
                    let at = *offset as usize + nth * SECTOR;
                    // A write beyond the end makes an image larger.
                    content.resize(content.len().max(at + sector.len()), 0);
                    content[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        Event::Discard { offset, bytes } => {
            let end = content.len().min((offset + bytes) as usize);
            let discarded = &mut content[end.min(*offset as usize)..end];
            for (nth, sector) in discarded.chunks_mut(SECTOR).enumerate() {
                if keeps(nth) {
                    sector.fill(DISCARDED);
                }
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

fn apply_randomly(content: &mut Vec<u8>, event: &Event, random: &mut StdRng) {
    let length = match event {
        Event::Write { bytes, .. } => bytes.len().div_ceil(SECTOR),
        Event::Discard { bytes, .. } => (*bytes as usize).div_ceil(SECTOR),
        Event::Resize { .. } | Event::Flush => 1,
    };
    match random.random_range(0..6) {
        0 => {}
        1..3 => apply(content, event, |_| true),
        3 => {
            let end = random.random_range(0..=length);
            apply(content, event, |sector| sector < end);
        }
        4 => {
            let lost = random.random_range(0..length.max(1));
            apply(content, event, |sector| sector != lost);
        }
        _ => apply(content, event, |_| random.random()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(firsts(Survivors::EvenSectors), [1, 2, 0, 0]);
        for seed in 0..20 {
            let found = firsts(Survivors::Random(seed));
            assert_eq!(found[0], 1);
            assert!(found[1] >= 1 && found[3] == 0);
        }
    }

    #[test]
    fn what_was_discarded_may_be_gone_at_once_and_is_gone_after_a_flush() {
        let mut disk = Disk::new(vec![1; 4 * SECTOR]);
        disk.play(&Event::Discard { offset: 0, bytes: 2 * SECTOR as u64 });
        assert_eq!(firsts(&disk, Survivors::None), [1, 1, 1, 1]);
        assert_eq!(firsts(&disk, Survivors::All), [DISCARDED, DISCARDED, 1, 1]);
        assert_eq!(firsts(&disk, Survivors::EvenSectors), [DISCARDED, 1, 1, 1]);
        disk.play(&Event::Flush);
        assert_eq!(firsts(&disk, Survivors::None), [DISCARDED, DISCARDED, 1, 1]);
    }
}
