//! From a draft to what has to be written: the engine works on the draft, and its writes are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_check::Report;
use nilfs_device::{CopyOnWriteDevice, Device, IoSlice, Writes};
use nilfs_engine::{CleanerOptions, Error, Filesystem, MountOptions, OnError, Verify};
use nilfs_ondisk::Ino;
use nilfs_ondisk::superblock::SUPERBLOCK_SIZE;

use crate::draft::Draft;
use crate::evidence::Doubt;
use crate::repairs::Repairs;
use crate::{Concerned, Kept, Repair, RepairError, Risk, Task, names, paths, superblocks};

/// Files that are named of those of which a repair loses something.
const MOST_NAMED: usize = 100;

/// A draft as the engine has written it.
pub(crate) struct Rewritten {
    /// What has to be written so that the device is as the draft, one after the other.
    pub(crate) writes: Vec<Arc<Writes>>,
    /// What is put right by that, with the paths of files.
    pub(crate) repairs: Repairs,
    /// What is moved though it is damaged, or may be.
    pub(crate) doubtful: BTreeSet<Kept>,
}

/// Writes a draft to where there is room for it, on a view of it.
pub(crate) fn rewrite(draft: &Draft) -> Result<Rewritten, RepairError> {
    if draft.in_view {
        return Ok(laid_over(draft));
    }
    let is_in_place = draft.segments.is_empty() && !draft.moved_cursor && draft.nameless.is_empty();
    let in_place = Arc::new(Writes::new(&draft.scratch));
    write_in_place(draft, &view(&draft.below, [&in_place]), is_in_place)?;
    let mut repairs = draft.repairs.clone();
    if is_in_place {
        name_files(&mut repairs.listed, |files| paths_on(&draft.below, files));
        return Ok(Rewritten { writes: vec![in_place], repairs, doubtful: BTreeSet::new() });
    }
    let moved = Arc::new(Writes::new(&draft.scratch));
    let below: Arc<dyn Device> = Arc::clone(&draft.device) as Arc<dyn Device>;
    let fs = mount(view(&below, [&moved]))?;
    draft.nameless.settle(&fs)?.into_iter().for_each(|repair| repairs.push(repair));
    name_files(&mut repairs.listed, |files| names::paths(&fs, &files));
    let doubtful = name_doubts(&fs, &draft.doubts);
    let all = draft.segments.len() as u64;
    let mut observe = |left| draft.observer.observe(Task::Move, all.saturating_sub(left), all);
    let left = fs.evacuate_checked(draft.segments.clone(), &mut observe)?;
    let mut damaged = fs.damaged_segments();
    fs.unmount()?;
    damaged.retain(|segment, _| left.contains(segment));
    match (damaged.is_empty(), left.len()) {
        (_, 0) => {}
        (true, left) => return Err(RepairError::NoRoom(left)),
        (false, _) => return Err(RepairError::Damaged(damaged)),
    }
    Ok(Rewritten { writes: vec![in_place, moved], repairs, doubtful })
}

/// Returns the corrections themselves, with names for what has none if these can be given.
fn laid_over(draft: &Draft) -> Rewritten {
    let mut repairs = draft.repairs.clone();
    let device = Arc::clone(&draft.device) as Arc<dyn Device>;
    name_files(&mut repairs.listed, |files| paths_on(&device, files));
    let mut writes = vec![Arc::clone(&draft.corrections)];
    if !draft.nameless.is_empty() {
        let named = Arc::new(Writes::new(&draft.scratch));
        let below: Arc<dyn Device> = Arc::clone(&draft.device) as Arc<dyn Device>;
        let settled = mount(view(&below, [&named])).and_then(|fs| {
            let settled = draft.nameless.settle(&fs)?;
            fs.unmount()?;
            Ok(settled)
        });
        // Without names they are there all the same, and a salvage finds them by their numbers.
        if let Ok(settled) = settled {
            settled.into_iter().for_each(|repair| repairs.push(repair));
            writes.push(named);
        }
    }
    Rewritten { writes, repairs, doubtful: BTreeSet::new() }
}

/// Mounts a draft, so that the engine writes to it.
fn mount(device: Arc<dyn Device>) -> Result<Arc<Filesystem>, RepairError> {
    let cleaner = CleanerOptions { enabled: false, ..CleanerOptions::default() };
    // What is damaged of the metadata is the draft's affair, and damage that stays is no reason to leave the
    // rest as it is.
    let (verify, on_error, use_reserve) = (Verify::Rescue, OnError::Continue, true);
    let options =
        MountOptions { cleaner, verify, on_error, use_reserve, ..MountOptions::default() };
    Ok(Filesystem::mount(device, options)?)
}

/// Finds out why a draft cannot be mounted, if that is damage of what it shows.
pub(crate) fn why_not_mounted(draft: &Draft) -> Option<Error> {
    let below = Arc::clone(&draft.device) as Arc<dyn Device>;
    let written = Arc::new(Writes::new(&draft.scratch));
    let error = match mount(view(&below, [&written])) {
        Ok(fs) => {
            let root = fs.root().err();
            // What stands in the way of writing is told when it is tried in earnest.
            let _ = fs.unmount();
            root?
        }
        Err(RepairError::Engine(error)) => error,
        Err(_) => return None,
    };
    let is_of_content =
        matches!(error, Error::Stale | Error::RollForward(_) | Error::Device { .. })
            || error.is_damage();
    is_of_content.then_some(error)
}

/// Writes what does not go to a new place: the heads of logs that are given up, and the superblocks
/// if they are `all` that there is, or if the log goes on from another one.
fn write_in_place(draft: &Draft, device: &dyn Device, all: bool) -> Result<(), RepairError> {
    for (offset, bytes) in &draft.given_up {
        device.write_at(*offset, &[IoSlice::new(bytes)])?;
    }
    if !draft.given_up.is_empty() {
        device.flush()?;
    }
    // If the repair is cut off, what it has written so far is no checkpoint that somebody has made,
    // and must not look like one that is given up.
    if all || draft.moved_cursor {
        write_superblocks(draft, device)?;
    }
    Ok(())
}

/// Says which content is damaged, or may be, by the paths of the files.
fn name_doubts(fs: &Filesystem, doubts: &[Doubt]) -> BTreeSet<Kept> {
    let paths = names::paths(fs, &doubts.iter().map(|doubt| doubt.ino).collect());
    doubts.iter().map(|doubt| doubt.kept(paths.get(&doubt.ino).map(|path| &path[..]))).collect()
}

/// Returns the paths of files in the newest checkpoint on a device, for people.
fn paths_on(device: &Arc<dyn Device>, files: BTreeSet<Ino>) -> BTreeMap<Ino, String> {
    let path = |path: Vec<u8>| match &path[..] {
        b"" => "/".to_owned(),
        path => String::from_utf8_lossy(path).into_owned(),
    };
    paths::newest(device, files).into_iter().map(|(ino, found)| (ino, path(found))).collect()
}

/// Says of which files something is lost.
fn name_files(
    repairs: &mut [Repair],
    paths_of: impl FnOnce(BTreeSet<Ino>) -> BTreeMap<Ino, String>,
) {
    let losing = repairs.iter().filter(|repair| repair.risk != Risk::Safe);
    let wanted = losing.flat_map(|it| it.concerned.files.iter().copied());
    let wanted = wanted.filter(|ino| ino.is_of_user()).collect();
    let paths = paths_of(wanted);
    for repair in repairs.iter_mut().filter(|repair| repair.risk != Risk::Safe) {
        let Concerned { files, names, .. } = &repair.concerned;
        let named = files.iter().filter_map(|ino| paths.get(ino).or_else(|| names.get(ino)));
        repair.concerned.paths = named.take(MOST_NAMED).cloned().collect();
    }
}

/// Both superblocks, one after the other, so that one of them is whole at any time. The one that
/// counts comes last.
fn write_superblocks(draft: &Draft, device: &dyn Device) -> Result<(), RepairError> {
    let superblock = superblocks::best(&*draft.device)?;
    for offset in superblocks::places(&*draft.device, &superblock).into_iter().rev() {
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        draft.device.read_at(offset, &mut bytes)?;
        device.write_at(offset, &[IoSlice::new(&bytes)])?;
        device.flush()?;
    }
    Ok(())
}

/// What a check finds on a device when these writes have been made.
pub(crate) fn preview(
    draft: &Draft,
    device: &Arc<dyn Device>,
    writes: &[Arc<Writes>],
) -> Result<Report, RepairError> {
    draft.observer.check(&*view(device, writes), &draft.options).map_err(RepairError::Check)
}

/// A device as it is when these writes have been made, one after the other. More can be added to the
/// last of them.
pub(crate) fn view<'w>(
    device: &Arc<dyn Device>,
    writes: impl IntoIterator<Item = &'w Arc<Writes>>,
) -> Arc<dyn Device> {
    writes.into_iter().fold(Arc::clone(device), |below, writes| {
        Arc::new(CopyOnWriteDevice::new(below, Arc::clone(writes)))
    })
}
