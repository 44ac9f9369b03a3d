//! What an fsync has written and no checkpoint has yet lies in segments that the newest checkpoint calls
//! clean. Whatever is done with the volume meanwhile, a power cut at any moment leaves what was synced.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{check, content, make, mount, pattern, volume};
use nilfs_device::{Device, Event, IoSlice, MemoryDevice, RecordingDevice};
use nilfs_engine::{
    CleanerOptions, Cno, DirEntry, Error, Files, Filesystem, FsyncBy, Ino, InodeRef, ManualRun,
    MountOptions, PurgeOptions, SegNum, Volume, Wiping,
};
use nilfs_ondisk::superblock::FEATURE_ROLL_FORWARD;

const BLOCK: usize = 1024;
const MEGABYTES: u64 = 16;
/// Where the volume ends when it has become smaller.
const SMALLER: u64 = 12 << 20;
/// Bytes of a sync log: a quarter of a segment.
const PIECE: usize = 60 << 10;
/// Enough for many more segments than the two that a checkpoint takes for the log.
const PIECES: usize = 40;

type Recorded = Arc<RecordingDevice<MemoryDevice>>;

/// A volume with sync logs from its last segments on to its first.
struct Scene {
    device: Recorded,
    fs: Arc<Filesystem>,
    expected: BTreeMap<String, Vec<u8>>,
}

fn recorded(device: &MemoryDevice) -> Recorded {
    Arc::new(RecordingDevice::new(MemoryDevice::from(device.snapshot())))
}

/// Returns how many segments became clean.
fn clean(fs: &Filesystem) -> u64 {
    let run = ManualRun { protection: Some(Duration::ZERO), ..ManualRun::default() };
    fs.clean(&run).unwrap()
}

/// The segment in which the newest checkpoint is.
fn segment(fs: &Filesystem) -> u64 {
    fs.status().geometry.segment_of(fs.newest_log().block).0
}

/// Makes the pieces of a file durable, and a name for each. No checkpoint is made for that.
fn sync_pieces(fs: &Filesystem, file: &InodeRef) {
    let (root, before) = (fs.root().unwrap().inode, fs.newest_log().cno);
    for nth in 0..PIECES {
        make(fs, &root, &format!("name {nth}"));
        fs.write(file, (nth * PIECE) as u64, &pattern(nth, PIECE)).unwrap();
        fs.sync_file(file).unwrap();
    }
    assert_eq!(fs.newest_log().cno, before);
}

fn scene() -> Scene {
    let device = recorded(&volume(BLOCK as u64, MEGABYTES));
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let [filler, file] = ["filler", "file"].map(|name| make(&fs, &root, name));
    let last = fs.status().geometry.nsegments - 1;
    for nth in 0.. {
        fs.write(&filler, 0, &pattern(nth, 200 << 10)).unwrap();
        fs.commit().unwrap();
        if segment(&fs) + 6 >= last {
            break;
        }
        if nth % 20 == 19 {
            clean(&fs);
        }
    }
    clean(&fs);
    // There is something to clean again.
    for nth in 0..4 {
        fs.write(&filler, 0, &pattern(nth, 200 << 10)).unwrap();
        fs.commit().unwrap();
    }
    fs.sync().unwrap();
    sync_pieces(&fs, &file);
    let expected = all(&*fs);
    drop(device.take_events());
    Scene { device, fs, expected }
}

/// The content of all files by name.
fn all(files: &dyn Files) -> BTreeMap<String, Vec<u8>> {
    let mut names = Vec::new();
    let mut list = |entry: DirEntry<'_>| {
        names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino));
        true
    };
    files.read_dir(Ino::ROOT, 0, &mut list).unwrap();
    let is_file = |name: &str| !matches!(name, "." | "..");
    let read = |(name, ino): (String, Ino)| {
        let attr = files.hold(ino).unwrap();
        let mut bytes = vec![0; attr.size as usize];
        assert_eq!(files.read(ino, 0, &mut bytes).unwrap(), bytes.len());
        files.let_go(ino, 1);
        (name, bytes)
    };
    names.into_iter().filter(|(name, _)| is_file(name)).map(read).collect()
}

/// Fails unless a power cut after any of these events leaves what is expected.
#[track_caller]
fn survives(
    before: &MemoryDevice,
    events: &[Event],
    expected: &BTreeMap<String, Vec<u8>>,
    what: &str,
) {
    let device = MemoryDevice::from(before.snapshot());
    for nth in 0..=events.len() {
        match nth.checked_sub(1).map(|last| &events[last]) {
            Some(Event::Write { offset, bytes }) => {
                device.write_at(*offset, &[IoSlice::new(bytes)]).unwrap();
            }
            Some(Event::Discard { offset, bytes }) => device.discard(*offset, *bytes).unwrap(),
            Some(Event::Resize { bytes }) => device.resize(*bytes).unwrap(),
            Some(Event::Flush) => continue,
            None => {}
        }
        let cut = Arc::new(MemoryDevice::from(device.snapshot()));
        check(&*cut);
        let found = Filesystem::mount(Arc::clone(&cut) as _, MountOptions::default());
        let found = found.unwrap_or_else(|error| panic!("{what}, event {nth}: {error}"));
        assert!(all(&*found) == *expected, "{what}, after event {nth} of {}", events.len());
        drop(found);
        check(&*cut);
    }
}

#[test]
fn the_logs_lie_where_the_newest_checkpoint_has_nothing() {
    let Scene { device, fs, .. } = scene();
    let cut: Arc<dyn Device> = Arc::new(MemoryDevice::from(device.below().snapshot()));
    let volume = Volume::open(cut).unwrap();
    let geometry = volume.geometry();
    let logs = volume.recovery_plan().unwrap().applied;
    let segments: Vec<u64> = logs.iter().map(|log| geometry.segment_of(log.start).0).collect();
    let end = SMALLER / (256 * BLOCK as u64);
    assert!(segments[0] > end && *segments.last().unwrap() < end, "{segments:?}");
    let usages = volume.segments(SegNum(0)).unwrap();
    assert!(segments.iter().any(|segment| !usages[*segment as usize].dirty), "{segments:?}");
    drop(fs);
}

type Verb = fn(&Filesystem);

/// Each of these frees, moves or wipes something, or makes a checkpoint for its own sake.
const VERBS: &[(&str, Verb)] = &[
    ("trim", |fs| assert!(fs.trim(0, u64::MAX, 0).unwrap() > 0)),
    ("clean", |fs| assert!(clean(fs) > 0)),
    ("shrink", |fs| fs.resize(SMALLER, &mut |_| {}).unwrap()),
    // Nothing but sync logs was beyond the new end.
    ("shrink a little", |fs| {
        let blocks = (segment(fs) + 2) * u64::from(fs.status().geometry.blocks_per_segment) + 8;
        fs.resize(blocks * BLOCK as u64, &mut |_| {}).unwrap();
    }),
    ("grow and shrink", |fs| {
        fs.resize((MEGABYTES + 2) << 20, &mut |_| {}).unwrap();
        fs.resize(SMALLER, &mut |_| {}).unwrap();
    }),
    ("checkpoint", |fs| _ = fs.checkpoint_now().unwrap()),
    ("snapshot", |fs| fs.set_snapshot(fs.newest_log().cno, true).unwrap()),
    ("delete checkpoints", |fs| {
        fs.delete_checkpoints(Cno(1)..=fs.newest_log().cno).unwrap();
    }),
    ("purge", |fs| {
        let options = PurgeOptions { keep_snapshots: false, wiping: Wiping::Overwrite };
        fs.purge(None, options, &mut |_| {}).unwrap();
    }),
    ("read-only", |fs| fs.set_read_only(true).unwrap()),
    ("unmount", |fs| fs.unmount().unwrap()),
];

#[test]
fn whatever_is_done_after_an_fsync_a_power_cut_leaves_what_was_synced() {
    for (what, verb) in VERBS {
        let Scene { device, fs, expected } = scene();
        let before = MemoryDevice::from(device.below().snapshot());
        verb(&fs);
        survives(&before, &device.take_events(), &expected, what);
    }
}

/// A purge overwrites what is not used. Programs go on meanwhile.
#[test]
fn a_purge_leaves_what_is_synced_while_it_works() {
    let device = recorded(&volume(BLOCK as u64, MEGABYTES));
    let fs = mount(&device);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    fs.sync().unwrap();
    let mut synced = false;
    let options = PurgeOptions { keep_snapshots: false, wiping: Wiping::Overwrite };
    fs.purge(None, options, &mut |progress| {
        // All segments are emptied, and are wiped next.
        if progress.done == progress.of && !std::mem::replace(&mut synced, true) {
            sync_pieces(&fs, &file);
        }
    })
    .unwrap();
    assert!(synced);
    survives(&MemoryDevice::from(device.below().snapshot()), &[], &all(&*fs), "purge");
}

#[test]
fn a_recovery_of_many_segments_that_is_cut_off_begins_again() {
    let Scene { device, expected, .. } = scene();
    let cut = recorded(device.below());
    drop(mount(&cut));
    survives(device.below(), &cut.take_events(), &expected, "recovery");
}

/// A segment in which only sync logs were is in use as long as these are needed, and no longer.
#[test]
fn segments_of_sync_logs_are_clean_again_when_nobody_needs_them() {
    let Scene { device, fs, .. } = scene();
    let used = fs.status().clean_segments;
    let root = fs.root().unwrap().inode;
    fs.unlink(&root, b"file").unwrap();
    fs.sync().unwrap();
    clean(&fs);
    clean(&fs);
    let bytes_of_a_segment = 256 * BLOCK;
    let needed = (PIECES * PIECE / bytes_of_a_segment) as u64;
    assert!(
        fs.status().clean_segments >= used + needed,
        "{} of {used}",
        fs.status().clean_segments
    );
    fs.unmount().unwrap();
    check(device.below());
}

/// Each version of the block lies in another place, and is dead when the next has been written.
#[test]
fn one_block_can_be_written_and_synced_for_ever_on_a_full_volume() {
    let device = volume(BLOCK as u64, 6);
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    let options = MountOptions { cleaner, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
    let root = fs.root().unwrap().inode;
    let [file, filler] = ["file", "filler"].map(|name| make(&fs, &root, name));
    fs.write(&file, 0, &pattern(0, BLOCK)).unwrap();
    fs.sync().unwrap();
    let append = |bytes: usize| {
        let size = fs.attr(&filler).unwrap().size;
        match fs.write(&filler, size, &pattern(1, bytes)) {
            Ok(()) => true,
            Err(Error::NoSpace) => false,
            Err(error) => panic!("{error}"),
        }
    };
    while append(16 << 10) {}
    while append(BLOCK) {}
    fs.sync().unwrap();
    for nth in 0..10_000 {
        let fresh = pattern(nth, BLOCK);
        let written = fs.write(&file, 0, &fresh).and_then(|()| fs.sync_file(&file));
        written.unwrap_or_else(|error| panic!("version {nth}: {error}"));
        if nth % 1000 == 999 {
            let cut = Arc::new(MemoryDevice::from(device.snapshot()));
            check(&*cut);
            let found = mount(&cut);
            let again = found.lookup(&found.root().unwrap().inode, b"file").unwrap().inode;
            assert!(content(&found, &again) == fresh, "version {nth}");
        }
    }
    drop((root, file, filler));
    fs.unmount().unwrap();
    check(&*device);
}

/// Linux must be kept away before there is something that it would lose, and no longer than that.
#[test]
fn the_bit_is_durable_in_both_superblocks_before_there_are_records() {
    for barrier in [true, false] {
        let device = recorded(&volume(BLOCK as u64, MEGABYTES));
        let options = MountOptions { barrier, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
        let root = fs.root().unwrap().inode;
        fs.sync().unwrap();
        for round in 0..3 {
            let what = format!("barrier: {barrier}, round {round}");
            let file = make(&fs, &root, &format!("file {round}"));
            if round == 1 {
                // Not the first log of the mount.
                fs.sync().unwrap();
                fs.write(&file, 0, b"appended").unwrap();
            }
            let before = MemoryDevice::from(device.below().snapshot());
            assert_eq!(bits(&before), [false; 2], "{what}");
            drop(device.take_events());
            fs.sync_file(&file).unwrap();
            assert_eq!(bits(device.below()), [true; 2], "{what}");
            // What was flushed before the last write, which is the log.
            let events = device.take_events();
            let log = events.iter().rposition(|it| matches!(it, Event::Write { .. })).unwrap();
            let flush = events[..log].iter().rposition(|it| *it == Event::Flush).unwrap();
            for event in &events[..flush] {
                let Event::Write { offset, bytes } = event else { continue };
                before.write_at(*offset, &[IoSlice::new(bytes)]).unwrap();
            }
            assert_eq!(bits(&before), [true; 2], "{what}");
            fs.set_read_only(true).unwrap();
            assert_eq!(bits(device.below()), [false; 2], "{what}");
            fs.set_read_only(false).unwrap();
        }
        let file = make(&fs, &root, "last");
        fs.sync_file(&file).unwrap();
        let cut = Arc::new(MemoryDevice::from(device.below().snapshot()));
        drop(mount(&cut));
        assert_eq!(bits(&cut), [false; 2], "recovered");
        fs.unmount().unwrap();
        assert_eq!(bits(device.below()), [false; 2], "unmounted");
    }
}

/// So the next crash is one that Linux can recover from.
#[test]
fn a_mount_without_records_clears_the_bit_and_never_sets_it() {
    let device = volume(BLOCK as u64, MEGABYTES);
    let fs = mount(&device);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    fs.sync_file(&file).unwrap();
    let cut = Arc::new(MemoryDevice::from(device.snapshot()));
    assert_eq!(bits(&cut), [true; 2]);
    let options = MountOptions { fsync: FsyncBy::Checkpoint, ..MountOptions::default() };
    let again = Filesystem::mount(Arc::clone(&cut) as _, options).unwrap();
    let root = again.root().unwrap().inode;
    assert_eq!(bits(&cut), [false; 2]);
    let file = again.lookup(&root, b"file").unwrap().inode;
    again.write(&file, 0, b"appended").unwrap();
    again.sync_file(&file).unwrap();
    again.sync_file(&make(&again, &root, "another")).unwrap();
    assert_eq!(bits(&cut), [false; 2]);
}

/// Whether each of the superblocks says that there may be records.
fn bits(device: &MemoryDevice) -> [bool; 2] {
    let found = Volume::superblocks(device).unwrap();
    [Some(found.best), found.other]
        .map(|copy| copy.unwrap().raw().s_feature_compat_ro.get() & FEATURE_ROLL_FORWARD != 0)
}
