//! What an fsync of very little costs.

use super::{Best, Modes, Setting, Step, Timer, Workload, format, mount, pieces, unmount};
use crate::file_systems::Program;
use crate::report::format_numbers::count as in_words;

/// Appends and replacements, each of them durable before the next.
pub static SMALL_FSYNCS: Workload = Workload {
    name: "small-fsyncs",
    title: "Small fsyncs",
    stands_for: "a log, a journal, a settings file: 1000 times 4 KiB appended and fsynced, 100 \
                 bytes appended and fsynced, and a new file of 4 KiB written, fsynced and renamed \
                 over the old one, with an fsync of the directory",
    needs: &[Program { name: "perl", package: "perl-base" }],
    sources: &[],
    history: true,
    modes: Modes::FlashPages,
    bytes_needed: |scale| times(scale) * 8192 * 8 + (4 << 20),
    steps,
};

fn times(scale: f64) -> u64 {
    pieces(1000, scale, 250)
}

/// Makes a file or directory durable, and ends the script if it cannot.
const SYNC: &str = "sub durable { $_[0]->sync or die \"fsync: $!\" }";

fn steps(setting: &Setting) -> Vec<Step> {
    let count = times(setting.scale);
    let append = |file: &str, bytes: u64| {
        format!(
            "open my $file, \">>\", \"$dir/{file}\" or die $!; for (1..{count}) {{ \
             syswrite($file, \"x\" x {bytes}) == {bytes} or die $!; durable($file) }}"
        )
    };
    let replace = format!(
        "mkdir \"$dir/d\" or die $!; open my $parent, \"<\", \"$dir/d\" or die $!; \
         for (1..{count}) {{ open my $file, \">\", \"$dir/d/new\" or die $!; \
         syswrite($file, \"x\" x 4096) == 4096 or die $!; durable($file); close $file; \
         rename \"$dir/d/new\", \"$dir/d/settings\" or die $!; durable($parent) }}"
    );
    let times = in_words(count);
    let step = |name: &str, about: String, program: &str, syncs: u64, bytes: u64| {
        let run = format!("perl -MIO::Handle -e '{SYNC} my $dir = shift; {program}' \"$DIR\"");
        let best = Best::Synced { times: (count * syncs) as f64, bytes: bytes as f64 };
        Step::task(about, run)
            .calls(count * syncs * 4)
            .per_second(name, count, Timer::Clock, best)
            .written(&format!("{name}-written"), Best::Unknown)
    };
    vec![
        format(),
        mount(),
        step(
            "append",
            format!("{times} × 4 KiB appended, each with an fsync"),
            &append("log", 4096),
            1,
            4096,
        ),
        step(
            "append-100-bytes",
            format!("{times} × 100 bytes appended, each with an fsync"),
            &append("journal", 100),
            1,
            100,
        ),
        step(
            "replace",
            format!("{times} × a file of 4 KiB replaced, with fsyncs of it and its directory"),
            &replace,
            2,
            4096,
        ),
        unmount(),
    ]
}
