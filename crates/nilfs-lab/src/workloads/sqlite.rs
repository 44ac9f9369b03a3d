//! A database as programs on phones use it.

use super::{Best, Modes, Setting, Source, Step, Timer, Workload, format, mount, sources, unmount};
use crate::file_systems::Program;
use crate::report::format_numbers::count as in_words;

/// A transaction for every row.
pub static SQLITE: Workload = Workload {
    name: "sqlite",
    title: "SQLite",
    stands_for: "contacts, messages and settings on a phone: every insert is a transaction of its \
                 own, with a rollback journal and with a write-ahead log",
    needs: &[Program { name: "sqlite3", package: "sqlite3" }],
    sources: &[Source::Inserts],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| sources::inserts(scale) * 16 * 4096 + (4 << 20),
    steps,
};

/// Journal, database and their syncs.
const CALLS_OF_AN_INSERT: u64 = 8;

fn steps(setting: &Setting) -> Vec<Step> {
    let count = sources::inserts(setting.scale);
    let mut steps = vec![format(), mount()];
    for (name, mode, with) in
        [("rollback", "DELETE", "a rollback journal"), ("wal", "WAL", "a write-ahead log")]
    {
        let about = format!("{} inserts, each a transaction, with {with}", in_words(count));
        let script = format!(
            "sqlite3 -batch -cmd 'PRAGMA synchronous=FULL' -cmd 'PRAGMA journal_mode={mode}' \
             \"$DIR/{name}.db\" <\"$SCRATCH/inserts.sql\""
        );
        let best = Best::Synced { times: count as f64, bytes: 4096.0 };
        let run = Step::task(about, script).calls(count * CALLS_OF_AN_INSERT);
        let run = run.per_second(name, count, Timer::Clock, best);
        steps.push(run.written(&format!("{name}-written"), Best::Unknown));
    }
    steps.push(unmount());
    steps
}
