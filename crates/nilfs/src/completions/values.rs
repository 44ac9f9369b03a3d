//! Values that depend on the machine: moments of the volume that a line is about, and mounts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use nilfs_engine::{CheckpointInfo, Cno};
use nilfs_fuse::Mounted;

use crate::administration::unnamed;
use crate::image::{Checkpoints, Located};
use crate::output::{local_time, printable};

/// Numbers of checkpoints that are offered at a time.
const MOST: usize = 32;

/// Words for a moment. Those with blanks in them would be several words to bash.
const WORDS: [&str; 10] = [
    "now",
    "today",
    "yesterday",
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

/// Completes a moment: words for it, the names of snapshots, and the newest checkpoints by number.
pub fn moment() -> ArgValueCompleter {
    ArgValueCompleter::new(|begun: &OsStr| {
        let words = WORDS.iter().map(CompletionCandidate::new);
        fitting(words.chain(of_volume(begun, |_| true)), begun)
    })
}

/// Completes a snapshot, by its name or its number.
pub fn snapshot() -> ArgValueCompleter {
    ArgValueCompleter::new(|begun: &OsStr| {
        fitting(of_volume(begun, |checkpoint| checkpoint.snapshot).into_iter(), begun)
    })
}

/// Completes what is to be unmounted: directories and devices of mounts that this user may unmount, or
/// else any path. No mount is looked into.
pub fn mount() -> ArgValueCompleter {
    ArgValueCompleter::new(|begun: &OsStr| {
        let user = rustix::process::geteuid();
        let is_own = |it: &Mounted| user.is_root() || it.owner() == Some(user.as_raw());
        let mounts: Vec<_> =
            Mounted::all().into_iter().filter(Mounted::is_nilfs).filter(is_own).collect();
        let names = mounts.iter().flat_map(|it| names_of(it, &mounts, begun));
        match fitting(names, begun) {
            none if none.is_empty() => PathCompleter::any().complete(begun),
            found => found,
        }
    })
}

fn fitting(
    offered: impl Iterator<Item = CompletionCandidate>,
    begun: &OsStr,
) -> Vec<CompletionCandidate> {
    offered.filter(|it| it.get_value().as_bytes().starts_with(begun.as_bytes())).collect()
}

/// Names by which one of the `mounts` can be called. A device that is mounted twice names neither.
fn names_of(mounted: &Mounted, mounts: &[Mounted], begun: &OsStr) -> Vec<CompletionCandidate> {
    let here = std::env::current_dir().unwrap_or_default();
    let is_absolute = Path::new(begun).is_absolute();
    let name = |path: &Path, help: &str, other: &Path| {
        let below = path.strip_prefix(&here).ok().filter(|rest| *rest != Path::new(""));
        let typed = below.filter(|_| !is_absolute).unwrap_or(path);
        let help = format!("{help} {}", printable(other.as_os_str().as_bytes()));
        CompletionCandidate::new(typed).help(Some(help.into()))
    };
    let is_only = mounts.iter().filter(|it| it.source == mounted.source).count() == 1;
    let source = is_only.then(|| name(&mounted.source, "mounted on", &mounted.dir));
    std::iter::once(name(&mounted.dir, "mount of", &mounted.source)).chain(source).collect()
}

/// Snapshots of the volume that the line is about, by their names, and the newest of the `wanted`
/// checkpoints whose numbers begin like this.
fn of_volume(begun: &OsStr, wanted: impl Fn(&CheckpointInfo) -> bool) -> Vec<CompletionCandidate> {
    let Some(volume) = volume() else { return Vec::new() };
    let offer = |word: String, created: u64, more: String| {
        let help = format!("{} {more}", local_time(created as i64));
        CompletionCandidate::new(word).help(Some(help.trim_end().to_owned().into()))
    };
    let notes = volume.notes().unwrap_or_default();
    let named = notes.iter().filter_map(|note| Some((note, note.name.as_ref()?)));
    let names = named.clone().map(|(note, name)| {
        offer(name.to_string(), note.created, format!("checkpoint {}", note.cno))
    });
    let begins = |cno: Cno| cno.to_string().as_bytes().starts_with(begun.as_bytes());
    let numbers = volume.list(Cno::MIN, usize::MAX).unwrap_or_default().into_iter().rev();
    let numbers = numbers.filter(|it| begins(it.cno) && wanted(it)).take(MOST).map(|it| {
        let name = named.clone().find(|(note, _)| note.cno == it.cno);
        let name = name.map(|(_, name)| name.to_string()).unwrap_or_default();
        offer(it.cno.to_string(), it.created, name)
    });
    names.chain(numbers).collect()
}

/// The volume that the line is about: that of the first word which names one, or a file on one, or else
/// the one that is meant where none is named.
fn volume() -> Option<Checkpoints> {
    let checkpoints = |path: &Path| Located::find(path, &[]).ok()?.checkpoints().ok();
    // The line comes after `nilfs --`.
    let line: Vec<OsString> = std::env::args_os().skip(2).collect();
    let is_path = |word: &&OsString| Path::new(word).symlink_metadata().is_ok();
    let named = line.iter().filter(is_path).find_map(|word| checkpoints(Path::new(word)));
    named.or_else(|| checkpoints(&unnamed().ok()?))
}
