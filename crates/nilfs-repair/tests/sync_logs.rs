//! Sync logs that cannot be rolled forward keep a volume from being mounted. They are given up, and
//! nothing else; and the bit that announces their records is there when somebody depends on it.

mod support;

use std::sync::Arc;

use nilfs_check::{Options, Rule, Severity};
use nilfs_device::{Device, FaultyDevice, MemoryDevice};
use nilfs_engine::rescue::Rescue;
use nilfs_engine::{Filesystem, MountOptions, NewInode, Verify, Volume};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use nilfs_ondisk::summary::SR;
use nilfs_ondisk::superblock::{FEATURE_ROLL_FORWARD, STATE_VALID};
use nilfs_ondisk::{BlockNr, Ino};
use nilfs_repair::{AsRepaired, Observer, Risk, Settings};
use support::{Content, Image, LogAt, Patient, add, formatted, mount, present};

/// Where the version is in the head of records, and where the number.
const VERSION: usize = 4;
const NUMBER: usize = 24;

/// A volume after three fsyncs and a power cut, with its files after each of them.
struct Synced {
    image: Image,
    logs: Vec<BlockNr>,
    files: Vec<Content>,
}

/// As [`synced`], of new files in a new directory, each of which is written once.
fn synced_files() -> Synced {
    let device = formatted(16 << 20, 4096, 64);
    let fs = mount(&device);
    let new = |mode| NewInode { mode, uid: 0, gid: 0, rdev: Default::default() };
    let mut files = Vec::new();
    let dir = fs.create(&fs.root().unwrap().inode, b"dir", &new(S_IFDIR | 0o755)).unwrap().inode;
    for nth in 1..=4 {
        let name = format!("file {nth}");
        let file = fs.create(&dir, name.as_bytes(), &new(S_IFREG | 0o644)).unwrap().inode;
        fs.write(&file, 0, &[b'0' + nth; 9000]).unwrap();
        fs.sync_file(&file).unwrap();
        files.push(present(&*fs));
    }
    let image = Image::from(device.snapshot());
    let logs = image.logs().into_iter().filter(|log| head_in(image.block(log.block)).is_some());
    let logs: Vec<_> = logs.map(|log| log.block).collect();
    assert_eq!(logs.len(), files.len());
    Synced { image, logs, files }
}

fn synced() -> Synced {
    let device = formatted(16 << 20, 4096, 64);
    let fs = mount(&device);
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let file = fs.create(&fs.root().unwrap().inode, b"file", &new).unwrap().inode;
    fs.write(&file, 0, &[b'.'; 20_000]).unwrap();
    fs.commit().unwrap();
    let mut files = Vec::new();
    for nth in 1..=3 {
        fs.write(&file, 19_000 + nth * 3000, &[b'0' + nth as u8; 9000]).unwrap();
        fs.sync_file(&file).unwrap();
        files.push(present(&*fs));
    }
    let image = Image::from(device.snapshot());
    let logs = image.logs().into_iter().filter(|log| head_in(image.block(log.block)).is_some());
    let logs: Vec<_> = logs.map(|log| log.block).collect();
    assert_eq!(logs.len(), files.len());
    Synced { image, logs, files }
}

/// Where the records begin in the summary of a log.
fn head_in(summary: &[u8]) -> Option<usize> {
    (0..summary.len()).step_by(8).find(|at| summary[*at..].starts_with(b"NfRf"))
}

impl Synced {
    /// Makes something of the records of a log what they cannot be.
    fn damage(&mut self, nth: usize, at: usize) {
        self.image.edit_summary(self.logs[nth], |summary| {
            let head = head_in(summary).unwrap();
            summary[head + at] ^= 0x40;
        });
    }

    /// Destroys the summaries and all the content of the logs before one.
    fn destroy_before(&mut self, nth: usize) {
        let (first, end) = (self.logs[0], self.logs[nth]);
        (0..end.0 - first.0).for_each(|block| self.destroy(0, block));
    }

    /// Destroys a block of a log, counted from its summary.
    fn destroy(&mut self, nth: usize, block: u64) {
        destroy(&mut self.image, self.logs[nth].plus(block));
    }
}

/// What a mount shows.
fn recovered(patient: &Patient) -> Content {
    present(&*mount(&Arc::new(MemoryDevice::from(patient.bytes()))))
}

fn has_bit(image: &Image) -> bool {
    image.superblock.raw().s_feature_compat_ro.get() & FEATURE_ROLL_FORWARD != 0
}

fn set_bit(image: &mut Image, set: bool) {
    image.edit_superblocks(|raw| {
        let others = raw.s_feature_compat_ro.get() & !FEATURE_ROLL_FORWARD;
        raw.s_feature_compat_ro.set(others | if set { FEATURE_ROLL_FORWARD } else { 0 });
    });
}

#[test]
fn what_cannot_be_rolled_forward_is_given_up_and_nothing_else() {
    for at in [VERSION, NUMBER] {
        let mut synced = synced();
        synced.image.forget_copies();
        synced.damage(1, at);
        let patient = Patient::new(synced.image.clone());
        let plan = patient.heal();
        assert_eq!(plan.risk(), Risk::Loses);
        let lost: Vec<_> = plan.lost.iter().map(|log| log.start).collect();
        assert_eq!(lost, synced.logs[1..], "byte {at}");
        assert!(recovered(&patient) == synced.files[0], "byte {at}: the first fsync stays");
    }
}

/// Of logs that were given up, only files were named that an older checkpoint has.
#[test]
fn what_is_given_up_is_named() {
    let mut synced = synced_files();
    synced.image.forget_copies();
    synced.damage(1, VERSION);
    let patient = Patient::new(synced.image.clone());
    let plan = patient.heal();
    let [loss] = &plan.repairs.iter().filter(|it| it.risk == Risk::Loses).collect::<Vec<_>>()[..]
    else {
        panic!("one loss: {:?}", plan.repairs)
    };
    let said = loss.action_by_path();
    for (name, is_lost) in [("dir/file 1", false), ("dir/file 3", true), ("dir/file 4", true)] {
        assert_eq!(said.contains(name), is_lost, "{name}: {said}");
    }
    assert!(recovered(&patient) == synced.files[0], "the first fsync stays");
}

/// The summary of a log stood in the place of another one, and was believed: the copy of what belongs there was not
/// used, and everything that fsyncs had written since was given up.
#[test]
fn a_summary_of_another_log_is_no_summary() {
    let synced = synced();
    let size = synced.image.geometry().block_size;
    let mut all = synced.image.logs();
    // As far as that of a checkpoint reaches, nothing else is looked for.
    all.retain(|log| !log.header.has(SR));
    let lost: Vec<_> = all.iter().filter(|log| synced.logs[..2].contains(&log.block)).collect();
    for (from, to) in all.iter().flat_map(|from| lost.iter().map(move |to| (from, *to))) {
        let [summary, room] = [from, to].map(|log| log.header.summary_blocks(size));
        if from.block == to.block || summary > room {
            continue;
        }
        let mut image = synced.image.clone();
        let [start, end] = [from, to].map(|log| log.block.0 as usize * size.bytes());
        image.bytes.copy_within(start..start + summary as usize * size.bytes(), end);
        let what = format!("the summary in block {} in block {}", from.block, to.block);
        let patient = Patient::new(image);
        assert_eq!(patient.heal().risk(), Risk::Safe, "{what}");
        assert!(recovered(&patient) == synced.files[2], "{what}");
    }
}

/// A lost summary cost everything that fsyncs had written since, because no log after it could be rolled forward.
#[test]
fn a_summary_that_is_lost_is_restored_from_the_copy_in_a_later_log() {
    for lost in [0..1, 1..2, 0..2] {
        let mut synced = synced();
        lost.clone().for_each(|nth| synced.destroy(nth, 0));
        let report = synced.image.check().unwrap();
        let [error] = &report.errors().collect::<Vec<_>>()[..] else {
            panic!("one error: {report}")
        };
        let first = synced.logs[lost.start];
        assert_eq!((error.rule, error.place.log), (Rule::RollForward, Some(first)));
        let patient = Patient::new(synced.image.clone());
        let plan = patient.heal();
        assert_eq!(plan.risk(), Risk::Safe, "logs {lost:?}");
        assert!(recovered(&patient) == synced.files[2], "logs {lost:?}");
    }
}

/// A crashed volume with sync logs of which one refers to what was written ahead of it: the newest checkpoint's
/// log and all later ones but the last, and the files after a mount.
fn written_ahead() -> (Image, Vec<LogAt>, Content) {
    let device = formatted(64 << 20, 4096, 64);
    let fs = mount(&device);
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let root = fs.root().unwrap().inode;
    let make = |name: &[u8]| fs.create(&root, name, &new).unwrap().inode;
    let (small, large) = (make(b"small"), make(b"large"));
    fs.commit().unwrap();
    let checkpoint = Image::from(device.snapshot()).logs().last().unwrap().block;
    for nth in 0..30 {
        fs.write(&small, nth * 4000, &[b'0' + nth as u8; 5000]).unwrap();
        fs.sync_file(&small).unwrap();
    }
    fs.write(&large, 0, &vec![b'l'; 1 << 20]).unwrap();
    fs.sync_file(&large).unwrap();
    fs.write(&small, 0, b"last").unwrap();
    fs.sync_file(&small).unwrap();
    let expected = present(&*fs);
    let image = Image::from(device.snapshot());
    let mut logs = image.logs();
    logs.retain(|log| log.block >= checkpoint);
    logs.pop();
    assert!(logs.len() > 35, "{} logs", logs.len());
    (image, logs, expected)
}

/// Destroys a block.
fn destroy(image: &mut Image, block: BlockNr) {
    let size = image.block_size();
    let at = block.0 as usize * size;
    image.bytes[at..at + size].iter_mut().for_each(|byte| *byte ^= 0x5a);
}

/// Returns in words which part of a file in the root directory is not what it was, if there is one.
fn differing_part(path: &str, size: usize, (now, then): (&Content, &Content)) -> Option<String> {
    let blocks = |content: &Content| {
        let (_, _, _, bytes) = &content[&format!("/{path}")];
        bytes.chunks(size).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let (now, then) = (blocks(now), blocks(then));
    let differing: Vec<usize> = (0..then.len()).filter(|nth| now[*nth] != then[*nth]).collect();
    let first = differing.first()?;
    Some(format!("{path}: {} bytes at byte {}", differing.len() * size, first * size))
}

/// Likewise of logs at the ends of segments, of those written ahead, and of the checkpoint before them.
#[test]
fn of_any_log_but_the_last_the_summary_is_restored() {
    let (image, logs, expected) = written_ahead();
    for log in logs.iter().map(|log| log.block) {
        let mut image = image.clone();
        let at = log.0 as usize * image.block_size();
        image.bytes[at..at + 512].fill(0x5a);
        let patient = Patient::new(image);
        let plan = patient.heal();
        assert_eq!(plan.risk(), Risk::Safe, "log {log}: {:?}", plan.repairs);
        assert!(recovered(&patient) == expected, "log {log}");
    }
}

/// A view was that of the bare checkpoint, without a word, where the content of two logs was gone with their
/// summaries: each log that is restored tells of its content, which counted as more errors than before.
#[test]
fn a_view_has_what_a_repair_restores_however_many_logs_are_damaged() {
    for count in [1, 2] {
        let mut synced = synced();
        synced.destroy_before(count);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(synced.image.bytes.clone()));
        let view = AsRepaired::new(device, &Observer::default());
        let plan = view.plan.as_ref().expect("it can be repaired");
        assert_eq!(plan.risk(), Risk::Safe);
        let patient = Patient::new(synced.image);
        patient.plan().apply(&*patient.device, &mut |_| {}).unwrap();
        let shown = Volume::open_with(view.device, Verify::Rescue).unwrap();
        let shown = shown.recovered_tree().unwrap();
        assert!(present(&shown) == recovered(&patient), "{count} logs");
    }
}

/// A log that says that a lost one was durable stayed when all after that was given up, if its own content was lost,
/// too. So a mount refused what was left, and fsck went back to an older checkpoint.
#[test]
fn a_damaged_log_that_proves_a_loss_is_given_up_with_it() {
    let mut synced = synced_files();
    synced.image.forget_copies();
    let (logs, size) = (synced.image.logs(), synced.image.geometry().block_size);
    let proving = logs.iter().find(|log| log.block == synced.logs[2]).unwrap();
    let content = proving.header.summary_blocks(size);
    let end = synced.logs[3].0 - synced.logs[2].0;
    synced.destroy(1, 0);
    (content..=end).for_each(|block| synced.destroy(2, block));
    let patient = Patient::new(synced.image.clone());
    let plan = patient.heal();
    assert_eq!(plan.risk(), Risk::Loses);
    let lost: Vec<_> = plan.lost.iter().map(|log| log.start).collect();
    assert_eq!(lost, [synced.logs[2]]);
    assert!(recovered(&patient) == synced.files[0]);
}

/// The summary of an earlier fsync in the place of a later one was taken for what was written, if all of that log is in
/// the summary, and all later fsyncs were given up, although these have copies of the one that is missing.
#[test]
fn a_summary_of_another_fsync_costs_none() {
    let device = formatted(16 << 20, 4096, 64);
    let fs = mount(&device);
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    for nth in 0..5u8 {
        let root = fs.root().unwrap().inode;
        let file = fs.create(&root, &[b'a' + nth], &new).unwrap().inode;
        fs.write(&file, 0, &[nth; 100]).unwrap();
        fs.sync_file(&file).unwrap();
    }
    let expected = present(&*fs);
    let mut image = Image::from(device.snapshot());
    let size = image.block_size();
    let logs = image.logs().into_iter().filter(|log| head_in(image.block(log.block)).is_some());
    let logs: Vec<_> = logs.map(|log| log.block.0 as usize * size).collect();
    image.bytes.copy_within(logs[0]..logs[0] + size, logs[2]);
    let patient = Patient::new(image);
    assert_eq!(patient.heal().risk(), Risk::Safe);
    assert!(recovered(&patient) == expected);
}

/// The segment of the newest checkpoint was taken to be in use as far as the sync logs after it go, so that these
/// became parts of the checkpoint, and could not be rolled forward any more.
#[test]
fn a_lost_block_of_the_sufile_costs_no_fsync() {
    let mut synced = synced();
    let block = synced.image.data(Ino::SUFILE, 0).block;
    destroy(&mut synced.image, block);
    let patient = Patient::new(synced.image.clone());
    let view = AsRepaired::new(Arc::clone(&patient.device), &Observer::default());
    let shown = Volume::open_with(view.device, Verify::Rescue).unwrap().recovered_tree().unwrap();
    assert!(present(&shown) == synced.files[2], "a view has what was synced");
    let plan = patient.heal();
    assert_eq!(plan.risk(), Risk::Safe);
    assert!(recovered(&patient) == synced.files[2]);
}

/// A repair that had restored summaries said nothing of the content of their logs, which was gone: the files
/// were named only once a scrub had read everything.
#[test]
fn damaged_content_of_logs_that_are_rolled_forward_is_named() {
    let last_of_first = |synced: &Synced| synced.logs[1].0 - synced.logs[0].0 - 1;
    let damages: [&dyn Fn(&mut Synced); 3] = [
        &|synced| synced.destroy_before(2),
        // The log whose content is gone has its summary still.
        &|synced| {
            synced.destroy(0, last_of_first(synced) - 1);
            synced.destroy(1, 0);
        },
        // The last block has been written over since.
        &|synced| {
            synced.destroy(0, last_of_first(synced));
            synced.destroy(1, 0);
        },
    ];
    for damage in damages {
        let mut synced = synced();
        damage(&mut synced);
        let size = synced.image.block_size();
        let patient = Patient::new(synced.image.clone());
        let device = Arc::clone(&patient.device) as Arc<dyn Device>;
        let options = Options { read_content: false, ..Options::default() };
        let plan = nilfs_repair::plan(&device, &options, [7; 16]).unwrap();
        plan.apply(&*device, &mut |_| {}).unwrap();
        assert_eq!(plan.risk(), Risk::Safe);
        let part = differing_part("file", size, (&recovered(&patient), &synced.files[2]));
        let named: Vec<_> = plan.doubtful.iter().map(|kept| kept.fault.clone()).collect();
        assert_eq!(named, Vec::from_iter(part));
    }
}

/// Of content that was written ahead of an fsync, fsck restored the summaries and did not say that it was gone: the
/// log that has its blocks is no log of an fsync.
#[test]
fn damaged_content_that_was_written_ahead_is_named_and_stays_known() {
    let (image, logs, expected) = written_ahead();
    let size = image.block_size();
    let ahead = logs.iter().filter(|log| log.files.iter().any(|file| file.blocks.len() == 7));
    let mut tried = 0;
    for log in ahead {
        tried += 1;
        let mut image = image.clone();
        destroy(&mut image, log.block);
        (3..6).for_each(|nth| destroy(&mut image, log.block.plus(nth)));
        let patient = Patient::new(image);
        let options = Options { read_content: false, ..Options::default() };
        let plan = nilfs_repair::plan(&patient.device, &options, [7; 16]).unwrap();
        assert!(!plan.repairs.is_empty());
        plan.apply(&*patient.device, &mut |_| {}).unwrap();
        let part = differing_part("large", size, (&recovered(&patient), &expected));
        let named: Vec<_> = plan.doubtful.iter().map(|kept| kept.fault.clone()).collect();
        assert_eq!(named, [part.expect("it is not what it was")], "log {}", log.block);
        let report = nilfs_check::check(&*patient.device, &Options::default()).unwrap();
        assert!(!report.is_consistent(), "a check that reads the content tells of it");
    }
    assert!(tried > 3, "{tried} logs");
}

/// A repair gave a damaged block a checksum that was right, once an fsync had written a few bytes of it: nothing
/// told of the damage any more, and a salvage called the file whole.
#[test]
fn a_damaged_block_of_which_a_part_was_synced_stays_known() {
    let device = formatted(16 << 20, 4096, 64);
    let fs = mount(&device);
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let file = fs.create(&fs.root().unwrap().inode, b"file", &new).unwrap().inode;
    fs.write(&file, 0, &[b'.'; 20_000]).unwrap();
    fs.sync().unwrap();
    // With these blocks, the log has no room for another one.
    fs.write(&file, 8192, &[b'-'; 3 * 4096]).unwrap();
    fs.write(&file, 5000, b"synced").unwrap();
    fs.sync_file(&file).unwrap();
    let mut image = Image::from(device.snapshot());
    let size = image.block_size();
    let (part, mut then) = (size..2 * size, present(&*fs));
    let header = image.data(Ino::SUFILE, 0);
    image.edit(header, |block| add(block, 0, 1));
    let damaged = image.data(file.ino(), 1).block;
    destroy(&mut image, damaged);
    let found = image.block(damaged).to_vec();

    let patient = Patient::new(image);
    let view = AsRepaired::new(Arc::clone(&patient.device), &Observer::default());
    let mut rescue = Rescue::open(view.device, Box::new(|_| {})).unwrap();
    let shown = rescue.tree(0).unwrap();
    let mut evidence = rescue.evidence(Arc::clone(&patient.device), &shown).unwrap();
    let doubts = evidence.judge(&shown.tree, &shown.tree.file(file.ino()).unwrap()).unwrap();
    let wrong: Vec<_> = doubts.wrong.iter().map(|it| (it.offset, it.length)).collect();
    assert_eq!(wrong, [(size as u64, size as u64)]);

    let options = Options { read_content: false, ..Options::default() };
    let plan = nilfs_repair::plan(&patient.device, &options, [7; 16]).unwrap();
    plan.apply(&*patient.device, &mut |_| {}).unwrap();
    let named: Vec<_> = plan.doubtful.iter().map(|kept| kept.fault.clone()).collect();
    assert_eq!(named, [format!("file: {size} bytes at byte {size}")]);
    then.get_mut("/file").unwrap().3[part].copy_from_slice(&found);
    assert!(recovered(&patient) == then);
    let report = nilfs_check::check(&*patient.device, &Options::default()).unwrap();
    assert!(!report.is_consistent(), "a check that reads the content tells of it");
}

/// Content that was accepted where the engine had moved it was called damaged all the same.
#[test]
fn damaged_content_of_logs_that_are_rolled_forward_can_be_accepted() {
    let mut synced = synced();
    synced.destroy_before(2);
    let patient = Patient::new(synced.image);
    let device = Arc::clone(&patient.device) as Arc<dyn Device>;
    let settings = Settings { uuid: [7; 16], accept: true, in_view: false };
    let (options, observer) = Default::default();
    let plan = nilfs_repair::plan_observed(&device, &options, settings, &observer).unwrap();
    assert_eq!((plan.risk(), plan.doubtful.len()), (Risk::Accepted, 0));
    plan.apply(&*device, &mut |_| {}).unwrap();
    let report = nilfs_check::check(&*device, &options).unwrap();
    assert!(report.is_consistent(), "{report}");
}

/// Those who sync were told that it is durable, so it is no power cut, and a mount refuses it.
#[test]
fn a_log_that_must_not_be_missing_is_damage() {
    for nth in [0, 1] {
        let mut synced = synced();
        synced.image.forget_copies();
        synced.destroy(nth, 0);
        let report = synced.image.check().unwrap();
        let [error] = &report.errors().collect::<Vec<_>>()[..] else {
            panic!("one error: {report}")
        };
        assert_eq!((error.rule, error.place.log), (Rule::RollForward, Some(synced.logs[nth])));
        let later = &synced.logs[nth + 1..];
        let plural = if later.len() == 1 { "" } else { "s" };
        let says = format!("{} log{plural} after it, from block {}", later.len(), later[0]);
        assert!(error.message.contains(&says), "{error}");
        let device = Arc::new(MemoryDevice::from(synced.image.bytes.clone()));
        assert!(Filesystem::mount(device, MountOptions::default()).is_err());
        let patient = Patient::new(synced.image.clone());
        let plan = patient.heal();
        assert_eq!(plan.risk(), Risk::Loses);
        assert!(plan.lost.is_empty(), "no later log is given up: {:?}", plan.lost);
    }
}

#[test]
fn a_log_that_a_power_cut_may_have_taken_is_no_damage() {
    let mut synced = synced();
    synced.destroy(2, 0);
    let report = synced.image.check().unwrap();
    assert!(report.is_consistent(), "{report}");
    assert!(recovered(&Patient::new(synced.image)) == synced.files[1]);
}

/// A mount does not read what a later log vouches for, so the file is there with what is damaged. A repair makes a
/// checkpoint of that as a mount does, and the damage stays known; it left the error where it was.
#[test]
fn damaged_content_of_a_durable_log_is_told_and_costs_no_log() {
    let mut synced = synced();
    let last = synced.logs[2].0 - synced.logs[1].0 - 1;
    synced.destroy(1, last);
    let report = synced.image.check().unwrap();
    let [error] = &report.errors().collect::<Vec<_>>()[..] else { panic!("one error: {report}") };
    assert_eq!((error.rule, error.place.log), (Rule::RollForward, Some(synced.logs[1])));
    assert!(error.message.contains("as it is"), "{error}");
    let size = synced.image.block_size();
    let mounted = recovered(&Patient::new(synced.image.clone()));
    let part = differing_part("file", size, (&mounted, &synced.files[2]));
    let patient = Patient::new(synced.image);
    let plan = patient.heal();
    assert_eq!(plan.risk(), Risk::Safe, "{:?}", plan.repairs);
    let named: Vec<_> = plan.doubtful.iter().map(|kept| kept.fault.clone()).collect();
    assert_eq!(named, Vec::from_iter(part));
    assert!(recovered(&patient) == mounted);
}

#[test]
fn a_log_that_cannot_be_rolled_forward_keeps_no_other_repair_back() {
    let mut synced = synced();
    let header = synced.image.data(Ino::SUFILE, 0);
    synced.image.edit(header, |block| add(block, 0, 1));
    synced.damage(2, VERSION);
    let patient = Patient::new(synced.image.clone());
    let plan = patient.heal();
    assert!(plan.repairs.len() >= 2, "{:?}", plan.repairs);
    assert!(recovered(&patient) == synced.files[1]);
}

#[test]
fn records_that_need_the_bit_get_it() {
    let mut synced = synced();
    assert!(has_bit(&synced.image));
    assert!(synced.image.check().unwrap().worst() <= Some(Severity::Note));
    set_bit(&mut synced.image, false);
    let report = synced.image.check().unwrap();
    assert!(report.errors().all(|it| it.rule == Rule::RollForward), "{report}");
    let patient = Patient::new(synced.image.clone());
    assert_eq!(patient.heal().risk(), Risk::Safe);
    assert!(has_bit(&Image::from(patient.bytes())));
    assert!(recovered(&patient) == synced.files[2]);
}

#[test]
fn the_bit_is_taken_off_a_volume_that_was_closed_cleanly() {
    let mut image = Image::by_linux(1024);
    set_bit(&mut image, true);
    assert_eq!(image.check().unwrap().worst(), Some(Severity::Warning));
    let healed = Patient::new(image.clone()).is_healed(Risk::Safe);
    assert!(!has_bit(&healed));

    // It says that there may be records, which is true until the volume is closed.
    let mut in_use = Image::from(image.bytes);
    in_use.edit_superblocks(|raw| raw.s_state.set(0));
    let report = in_use.check().unwrap();
    assert_eq!(report.worst(), None, "{report}");

    // If there are some, it is the mark of a clean volume that is wrong.
    let mut synced = synced().image;
    synced.edit_superblocks(|raw| raw.s_state.set(STATE_VALID));
    let report = synced.check().unwrap();
    let warned = report.findings.iter().any(|it| it.message.contains("marked clean"));
    assert!(warned && report.is_consistent(), "{report}");
    assert!(Patient::new(synced).plan().repairs.is_empty());
}

/// The write that calls a volume "in use" was lost for one copy of the superblock, and the other one is damaged: what
/// was fsynced since was neither found nor kept.
#[test]
fn a_copy_of_the_superblock_that_stands_alone_does_not_tell_that_the_volume_was_closed() {
    for lost in 0..2 {
        let mut synced = synced();
        set_bit(&mut synced.image, false);
        synced.image.edit_superblocks(|raw| raw.s_state.set(STATE_VALID));
        let secondary = secondary_superblock(synced.image.bytes.len() as u64).unwrap();
        let damaged = [PRIMARY_SUPERBLOCK, secondary][lost] as usize;
        synced.image.bytes[damaged + 20] ^= 1;
        let patient = Patient::new(synced.image);
        assert!(recovered(&patient) == synced.files[2], "before the repair, without copy {lost}");
        assert_eq!(patient.heal().risk(), Risk::Safe);
        assert!(recovered(&patient) == synced.files[2], "after the repair, without copy {lost}");
    }
}

/// A log of an fsync that the device could not read kept fsck from any repair, and nothing could be mounted
/// again; salvage knew nothing of it.
#[test]
fn a_log_that_cannot_be_read_is_repaired_as_one_that_is_damaged() {
    for (nth, left, risk) in [(1, 2, Risk::Safe), (2, 1, Risk::Loses)] {
        for block in 0..3 {
            let synced = synced();
            let size = synced.image.block_size() as u64;
            let (device, faults) = FaultyDevice::new(MemoryDevice::from(synced.image.bytes));
            let start = synced.logs[nth].plus(block).0 * size;
            faults.scratch(std::iter::once(start..start + size));
            let device = Arc::new(device);
            let shared = Arc::clone(&device) as Arc<dyn Device>;
            let plan = nilfs_repair::plan(&shared, &Options::default(), [7; 16]).unwrap();
            let is_content_of_a_durable_log = nth == 1 && block > 0;
            if !is_content_of_a_durable_log {
                assert_eq!(plan.risk(), risk, "log {nth}, block {block}");
                plan.apply(&*device, &mut |_| {}).unwrap();
                let fs = mount(&Arc::new(MemoryDevice::from(device.below().snapshot())));
                assert!(present(&*fs) == synced.files[left], "log {nth}, block {block}");
            }
        }
    }
}

/// Copies of summaries brought checkpoints back of which nothing else was left, and what refers to them could neither
/// be rolled forward nor be given up: `fsck -y` said that the corrected volume could not be written.
#[test]
fn a_checkpoint_without_its_super_root_is_not_restored() {
    let device = formatted(16 << 20, 4096, 64);
    let fs = mount(&device);
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let root = fs.root().unwrap().inode;
    let file = fs.create(&root, b"file", &new).unwrap().inode;
    for nth in 0..2 {
        fs.write(&file, nth * 5000, &[b'.'; 5000]).unwrap();
        fs.commit().unwrap();
    }
    for nth in 0..3 {
        fs.write(&file, 20_000 + nth, b"!").unwrap();
        fs.sync_file(&file).unwrap();
    }
    let mut image = Image::from(device.snapshot());
    let logs = image.logs();
    let lost = logs[1].block.0..logs.iter().find(|log| log.header.cno.0 == 4).unwrap().block.0;
    let size = image.block_size() as u64;
    image.bytes[(lost.start * size) as usize..(lost.end * size) as usize].fill(0x5a);
    let patient = Patient::new(image);
    let plan = patient.heal();
    assert_eq!(plan.risk(), Risk::Loses);
    recovered(&patient);
}
