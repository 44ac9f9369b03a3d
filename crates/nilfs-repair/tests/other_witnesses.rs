//! A block of metadata that is lost is not only made of an older version: what else the volume knows of it counts.

mod support;

use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_engine::{Attr, Cno, Filesystem, MadeBy, NewInode, SetAttr, SnapshotChange, Volume};
use nilfs_ondisk::checkpoint::CpfileLayout;
use nilfs_ondisk::inode::{FileType, S_IFREG};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::{FileBlock, Ino};
use support::{Image, Patient, formatted, mount, present, read_file};

const BLOCK: u64 = 1024;

fn volume() -> Arc<MemoryDevice> {
    formatted(16 << 20, BLOCK, 64)
}

fn new(mode: u16) -> NewInode {
    NewInode { mode: S_IFREG | mode, uid: 0, gid: 0, rdev: Default::default() }
}

fn make(fs: &Filesystem, name: &str, (mode, content): (u16, &[u8])) -> Ino {
    let file = fs.create(&fs.root().unwrap().inode, name.as_bytes(), &new(mode)).unwrap().inode;
    fs.write(&file, 0, content).unwrap();
    file.ino()
}

/// Repairs a volume without the newest version of a block of a metadata file. Returns what is then on it, and what
/// was said.
fn without(device: &MemoryDevice, ino: Ino, key: u64) -> (Arc<MemoryDevice>, String) {
    let mut image = Image::from(device.snapshot());
    let at = image.data(ino, key).block.0 as usize * BLOCK as usize;
    image.bytes[at..at + BLOCK as usize].iter_mut().for_each(|byte| *byte ^= 0x5a);
    let patient = Patient::new(image);
    let plan = patient.heal();
    let said = plan.repairs.iter().map(|it| it.to_string() + "\n").collect();
    (Arc::new(MemoryDevice::from(patient.bytes())), said)
}

/// As [`without`], of the block with an inode.
fn without_inode(device: &MemoryDevice, ino: Ino) -> Arc<MemoryDevice> {
    let layout = Palloc::new(Image::from(device.snapshot()).geometry().block_size, 128);
    without(device, Ino::IFILE, layout.entry(ino.0).block.0).0
}

fn attributes(device: &Arc<MemoryDevice>, name: &str) -> Attr {
    let fs = mount(device);
    let inode = fs.lookup(&fs.root().unwrap().inode, name.as_bytes()).unwrap().inode;
    fs.attr(&inode).unwrap()
}

fn content(device: &Arc<MemoryDevice>, name: &str) -> Vec<u8> {
    let fs = mount(device);
    let ino = fs.lookup(&fs.root().unwrap().inode, name.as_bytes()).unwrap().inode.ino();
    read_file(&*fs, ino).unwrap().3
}

/// A block of the cpfile was taken from an older version, and the snapshots made since were snapshots no more: the
/// cleaner was free to take them.
#[test]
fn a_snapshot_stays_one_by_its_name_and_by_the_list() {
    let name = |cno| SnapshotChange::Keep {
        cno,
        made_by: MadeBy::User,
        name: Some("kept".parse().unwrap()),
        text: None,
    };
    for is_named in [true, false] {
        let device = volume();
        let fs = mount(&device);
        // Without a name, the list in another block has to tell.
        let first = if is_named { 0 } else { 12 };
        let mut snapshot = Cno(0);
        for nth in 0..=first {
            make(&fs, &format!("file {nth}"), (0o644, b"content"));
            snapshot = fs.checkpoint_now().unwrap();
        }
        match is_named {
            true => fs.change_snapshots(&[name(snapshot)]).unwrap(),
            false => fs.set_snapshot(snapshot, true).unwrap(),
        };
        fs.unmount().unwrap();
        let geometry = Image::from(device.snapshot()).geometry();
        let block = CpfileLayout::new(&geometry).slot(snapshot).block;
        assert_eq!(block == FileBlock(0), is_named);
        let (healed, _) = without(&device, Ino::CPFILE, block.0);
        let volume = Volume::open(healed).unwrap();
        let snapshots: Vec<_> = volume
            .checkpoints(Default::default(), usize::MAX)
            .unwrap()
            .into_iter()
            .filter(|it| it.snapshot)
            .map(|it| it.cno)
            .collect();
        assert_eq!(snapshots, [snapshot], "named: {is_named}");
    }
}

/// An ordinary checkpoint whose entry is lost was gone without a word.
#[test]
fn checkpoints_that_are_lost_with_a_block_are_named() {
    let device = volume();
    let fs = mount(&device);
    let mut newest = Cno(0);
    for nth in 0..12 {
        make(&fs, &format!("file {nth}"), (0o644, b"content"));
        newest = fs.checkpoint_now().unwrap();
    }
    fs.unmount().unwrap();
    let layout = CpfileLayout::new(&Image::from(device.snapshot()).geometry());
    let block_of = |cno| layout.slot(cno).block;
    // The last entry of a block is not in the version before.
    let others = (1..newest.0).map(Cno).filter(|cno| block_of(*cno) != block_of(newest));
    let last = others.max().unwrap();
    let (_, said) = without(&device, Ino::CPFILE, block_of(last).0);
    assert!(said.contains(&format!("checkpoint {last} is lost")), "{said}");
}

/// A private file got owner, mode and size of a deleted one that had its number before.
#[test]
fn a_file_gets_nothing_of_a_deleted_one_that_had_its_number() {
    let device = volume();
    let fs = mount(&device);
    let public = make(&fs, "public", (0o666, b"public"));
    make(&fs, "other", (0o644, b"other"));
    let owner = SetAttr { uid: Some(1000), ..SetAttr::default() };
    let inode = fs.lookup(&fs.root().unwrap().inode, b"public").unwrap().inode;
    fs.set_attr(&inode, &owner).unwrap();
    drop(inode);
    fs.commit().unwrap();
    fs.unlink(&fs.root().unwrap().inode, b"public").unwrap();
    fs.commit().unwrap();
    let secret: Vec<u8> = b"secret ".repeat(100);
    assert_eq!(make(&fs, "secret", (0o600, &secret)), public, "the number is used again");
    fs.unmount().unwrap();
    let healed = without_inode(&device, public);
    let attributes = attributes(&healed, "secret");
    assert_eq!((attributes.mode, attributes.uid), (0o600, 0));
    assert!(content(&healed, "secret").starts_with(&secret));
}

/// The end of a file was cut off, which an older version of its inode did not know of.
#[test]
fn a_file_reaches_to_its_last_byte() {
    let device = volume();
    let fs = mount(&device);
    let ino = make(&fs, "file", (0o644, &[b'a'; 200]));
    fs.commit().unwrap();
    let file = fs.lookup(&fs.root().unwrap().inode, b"file").unwrap().inode;
    fs.write(&file, 200, &[b'b'; 300]).unwrap();
    drop(file);
    fs.unmount().unwrap();
    let healed = without_inode(&device, ino);
    assert_eq!(content(&healed, "file"), [vec![b'a'; 200], vec![b'b'; 300]].concat());
}

/// An inode made of the blocks of a file alone was believed against the name.
#[test]
fn a_link_whose_inode_is_lost_stays_a_link() {
    let device = volume();
    let fs = mount(&device);
    let target = [b't'; 300];
    let root = fs.root().unwrap().inode;
    let link = fs.symlink(&root, b"link", &target, 0, 0).unwrap().inode.ino();
    drop(root);
    fs.unmount().unwrap();
    let healed = without_inode(&device, link);
    assert_eq!(attributes(&healed, "link").file_type, FileType::Symlink);
    let fs = mount(&healed);
    let link = fs.lookup(&fs.root().unwrap().inode, b"link").unwrap().inode;
    assert_eq!(fs.read_link(&link).unwrap(), target);
}

/// Logs of fsyncs were given up because an inode that had been made anew had no generation.
#[test]
fn what_was_fsynced_is_rolled_forward_on_inodes_made_anew() {
    let device = volume();
    let fs = mount(&device);
    let ino = make(&fs, "file", (0o644, b"content"));
    fs.commit().unwrap();
    let root = fs.root().unwrap().inode;
    let file = fs.lookup(&root, b"file").unwrap().inode;
    fs.rename(&root, b"file", &root, b"renamed", nilfs_engine::RenameMode::Replace).unwrap();
    fs.write(&file, 7, b", and more").unwrap();
    fs.sync_file(&file).unwrap();
    make(&fs, "second", (0o644, b"second"));
    let second = fs.lookup(&root, b"second").unwrap().inode;
    fs.sync_file(&second).unwrap();
    let before = present(&*fs);
    let healed = without_inode(&device, ino);
    let after = present(&*mount(&healed));
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    assert_eq!(content(&healed, "renamed"), b"content, and more");
    assert_eq!(content(&healed, "second"), b"second");
}
