//! How long it takes until a file system can be used.

use super::{Action, Best, Setting, Step, Workload, format, mount, pieces, unmount};

/// A mount after each thing that can have happened before.
pub static MOUNT_TIME: Workload = Workload {
    name: "mount-time",
    title: "Mount",
    stands_for: "switching a phone on: the first mount after format, one after a reboot, one after \
                 the power went while files were written",
    needs: &[],
    sources: &[],
    history: true,
    access_times: false,
    bytes_needed: |scale| files(scale) * 8192 * 2,
    steps,
};

fn files(scale: f64) -> u64 {
    pieces(8000, scale, 32)
}

fn steps(setting: &Setting) -> Vec<Step> {
    let count = files(setting.scale);
    let write = |directory: &str| {
        Step::script(format!(
            "mkdir \"$DIR/{directory}\"; head -c {} /dev/zero | \
             split -a 6 -b 8192 - \"$DIR/{directory}/\"",
            count * 8192
        ))
    };
    let all_written = Best::Write((count * 8192) as f64);
    let settle = || Step::script("$SYNC \"$DIR\"").costs(all_written);
    vec![
        format(),
        Step::of(Action::Reattach),
        mount().milliseconds("first"),
        write("before"),
        settle(),
        unmount(),
        Step::of(Action::Reattach),
        mount().milliseconds("reboot"),
        write("durable"),
        settle(),
        write("lost"),
        Step::of(Action::CutPower),
        mount().milliseconds("crash"),
        unmount(),
    ]
}
