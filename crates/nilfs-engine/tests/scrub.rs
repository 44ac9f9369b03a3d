//! A scrub names exactly the files and the checkpoints that need what is damaged, and nothing where
//! nothing is, also while somebody writes and cleans.

mod common;

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{LINUX_IMAGES, check, linux_image, make, parameters, pattern, short_segments};
use nilfs_device::{CopyOnWriteDevice, Device, IoSlice, MaskedDevice, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::scrub::{Fault, Need, Progress, Scrubbed, Selection};
use nilfs_engine::scrub_device;
use nilfs_engine::tree::Extent;
use nilfs_engine::{
    Amount, CleanerOptions, Cno, Filesystem, Ino, Log, ManualRun, MountOptions, SegNum, Volume,
};
use nilfs_ondisk::crc::{BlockSum, crc32_le};
use nilfs_ondisk::summary::{BlockInfo, SR, seal_again};
use nilfs_ondisk::{BlockNr, BlockSize, block_sums};

const BLOCK: u64 = 1024;
const PER_SEGMENT: u64 = 64;
const SEGMENTS: u64 = 40;

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
    let found = scrub_device(device, &Selection::default(), &mut go_on).unwrap();
    assert_eq!(found.interrupted, None);
    found
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
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
            let is_it = match info {
                BlockInfo::Data { offset, .. } | BlockInfo::DatData { offset } => offset.0 == nth,
                BlockInfo::Node { .. } | BlockInfo::DatNode { .. } => false,
            };
            if file.ino == ino && is_it {
                found = Some((log.clone(), at));
            }
            at = at.plus(1);
        }
    }
    found.expect("the file has that block")
}

fn flip(device: &MemoryDevice, at: BlockNr) {
    flip_byte(device, at, 100);
}

fn flip_byte(device: &MemoryDevice, at: BlockNr, offset: u64) {
    let place = at.0 * BLOCK + offset;
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

/// Two files in one log, and another in the next.
struct Scene {
    device: Arc<MemoryDevice>,
    first: Cno,
    newest: Cno,
    /// The first of the two.
    file: Ino,
    /// Of a scrub.
    sound_logs: u64,
}

fn scene() -> Scene {
    let device = short_segments(SEGMENTS);
    let fs = mount(&device);
    let first = write(&fs, &["a", "b"]);
    let newest = write(&fs, &["c"]);
    let file = ino(&fs, "a");
    fs.unmount().unwrap();
    let sound = all_of(&device);
    assert!(sound.damage.is_empty(), "{:?}", sound.damage);
    assert_eq!((sound.checkpoint, sound.unreached), (newest, None));
    Scene { device, first, newest, file, sound_logs: sound.sound_logs }
}

impl Scene {
    /// Changes a byte of the device, which damages all of the first log and nothing else.
    #[track_caller]
    fn spoil(&self, at: BlockNr, fault: Fault) {
        flip(&self.device, at);
        let found = all_of(&self.device);
        assert_eq!(found.damage.iter().map(|it| it.fault).collect::<Vec<_>>(), [fault]);
        let whole = vec![(0, 3 * BLOCK)];
        let expected =
            ["a", "b"].map(|name| (name.to_owned(), whole.clone(), self.first, self.newest));
        let mut named = files(&found);
        named.sort();
        assert_eq!(named, expected);
        let needs = &found.damage[0].needs;
        assert!(needs.iter().all(|it| it.is_current == (it.last == self.newest)));
        assert_eq!(found.sound_logs, self.sound_logs - 1, "the logs after it are read");
    }
}

/// Makes a log one without checksums of its blocks, as Linux and older versions have written it.
fn forget_sums(device: &MemoryDevice, log: &Log) {
    let size = BlockSize::from_bytes(BLOCK).unwrap();
    let (start, header) = (log.start.0 * BLOCK, &log.header);
    let mut bytes = vec![0; header.described_blocks(size) as usize * BLOCK as usize];
    device.read_at(start, &mut bytes).unwrap();
    let summary = header.summary_blocks(size) as usize * BLOCK as usize;
    let (summary, payload) = bytes.split_at_mut(summary);
    let sums: Vec<BlockSum> = payload.chunks(BLOCK as usize).map(BlockSum::of).collect();
    let table = header.sumbytes as usize - block_sums::size(sums.len() as u64);
    summary[table..].fill(0);
    seal_again(summary, header, &sums, size, parameters(BLOCK).crc_seed);
    device.write_at(start, &[IoSlice::new(summary)]).unwrap();
}

#[test]
fn all_files_of_a_log_with_a_wrong_checksum_are_named_and_no_others() {
    let scene = scene();
    let (log, at) = place(&scene.device, scene.file, 1);
    forget_sums(&scene.device, &log);
    scene.spoil(at, Fault::Checksum);
}

#[test]
fn of_a_block_that_has_changed_its_own_file_is_named() {
    let Scene { device, first, newest, file, sound_logs } = scene();
    let at = place(&device, file, 2).1;
    flip(&device, at);
    let found = all_of(&device);
    let damage: Vec<_> = found.damage.iter().map(|it| (it.fault, it.blocks.clone())).collect();
    assert_eq!(damage, [(Fault::Content, at..at.plus(1))]);
    assert_eq!(files(&found), [("a".to_owned(), vec![(2 * BLOCK, BLOCK)], first, newest)]);
    assert_eq!(found.sound_logs, sound_logs - 1);
}

/// A byte of a live file had changed, and a scrub named the file; the cleaner moved the block under a new
/// checksum, and from then on nothing told that the file was wrong.
#[test]
fn damage_stays_known_wherever_its_block_is_moved() {
    let Scene { device, first, newest, file, .. } = scene();
    let fs = mount(&device);
    flip(&device, place(&device, file, 2).1);
    let scrubbed = || {
        let found = fs.scrub(&Selection::default(), &mut go_on).unwrap();
        (files(&found), found.checkpoint)
    };
    let damaged = |newest| vec![("a".to_owned(), vec![(2 * BLOCK, BLOCK)], first, newest)];
    assert_eq!(scrubbed(), (damaged(newest), newest));
    let mut places = vec![place(&device, file, 2).1];
    for _ in 0..2 {
        let segment = SegNum(places[places.len() - 1].0 / PER_SEGMENT);
        assert!(fs.evacuate([segment].into(), &mut |_| {}).unwrap().is_empty());
        places.push(place(&device, file, 2).1);
        let (found, newest) = scrubbed();
        assert_eq!(found, damaged(newest), "after the cleaner, {places:?}");
    }
    places.dedup();
    assert_eq!(places.len(), 3, "it was moved twice");
    fs.unmount().unwrap();
    let found = all_of(&device);
    assert_eq!(files(&found), damaged(found.checkpoint));
}

#[test]
fn damage_stays_known_when_its_file_is_defragmented() {
    let device = short_segments(SEGMENTS);
    let fs = mount(&device);
    write(&fs, &["a"]);
    let inode = fs.lookup(&fs.root().unwrap().inode, b"a").unwrap().inode;
    for nth in 0..3 {
        fs.write(&inode, nth * BLOCK, &pattern(7, BLOCK as usize)).unwrap();
        fs.commit().unwrap();
    }
    let at = place(&device, inode.ino(), 1).1;
    flip(&device, at);
    let done = fs.defragment(&inode, u64::MAX).unwrap();
    assert!(done.moved > 0 && place(&device, inode.ino(), 1).1 != at);
    let found = fs.scrub(&Selection::default(), &mut go_on).unwrap();
    let [(path, data, _, last)] = &files(&found)[..] else { panic!("{:?}", found.damage) };
    assert_eq!((path.as_str(), &data[..], *last), ("a", &[(BLOCK, BLOCK)][..], found.checkpoint));
    fs.unmount().unwrap();
}

/// The cleaner has blocks of the DAT written anew, so a damaged one got a checksum that was right.
#[test]
fn a_damaged_block_of_the_dat_stays_where_it_is() {
    let device = short_segments(SEGMENTS);
    let fs = mount(&device);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    fs.write(&file, 0, &pattern(1, 400 * BLOCK as usize)).unwrap();
    fs.commit().unwrap();
    for nth in 0..3 {
        fs.write(&file, nth * BLOCK, &pattern(2, 100 * BLOCK as usize)).unwrap();
        fs.commit().unwrap();
    }
    fs.unmount().unwrap();
    let fs = mount(&device);
    // The entries of blocks in the middle of the file, which only the first checkpoint has changed.
    let block = (2..).map(|nth| place(&device, Ino::DAT, nth).1).nth(8).unwrap();
    let segment = SegNum(block.0 / PER_SEGMENT);
    // Part of an entry that means nothing.
    flip_byte(&device, block, 24);
    let damage = || {
        let found = fs.scrub(&Selection::default(), &mut go_on).unwrap();
        found.damage.into_iter().map(|it| (it.fault, it.blocks)).collect::<Vec<_>>()
    };
    assert_eq!(damage(), [(Fault::Content, block..block.plus(1))]);
    let left = fs.evacuate([segment].into(), &mut |_| {}).unwrap();
    assert_eq!(left, [segment].into());
    assert_eq!(damage(), [(Fault::Content, block..block.plus(1))]);
    fs.unmount().unwrap();
}

/// An older version of fsck corrects a block and the checksum of its log, and does not know of that of the
/// block: a block that was right counted as damaged as soon as it was moved.
#[test]
fn a_log_that_is_right_is_believed_against_the_checksums_of_its_blocks() {
    let Scene { device, file, sound_logs, .. } = scene();
    let (log, at) = place(&device, file, 1);
    flip(&device, at);
    let mut bytes = vec![0; (u64::from(log.header.nblocks) * BLOCK) as usize];
    device.read_at(log.start.0 * BLOCK, &mut bytes).unwrap();
    let sum = crc32_le(parameters(BLOCK).crc_seed, &bytes[4..]);
    device.write_at(log.start.0 * BLOCK, &[IoSlice::new(&sum.to_le_bytes())]).unwrap();
    let found = all_of(&device);
    assert_eq!((found.damage.len(), found.sound_logs), (0, sound_logs));
    let fs = mount(&device);
    let segment = SegNum(at.0 / PER_SEGMENT);
    assert!(fs.evacuate([segment].into(), &mut |_| {}).unwrap().is_empty());
    assert_ne!(place(&device, file, 1).1, at);
    assert!(fs.scrub(&Selection::default(), &mut go_on).unwrap().damage.is_empty());
    fs.unmount().unwrap();
}

/// The checksum of a log is not covered by that of its summary.
#[test]
fn a_log_of_which_every_block_is_right_needs_no_repair_but_of_its_own_checksum() {
    let Scene { device, file, .. } = scene();
    let (log, at) = place(&device, file, 1);
    flip_byte(&device, log.start, 0);
    let fs = mount(&device);
    let segment = SegNum(at.0 / PER_SEGMENT);
    assert!(fs.evacuate([segment].into(), &mut |_| {}).unwrap().is_empty());
    assert!(fs.scrub(&Selection::default(), &mut go_on).unwrap().damage.is_empty());
    fs.unmount().unwrap();
}

#[test]
fn what_may_be_damaged_in_a_log_without_checksums_of_its_blocks_stays_there() {
    let Scene { device, file, .. } = scene();
    let (log, at) = place(&device, file, 1);
    forget_sums(&device, &log);
    flip(&device, at);
    let fs = mount(&device);
    let segment = SegNum(at.0 / PER_SEGMENT);
    let found = || {
        let found = fs.scrub(&Selection::default(), &mut go_on).unwrap();
        let parts = files(&found).into_iter().map(|(path, data, first, _)| (path, data, first));
        parts.collect::<Vec<_>>()
    };
    let before = found();
    assert_eq!(before.len(), 2, "one of the blocks of two files");
    let left = fs.evacuate([segment].into(), &mut |_| {}).unwrap();
    assert!(left.contains(&segment), "{left:?}");
    assert_eq!((place(&device, file, 1).1, found()), (at, before));
    let inode = fs.lookup(&fs.root().unwrap().inode, b"a").unwrap().inode;
    fs.defragment(&inode, u64::MAX).unwrap();
    assert_eq!(place(&device, file, 1).1, at);
    fs.unmount().unwrap();
}

#[test]
fn files_are_found_although_the_summary_of_their_log_is_lost() {
    let scene = scene();
    scene.spoil(place(&scene.device, scene.file, 0).0.start, Fault::NoSummary);
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
    let Scene { device, first, newest, file, .. } = scene();
    let at = place(&device, file, 2).1;
    let range = at.0 * BLOCK..at.0 * BLOCK + 1;
    let masked: Arc<dyn Device> = Arc::new(MaskedDevice::new(device, [range]));
    let found = scrubbed(&masked);
    assert_eq!(found.damage.len(), 1);
    assert_eq!(
        (found.damage[0].fault, &found.damage[0].blocks),
        (Fault::Unreadable, &(at..at.plus(1)))
    );
    assert_eq!(files(&found), [("a".to_owned(), vec![(2 * BLOCK, BLOCK)], first, newest)]);
}

#[test]
fn a_deleted_file_is_named_as_long_as_a_snapshot_needs_it() {
    let device = short_segments(SEGMENTS);
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
    let damaged = vec![(0, BLOCK)];
    assert_eq!(files(&all_of(&device)), [("gone".to_owned(), damaged.clone(), snapshot, after)]);

    fs.delete_checkpoints(Cno::MIN..=after).unwrap();
    fs.sync().unwrap();
    assert_eq!(files(&all_of(&device)), [("gone".to_owned(), damaged, snapshot, snapshot)]);

    fs.set_snapshot(snapshot, false).unwrap();
    fs.delete_checkpoints(snapshot..=snapshot).unwrap();
    fs.sync().unwrap();
    assert_eq!(files(&all_of(&device)), []);
    fs.unmount().unwrap();
}

/// At every piece that is read, the rest of the volume is written anew, and in logs of other lengths: so
/// the segment that is being read becomes another one in the middle of it, at one moment or another.
/// What is read then is no log, or one of a later checkpoint.
#[test]
fn a_sound_volume_has_no_damage_while_somebody_writes_and_cleans() {
    let device = short_segments(SEGMENTS);
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
    let mut disturb = |_: Progress| {
        let enough = freed + SEGMENTS;
        while freed < enough {
            for _ in 0..4 {
                let blocks = 3 + 7 * written % 19;
                fs.write(&warm, 0, &pattern(written, blocks * BLOCK as usize)).unwrap();
                fs.commit().unwrap();
                written += 1;
            }
            freed += fs.clean(&run).unwrap();
            fs.sync().unwrap();
        }
        // A scrub from outside has to recover this fsync.
        fs.write(&warm, 0, &pattern(written, BLOCK as usize)).unwrap();
        fs.sync_file(&warm).unwrap();
        ControlFlow::Continue(())
    };
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    let all = Selection::default();
    for _ in 0..5 {
        for found in [scrub_device(&shared, &all, &mut disturb), fs.scrub(&all, &mut disturb)] {
            let found = found.unwrap();
            assert!(found.damage.is_empty(), "{:#?}", found.damage);
            assert!(found.sound_logs > 0);
        }
    }
    drop((cold, warm, root));
    fs.unmount().unwrap();
}

/// A device that forgets what is discarded, as far as it lies after the first `kept` blocks of a segment.
struct Forgetful {
    below: MemoryDevice,
    kept: u64,
    /// Segments that have been forgotten, a bit for each.
    forgotten: AtomicU64,
    /// Forgotten segments that were written afterwards.
    written_anew: AtomicU64,
}

impl Device for Forgetful {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let segment = 1 << (offset / BLOCK / PER_SEGMENT);
        let forgotten = self.forgotten.load(Ordering::Relaxed) & segment;
        self.written_anew.fetch_or(forgotten, Ordering::Relaxed);
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let segment_bytes = PER_SEGMENT * BLOCK;
        for segment in offset / segment_bytes..(offset + bytes) / segment_bytes {
            let start = segment * segment_bytes + self.kept * BLOCK;
            self.below.discard(start, segment_bytes - self.kept * BLOCK)?;
            self.forgotten.fetch_or(1 << segment, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Damage that a scrub had seen in a segment that the cleaner had freed was held against the blocks that had
/// been written there by the end of the scrub: two of 140 scrubs of sound volumes said that the ifile was
/// damaged, for want of logs in segments that had been discarded when the scrub came by.
#[test]
fn what_is_seen_in_a_freed_segment_says_nothing_about_what_is_written_there_next() {
    let all = [0, 8, PER_SEGMENT / 2].into_iter().flat_map(|kept| [(kept, false), (kept, true)]);
    for (kept, from_outside) in all {
        let below = MemoryDevice::from(short_segments(SEGMENTS).snapshot());
        let (forgotten, written_anew) = Default::default();
        let device = Arc::new(Forgetful { below, kept, forgotten, written_anew });
        let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
        let options = MountOptions { cleaner, discard: true, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
        let root = fs.root().unwrap().inode;
        let warm = make(&fs, &root, "warm");
        for nth in 0..20 {
            fs.write(&warm, 0, &pattern(nth, 20 * BLOCK as usize)).unwrap();
            fs.commit().unwrap();
        }
        // From outside, this is to be recovered.
        fs.write(&warm, 0, &pattern(20, BLOCK as usize)).unwrap();
        fs.sync_file(&warm).unwrap();
        let (mut is_cleaned, mut is_filled) = (false, false);
        let mut disturb = |Progress { done, all, .. }: Progress| {
            if !std::mem::replace(&mut is_cleaned, true) {
                let min_reclaimable = Some(Amount::Count(1));
                let run = ManualRun { min_reclaimable, ..ManualRun::default() };
                assert!(fs.clean(&run).unwrap() > 5);
            }
            // Once everything has been read, the volume is filled.
            if done == all && !std::mem::replace(&mut is_filled, true) {
                let full = make(&fs, &root, "full");
                let bytes = pattern(7, 40 * BLOCK as usize);
                let mut at = 0;
                while fs.write(&full, at, &bytes).is_ok() {
                    fs.commit().unwrap();
                    at += bytes.len() as u64;
                }
            }
            ControlFlow::Continue(())
        };
        let shared: Arc<dyn Device> = Arc::clone(&device) as _;
        let found = match from_outside {
            true => scrub_device(&shared, &Selection::default(), &mut disturb),
            false => fs.scrub(&Selection::default(), &mut disturb),
        };
        let damage = found.unwrap().damage;
        assert!(damage.is_empty(), "{kept}, from outside: {from_outside}: {damage:#?}");
        let written_anew = device.written_anew.load(Ordering::Relaxed).count_ones();
        assert!(written_anew > 5, "{kept}: {written_anew} segments were written anew");
        drop((warm, root));
        fs.unmount().unwrap();
    }
}

#[test]
fn what_is_deleted_while_a_scrub_goes_on_is_no_damage() {
    let device = short_segments(SEGMENTS);
    let fs = mount(&device);
    let last = write(&fs, &["gone"]);
    let damaged = ino(&fs, "gone");
    fs.sync().unwrap();
    flip(&device, place(&device, damaged, 0).1);
    assert_eq!(files(&fs.scrub(&Selection::default(), &mut go_on).unwrap()).len(), 1);
    let mut is_there = true;
    let mut delete = |_: Progress| {
        if std::mem::take(&mut is_there) {
            fs.unlink(&fs.root().unwrap().inode, b"gone").unwrap();
            fs.commit().unwrap();
            fs.delete_checkpoints(Cno::MIN..=last).unwrap();
        }
        ControlFlow::Continue(())
    };
    assert_eq!(files(&fs.scrub(&Selection::default(), &mut delete).unwrap()), []);
    fs.unmount().unwrap();
}

#[test]
fn a_scrub_that_was_ended_goes_on_where_it_was_and_finds_what_it_found_again() {
    let device = short_segments(SEGMENTS);
    let fs = mount(&device);
    for nth in 0..30 {
        write(&fs, &[&format!("{nth}")]);
    }
    let early = ino(&fs, "3");
    fs.unmount().unwrap();
    let sound = all_of(&device);
    flip(&device, place(&device, early, 0).1);
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    let (mut from, mut also, mut logs, mut parts) = (SegNum(0), Default::default(), 0, 0);
    // A segment is a piece. A part reads the damaged one twice, and gets on by a segment at least.
    loop {
        let selection = Selection { from, also };
        let mut pieces = 0;
        let mut stop = |_: Progress| {
            pieces += 1;
            if pieces < 5 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let found = scrub_device(&shared, &selection, &mut stop).unwrap();
        parts += 1;
        assert_eq!(found.damage.len(), 1, "part {parts}");
        assert_eq!(files(&found)[0].0, "3");
        logs += found.sound_logs;
        let Some(next) = found.interrupted else { break };
        assert!(next > from, "it gets on");
        from = next;
        also = found.damage.iter().map(|damage| damage.segment).collect();
    }
    assert!(parts > 1 && logs + 1 >= sound.sound_logs, "{parts} parts, {logs} logs");
}

/// Content that is damaged was said to be sound until a mount had made a checkpoint of it.
#[test]
fn damaged_content_of_an_fsync_is_named_before_a_recovery_and_after() {
    let device = short_segments(SEGMENTS);
    let fs = mount(&device);
    write(&fs, &["before"]);
    let synced = make(&fs, &fs.root().unwrap().inode, "synced");
    fs.write(&synced, 0, &pattern(3, 3 * BLOCK as usize)).unwrap();
    fs.sync_file(&synced).unwrap();
    make(&fs, &fs.root().unwrap().inode, "last");
    fs.sync_file(&synced).unwrap();
    let crashed = Arc::new(MemoryDevice::from(device.snapshot()));
    assert!(all_of(&crashed).damage.is_empty());
    let (_, block) = place(&crashed, synced.ino(), 1);
    flip(&crashed, block);
    let before = crashed.snapshot();
    let found = all_of(&crashed);
    assert!(crashed.snapshot() == before, "a scrub writes nothing");
    mount(&crashed).unmount().unwrap();
    for found in [found, all_of(&crashed)] {
        let [damage] = &found.damage[..] else { panic!("one place: {found:?}") };
        let [need] = &damage.needs[..] else { panic!("one file: {damage:?}") };
        assert_eq!((need.path.as_deref(), need.is_current), (Some(&b"synced"[..]), true));
        assert_eq!(damage.blocks, block..block.plus(1));
    }
}

#[test]
fn a_scrub_that_is_ended_at_once_says_so() {
    let shared: Arc<dyn Device> = scene().device as _;
    let found =
        scrub_device(&shared, &Selection::default(), &mut |_| ControlFlow::Break(())).unwrap();
    assert!(found.interrupted.is_some() && found.damage.is_empty());
}

/// A mounted volume knows where its log is, whatever can be read of it.
#[test]
fn a_bad_newest_log_of_a_mounted_volume_is_damage() {
    let device = short_segments(SEGMENTS);
    let fs = mount(&device);
    let first = write(&fs, &["a"]);
    let file = ino(&fs, "a");
    fs.sync().unwrap();
    flip(&device, place(&device, file, 1).1);
    let found = fs.scrub(&Selection::default(), &mut go_on).unwrap();
    assert_eq!(files(&found), [("a".to_owned(), vec![(BLOCK, BLOCK)], first, first)]);
    fs.unmount().unwrap();
}

#[test]
fn a_bad_log_that_looks_like_the_end_of_the_log_is_told_from_it() {
    // Both superblocks name the newest log, which has no super root any more.
    let Scene { device, newest, .. } = scene();
    let volume = Volume::open(Arc::clone(&device) as _).unwrap();
    let log = volume.last_log();
    let mut logs = volume.logs(volume.geometry().segment_of(log.block)).unwrap().into_iter();
    let blocks = logs.find(|it| it.start == log.block).unwrap().header.nblocks;
    flip(&device, log.block.plus(u64::from(blocks) - 1));
    let unreached = all_of(&device).unreached.expect("the newest checkpoint is not reached");
    assert_eq!((unreached.block, unreached.newest), (log.block, Some(newest)));

    // After a crash, the superblocks name an older log, and a later one says that the damaged log was
    // durable: it does not hide the newest checkpoint.
    let device = self::short_segments(SEGMENTS);
    let fs = mount(&device);
    write(&fs, &["a"]);
    fs.sync().unwrap();
    write(&fs, &["b"]);
    let damaged = ino(&fs, "b");
    let newest = write(&fs, &["c"]);
    let crashed = Arc::new(MemoryDevice::new(device.size()));
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(0, &mut bytes).unwrap();
    crashed.write_at(0, &[IoSlice::new(&bytes)]).unwrap();
    fs.unmount().unwrap();
    assert_eq!(all_of(&crashed).unreached, None);
    flip(&crashed, place(&crashed, damaged, 1).1);
    let found = all_of(&crashed);
    assert_eq!((found.checkpoint, found.unreached), (newest, None));
    assert!(files(&found).iter().all(|(path, ..)| path == "b"), "{:?}", files(&found));
}

/// A mount refuses the volume then, so it is not sound.
#[test]
fn a_log_of_an_fsync_that_must_not_be_missing_is_told() {
    let device = self::short_segments(SEGMENTS);
    let fs = mount(&device);
    write(&fs, &["a"]);
    let root = fs.root().unwrap().inode;
    let file = fs.lookup(&root, b"a").unwrap().inode;
    for nth in 0..3 {
        fs.write(&file, nth, b"synced").unwrap();
        fs.sync_file(&file).unwrap();
    }
    let copy = || {
        let mut bytes = vec![0; device.size() as usize];
        device.read_at(0, &mut bytes).unwrap();
        Arc::new(MemoryDevice::from(bytes))
    };
    let logs = Volume::open(copy() as _).unwrap().recovery_plan().unwrap().applied;
    // What was lost last may have been lost in a power cut.
    for (nth, log) in logs.iter().enumerate() {
        let crashed = copy();
        let size = Volume::open(crashed.clone() as _).unwrap().geometry().block_size.bytes64();
        crashed.write_at(log.start.0 * size, &[IoSlice::new(&[0; 16])]).unwrap();
        let told = all_of(&crashed).unreached.map(|it| (it.block, it.newest));
        assert_eq!(told, (nth + 1 < logs.len()).then_some((log.start, None)), "log {nth}");
    }
    fs.unmount().unwrap();
}

/// Scrubs, repairs, and returns how many places were damaged, repaired, and are damaged afterwards.
fn repaired(fs: &Filesystem) -> (usize, usize, usize) {
    let mut found = fs.scrub(&Selection::default(), &mut go_on).unwrap();
    fs.repair(&mut found).unwrap();
    fs.sync().unwrap();
    let again = fs.scrub(&Selection::default(), &mut go_on).unwrap();
    let repaired = found.damage.iter().filter(|damage| damage.repaired).count();
    (found.damage.len(), repaired, again.damage.len())
}

fn content(fs: &Filesystem, name: &str) -> Vec<u8> {
    let file = fs.lookup(&fs.root().unwrap().inode, name.as_bytes()).unwrap().inode;
    let mut bytes = vec![0; 3 * BLOCK as usize];
    assert_eq!(fs.read(&file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

#[test]
fn what_the_cleaner_has_moved_is_repaired_from_where_it_was_for_every_checkpoint() {
    for unreadable in [false, true] {
        let Scene { device, file, first, .. } = scene();
        let fs = mount(&device);
        fs.set_snapshot(first, true).unwrap();
        let before = place(&device, file, 1).1;
        let segment = SegNum(before.0 / PER_SEGMENT);
        let left = fs.evacuate([segment].into(), &mut |_| {}).unwrap();
        let moved = place(&device, file, 1).1;
        assert!(left.is_empty() && moved != before, "the cleaner has moved it");
        flip(&device, moved);
        fs.unmount().unwrap();
        let bad = moved.0 * BLOCK..moved.0 * BLOCK + 1;
        let masked = MaskedDevice::new(device as _, unreadable.then_some(bad));
        let device = Arc::new(CopyOnWriteDevice::new(Arc::new(masked), Arc::default()));
        let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
        assert_eq!(repaired(&fs), (1, 1, 0), "unreadable: {unreadable}");
        assert_eq!(content(&fs, "a"), pattern(0, 3 * BLOCK as usize));
        fs.unmount().unwrap();
        check(&*device);
    }
}

#[test]
fn another_version_of_a_file_is_a_copy_if_it_has_the_same_and_none_if_not() {
    for same in [true, false] {
        let device = short_segments(SEGMENTS);
        let fs = mount(&device);
        write(&fs, &["a"]);
        let file = fs.lookup(&fs.root().unwrap().inode, b"a").unwrap().inode;
        let newer = pattern(if same { 0 } else { 5 }, 3 * BLOCK as usize);
        fs.write(&file, 0, &newer).unwrap();
        fs.sync().unwrap();
        let at = place(&device, file.ino(), 1).1;
        flip(&device, at);
        let (found, repaired, left) = repaired(&fs);
        let expected = if same { (1, 1, 0) } else { (1, 0, 1) };
        assert_eq!((found, repaired, left), expected);
        assert_eq!(content(&fs, "a") == newer, same);
        drop(file);
        fs.unmount().unwrap();
    }
}

/// A device that remembers up to where it was read, and was asked to read ahead.
struct Ahead {
    below: MemoryDevice,
    read: AtomicU64,
    asked: AtomicU64,
}

impl Device for Ahead {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read.store(offset + buffer.len() as u64, Ordering::Relaxed);
        self.below.read_at(offset, buffer)
    }

    fn write_at(&self, _offset: u64, _pieces: &[IoSlice<'_>]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        self.asked.store(offset + bytes, Ordering::Relaxed);
    }
}

/// Otherwise it would have nothing to do while sums are made, nor between small logs.
#[test]
fn the_device_always_has_something_to_read() {
    const MIB: usize = 1 << 20;
    let device = Arc::new(MemoryDevice::new(160 * MIB as u64));
    format(&*device, &Parameters { blocks_per_segment: 2048, ..parameters(4096) }).unwrap();
    let fs = mount(&device);
    for nth in 0..200 {
        let file = make(&fs, &fs.root().unwrap().inode, &format!("{nth}"));
        let bytes = if nth == 100 { 20 * MIB } else { 10_000 };
        fs.write(&file, 0, &pattern(nth, bytes)).unwrap();
        fs.commit().unwrap();
    }
    fs.unmount().unwrap();
    let (read, asked) = Default::default();
    let ahead = Arc::new(Ahead { below: MemoryDevice::from(device.snapshot()), read, asked });
    let (mut pieces, mut idle) = (0, 0);
    let mut observe = |_: Progress| {
        pieces += 1;
        let (read, asked) = (&ahead.read, &ahead.asked);
        idle += u32::from(asked.load(Ordering::Relaxed) <= read.load(Ordering::Relaxed));
        ControlFlow::Continue(())
    };
    let device = Arc::clone(&ahead) as Arc<dyn Device>;
    let found = scrub_device(&device, &Selection::default(), &mut observe).unwrap();
    assert!(found.sound_logs >= 200 && found.damage.is_empty(), "{found:?}");
    // A segment has eight pieces, after the last of which there is nothing to ask for.
    let segments = found.bytes.div_ceil(8 * MIB as u64) as u32;
    assert!(pieces <= 8 * segments, "{pieces} pieces in {segments} segments");
    assert!(idle <= segments, "{idle} times idle in {segments} segments");
}

/// All of a volume depends on its newest super root, which has a checksum besides its own: an older one in its place
/// is seen.
#[test]
fn a_newest_super_root_that_is_another_one_is_named() {
    let device = short_segments(SEGMENTS);
    let fs = mount(&device);
    write(&fs, &["one"]);
    write(&fs, &["two"]);
    fs.unmount().unwrap();
    let all = common::logs(&device);
    let roots = all.iter().filter(|log| log.header.has(SR));
    let roots: Vec<_> = roots.map(|log| log.start.0 + u64::from(log.header.nblocks) - 1).collect();
    let [.., older, newest] = roots[..] else { panic!("too few checkpoints") };
    let mut block = vec![0; BLOCK as usize];
    device.read_at(older * BLOCK, &mut block).unwrap();
    device.write_at(newest * BLOCK, &[IoSlice::new(&block)]).unwrap();
    let found = all_of(&device).damage;
    let [damage] = &found[..] else { panic!("{found:?}") };
    assert_eq!(damage.blocks, BlockNr(newest)..BlockNr(newest + 1));
    let needed: Vec<_> = damage.needs.iter().map(|need| need.ino).collect();
    assert_eq!(needed, [Some(Ino::DAT), Some(Ino::CPFILE), Some(Ino::SUFILE)]);
}
