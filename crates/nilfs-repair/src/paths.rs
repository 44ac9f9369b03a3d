//! The paths of the files that findings are about, each in the checkpoint of its finding. A file may have
//! none that can be found: the tree itself may be damaged.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_check::{Finding, Report};
use nilfs_device::Device;
use nilfs_engine::{Verify, Volume};
use nilfs_ondisk::{Cno, Ino};

/// Checkpoints in which files are looked for, from the newest on: each of them takes a walk.
const MOST_CHECKPOINTS: usize = 100;

/// Paths by checkpoint and inode.
#[derive(Debug, Default)]
pub(crate) struct Paths(BTreeMap<(Cno, Ino), Vec<u8>>);

impl Paths {
    /// Of all files that a report is about. Without such a file, nothing is read.
    pub(crate) fn of(device: &Arc<dyn Device>, report: &Report) -> Self {
        let mut wanted: BTreeMap<Reverse<Cno>, BTreeSet<Ino>> = BTreeMap::new();
        for (cno, ino) in report.findings.iter().filter_map(|it| file_of(it, report.newest)) {
            wanted.entry(Reverse(cno)).or_default().insert(ino);
        }
        let mut paths = BTreeMap::new();
        if wanted.is_empty() {
            return Self(paths);
        }
        let opened = Volume::open_with(Arc::clone(device), Verify::Rescue);
        let Ok(volume) = opened else { return Self(paths) };
        for (Reverse(cno), files) in wanted.into_iter().take(MOST_CHECKPOINTS) {
            let Ok(tree) = volume.tree(Some(cno)) else { continue };
            let found = tree.around_damage().paths(files);
            paths.extend(found.into_iter().map(|(ino, path)| ((cno, ino), path)));
        }
        Self(paths)
    }

    /// That of the file that a finding of a report with this newest checkpoint is about.
    pub(crate) fn get(&self, finding: &Finding, newest: Cno) -> Option<&[u8]> {
        self.0.get(&file_of(finding, newest)?).map(Vec::as_slice)
    }
}

/// The paths of files in the newest checkpoint, with what was fsynced after it if that can be rolled forward.
/// Without a file, nothing is read.
pub(crate) fn newest(device: &Arc<dyn Device>, files: BTreeSet<Ino>) -> BTreeMap<Ino, Vec<u8>> {
    if files.is_empty() {
        return BTreeMap::new();
    }
    let volume = Volume::open_with(Arc::clone(device), Verify::Rescue).ok();
    let tree = volume.and_then(|it| it.recovered_tree().or_else(|_| it.tree(None)).ok());
    tree.map_or_else(BTreeMap::new, |tree| tree.around_damage().paths(files))
}

/// The file that a finding is about, if it is one with a name, and a checkpoint that has it.
fn file_of(finding: &Finding, newest: Cno) -> Option<(Cno, Ino)> {
    let ino = finding.place.ino.filter(|ino| ino.is_of_user())?;
    Some((finding.place.checkpoint.unwrap_or(newest), ino))
}
