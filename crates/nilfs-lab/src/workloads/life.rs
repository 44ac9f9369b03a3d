//! What the life of a source tree costs a device.

use super::{
    Best, Modes, Setting, Source, Step, Workload, format, mount, remount, sources, unmount,
};
use crate::file_systems::Program;

/// Bytes written while somebody works.
pub static LIFE: Workload = Workload {
    name: "life",
    title: "Bytes written over a life",
    stands_for: "does a journal, does the time of last access wear a drive out? A source tree is \
                 cloned, built and cleaned, then only read; counted is what is written to the \
                 device, the final sync included",
    needs: &[
        Program { name: "git", package: "git" },
        Program { name: "make", package: "make" },
        Program { name: "gcc", package: "gcc" },
    ],
    sources: &[Source::GitRepository],
    history: true,
    modes: Modes::AccessTimes,
    bytes_needed: |scale| Source::GitRepository.bytes(scale) * 8 + (16 << 20),
    steps,
};

fn steps(setting: &Setting) -> Vec<Step> {
    let tree = Best::Write((Source::GitRepository.bytes(setting.scale) * 2) as f64);
    let sources = sources::c_files(setting.scale);
    let synced = |about: &str, script: &str| Step::task(about, format!("{script}; $SYNC \"$DIR\""));
    let clone = "export HOME=\"$SCRATCH\" GIT_CONFIG_NOSYSTEM=1; \
                 git clone -q \"file://$SCRATCH/repository\" \"$DIR/tree\"";
    let read = "find \"$DIR/tree\" -type f -print0 | xargs -0 wc >/dev/null";
    let mut steps = vec![format(), mount()];
    let about = format!("a tree of {sources} C files cloned, and a sync");
    steps.push(synced(&about, clone).written("git-clone", Best::Unknown).costs(tree));
    steps.extend(remount());
    steps.push(
        synced("it is built, and a sync", "make -s -j2 -C \"$DIR/tree\" >/dev/null")
            .written("make", Best::Unknown)
            .costs(tree)
            .works(sources as f64 * 0.15),
    );
    steps.extend(remount());
    let clean = synced("what was built is deleted, and a sync", "make -s -C \"$DIR/tree\" clean");
    steps.push(clean.written("make-clean", Best::Unknown));
    steps.extend(remount());
    let read = synced("all its files are read, and a sync", read);
    steps.push(read.written("read-only", Best::Unknown));
    steps.push(unmount());
    steps
}
