//! Trees of files.

use super::{Best, Modes, Setting, Source, Step, Workload, format, mount, remount, unmount};
use crate::file_systems::Program;

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
    let copy = || Step::script("cp -r \"$SCRATCH/gentoo/.\" \"$DIR/tree\"; $SYNC \"$DIR\"");
    let mut steps = vec![format(), mount(), copy().seconds("copy", best)];
    steps.extend(remount());
    steps.push(copy().seconds("overwrite", best));
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
    let best = Best::Write(Source::KernelPart.bytes(setting.scale) as f64);
    let unpack = Step::script(
        "mkdir \"$DIR/kernel\"; tar -xf \"$SCRATCH/kernel.tar\" -C \"$DIR/kernel\" \
         --strip-components=1 --no-same-owner; $SYNC \"$DIR\"",
    );
    let compile = Step::script(
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
