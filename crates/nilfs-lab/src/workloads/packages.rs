//! A distribution's packages, unpacked by its package manager.

use super::{
    Best, CALLS_OF_A_FILE, Modes, Setting, Source, Step, Timer, Workload, format, mount, sources,
    unmount,
};
use crate::file_systems::Program;
use crate::report::format_numbers::{bytes as in_bytes, count};

/// Many small files, each written, made durable and renamed.
pub static PACKAGES: Workload = Workload {
    name: "packages",
    title: "Installing packages",
    stands_for: "an upgrade of a system: dpkg unpacks 160 packages with 32 files each, then the \
                 same ones over them. It writes every file under another name, makes it durable, \
                 renames it, and keeps its database in the same way",
    needs: &[Program { name: "dpkg", package: "dpkg" }],
    sources: &[Source::Packages],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| Source::Packages.bytes(scale) * 4 + (16 << 20),
    steps,
};

fn steps(setting: &Setting) -> Vec<Step> {
    let files = sources::package_files(setting.scale).len() as u64;
    let bytes = Source::Packages.bytes(setting.scale);
    let database = Step::script(
        "mkdir -p \"$DIR/database/info\" \"$DIR/database/updates\"\n\
         : >\"$DIR/database/status\"; : >\"$DIR/database/available\"; $SYNC \"$DIR\"",
    );
    let best = Best::Synced { times: files as f64, bytes: (bytes / files) as f64 };
    // Its log is this machine's, unless it is told otherwise, and so are its options: images of
    // containers let it leave out every fsync.
    let unpack = |name: &str, about: String| {
        let unpack = Step::task(
            about,
            "dpkg --root=\"$DIR\" --admindir=\"$DIR/database\" --log=/dev/null \\\n\
             --no-force-unsafe-io --unpack \"$SCRATCH\"/packages/*.deb >/dev/null",
        );
        let unpack =
            unpack.calls(files * CALLS_OF_A_FILE).per_second(name, files, Timer::Clock, best);
        unpack.written(&format!("{name}-written"), Best::Write(bytes as f64))
    };
    let files = count(files);
    let install = unpack("install", format!("{} in {files} files unpacked", in_bytes(bytes)));
    let upgrade = unpack("upgrade", format!("the {files} files unpacked over themselves"));
    vec![format(), mount(), database, install, upgrade, unmount()]
}
