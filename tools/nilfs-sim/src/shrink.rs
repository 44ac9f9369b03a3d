//! Makes a failing sequence short, so that a person can read it.

use std::cell::Cell;
use std::panic;
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::op::Op;
use crate::world::Failure;

/// How long to try.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Leaves operations out of `failure` as long as it still fails in the same way: first many at a
/// time, then fewer. `fails` replays a sequence and says what is wrong with it.
pub fn shrink(failure: Failure, fails: impl Fn(&[Op]) -> Option<String>) -> Failure {
    silently(|| {
        let mut best = failure;
        let deadline = Instant::now() + PATIENCE;
        let mut piece = best.ops.len().div_ceil(2);
        while piece > 0 {
            let before = best.ops.len();
            leave_out(&mut best, piece, deadline, &fails);
            // Small pieces are tried until none of them can be left out any more.
            if piece > 1 || best.ops.len() == before {
                piece /= 2;
            }
        }
        best
    })
}

fn leave_out(
    best: &mut Failure,
    piece: usize,
    deadline: Instant,
    fails: &impl Fn(&[Op]) -> Option<String>,
) {
    let mut start = best.ops.len();
    while start > 0 && Instant::now() < deadline {
        let end = start;
        start = start.saturating_sub(piece);
        let shorter: Vec<Op> = [&best.ops[..start], &best.ops[end.min(best.ops.len())..]].concat();
        if let Some(what) = fails(&shorter).filter(|what| kind(what) == kind(&best.what)) {
            *best = Failure { ops: shorter, what };
        }
    }
}

/// What a message says without names and numbers: the same for failures of the same kind.
fn kind(what: &str) -> String {
    let first_line = what.lines().next().unwrap_or_default();
    let words = first_line.split_whitespace().map(|word| word.trim_matches([',', ':']));
    let is_plain = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
    words.filter(is_plain).collect::<Vec<_>>().join(" ")
}

/// Panics of the calling thread say nothing while `work` is done: the failure is known already.
fn silently<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !SILENT.get() {
                usual(info);
            }
        }));
    });
    SILENT.set(true);
    let result = work();
    SILENT.set(false);
    result
}
