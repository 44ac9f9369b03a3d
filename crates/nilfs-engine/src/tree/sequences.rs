//! Which files are being read in order, and how far ahead in each the device has been asked for what
//! comes next.
//!
//! The system above asks ahead as well, but for one request after the other. If a file lies in many
//! places, each request needs a little from each of them. Of a longer part of the file, each place holds
//! enough for a long read. This knows offsets in files, and nothing of where their blocks are.

use std::ops::Range;

use nilfs_ondisk::Ino;

use crate::host::{Mutex, Rank};

/// Files that can be read in order at the same time. More than that read as if there were no order.
const SEQUENCES: usize = 16;

/// Bytes that are asked for at most. Of a file in thirty places, each gives a read of 256 KiB then.
const AHEAD: u64 = 8 << 20;

/// The shortest request, in bytes, that is taken for one of a sequence, and the shortest read that
/// takes the device no longer than it must.
const LONG: u64 = 256 << 10;

/// Bytes by which a request may be early or late: the system sends several at a time, and they are
/// served by several threads.
const NEAR: u64 = 8 << 20;

/// Answers to requests near each other that make a sequence.
const ENOUGH: u32 = 3;

/// A file that is being read in order, or about to be.
#[derive(Debug)]
struct Sequence {
    ino: Ino,
    /// How far requests have come.
    end: u64,
    /// Requests that were answered, as far as their number matters.
    answered: u32,
    /// What has been asked for, without what no late request will come for.
    asked: Range<u64>,
}

/// The files that were read in order last.
#[derive(Debug)]
pub(crate) struct Sequences(Mutex<Vec<Sequence>>);

impl Default for Sequences {
    fn default() -> Self {
        Self(Mutex::new(Rank::Sequences, Vec::new()))
    }
}

impl Sequences {
    /// Notes that a part of a file is about to be read. Returns whether the device has been asked for it,
    /// so that the system has it in memory or is about to.
    pub(super) fn begin(&self, ino: Ino, part: &Range<u64>) -> bool {
        if !is_long(part) {
            return false;
        }
        let mut sequences = self.0.lock();
        let last = sequences.iter().position(|one| one.ino == ino);
        let last = last.map(|nth| sequences.remove(nth)).filter(|one| one.leads_to(part.start));
        let mut sequence = last.unwrap_or_else(|| Sequence::new(ino, part.start));
        let is_asked = sequence.begin(part);
        sequences.truncate(SEQUENCES - 1);
        sequences.insert(0, sequence);
        is_asked
    }

    /// Notes that it was read, and lay in this many places. Returns what to ask for.
    pub(super) fn answer(&self, ino: Ino, part: &Range<u64>, places: usize) -> Option<Range<u64>> {
        if !is_long(part) {
            return None;
        }
        let mut sequences = self.0.lock();
        let sequence = sequences.iter_mut().find(|one| one.ino == ino)?;
        sequence.answer(places as u64 > (part.end - part.start) / LONG)
    }
}

fn is_long(part: &Range<u64>) -> bool {
    part.end.saturating_sub(part.start) >= LONG
}

impl Sequence {
    fn new(ino: Ino, start: u64) -> Self {
        Self { ino, end: start, answered: 0, asked: start..start }
    }

    /// Whether a request that begins there is likely to be one of this sequence.
    fn leads_to(&self, offset: u64) -> bool {
        offset.abs_diff(self.end) <= NEAR
    }

    /// One of its requests has come. Returns whether that was asked for.
    fn begin(&mut self, part: &Range<u64>) -> bool {
        let is_asked = self.asked.contains(&part.start);
        self.end = self.end.max(part.end);
        self.asked.start = self.asked.start.max(self.end.saturating_sub(NEAR));
        is_asked
    }

    /// One of them was answered, from many places if it is `scattered`. Returns what to ask for.
    fn answer(&mut self, scattered: bool) -> Option<Range<u64>> {
        self.answered = ENOUGH.min(self.answered + 1);
        // Requests that have come read what they need themselves.
        let from = self.asked.end.max(self.end);
        let to = self.end.saturating_add(AHEAD);
        // Half of it at once: reads for a little more each time would be short.
        if !scattered || self.answered < ENOUGH || to.saturating_sub(from) < AHEAD / 2 {
            return None;
        }
        if from > self.asked.end {
            self.asked.start = from;
        }
        self.asked.end = to;
        Some(from..to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: u64 = 1 << 20;
    const MANY: usize = 12;

    fn request(nth: u64) -> Range<u64> {
        nth * REQUEST..(nth + 1) * REQUEST
    }

    /// Has requests come and be answered in this order. Returns whether each was asked for before it came,
    /// and the requests that were asked for.
    fn read(sequences: &Sequences, order: impl IntoIterator<Item = u64>) -> (Vec<bool>, Vec<u64>) {
        let (mut known, mut asked) = (Vec::new(), Vec::new());
        for nth in order {
            known.push(sequences.begin(Ino(7), &request(nth)));
            let ahead = sequences.answer(Ino(7), &request(nth), MANY);
            asked.extend(ahead.into_iter().flat_map(|ahead| ahead.step_by(REQUEST as usize)));
        }
        (known, asked.into_iter().map(|start| start / REQUEST).collect())
    }

    /// Reads requests of a file one after the other. Returns the first for which something is asked.
    fn asks(
        sequences: &Sequences,
        ino: Ino,
        requests: Vec<Range<u64>>,
        places: usize,
    ) -> Option<usize> {
        requests.iter().position(|part| {
            sequences.begin(ino, part);
            sequences.answer(ino, part, places).is_some()
        })
    }

    #[test]
    fn a_scattered_file_is_asked_for_ahead_of_its_reader_once() {
        let sequences = Sequences::default();
        let (known, asked) = read(&sequences, 0..100);
        assert_eq!(known.iter().position(|known| *known), Some(3));
        assert!(known[3..].iter().all(|known| *known));
        assert!(asked.iter().copied().eq(3..3 + asked.len() as u64) && asked.len() >= 100);
        assert!(!sequences.begin(Ino(8), &request(100)), "another file");
        assert!(!sequences.begin(Ino(7), &request(0)), "it is read again as at first");
    }

    #[test]
    fn requests_may_overtake_each_other() {
        let sequences = Sequences::default();
        let order = [1, 0, 5, 2, 3, 4, 9, 8, 7, 6, 12, 10, 11, 14, 13, 17, 15, 18, 16];
        let (known, asked) = read(&sequences, order);
        assert!(known[..6].iter().all(|known| !known) && known[6..].iter().all(|known| *known));
        assert!(asked.iter().copied().eq(6..6 + asked.len() as u64), "{asked:?}");
    }

    #[test]
    fn what_requests_read_that_have_come_is_not_asked_for() {
        let sequences = Sequences::default();
        for nth in 0..6 {
            assert!(!sequences.begin(Ino(7), &request(nth)));
        }
        let asked = (0..6).find_map(|nth| sequences.answer(Ino(7), &request(nth), MANY));
        assert_eq!(asked.map(|asked| asked.start), Some(request(6).start));
    }

    /// The cleaner has put a part of it into one place.
    #[test]
    fn what_lies_in_one_place_is_read_as_ever() {
        let sequences = Sequences::default();
        read(&sequences, 0..4);
        assert_eq!(asks(&sequences, Ino(7), (4..40).map(request).collect(), 1), None);
        let (known, asked) = read(&sequences, 40..42);
        assert_eq!(known, [false, true]);
        assert!(asked.iter().copied().eq(41..49), "{asked:?}");
    }

    #[test]
    fn what_is_in_no_order_or_in_one_place_or_short_is_not_asked_for() {
        let sequences = Sequences::default();
        let no_order = [40, 7, 30, 1, 19, 50, 34, 2, 60].map(request).into();
        assert_eq!(asks(&sequences, Ino(7), no_order, MANY), None);
        assert_eq!(asks(&sequences, Ino(8), (0..20).map(request).collect(), 4), None);
        let short = |nth: u64| nth * 4096..(nth + 1) * 4096;
        assert_eq!(asks(&sequences, Ino(9), (0..100).map(short).collect(), 1), None);
        assert!(sequences.0.lock().iter().all(|one| one.ino != Ino(9)));
    }

    #[test]
    fn several_files_are_read_at_the_same_time_and_the_oldest_is_forgotten() {
        let sequences = Sequences::default();
        let files = || (0..SEQUENCES as u64).map(Ino);
        for ino in files() {
            assert_eq!(asks(&sequences, ino, (0..5).map(request).collect(), MANY), Some(2));
        }
        assert!(sequences.begin(Ino(0), &request(5)));
        sequences.begin(Ino(99), &request(0));
        assert_eq!(
            [0, 15, 1].map(|ino| sequences.begin(Ino(ino), &request(6))),
            [true, true, false]
        );
    }
}
