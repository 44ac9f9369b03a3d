//! PostMark.

use super::{
    Best, CALLS_OF_A_FILE, Modes, Setting, Step, Timer, Workload, format, mount, pieces, unmount,
};
use crate::file_systems::Program;
use crate::report::format_numbers::count;

/// Many short-lived small files.
pub static POSTMARK: Workload = Workload {
    name: "postmark",
    title: "PostMark",
    stands_for: "news and mail on a busy server: a pool of small files, transactions that read, \
                 append, create and delete; without any fsync, a sync at the end",
    needs: &[Program { name: "postmark", package: "postmark" }],
    sources: &[],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| files(scale) * FILE_BYTES * 3,
    steps,
};

/// What a file of at most 10 KB takes on a device, more or less.
const FILE_BYTES: u64 = 16 << 10;

fn files(scale: f64) -> u64 {
    pieces(5000, scale, 64)
}

fn steps(setting: &Setting) -> Vec<Step> {
    let (files, transactions) = (files(setting.scale), pieces(20_000, setting.scale, 256));
    let about = format!(
        "{} transactions on a pool of {} files of up to 10 kB, and a sync",
        count(transactions),
        count(files)
    );
    let script = format!(
        "mkdir \"$DIR/postmark\"\n\
         printf 'set location %s\\nset number {files}\\nset transactions {transactions}\\n\
         set size 512 9916\\nset report terse\\nrun\\nquit\\n' \"$DIR/postmark\" \
         >\"$SCRATCH/postmark.conf\"\n\
         postmark \"$SCRATCH/postmark.conf\"\n$SYNC \"$DIR\""
    );
    let run = Step::task(about, script)
        .calls((files + transactions) * CALLS_OF_A_FILE)
        .per_second("transactions", transactions, Timer::Clock, Best::Unknown)
        .costs(Best::Write((files * FILE_BYTES) as f64));
    vec![format(), mount(), run, unmount()]
}
