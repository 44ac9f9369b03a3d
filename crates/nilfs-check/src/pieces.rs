//! Judging the newest checkpoint in pieces. All cores look at pieces before it is their turn, each as if
//! there were no other. If nothing is to be said about a piece, and it has no block that another one has,
//! what was seen is taken over; else it is judged in its turn, as if nobody had looked. So a report does
//! not depend on the number of cores.

use std::sync::Arc;

use crate::checker::Checker;
use crate::cores;
use crate::reached::Reached;
use crate::report::Findings;

impl Checker<'_, '_> {
    /// Judges things in their order, on this number of threads, and takes what is then known of each.
    /// A piece has `most` of them at most.
    pub(crate) fn judge_in_pieces<Thing: Sync, Known: Send>(
        &mut self,
        threads: usize,
        (things, most): (&[Thing], usize),
        judge: impl Fn(&mut Self, &Thing) -> Known + Sync,
        mut take: impl FnMut(&mut Self, Known),
    ) {
        let ahead = self.of_a_piece();
        let way_to_look = || {
            |piece: &&[Thing]| {
                let mut checker = ahead.of_a_piece();
                let mut known = Vec::with_capacity(piece.len());
                for thing in *piece {
                    known.push(judge(&mut checker, thing));
                    if checker.has_given_up() {
                        break;
                    }
                }
                (checker, known)
            }
        };
        let pieces = things.chunks(cores::size_of_pieces(threads, things.len(), most));
        cores::in_order(threads, pieces, way_to_look, |piece, seen| {
            if let Some(known) = seen.and_then(|(checker, known)| self.adopt(checker, known)) {
                return known.into_iter().for_each(|known| take(self, known));
            }
            for thing in piece {
                let known = judge(self, thing);
                take(self, known);
            }
        });
    }

    /// One that knows the volume as this one does, to look at a piece by itself.
    fn of_a_piece(&self) -> Self {
        Self {
            dat: Arc::clone(&self.dat),
            reached: Reached::Piece(Vec::new()),
            usage: Arc::clone(&self.usage),
            owners: self.owners.clone(),
            ..Self::new(self.volume, self.superblock, self.newest, Findings::new(1), self.options)
        }
    }

    /// Whether this one has looked at a piece about which something is to be said.
    pub(crate) fn has_given_up(&self) -> bool {
        matches!(self.reached, Reached::Piece(_)) && !self.findings.is_empty()
    }

    /// What was seen in a piece, unless the piece has to be judged in its turn.
    fn adopt<Known>(&mut self, piece: Self, known: Known) -> Option<Known> {
        if piece.has_given_up() || !self.reached.adopt(piece.reached) {
            return None;
        }
        self.counts.live_blocks += piece.counts.live_blocks;
        self.subtrees.extend(piece.subtrees);
        for (block, owner) in piece.undescribed_owners {
            self.undescribed_owners.entry(block).or_insert(owner);
        }
        Some(known)
    }
}
