//! Which virtual blocks the present has reached, so that it is noticed if one is used twice or not at
//! all. Virtual blocks go by the places of their entries among those of the DAT that were loaded.

use std::ops::Range;

use crate::bits::Bits;

/// Runs of places that are kept of a piece; 1 MiB.
const MOST_RUNS: usize = 1 << 16;

/// What was reached.
#[derive(Debug)]
pub(crate) enum Reached {
    /// By all of the present that was judged so far.
    Present(Bits),
    /// By a piece of the present that is looked at by itself, in that order.
    Piece(Vec<Range<usize>>),
}

impl Reached {
    /// There is one entry more, not reached so far.
    pub(crate) fn grow(&mut self) {
        if let Self::Present(bits) = self {
            bits.push(false);
        }
    }

    /// Takes note of an entry. Returns false if it is known to have been reached before; of a piece,
    /// if there is too much to be kept.
    pub(crate) fn add(&mut self, at: usize) -> bool {
        match self {
            Self::Present(bits) => {
                let is_new = !bits.get(at);
                bits.set(at, true);
                is_new
            }
            Self::Piece(runs) => {
                if let Some(run) = runs.last_mut().filter(|run| run.end == at) {
                    run.end += 1;
                    return true;
                }
                let has_room = runs.len() < MOST_RUNS;
                runs.extend(has_room.then(|| at..at + 1));
                has_room
            }
        }
    }

    /// Adds what a piece has reached. Returns false, and adds nothing, if something has been reached
    /// before, or twice.
    pub(crate) fn adopt(&mut self, piece: Self) -> bool {
        let (Self::Present(bits), Self::Piece(runs)) = (self, piece) else { return false };
        let all = || runs.iter().cloned().flatten();
        let known = all().position(|at| {
            let is_known = bits.get(at);
            bits.set(at, true);
            is_known
        });
        // All before that one were new.
        all().take(known.unwrap_or(0)).for_each(|at| bits.set(at, false));
        known.is_none()
    }

    /// Whether the present has reached an entry.
    pub(crate) fn has(&self, at: usize) -> bool {
        matches!(self, Self::Present(bits) if bits.get(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_has_what_another_one_has_changes_nothing() {
        let mut present = Reached::Present(Bits::default());
        (0..8).for_each(|_| present.grow());
        let piece = |places: &[usize]| {
            let mut piece = Reached::Piece(Vec::new());
            assert!(places.iter().all(|at| piece.add(*at)));
            piece
        };
        assert!(present.adopt(piece(&[1, 2, 5])));
        assert!(!present.adopt(piece(&[3, 4, 5, 6])));
        assert!(!present.adopt(piece(&[3, 4, 3])));
        let reached: Vec<usize> = (0..8).filter(|at| present.has(*at)).collect();
        assert_eq!(reached, [1, 2, 5]);
        assert!(!present.add(2) && present.add(3));
    }
}
