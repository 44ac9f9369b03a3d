//! Dividing work over the cores. Any core looks at any piece; what was seen is taken in the order of the
//! pieces, by one thread. What is looked at, and what is made of it, is not known here.

use std::collections::VecDeque;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Builder};

use parking_lot::Mutex;

/// Pieces for each thread that were begun and not taken so far. There are several, so that nobody waits
/// for a piece that takes long.
const UNDER_WAY: usize = 8;

/// The number of things in a piece, of `all` things. It is small enough for each thread to get several
/// pieces, and at `most` the number given.
pub(crate) fn size_of_pieces(threads: usize, all: usize, most: usize) -> usize {
    (all / (threads.max(1) * UNDER_WAY)).clamp(1, most)
}

/// Looks at pieces on this number of threads, each of which makes its own way to look, and takes the
/// pieces in order, with what was seen. If there is nothing to be divided, pieces are taken without a look.
pub(crate) fn in_order<Piece: Send, Seen: Send, Look: FnMut(&Piece) -> Seen>(
    threads: usize,
    mut pieces: impl ExactSizeIterator<Item = Piece>,
    way_to_look: impl Fn() -> Look + Sync,
    mut take: impl FnMut(Piece, Option<Seen>),
) {
    let threads = threads.min(pieces.len());
    let (sender, queue) = channel::<(Piece, Sender<(Piece, Seen)>)>();
    let queue = Mutex::new(queue);
    let serve = || {
        let mut look = way_to_look();
        loop {
            let next = queue.lock().recv();
            let Ok((piece, answer)) = next else { return };
            let seen = look(&piece);
            // Nobody waits for it if another thread has failed.
            let _ = answer.send((piece, seen));
        }
    };
    thread::scope(|scope| {
        // It ends the threads, however this ends.
        let sender = sender;
        let start = |_: &usize| {
            threads > 1 && Builder::new().name("check".into()).spawn_scoped(scope, serve).is_ok()
        };
        // Without some of them, it only takes longer.
        let started = (0..threads).filter(start).count();
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < started * UNDER_WAY
                && let Some(piece) = pieces.next()
            {
                let (answer, seen) = channel();
                // The receiver is still there.
                let _ = sender.send((piece, answer));
                under_way.push_back(seen);
            }
            let Some(seen) = under_way.pop_front() else { break };
            // A thread that has failed says so at the end of the scope.
            let Ok((piece, seen)) = seen.recv() else { return };
            take(piece, Some(seen));
        }
        pieces.for_each(|piece| take(piece, None));
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn pieces_are_taken_in_order_and_few_are_under_way() {
        let begun = AtomicUsize::new(0);
        let look = |piece: &usize| {
            begun.fetch_max(*piece, SeqCst);
            piece * 2
        };
        let mut taken = 0;
        in_order(
            3,
            0..1000,
            || look,
            |piece, seen| {
                assert_eq!((piece, seen), (taken, Some(2 * taken)));
                assert!(begun.load(SeqCst) < taken + 3 * UNDER_WAY);
                taken += 1;
            },
        );
        assert_eq!(taken, 1000);
    }

    #[test]
    fn with_one_thread_nobody_looks() {
        let mut taken = Vec::new();
        in_order(1, 0..3, || |_: &i32| (), |piece, seen| taken.push((piece, seen)));
        assert_eq!(taken, [(0, None), (1, None), (2, None)]);
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_thread_that_fails_is_not_waited_for() {
        in_order(2, 0..100, || |piece: &i32| assert_ne!(*piece, 50), |_, _| {});
    }
}
