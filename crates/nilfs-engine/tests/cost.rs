//! What a checkpoint and an fsync cost on the device: no block that need not change.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{check, content, make, mount, new, parameters, pattern, volume};
use nilfs_device::{Action, Device, Event, FaultyDevice, MemoryDevice, RecordingDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{
    Cno, Filesystem, InodeRef, ManualRun, MountOptions, Order, RenameMode, SetAttr, SetTime,
    Timestamp, Volume,
};
use nilfs_ondisk::inode::S_IFREG;
use nilfs_ondisk::{BlockSize, ByteCount};

const BLOCK: usize = 4096;

/// A volume with this many small files, and a tenth of that number of checkpoints.
fn used_volume(files: usize) -> (Arc<RecordingDevice<MemoryDevice>>, Arc<Filesystem>) {
    let memory = MemoryDevice::new(264 << 20);
    let mut parameters = parameters(BLOCK as u64);
    parameters.block_size = BlockSize::DEFAULT;
    parameters.blocks_per_segment = 2048;
    format(&memory, &parameters).unwrap();
    let device = Arc::new(RecordingDevice::new(memory));
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    let fs = Filesystem::mount(shared, MountOptions::default()).unwrap();
    let root = fs.root().unwrap().inode;
    for nth in 0..files {
        let file = make(&fs, &root, &format!("file {nth}"));
        fs.write(&file, 0, &pattern(nth, 1000)).unwrap();
        if nth % 10 == 0 {
            fs.commit().unwrap();
        }
    }
    fs.sync().unwrap();
    drop(device.take_events());
    (device, fs)
}

fn written_blocks(device: &RecordingDevice<MemoryDevice>) -> (usize, usize, usize) {
    let events = device.take_events();
    let bytes: usize = events
        .iter()
        .map(|event| if let Event::Write { bytes, .. } = event { bytes.len() } else { 0 })
        .sum();
    let writes = events.iter().filter(|event| matches!(event, Event::Write { .. })).count();
    let flushes = events.iter().filter(|event| **event == Event::Flush).count();
    (bytes.div_ceil(BLOCK), writes, flushes)
}

/// A young volume: the maps of its metadata files are direct. Linux writes 16 blocks.
#[test]
fn a_checkpoint_of_one_small_change_costs_at_most_12_blocks() {
    assert!(most_blocks_of_a_checkpoint(100) <= 12);
}

/// Files that come and go fill neither the memory for changes nor the volume, so what stays is not written
/// before its time.
#[test]
fn what_lives_for_a_moment_costs_nothing() {
    let (device, fs) = used_volume(10);
    let root = fs.root().unwrap().inode;
    let stays = make(&fs, &root, "stays");
    fs.write(&stays, 0, &pattern(1, 1000)).unwrap();
    let much = vec![1; 4 << 20];
    // More than changes may have of memory, and than the volume has room for.
    for _ in 0..70 {
        let gone = make(&fs, &root, "gone");
        fs.write(&gone, 0, &much).unwrap();
        fs.hold(&gone);
        let ino = gone.ino();
        drop(gone);
        fs.unlink(&root, b"gone").unwrap();
        fs.let_go(ino, 1);
    }
    assert_eq!(written_blocks(&device), (0, 0, 0));
    fs.sync().unwrap();
    let (blocks, _, _) = written_blocks(&device);
    assert!(blocks <= 16, "{blocks} blocks");
    fs.unmount().unwrap();
    check(&*device);
}

/// Nobody could find it after a power cut.
#[test]
fn an_fsync_of_a_file_without_a_name_costs_nothing() {
    let (device, fs) = used_volume(10);
    let root = fs.root().unwrap().inode;
    fs.sync().unwrap();
    drop(device.take_events());
    let never_named = fs.create_nameless(&root, &new(S_IFREG | 0o600)).unwrap().inode;
    let deleted = make(&fs, &root, "deleted");
    fs.hold(&deleted);
    fs.unlink(&root, b"deleted").unwrap();
    for file in [&never_named, &deleted] {
        fs.write(file, 0, &pattern(1, 10_000)).unwrap();
        fs.sync_file(file).unwrap();
        assert_eq!(device.take_events(), []);
    }
    let ino = deleted.ino();
    drop((never_named, deleted));
    fs.let_go(ino, 1);
    fs.unmount().unwrap();
    check(&*device);
}

/// A used one: the ifile and the cpfile have a B-tree node each, and the change ends the life of a
/// block that is described elsewhere in the DAT: 15 blocks, and one so that the log ends where four
/// pages of flash do.
#[test]
fn a_checkpoint_of_a_used_volume_costs_at_most_16_blocks() {
    assert!(most_blocks_of_a_checkpoint(3000) <= 16);
}

/// A page of flash that the next flush would write again is programmed twice.
#[test]
fn a_checkpoint_ends_where_a_page_of_flash_does() {
    let (device, fs) = used_volume(3000);
    let root = fs.root().unwrap().inode;
    let file = fs.lookup(&root, b"file 17").unwrap().inode;
    for nth in 0..20 {
        fs.write(&file, 1000 + nth as u64, b"more").unwrap();
        fs.commit().unwrap();
        for event in device.take_events() {
            let Event::Write { offset, bytes } = event else { continue };
            assert_eq!((offset + bytes.len() as u64) % (16 << 10), 0, "checkpoint {nth}");
        }
    }
    fs.unmount().unwrap();
    check(&*device);
}

fn most_blocks_of_a_checkpoint(files: usize) -> usize {
    let (device, fs) = used_volume(files);
    let root = fs.root().unwrap().inode;
    let mut most = 0;
    for nth in [17, files / 2, files - 1] {
        let file = fs.lookup(&root, format!("file {nth}").as_bytes()).unwrap().inode;
        fs.write(&file, 1000, b"a small change").unwrap();
        fs.commit().unwrap();
        let (blocks, writes, _) = written_blocks(&device);
        assert_eq!(writes, 1, "one write");
        most = most.max(blocks);
    }
    fs.unmount().unwrap();
    check(&*device);
    most
}

#[test]
fn an_overwrite_made_durable_costs_the_block_and_its_summary() {
    let (device, fs) = used_volume(3000);
    let root = fs.root().unwrap().inode;
    let file = fs.lookup(&root, b"file 1234").unwrap().inode;
    for _ in 0..3 {
        fs.write(&file, 10, b"a small change").unwrap();
        fs.sync_file(&file).unwrap();
        assert_eq!(written_blocks(&device), (4, 1, 1), "two, and the rest of a page of flash");
    }
    fs.sync_file(&file).unwrap();
    assert_eq!(written_blocks(&device), (0, 0, 0), "nothing has changed since");
    fs.unmount().unwrap();
    check(&*device);
}

/// An fsync of each kind, after a first that lets the superblocks say that there are records, is one
/// write and one flush: of the blocks with new content and one summary, up to where a page of flash ends.
#[test]
fn an_fsync_costs_what_it_changed_and_one_summary() {
    const ALL: u64 = 4096;
    for (block_size, page) in [1024, 2048, 4096]
        .into_iter()
        .flat_map(|block| [block, 4096, 16 << 10].map(|page| (block, page)))
    {
        let (device, fs) = volume_of(block_size, page);
        let root = fs.root().unwrap().inode;
        let file = make(&fs, &root, "file");
        fs.sync_file(&file).unwrap();
        let costs = |what: &str, content: u64, synced: &InodeRef| {
            drop(device.take_events());
            fs.sync_file(synced).unwrap();
            let events = device.take_events();
            let what = format!("{what}, blocks of {block_size}, pages of {page}");
            let [Event::Write { offset, bytes }, Event::Flush] = &events[..] else {
                panic!("{what}: {} events", events.len());
            };
            let end = (offset + block_size + content).next_multiple_of(page);
            assert_eq!(offset + bytes.len() as u64, end, "{what}");
        };
        for nth in 0..3 {
            fs.write(&file, nth * ALL, &pattern(nth as usize, ALL as usize)).unwrap();
            costs("4 KiB appended", ALL, &file);
        }
        for nth in 0..3 {
            fs.write(&file, 3 * ALL + nth * 100, &[nth as u8; 100]).unwrap();
            costs("100 bytes appended", 0, &file);
            fs.write(&file, 300, &[nth as u8; 50]).unwrap();
            costs("50 bytes overwritten", 0, &file);
            fs.write(&file, ALL, &pattern(nth as usize, ALL as usize)).unwrap();
            costs("4 KiB overwritten", ALL, &file);
        }
        for nth in 0..3 {
            let new = make(&fs, &root, "new");
            fs.write(&new, 0, &pattern(nth, ALL as usize)).unwrap();
            costs("a new file", ALL, &new);
            fs.rename(&root, b"new", &root, b"replaced", RenameMode::Replace).unwrap();
            costs("its rename over another", 0, &root);
        }
        fs.rename(&root, b"replaced", &root, b"moved", RenameMode::Replace).unwrap();
        costs("a rename", 0, &root);
        let new = make(&fs, &root, "new");
        fs.write(&new, 0, &pattern(9, ALL as usize)).unwrap();
        fs.rename(&root, b"new", &root, b"moved", RenameMode::Replace).unwrap();
        costs("a file that takes the place of another", ALL, &root);
        fs.link(&file, &root, b"link").unwrap();
        fs.unlink(&root, b"moved").unwrap();
        costs("names", 0, &file);
        let time = Some(SetTime::At(Timestamp { seconds: 1_000_000_000, nanoseconds: 5 }));
        let changes = [
            SetAttr { mode: Some(0o600), ..SetAttr::default() },
            SetAttr { mtime: time, ..SetAttr::default() },
            SetAttr { size: Some(2 * ALL), ..SetAttr::default() },
            SetAttr { size: Some(20 * ALL), ..SetAttr::default() },
            SetAttr { size: Some(7), ..SetAttr::default() },
        ];
        for change in changes {
            fs.set_attr(&file, &change).unwrap();
            costs(&format!("{change:?}"), 0, &file);
        }
        let others = ["one", "other"].map(|name| make(&fs, &root, name));
        others.iter().for_each(|it| assert!(fs.write(it, 0, &pattern(9, ALL as usize)).is_ok()));
        costs("everything", 2 * ALL, &root);
        for synced in [&file, &root] {
            fs.sync_file(synced).unwrap();
            assert_eq!(device.take_events(), [], "nothing has changed");
        }
        fs.unmount().unwrap();
        check(&*device);
    }
}

/// With blocks and pages of 4 KiB: one block for each fsync, one for 4 KiB of content, and a tenth of all
/// that for checkpoints.
#[test]
fn a_thousand_small_fsyncs_cost_a_thousand_blocks() {
    const TIMES: u64 = 1000;
    let (device, fs) = volume_of(BLOCK as u64, BLOCK as u64);
    let root = fs.root().unwrap().inode;
    let written = |step: &dyn Fn(u64)| {
        drop(device.take_events());
        let mut bytes = 0;
        for nth in 0..TIMES {
            step(nth);
            bytes += device.take_events().iter().filter_map(bytes_of).sum::<usize>() as u64;
        }
        bytes
    };
    let file = make(&fs, &root, "journal");
    let appended = written(&|nth| {
        fs.write(&file, nth * 100, &[b'x'; 100]).unwrap();
        fs.sync_file(&file).unwrap();
    });
    let replaced = written(&|nth| {
        let new = make(&fs, &root, "new");
        fs.write(&new, 0, &pattern(nth as usize, BLOCK)).unwrap();
        fs.sync_file(&new).unwrap();
        fs.rename(&root, b"new", &root, b"settings", RenameMode::Replace).unwrap();
        fs.sync_file(&root).unwrap();
    });
    eprintln!("1000 appends of 100 bytes: {appended} bytes; 1000 replacements: {replaced}");
    let at_most = |blocks: u64| blocks * TIMES * BLOCK as u64 * 11 / 10;
    assert!(appended <= at_most(1), "{appended}");
    assert!(replaced <= at_most(3), "{replaced}");
    fs.unmount().unwrap();
    check(&*device);
}

/// A checkpoint wherever a segment ends would have the metadata of all that was synced in it.
#[test]
fn a_synced_mebibyte_costs_no_more_where_a_segment_ends() {
    const MIB: usize = 1 << 20;
    let (device, fs) = volume_of(BLOCK as u64, BLOCK as u64);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    fs.sync_file(&file).unwrap();
    drop(device.take_events());
    let mut expected = Vec::new();
    for nth in 0..14 {
        let more = pattern(nth, MIB);
        fs.write(&file, expected.len() as u64, &more).unwrap();
        expected.extend(more);
        fs.sync_file(&file).unwrap();
        let events = device.take_events();
        let bytes: usize = events.iter().filter_map(bytes_of).sum();
        assert!(bytes <= MIB + 4 * BLOCK, "MiB {nth} cost {bytes} bytes");
        let flushes = events.iter().filter(|event| **event == Event::Flush).count();
        assert!(flushes <= 2, "MiB {nth} cost {flushes} flushes");
        let after_cut = MemoryDevice::from(device.below().snapshot());
        check(&after_cut);
        let found = Filesystem::mount(Arc::new(after_cut), MountOptions::default()).unwrap();
        assert!(content_of(&found, "file") == expected, "after MiB {nth}");
    }
    fs.unmount().unwrap();
    check(&*device);
}

/// A sync log has no room for them, in whatever segment.
#[test]
fn names_that_fill_more_than_a_segment_cost_a_checkpoint_and_no_segments() {
    let device = volume(1024, 32);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    fs.sync().unwrap();
    for nth in 0..2000 {
        make(&fs, &root, &format!("{nth:0200}"));
    }
    let before = fs.status();
    fs.sync_file(&file).unwrap();
    let after = fs.status();
    assert!(fs.newest_log().cno > Cno(2));
    let segments = before.clean_segments - after.clean_segments;
    assert!(segments < 8, "{segments} segments of 256 KiB for 400 KiB");
    fs.unmount().unwrap();
    check(&*device);
}

/// The super root promises that everything before it is durable, in whichever segments.
#[test]
fn a_checkpoint_of_several_segments_costs_one_flush() {
    let (device, fs) = volume_of(BLOCK as u64, BLOCK as u64);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    fs.commit().unwrap();
    for nth in 0..20 {
        fs.write(&file, nth << 20, &pattern(nth as usize, 1 << 20)).unwrap();
        drop(device.take_events());
    }
    fs.commit().unwrap();
    let events = device.take_events();
    let super_root = events.iter().rposition(|event| bytes_of(event).is_some()).unwrap();
    let flush = events.iter().position(|event| *event == Event::Flush).unwrap();
    assert_eq!(flush + 1, super_root, "before the last log");
    assert_eq!(events.iter().filter(|event| **event == Event::Flush).count(), 1);
    fs.unmount().unwrap();
    check(&*device);
}

fn bytes_of(event: &Event) -> Option<usize> {
    match event {
        Event::Write { bytes, .. } => Some(bytes.len()),
        _ => None,
    }
}

fn volume_of(block_size: u64, page: u64) -> (Arc<RecordingDevice<MemoryDevice>>, Arc<Filesystem>) {
    let memory = MemoryDevice::new(264 << 20);
    let parameters =
        nilfs_engine::mkfs::Parameters { blocks_per_segment: 1024, ..parameters(block_size) };
    format(&memory, &parameters).unwrap();
    let device = Arc::new(RecordingDevice::new(memory));
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    let options = MountOptions { flash_page: ByteCount(page), ..MountOptions::default() };
    let fs = Filesystem::mount(shared, options).unwrap();
    (device, fs)
}

/// Recovery reads the newest checkpoint's log from end to end. That must not be all the data which
/// were written with it. In strict order none of them were written before.
#[test]
fn a_mount_after_much_data_reads_little() {
    for cleanly in [true, false] {
        let (device, fs) = used_volume(100);
        fs.unmount().unwrap();
        let options = MountOptions { order: Order::Strict, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
        let file = make(&fs, &fs.root().unwrap().inode, "large");
        for nth in 0..30 {
            fs.write(&file, nth << 20, &pattern(nth as usize, 1 << 20)).unwrap();
        }
        match cleanly {
            true => fs.unmount().unwrap(),
            false => fs.sync().unwrap(),
        }
        let (again, read) = mount_counting(device.below().snapshot());
        assert!(read < 1 << 20, "read {read} bytes, unmounted: {cleanly}");
        again.unmount().unwrap();
        fs.unmount().unwrap();
    }
}

/// What was copied since the superblocks last followed the log can be hundreds of megabytes. A mount
/// after a power cut read all of them. The last checkpoint says that they were durable, and so does a
/// sync log.
#[test]
fn a_mount_after_a_crash_reads_no_content() {
    for synced in [false, true] {
        let (device, fs) = volume_of(4096, 4096);
        let root = fs.root().unwrap().inode;
        for nth in 0..6 {
            let file = make(&fs, &root, &format!("large {nth}"));
            fs.write(&file, 0, &pattern(nth, 5 << 20)).unwrap();
            fs.commit().unwrap();
        }
        if synced {
            fs.sync_file(&make(&fs, &root, "small")).unwrap();
        }
        let (again, read) = mount_counting(device.below().snapshot());
        // Of each checkpoint the log with the super root, and what of content it has.
        assert!(read < 2 << 20, "read {read} bytes of 30 MiB, synced: {synced}");
        let found = again.lookup(&again.root().unwrap().inode, b"small");
        assert_eq!(found.is_ok(), synced);
        drop(found);
        again.unmount().unwrap();
        fs.unmount().unwrap();
    }
}

/// Each sync log says that those before it were durable, so only the last has to be read.
#[test]
fn a_mount_after_a_crash_reads_the_content_of_one_sync_log() {
    const MIB: usize = 1 << 20;
    let (device, fs) = volume_of(BLOCK as u64, BLOCK as u64);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    for nth in 0..12 {
        fs.write(&file, nth * MIB as u64, &pattern(nth as usize, MIB)).unwrap();
        fs.sync_file(&file).unwrap();
    }
    let (again, read) = mount_counting(device.below().snapshot());
    assert!(read < 7 * MIB as u64 / 4, "read {read} bytes of 12 MiB");
    assert!(content_of(&again, "file") == content(&fs, &file));
    again.unmount().unwrap();
    fs.unmount().unwrap();
}

/// What an fsync has written ahead is durable before the sync log that refers to it.
#[test]
fn a_mount_after_a_crash_reads_little_of_what_was_synced_at_once() {
    let (device, fs) = volume_of(BLOCK as u64, BLOCK as u64);
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    for nth in 0..20 {
        fs.write(&file, nth << 20, &pattern(nth as usize, 1 << 20)).unwrap();
    }
    fs.sync_file(&root).unwrap();
    let (again, read) = mount_counting(device.below().snapshot());
    assert!(read < 2 << 20, "read {read} bytes of 20 MiB");
    assert!(content_of(&again, "file") == content(&fs, &file));
    again.unmount().unwrap();
    drop((root, file));
    fs.unmount().unwrap();
}

/// After the last log, and at the start of the next segment, one region of the device is looked
/// through for logs beyond one that is damaged, and some blocks further away, if nothing is there.
#[test]
fn a_mount_after_a_crash_looks_for_later_logs_in_two_regions() {
    const REGION: u64 = 64 << 10;
    let read_after = |syncs: u64| {
        let (device, fs) = volume_of(BLOCK as u64, BLOCK as u64);
        let file = make(&fs, &fs.root().unwrap().inode, "file");
        fs.sync().unwrap();
        for nth in 0..syncs {
            fs.write(&file, nth * 100, &pattern(nth as usize, 100)).unwrap();
            fs.sync_file(&file).unwrap();
        }
        let crashed = device.below().snapshot();
        fs.unmount().unwrap();
        (mount_counting(crashed).1, mount_counting(device.below().snapshot()).1)
    };
    let (after_crash, cleanly) = read_after(0);
    // It also reads the newest log to its end, and has a checkpoint to make.
    assert!(after_crash <= cleanly + 5 * REGION, "{after_crash}, and {cleanly} of a clean volume");
    let (after_syncs, _) = read_after(20);
    let logs = 20 * 2 * BLOCK as u64;
    assert!(after_syncs <= after_crash + 2 * logs, "{after_syncs}, {after_crash} without syncs");
}

/// A large commit writes data before the log that gives them a meaning. If the power fails in between,
/// what was synced before is all that a mount needs.
#[test]
fn a_mount_after_a_crash_reads_nothing_that_was_written_in_vain() {
    let (device, fs) = volume_of(BLOCK as u64, BLOCK as u64);
    let root = fs.root().unwrap().inode;
    let [small, large] = ["small", "large"].map(|name| make(&fs, &root, name));
    fs.write(&small, 0, b"synced").unwrap();
    fs.sync_file(&small).unwrap();
    for nth in 0..20 {
        fs.write(&large, nth << 20, &pattern(nth as usize, 1 << 20)).unwrap();
    }
    let mut image = device.below().snapshot();
    drop(device.take_events());
    fs.commit().unwrap();
    let events = device.take_events();
    // A superblock has no more than a block.
    let is_log = |event: &Event| bytes_of(event).is_some_and(|bytes| bytes > BLOCK);
    let super_root = events.iter().rposition(is_log).unwrap();
    let mut in_vain = 0;
    for event in &events[..super_root] {
        let Event::Write { offset, bytes } = event else { continue };
        image[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
        in_vain += bytes.len();
    }
    assert!(in_vain > 20 << 20, "{in_vain} bytes");
    let (again, read) = mount_counting(image);
    assert!(read < 1 << 20, "read {read} bytes of 20 MiB");
    assert_eq!(content_of(&again, "small"), b"synced");
    assert_eq!(content_of(&again, "large"), b"");
    again.unmount().unwrap();
    fs.unmount().unwrap();
}

fn content_of(fs: &Filesystem, name: &str) -> Vec<u8> {
    let root = fs.root().unwrap().inode;
    content(fs, &fs.lookup(&root, name.as_bytes()).unwrap().inode)
}

/// A sound volume after a power cut, mounted, and how many bytes that has read.
fn mount_counting(image: Vec<u8>) -> (Arc<Filesystem>, u64) {
    let device = Arc::new(RecordingDevice::new(MemoryDevice::from(image)));
    check(&*device);
    let _by_the_checker = device.take_bytes_read();
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    let fs = Filesystem::mount(shared, MountOptions::default()).unwrap();
    let read = device.take_bytes_read();
    (fs, read)
}

/// Where the superblock was read with what comes next, a mount of an empty volume took twice as long.
#[test]
fn a_mount_reads_nothing_that_it_has_not_asked_for() {
    let below = MemoryDevice::new(32 << 20);
    format(&below, &parameters(BLOCK as u64)).unwrap();
    let device = Arc::new(RecordingDevice::new(below));
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    Filesystem::mount(shared, MountOptions::default()).unwrap().unmount().unwrap();
    assert!(device.take_bytes_read() > 0);
    assert_eq!(device.bytes_read_ahead(), 0);
}

/// All that a mount must know lies at the end of the log that a format has written.
#[test]
fn the_first_mount_reads_the_end_of_a_log() {
    let memory = MemoryDevice::new(264 << 20);
    format(&memory, &parameters(BLOCK as u64)).unwrap();
    let (fs, read) = mount_counting(memory.snapshot());
    assert!(read < 10 * BLOCK as u64, "read {read} bytes");
    fs.unmount().unwrap();
}

/// What was durable before the superblock said that the volume was closed is not read to verify it.
#[test]
fn a_mount_after_a_clean_unmount_reads_little_of_a_long_log() {
    const NAMES: usize = 5000;
    let (device, fs) = volume_of(BLOCK as u64, BLOCK as u64);
    let root = fs.root().unwrap().inode;
    let files: Vec<_> = (0..NAMES).map(|nth| make(&fs, &root, &format!("{nth}"))).collect();
    drop(files);
    fs.unmount().unwrap();
    let log = NAMES * 128;
    let (fs, read) = mount_counting(device.below().snapshot());
    assert!(read < log as u64 / 3, "read {read} bytes, and the log has more than {log}");
    assert!(fs.lookup(&fs.root().unwrap().inode, format!("{}", NAMES - 1).as_bytes()).is_ok());
    fs.unmount().unwrap();
}

/// A mount alone costs no write and no flush, and what was clean stays clean if the power fails
/// then.
#[test]
fn who_only_reads_writes_nothing() {
    let (device, fs) = used_volume(100);
    fs.unmount().unwrap();
    let before = device.below().snapshot();
    drop(device.take_events());
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    let again = Filesystem::mount(shared, MountOptions::default()).unwrap();
    let file = again.lookup(&again.root().unwrap().inode, b"file 17").unwrap().inode;
    let mut content = vec![0; 1000];
    again.read(&file, 0, &mut content).unwrap();
    assert_eq!(content, pattern(17, 1000));
    again.sync().unwrap();
    again.unmount().unwrap();
    assert_eq!(written_blocks(&device), (0, 0, 0));
    assert!(device.below().snapshot() == before);
}

/// Recovery must not take a volume for clean that has been written since.
#[test]
fn what_the_first_fdatasync_of_a_mount_wrote_survives_a_power_cut() {
    let (device, fs) = used_volume(100);
    fs.unmount().unwrap();
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    let again = Filesystem::mount(shared, MountOptions::default()).unwrap();
    let file = again.lookup(&again.root().unwrap().inode, b"file 17").unwrap().inode;
    again.write(&file, 0, &pattern(42, 1000)).unwrap();
    again.sync_file(&file).unwrap();
    let after: Arc<dyn Device> = Arc::new(MemoryDevice::from(device.below().snapshot()));
    let recovered = Filesystem::mount(Arc::clone(&after), MountOptions::default()).unwrap();
    let file = recovered.lookup(&recovered.root().unwrap().inode, b"file 17").unwrap().inode;
    let mut content = vec![0; 1000];
    recovered.read(&file, 0, &mut content).unwrap();
    assert_eq!(content, pattern(42, 1000));
}

/// The kernel asks for the end of a small file that was just written, and then it is in the system's
/// memory. A large file need not be there twice.
#[test]
fn only_large_files_are_written_past_the_systems_memory() {
    const LARGE: usize = 8 << 20;
    let (device, fs) = used_volume(10);
    let root = fs.root().unwrap().inode;
    for nth in 0..500 {
        let file = make(&fs, &root, &format!("small {nth}"));
        fs.write(&file, 0, &pattern(nth, 9000)).unwrap();
    }
    fs.sync().unwrap();
    assert!(written_blocks(&device).0 * BLOCK > 4 << 20);
    assert_eq!(device.bytes_begun(), 0);
    let file = make(&fs, &root, "large");
    fs.write(&file, 0, &pattern(0, LARGE)).unwrap();
    fs.sync().unwrap();
    assert!(device.bytes_begun() > LARGE as u64 / 2, "{}", device.bytes_begun());
    check(&*device);
}

/// Looks at clean segments before they are entered: how many there are, and for each of them requests and
/// bytes that were read, on average.
#[derive(Debug, PartialEq)]
struct Looks {
    segments: u64,
    requests: f64,
    bytes: f64,
}

/// Has all clean segments of a closed volume looked at, after their live blocks were counted if `counted`.
fn looks(device: &MemoryDevice, counted: bool) -> Looks {
    let (below, faults) = FaultyDevice::new(MemoryDevice::from(device.snapshot()));
    let fs = Filesystem::mount(Arc::new(below), MountOptions::default()).unwrap();
    if counted {
        fs.usage().unwrap();
    }
    let read = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let counts = Arc::clone(&read);
    faults.set(move |request| {
        if request.action == Action::Read {
            counts.0.fetch_add(1, Ordering::Relaxed);
            let bytes = request.bytes.end - request.bytes.start;
            counts.1.fetch_add(bytes, Ordering::Relaxed);
        }
        None
    });
    // No run is so long: they are looked at, and not trimmed.
    assert_eq!(fs.trim(0, u64::MAX, u64::MAX).unwrap(), 0);
    assert_eq!(fs.status().refused_segments, 0);
    let segments = Volume::open(Arc::new(MemoryDevice::from(device.snapshot())));
    let segments = segments.unwrap().clean_segments().unwrap();
    let average = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / segments as f64;
    let looks = Looks { segments, requests: average(&read.0), bytes: average(&read.1) };
    fs.unmount().unwrap();
    looks
}

/// A closed volume with segments of 4 MiB, most of which were written in pieces of so many bytes, each made
/// durable, and freed again.
fn aged(piece: usize) -> MemoryDevice {
    let (device, fs) = volume_of(BLOCK as u64, BLOCK as u64);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    let everything = ManualRun { protection: Some(Duration::ZERO), ..ManualRun::default() };
    for round in 0..2 {
        for nth in 0..(96 << 20) / piece {
            // Here and there, as a data base writes.
            let at = (nth * 7919) % ((48 << 20) / piece) * piece;
            fs.write(&file, at as u64, &pattern(nth + round, piece)).unwrap();
            fs.sync_file(&file).unwrap();
        }
        fs.commit().unwrap();
        fs.clean(&everything).unwrap();
    }
    fs.unmount().unwrap();
    check(&*device);
    MemoryDevice::from(device.below().snapshot())
}

/// Before the log enters a segment, it is known to hold nothing that is needed. That costs a block where no
/// log ever was, the old summaries and what the DAT says of their blocks where there were some, and nothing
/// once the live blocks of the volume have been counted, as the cleaner does.
#[test]
fn entering_a_segment_costs_little() {
    const MIB: f64 = 1_048_576.0;
    let (fresh, fs) = volume_of(BLOCK as u64, BLOCK as u64);
    fs.unmount().unwrap();
    let never_written = looks(fresh.below(), false);
    eprintln!("never written: {never_written:?}");
    assert_eq!((never_written.requests, never_written.bytes), (1.0, BLOCK as f64));
    for (piece, most_requests, most_share) in [(1 << 20, 2.0, 0.01), (64 << 10, 13.0, 0.05)] {
        let device = aged(piece);
        let found = looks(&device, false);
        let (requests, share) = (found.requests / 4.0, found.bytes / (4.0 * MIB));
        eprintln!("in pieces of {piece}: {found:?}: {requests} requests a MiB, share {share}");
        assert!(found.segments > 30 && found.requests > 1.0, "{found:?}");
        assert!(requests <= most_requests && share <= most_share, "{found:?}");
        let counted = looks(&device, true);
        assert_eq!((counted.requests, counted.bytes), (0.0, 0.0), "{counted:?}");
    }
}
