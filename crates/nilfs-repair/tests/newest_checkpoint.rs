//! A newest checkpoint that cannot be used costs what was written since the one before it, and nothing
//! else. The plan says so. That a super root is lost is no reason for it.

mod support;

use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{Filesystem, MountOptions, NewInode, Volume};
use nilfs_ondisk::inode::S_IFREG;
use nilfs_ondisk::summary::{LOGBGN, SR};
use nilfs_ondisk::{BlockNr, Ino};
use nilfs_repair::Risk;
use support::{
    BLOCK_SIZES, Content, Image, Patient, content, content_of, formatted, heals, lived,
    lose_super_root, mount, present, synced_around_checkpoint,
};

/// Damages the volumes that Linux has filled, and demands that each shows its last checkpoint but one.
#[track_caller]
fn goes_back(damage: impl Fn(&mut Image)) {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(image.bytes.clone()));
        let before = Volume::open(device).unwrap();
        let newest = image.newest();
        let all = before.checkpoints(nilfs_engine::Cno(1), usize::MAX).unwrap();
        let last_but_one = all.iter().rev().find(|it| it.cno < newest).unwrap().cno;
        let expected = content_of(&before, Some(last_but_one));
        damage(&mut image);
        let patient = Patient::new(image);
        let plan = patient.heal();
        assert_eq!(plan.risk(), Risk::Loses, "{:?}", plan.repairs);
        let action = plan.repairs[0].action_by_path();
        let of_which = format!("go on from checkpoint {last_but_one} of 2");
        assert!(action.starts_with(&of_which) && action.contains("and give up"), "{action}");
        // The other one has not been there before.
        assert!(action.ends_with(" 2 files and directories: many and 1 more"), "{action}");
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(patient.bytes()));
        let found = content_of(&Volume::open(device).unwrap(), None);
        assert!(found == expected, "the files are those of checkpoint {last_but_one}");
    }
}

/// Nothing but the log's checksum tells what a super root was that is put together.
#[test]
fn a_super_root_that_is_lost_along_with_the_checksum_of_its_log() {
    goes_back(|image| {
        lose_super_root(image);
        image.seal(image.newest_log().block);
    });
}

/// Without the summary to which the superblocks lead, the newest checkpoint was given up of a volume that had been
/// closed, although its super root was there. The summary of another log in its place was believed.
#[test]
fn the_newest_summary_is_made_anew_where_its_super_root_is_there() {
    let damages: [fn(&mut Image, usize, usize); 2] = [
        |image, at, size| image.bytes[at..at + size].iter_mut().for_each(|byte| *byte ^= 0x5a),
        |image, at, size| {
            let logs = image.logs().into_iter().rev().skip(1);
            let other = logs.map(|log| log.block.0 as usize * size).find(|it| *it != at).unwrap();
            image.bytes.copy_within(other..other + size, at);
        },
    ];
    let images = BLOCK_SIZES.into_iter().flat_map(|it| [Image::by_linux(it), lived(it)]);
    for (nth, image) in images.enumerate() {
        let whole = content(&image.bytes);
        for damage in damages {
            let mut damaged = image.clone();
            let at = image.newest_log().block.0 as usize * image.block_size();
            damage(&mut damaged, at, image.block_size());
            let patient = Patient::new(damaged);
            assert!(patient.seen_as_repaired() == whole, "image {nth}: a view has it");
            patient.heal();
            assert!(content(&patient.bytes()) == whole, "image {nth}");
        }
    }
}

/// All that a super root says follows from the one before it and from the logs.
#[test]
fn a_super_root_that_is_lost_is_put_together() {
    heals(lose_super_root);
    for block_size in BLOCK_SIZES {
        let mut ours = lived(block_size);
        let whole = content(&ours.bytes);
        lose_super_root(&mut ours);
        let patient = Patient::new(ours);
        assert!(patient.seen_as_repaired() == whole, "a view shows it");
        assert_eq!(patient.heal().risk(), Risk::Safe);
        assert!(content(&patient.bytes()) == whole, "no file has changed");
    }
}

/// A super root in the midst of fsyncs is not that which a superblock names.
#[test]
fn a_super_root_among_sync_logs_that_is_lost_is_put_together() {
    let (mut image, files) = synced_around_checkpoint();
    lose_super_root(&mut image);
    let refused = Filesystem::mount(memory(&image), MountOptions::default()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("its super root is damaged"), "{refused}");
    shows(image, &files);
}

/// A device may show what was in the block before.
#[test]
fn an_older_super_root_in_the_place_of_the_newest_is_replaced() {
    let (mut image, files) = synced_around_checkpoint();
    let roots = image.logs().into_iter().filter(|log| log.header.has(SR));
    let roots: Vec<_> =
        roots.map(|log| log.block.0 as usize + log.header.nblocks as usize - 1).collect();
    let [.., older, newest] = roots[..] else { panic!("too few checkpoints") };
    let size = image.block_size();
    image.bytes.copy_within(older * size..(older + 1) * size, newest * size);
    shows(image, &files);
}

/// Corrections for the newest checkpoint hid all older ones from the search for another one, if that could not be used
/// even so: a volume of many checkpoints was said to have no log.
#[test]
fn a_checkpoint_that_has_lost_its_end_in_the_next_segment_costs_only_itself() {
    let (device, before) = ending_in_the_next_segment();
    let mut image = Image::from(device.snapshot());
    let end = image.newest_log().block.0 as usize;
    let size = image.block_size();
    image.bytes[(end - 3) * size..(end + 1) * size].fill(0);
    let patient = Patient::new(image);
    let plan = patient.heal();
    assert_eq!(plan.risk(), Risk::Loses, "{:?}", plan.repairs);
    assert!(
        content(&patient.bytes()) == before,
        "the files are those of the last checkpoint but one"
    );
}

/// A volume whose newest checkpoint has its super root in another segment than blocks of the DAT before it, and the
/// files of the checkpoint before.
fn ending_in_the_next_segment() -> (Arc<MemoryDevice>, Content) {
    let device = formatted(16 << 20, 4096, 64);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    // The DAT gets more than one block.
    let large = fs.create(&root, b"large", &new).unwrap().inode;
    fs.write(&large, 0, &[1; 2 << 20]).unwrap();
    fs.commit().unwrap();
    for nth in 0..200 {
        let before = present(&*fs);
        let file = fs.create(&root, format!("file {nth}").as_bytes(), &new).unwrap().inode;
        fs.write(&file, 0, &[7; 5000]).unwrap();
        fs.commit().unwrap();
        let image = Image::from(device.snapshot());
        let newest = image.logs().pop().unwrap();
        let is_of_dat = |end: BlockNr| {
            let mut dat = image.blocks_of(Ino::DAT).into_iter().map(|it| it.block);
            dat.any(|block| block.0 == end.0 - 1)
        };
        if !newest.header.has(LOGBGN) && is_of_dat(newest.block) {
            fs.unmount().unwrap();
            return (device, before);
        }
    }
    panic!("no checkpoint goes over into the next segment");
}

/// Demands that a repair of a volume loses nothing of these files.
fn shows(image: Image, files: &Content) {
    let patient = Patient::new(image);
    assert_eq!(patient.heal().risk(), Risk::Safe);
    let healed = content_of(&Volume::open(memory(&Image::from(patient.bytes()))).unwrap(), None);
    assert_eq!(healed, *files);
}

fn memory(image: &Image) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::from(image.bytes.clone()))
}
