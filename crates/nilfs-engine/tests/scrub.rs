//! A scrub names exactly the files and the checkpoints that need what is damaged, and nothing where
//! nothing is, also while somebody writes and cleans.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use common::{LINUX_IMAGES, linux_image, make, parameters, pattern};
use nilfs_device::{Device, IoSlice, MaskedDevice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::scrub::{Fault, Need, Progress, Scrubbed, scrub};
use nilfs_engine::tree::Extent;
use nilfs_engine::{
    Amount, CleanerOptions, Cno, Filesystem, Ino, Log, ManualRun, MountOptions, Volume,
};
use nilfs_ondisk::BlockNr;
use nilfs_ondisk::summary::BlockInfo;

const BLOCK: u64 = 1024;
const PER_SEGMENT: u64 = 64;
const SEGMENTS: u64 = 40;

fn volume() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new((SEGMENTS * PER_SEGMENT + 8) * BLOCK));
    let mut parameters = parameters(BLOCK);
    parameters.blocks_per_segment = PER_SEGMENT as u32;
    format(&*device, &parameters).unwrap();
    device
}

fn mount(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    let options = MountOptions { cleaner, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device) as _, options).unwrap()
}

/// Writes a file, which is new in the checkpoint that is returned.
fn write(fs: &Filesystem, names: &[&str]) -> Cno {
    for (nth, name) in names.iter().enumerate() {
        let file = make(fs, &fs.root().unwrap().inode, name);
        fs.write(&file, 0, &pattern(nth, 3 * BLOCK as usize)).unwrap();
    }
    fs.commit().unwrap()
}

fn scrubbed(device: &Arc<dyn Device>) -> Scrubbed {
    let found = scrub(device, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(!found.interrupted);
    found
}

fn all_of(device: &Arc<MemoryDevice>) -> Scrubbed {
    scrubbed(&(Arc::clone(device) as _))
}

/// The newest log with blocks of a file, and where the nth block of the file's content is in it.
fn place(device: &Arc<MemoryDevice>, ino: Ino, nth: u64) -> (Log, BlockNr) {
    let volume = Volume::open(Arc::clone(device) as _).unwrap();
    let segments = volume.segments(Default::default()).unwrap();
    let logs = segments.iter().flat_map(|it| volume.logs(it.segment).unwrap());
    let mut found = None;
    for log in logs {
        let mut at = log.start.plus(log.header.summary_blocks(volume.geometry().block_size));
        for (file, info) in log.files.iter().flat_map(|it| it.blocks.iter().map(move |b| (it, b))) {
            let is_it = matches!(info, BlockInfo::Data { offset, .. } if offset.0 == nth);
            if file.ino == ino && is_it {
                found = Some((log.clone(), at));
            }
            at = at.plus(1);
        }
    }
    found.expect("the file has that block")
}

fn flip(device: &MemoryDevice, at: BlockNr) {
    let place = at.0 * BLOCK + 100;
    let mut byte = [0];
    device.read_at(place, &mut byte).unwrap();
    device.write_at(place, &[IoSlice::new(&[byte[0] ^ 1])]).unwrap();
}

/// Path, parts of the content, first and last checkpoint of each ordinary file that needs damage.
type Files = Vec<(String, Vec<(u64, u64)>, Cno, Cno)>;

fn files(found: &Scrubbed) -> Files {
    let is_file = |need: &&Need| need.ino.is_some_and(|ino| ino >= Ino::FIRST_USER);
    let needs = found.damage.iter().flat_map(|damage| &damage.needs).filter(is_file);
    let part = |it: &Extent| (it.offset, it.length);
    let path = |need: &Need| String::from_utf8(need.path.clone().expect("it has a name")).unwrap();
    let file =
        |need: &Need| (path(need), need.data.iter().map(part).collect(), need.first, need.last);
    needs.map(file).collect()
}

fn ino(fs: &Filesystem, name: &str) -> Ino {
    fs.lookup(&fs.root().unwrap().inode, name.as_bytes()).unwrap().inode.ino()
}

#[test]
fn all_files_of_a_log_with_a_wrong_checksum_are_named_and_no_others() {
    let device = volume();
    let fs = mount(&device);
    let first = write(&fs, &["a", "b"]);
    let newest = write(&fs, &["c"]);
    let damaged = ino(&fs, "a");
    fs.unmount().unwrap();
    let sound = all_of(&device);
    assert!(sound.damage.is_empty(), "{:?}", sound.damage);
    assert_eq!(sound.checkpoint, newest);

    flip(&device, place(&device, damaged, 1).1);
    let found = all_of(&device);
    assert_eq!(found.damage.iter().map(|it| it.fault).collect::<Vec<_>>(), [Fault::Checksum]);
    let whole = vec![(0, 3 * BLOCK)];
    let expected = ["a", "b"].map(|name| (name.to_owned(), whole.clone(), first, newest));
    assert_eq!(files(&found), expected);
    assert!(found.damage[0].needs.iter().all(|it| it.is_current == (it.last == newest)));
    assert_eq!(found.sound_logs, sound.sound_logs - 1);
}

#[test]
fn volumes_of_linux_are_sound() {
    for name in LINUX_IMAGES {
        let found = all_of(&linux_image(name));
        assert!(found.damage.is_empty() && found.sound_logs > 0, "{name}: {found:#?}");
    }
}

#[test]
fn of_an_unreadable_block_its_own_file_is_named() {
    let device = volume();
    let fs = mount(&device);
    let first = write(&fs, &["a", "b"]);
    let newest = write(&fs, &["c"]);
    let damaged = ino(&fs, "b");
    fs.unmount().unwrap();
    let at = place(&device, damaged, 2).1;
    let range = at.0 * BLOCK..at.0 * BLOCK + 1;
    let masked: Arc<dyn Device> = Arc::new(MaskedDevice::new(device, [range]));
    let found = scrubbed(&masked);
    assert_eq!(found.damage.len(), 1);
    assert_eq!(
        (found.damage[0].fault, &found.damage[0].blocks),
        (Fault::Unreadable, &(at..at.plus(1)))
    );
    assert_eq!(files(&found), [("b".to_owned(), vec![(2 * BLOCK, BLOCK)], first, newest)]);
}

#[test]
fn a_deleted_file_is_named_as_long_as_a_snapshot_needs_it() {
    let device = volume();
    let fs = mount(&device);
    let snapshot = write(&fs, &["gone"]);
    let damaged = ino(&fs, "gone");
    fs.set_snapshot(snapshot, true).unwrap();
    let after = write(&fs, &["other"]);
    fs.unlink(&fs.root().unwrap().inode, b"gone").unwrap();
    write(&fs, &["another"]);
    fs.sync().unwrap();
    let at = place(&device, damaged, 0).1;
    flip(&device, at);
    let whole = vec![(0, 3 * BLOCK)];
    assert_eq!(files(&all_of(&device)), [("gone".to_owned(), whole.clone(), snapshot, after)]);

    fs.delete_checkpoints(Cno::MIN..=after).unwrap();
    fs.sync().unwrap();
    assert_eq!(files(&all_of(&device)), [("gone".to_owned(), whole, snapshot, snapshot)]);

    fs.set_snapshot(snapshot, false).unwrap();
    fs.delete_checkpoints(snapshot..=snapshot).unwrap();
    fs.sync().unwrap();
    assert_eq!(files(&all_of(&device)), []);
    fs.unmount().unwrap();
}

#[test]
fn files_are_found_although_the_summary_of_their_log_is_lost() {
    let device = volume();
    let fs = mount(&device);
    let first = write(&fs, &["a", "b"]);
    let newest = write(&fs, &["c"]);
    let damaged = ino(&fs, "a");
    fs.unmount().unwrap();
    let sound = all_of(&device);
    flip(&device, place(&device, damaged, 0).0.start);
    let found = all_of(&device);
    assert_eq!(found.damage.iter().map(|it| it.fault).collect::<Vec<_>>(), [Fault::NoSummary]);
    let whole = vec![(0, 3 * BLOCK)];
    let mut files = files(&found);
    files.sort();
    assert_eq!(files, ["a", "b"].map(|name| (name.to_owned(), whole.clone(), first, newest)));
    assert_eq!(found.sound_logs, sound.sound_logs - 1, "the logs after it are read all the same");
}

#[test]
fn a_sound_volume_has_no_damage_while_somebody_writes_and_cleans() {
    let device = volume();
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let (cold, warm) = (make(&fs, &root, "cold"), make(&fs, &root, "warm"));
    for nth in 0..20 {
        fs.write(&cold, nth * 5 * BLOCK, &pattern(1, 5 * BLOCK as usize)).unwrap();
        fs.write(&warm, 0, &pattern(2, 20 * BLOCK as usize)).unwrap();
        fs.commit().unwrap();
    }
    let run = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
    let (mut freed, mut written) = (0, 0);
    // At every piece, a part of the volume is written that is larger than a segment.
    let mut disturb = |_: Progress| {
        for nth in 0..4 {
            fs.write(&warm, 0, &pattern(written + nth, 20 * BLOCK as usize)).unwrap();
            fs.commit().unwrap();
        }
        written += 4;
        freed += fs.clean(&run).unwrap();
        fs.sync().unwrap();
        ControlFlow::Continue(())
    };
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    for _ in 0..5 {
        let found = scrub(&shared, &mut disturb).unwrap();
        assert!(found.damage.is_empty(), "{:#?}", found.damage);
        assert!(found.sound_logs > 0);
    }
    assert!(freed > 2 * SEGMENTS, "only {freed} segments were used again");
    drop((cold, warm, root));
    fs.unmount().unwrap();
}

#[test]
fn a_scrub_that_is_ended_says_so() {
    let device = volume();
    let fs = mount(&device);
    write(&fs, &["a"]);
    fs.unmount().unwrap();
    let shared: Arc<dyn Device> = device as _;
    let found = scrub(&shared, &mut |_| ControlFlow::Break(())).unwrap();
    assert!(found.interrupted && found.damage.is_empty());
}
