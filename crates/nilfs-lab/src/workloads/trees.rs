//! Trees of files.

use super::{
    Best, CALLS_OF_A_FILE, Modes, Setting, Source, Step, Workload, format, mount, remount, sources,
    unmount,
};
use crate::file_systems::Program;
use crate::report::format_numbers::{bytes, count};

/// Thousands of very small files.
pub static GENTOO_TREE: Workload = Workload {
    name: "gentoo-tree",
    title: "Very small files",
    stands_for: "a part of Gentoo's package tree, 1 019 directories and 4 499 very small files, \
                 copied and synced, then copied again over itself",
    needs: &[],
    sources: &[Source::GentooTree],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| Source::GentooTree.bytes(scale) * 10 + (4 << 20),
    steps: gentoo_tree,
};

fn gentoo_tree(setting: &Setting) -> Vec<Step> {
    let best = Best::Write(Source::GentooTree.bytes(setting.scale) as f64);
    let number = sources::gentoo_files(setting.scale).len() as u64;
    let files = count(number);
    let copy = |about: String| {
        Step::task(about, "cp -r \"$SCRATCH/gentoo/.\" \"$DIR/tree\"; $SYNC \"$DIR\"")
            .calls(number * CALLS_OF_A_FILE)
    };
    let first = copy(format!("{files} very small files copied, and a sync"));
    let again = copy(format!("the {files} files copied over themselves, and a sync"));
    let mut steps = vec![format(), mount(), first.seconds("copy", best)];
    steps.extend(remount());
    steps.push(again.seconds("overwrite", best));
    steps.push(unmount());
    steps
}

/// A large source tree.
pub static KERNEL_TREE: Workload = Workload {
    name: "kernel-tree",
    title: "Kernel tree",
    stands_for: "Linux' source unpacked, and a part of it (its libraries for tools) compiled",
    needs: &[
        Program { name: "tar", package: "tar" },
        Program { name: "make", package: "make" },
        Program { name: "gcc", package: "gcc" },
        Program { name: "ar", package: "binutils" },
    ],
    sources: &[Source::KernelPart],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| Source::KernelPart.bytes(scale) * 3 + (16 << 20),
    steps: kernel_tree,
};

/// Seconds of the compiler, which do not depend on the scale.
const COMPILING: f64 = 15.0;

fn kernel_tree(setting: &Setting) -> Vec<Step> {
    let size = Source::KernelPart.bytes(setting.scale);
    let best = Best::Write(size as f64);
    let unpack = Step::task(
        format!("{} of Linux' source unpacked, and a sync", bytes(size)),
        "mkdir \"$DIR/kernel\"; tar -xf \"$SCRATCH/kernel.tar\" -C \"$DIR/kernel\" \
         --strip-components=1 --no-same-owner; $SYNC \"$DIR\"",
    );
    let compile = Step::task(
        "its libraries for tools compiled, and a sync",
        "for d in api subcmd perf; do make -s -j2 -C \"$DIR/kernel/tools/lib/$d\" >/dev/null; \
         done; $SYNC \"$DIR\"",
    );
    let mut steps = vec![format(), mount(), unpack.seconds("unpack", best)];
    steps.extend(remount());
    let compile = compile.seconds("compile", Best::Unknown);
    steps.push(compile.written("compile-written", Best::Unknown).works(COMPILING));
    steps.push(unmount());
    steps
}
