//! Damage of blocks that lie side by side in a log costs no more than what is in them: the rest of the volume tells
//! what one block told of the other.

mod support;

use std::sync::Arc;

use nilfs_check::Severity;
use nilfs_device::MemoryDevice;
use nilfs_engine::{Filesystem, NewInode};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::{BlockNr, Ino};
use nilfs_repair::{Plan, Risk};
use support::{Image, Patient, content, formatted, mount};

fn volume() -> Arc<MemoryDevice> {
    formatted(32 << 20, 4096, 256)
}

fn new(mode: u16) -> NewInode {
    NewInode { mode, uid: 0, gid: 0, rdev: Default::default() }
}

/// Makes a file in the root directory, or in a directory there.
fn make(fs: &Filesystem, path: &str, bytes: &[u8]) -> Ino {
    let root = fs.root().unwrap().inode;
    let (directory, name) = match path.split_once('/') {
        Some((directory, name)) => (fs.lookup(&root, directory.as_bytes()).unwrap().inode, name),
        None => (root, path),
    };
    let file = fs.create(&directory, name.as_bytes(), &new(S_IFREG | 0o644)).unwrap().inode;
    fs.write(&file, 0, bytes).unwrap();
    file.ino()
}

/// Damages blocks and leaves the checksums as they are.
fn lose(image: &mut Image, blocks: &[BlockNr]) {
    let size = image.block_size();
    for block in blocks {
        let at = block.0 as usize * size;
        image.bytes[at..at + size].iter_mut().for_each(|byte| *byte ^= 0x5a);
    }
}

/// Everything that a plan says.
fn said(plan: &Plan) -> String {
    plan.repairs.iter().map(|it| it.to_string() + "\n").collect()
}

/// A volume whose newest checkpoint has new files, of which some are empty; the number of the last one.
fn with_new_files() -> (Image, Ino) {
    let device = volume();
    let fs = mount(&device);
    for name in ["one", "two", "three"] {
        make(&fs, name, b"small");
    }
    fs.commit().unwrap();
    for (nth, name) in (1..).zip(["four", "five", "six"]) {
        make(&fs, name, &vec![nth; 20 << 10]);
    }
    fs.create(&fs.root().unwrap().inode, b"directory", &new(S_IFDIR | 0o755)).unwrap();
    make(&fs, "directory/below", &[7; 4 << 10]);
    make(&fs, "directory/empty", b"");
    let last = make(&fs, "empty", b"");
    fs.unmount().unwrap();
    (Image::from(device.snapshot()), last)
}

/// The newest bitmap of the ifile, and the block with an inode after it.
fn bitmap_and_inodes(image: &Image, ino: Ino) -> [BlockNr; 2] {
    let layout = Palloc::new(image.geometry().block_size, image.geometry().inode_size);
    let places = [layout.bit(ino.0).block.0, layout.entry(ino.0).block.0];
    let blocks = places.map(|key| image.data(Ino::IFILE, key).block);
    assert_eq!(blocks[0].plus(1), blocks[1], "they lie side by side");
    blocks
}

/// Neither said that the numbers of new files were in use, and the names of these were taken out.
#[test]
fn numbers_are_in_use_by_the_blocks_of_their_files_and_by_names() {
    let (mut image, last) = with_new_files();
    let whole = content(&image.bytes);
    let lost = bitmap_and_inodes(&image, last);
    lose(&mut image, &lost);
    let patient = Patient::new(image);
    let plan = patient.heal();
    assert_eq!(plan.risk(), Risk::Loses);
    let healed = content(&patient.bytes());
    assert!(healed == whole, "{:?} of {:?}: {}", healed.keys(), whole.keys(), said(&plan));
    let fs = mount(&Arc::new(MemoryDevice::from(patient.bytes())));
    for name in ["four", "five", "six", "empty"] {
        let file = fs.lookup(&fs.root().unwrap().inode, name.as_bytes()).unwrap().inode;
        let attr = fs.attr(&file).unwrap();
        assert_eq!((attr.mode & 0o777, attr.uid), (0o600, 0), "{name} is the superuser's");
        assert!(said(&plan).contains(&format!(": {name}: make an inode")), "{}", said(&plan));
    }
}

/// As above, without the names.
#[test]
fn numbers_are_in_use_by_the_blocks_of_their_files_alone() {
    let (mut image, last) = with_new_files();
    let whole = content(&image.bytes);
    let [bitmap, inodes] = bitmap_and_inodes(&image, last);
    let names = image.data(Ino::ROOT, 0).block;
    lose(&mut image, &[names, bitmap, inodes]);
    let patient = Patient::new(image);
    // In the checkpoint that was the newest, the names stay lost.
    let plan = patient.heal_but_for(Severity::Warning);
    assert!(!said(&plan).contains("inode 2: inode:"), "the root is as it was: {}", said(&plan));
    let healed = content(&patient.bytes());
    for name in ["/one", "/two", "/three", "/four", "/five", "/six"] {
        let is_there = healed.values().any(|file| *file == whole[name]);
        assert!(is_there, "{name} among {:?}", healed.keys());
    }
}
