//! What is damaged in the targets of symbolic links and in the names of snapshots: what there is a copy
//! of comes back, the rest is given up, and afterwards the volume is sound.

mod support;

use std::sync::Arc;

use nilfs_check::{Options, Severity};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{self, Parameters};
use nilfs_engine::{Cno, Filesystem, Ino, MadeBy, MountOptions, SnapshotChange, Verify, Volume};
use nilfs_ondisk::{BlockSize, SegNum};
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, LoggedBlock, UUID, bad_sectors, mount};

/// Repairs a volume of which these blocks cannot be read, with some loss, and demands that it is sound
/// then.
#[track_caller]
fn repaired(image: Image, unreadable: &[LoggedBlock]) -> Arc<dyn Device> {
    repaired_at(Risk::Loses, image, unreadable)
}

#[track_caller]
fn repaired_at(risk: Risk, image: Image, unreadable: &[LoggedBlock]) -> Arc<dyn Device> {
    let blocks: Vec<_> = unreadable.iter().map(|found| found.block).collect();
    let device: Arc<dyn Device> = Arc::new(bad_sectors(image, &blocks));
    let plan = nilfs_repair::plan(&device, &Default::default(), UUID).unwrap();
    assert_eq!(plan.risk(), risk, "{:?}", plan.repairs);
    plan.apply(&*device, &mut |_| {}).unwrap();
    let report = nilfs_check::check(&*device, &Default::default()).unwrap();
    assert!(report.is_consistent(), "{report}");
    device
}

fn target(device: Arc<dyn Device>, name: &str) -> String {
    let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
    let link = fs.lookup(&fs.root().unwrap().inode, name.as_bytes()).unwrap().inode;
    let target = fs.read_link(&link).unwrap();
    fs.unmount().unwrap();
    String::from_utf8(target).unwrap()
}

#[test]
fn what_is_lost_of_the_target_of_a_link_is_question_marks() {
    for block_size in BLOCK_SIZES {
        let image = Image::by_linux(block_size);
        let block = image.data(image.named("symlink"), 0);
        let whole = target(Arc::new(MemoryDevice::from(image.bytes.clone())), "symlink");
        let lost = target(repaired(image.clone(), &[block]), "symlink");
        assert_eq!(lost, "?".repeat(whole.len()));
        let mut torn = image;
        torn.edit(block, |bytes| bytes[5..9].fill(0));
        let torn = target(repaired(torn, &[]), "symlink");
        assert_eq!(torn, format!("{}????{}", &whole[..5], &whole[9..]));
    }
}

/// A repair made a checksum right over a target that nobody had written, and nothing told of it any more.
#[test]
fn a_target_that_is_not_what_was_written_stays_known_as_damaged() {
    let device = volume();
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    fs.symlink(&root, b"link", b"where it leads", 0, 0).unwrap();
    let ino = fs.lookup(&root, b"link").unwrap().inode.ino();
    fs.unmount().unwrap();
    let image = Image::from(device.snapshot());
    let block = image.data(ino, 0);
    let zeros = (&[0; 14][..], &b"??????????????"[..]);
    let harms =
        [zeros, (b"where\0it\0leads", b"where?it?leads"), (b"wrong it leads", b"wrong it leads")];
    for (harm, expected) in harms {
        let mut damaged = image.clone();
        let at = (block.block.0 * BLOCK) as usize;
        damaged.bytes[at..at + harm.len()].copy_from_slice(harm);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(damaged.bytes));
        for round in 0..2 {
            let plan = nilfs_repair::plan(&device, &Default::default(), UUID).unwrap();
            let is_changed = round == 0 && harm != expected;
            assert_eq!(!plan.repairs.is_empty(), is_changed, "{:?}", plan.repairs);
            let told = plan.doubtful.iter().map(|it| &it.fault[..]).collect::<String>();
            assert!(told.contains("link"), "{told}");
            if is_changed {
                plan.apply(&*device, &mut |_| {}).unwrap();
            }
        }
        let without_content = Options { read_content: false, ..Options::default() };
        let report = nilfs_check::check(&*device, &without_content).unwrap();
        let [left] = &report.findings[..] else { panic!("it stays known: {report}") };
        assert_eq!((left.severity, left.place.ino), (Severity::Warning, Some(ino)), "{report}");
        let selection = nilfs_engine::scrub::Selection::default();
        let found = nilfs_engine::scrub_device(&device, &selection, &mut |_| {
            std::ops::ControlFlow::Continue(())
        });
        let damage = found.unwrap().damage;
        assert_eq!(damage.len(), 1, "{damage:?}");
        let options = MountOptions { verify: Verify::None, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&device), options).unwrap();
        let root = fs.root().unwrap().inode;
        let link = fs.lookup(&root, b"link").unwrap().inode;
        assert_eq!(fs.read_link(&link).unwrap(), expected);
        drop((root, link));
        fs.unmount().unwrap();
    }
}

/// Its block is where it was, so that nothing is lost.
#[test]
fn a_link_whose_inode_has_lost_the_way_to_the_target_leads_there_again() {
    for block_size in BLOCK_SIZES {
        let image = Image::by_linux(block_size);
        let whole = target(Arc::new(MemoryDevice::from(image.bytes.clone())), "symlink");
        for lost in [I_SIZE..I_SIZE + 8, I_BMAP..I_BMAP + 16] {
            let mut damaged = image.clone();
            damaged.edit_inode(damaged.named("symlink"), |inode| inode[lost.clone()].fill(0));
            assert_eq!(
                target(repaired_at(Risk::Safe, damaged, &[]), "symlink"),
                whole,
                "bytes {lost:?}"
            );
        }
    }
}

/// Where an inode has its size and its block map.
const I_SIZE: usize = 8;
const I_BMAP: usize = 56;

const BLOCK: u64 = 1024;

fn volume() -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(4 << 20);
    let mut parameters = Parameters::new(UUID, 1, 7);
    parameters.block_size = BlockSize::from_bytes(BLOCK).unwrap();
    parameters.blocks_per_segment = 64;
    mkfs::format(&device, &parameters).unwrap();
    Arc::new(device)
}

#[test]
fn the_target_of_a_link_that_the_cleaner_has_moved_comes_from_where_it_was() {
    let device = volume();
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    fs.symlink(&root, b"link", b"where it leads", 0, 0).unwrap();
    fs.sync().unwrap();
    let ino = fs.lookup(&root, b"link").unwrap().inode.ino();
    let before = Image::from(device.snapshot()).data(ino, 0).block;
    let segment = SegNum(before.0 / 64);
    assert!(fs.evacuate([segment].into(), &mut |_| {}).unwrap().is_empty());
    fs.unmount().unwrap();
    let image = Image::from(device.snapshot());
    let moved = image.data(ino, 0);
    assert_ne!(moved.block, before);
    assert_eq!(target(repaired(image, &[moved]), "link"), "where it leads");
}

fn named(cno: Cno, name: &str) -> SnapshotChange {
    let name = Some(name.parse().unwrap());
    SnapshotChange::Keep { cno, made_by: MadeBy::User, name, text: None }
}

fn names(device: Arc<dyn Device>) -> Vec<String> {
    let notes = Volume::open(device).unwrap().notes().unwrap();
    notes.iter().map(|note| note.name.as_ref().unwrap().to_string()).collect()
}

#[test]
fn names_of_snapshots_that_cannot_be_read_are_those_of_before_or_none() {
    for kept in [true, false] {
        let device = volume();
        let fs = mount(&device);
        let (first, second) = (fs.checkpoint_now().unwrap(), fs.checkpoint_now().unwrap());
        if kept {
            fs.change_snapshots(&[named(first, "first")]).unwrap();
        }
        fs.change_snapshots(&[named(second, "second")]).unwrap();
        // Without its newest log, a volume would go on from the checkpoint before.
        fs.checkpoint_now().unwrap();
        fs.unmount().unwrap();
        let image = Image::from(device.snapshot());
        let block = image.data(Ino::XATTR, 0);
        let expected: &[&str] = if kept { &["first"] } else { &[] };
        assert_eq!(names(repaired(image.clone(), &[block])), expected, "unreadable");
        let mut garbage = image;
        garbage.edit(block, |bytes| bytes.fill(0x5a));
        let device = repaired(garbage, &[]);
        assert_eq!(names(Arc::clone(&device)), expected, "garbage");
        // The snapshots themselves are there, and can be named again.
        let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
        fs.change_snapshots(&[named(second, "again")]).unwrap();
        assert_eq!(fs.notes().unwrap().len(), expected.len() + 1);
        fs.unmount().unwrap();
    }
}
