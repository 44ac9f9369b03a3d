//! How long it takes until a file system can be used.

use super::{
    Action, Best, CALLS_OF_A_FILE, Modes, Setting, Step, Workload, format, pieces, timed_mount,
    unmount,
};
use crate::file_systems::Program;
use crate::report::format_numbers::count as in_words;

/// A mount after each thing that can have happened before.
pub static MOUNT_TIME: Workload = Workload {
    name: "mount-time",
    title: "Mount",
    stands_for: "switching a phone on: the first mount after format, one after a reboot, one after \
                 the power went while files were written, one after it went while they were saved, \
                 each of them durable",
    needs: &[Program { name: "perl", package: "perl-base" }],
    sources: &[],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| files(scale) * 8192 * 2 + saved(scale) * 8192 * 3,
    steps,
};

fn files(scale: f64) -> u64 {
    pieces(8000, scale, 32)
}

/// Few enough that they need not all be in a checkpoint.
fn saved(scale: f64) -> u64 {
    pieces(1000, scale, 32)
}

fn steps(setting: &Setting) -> Vec<Step> {
    let count = files(setting.scale);
    let write = |directory: &str| {
        Step::script(format!(
            "mkdir \"$DIR/{directory}\"; head -c {} /dev/zero | \
             split -a 6 -b 8192 - \"$DIR/{directory}/\"",
            count * 8192
        ))
        .calls(count * CALLS_OF_A_FILE)
    };
    let saved = saved(setting.scale);
    let save = Step::script(format!(
        "mkdir \"$DIR/saved\"; perl -MIO::Handle -e 'my $dir = shift; for my $nth (1..{saved}) {{ \
         open my $file, \">\", \"$dir/saved/$nth\" or die $!; \
         syswrite($file, \"x\" x 8192) == 8192 or die $!; $file->sync or die $! }}' \"$DIR\""
    ));
    let all_written = Best::Write((count * 8192) as f64);
    let (files, saves) = (in_words(count), in_words(saved));
    let settle = || Step::script("$SYNC \"$DIR\"").costs(all_written);
    vec![
        format(),
        Step::of(Action::Reattach),
        timed_mount("first", "the first mount after format"),
        write("before"),
        settle(),
        unmount(),
        Step::of(Action::Reattach),
        timed_mount("reboot", format!("after a reboot, with {files} files of 8 KiB")),
        write("durable"),
        settle(),
        write("lost"),
        Step::of(Action::CutPower),
        timed_mount("crash", format!("after a power cut while {files} files were written")),
        save.costs(Best::Synced { times: saved as f64, bytes: 8192.0 })
            .calls(saved * CALLS_OF_A_FILE),
        Step::of(Action::CutPower),
        timed_mount(
            "crash-after-saving",
            format!("after a power cut while {saves} files were saved, each durable"),
        ),
        unmount(),
    ]
}
