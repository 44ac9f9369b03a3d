//! Damage of blocks that lie side by side in a log costs no more than what is in them: the rest of the volume tells
//! what one block told of the other.

mod support;

use std::sync::Arc;
use std::time::Duration;

use nilfs_check::Severity;
use nilfs_device::MemoryDevice;
use nilfs_engine::{Filesystem, ManualRun, NewInode};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::summary::SR;
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Ino};
use nilfs_repair::{Plan, Risk};
use support::{Image, LogAt, Patient, content, formatted, mount};

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

/// A volume of small blocks, and so with nodes in its maps. Late checkpoints have cleaned much of the past away.
fn with_nodes() -> Image {
    let device = formatted(32 << 20, 1024, 256);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    for round in 1..=5 {
        let name = format!("{round}");
        fs.create(&root, name.as_bytes(), &new(S_IFDIR | 0o755)).unwrap();
        for nth in 1..=20 {
            make(&fs, &format!("{name}/{nth}"), &[nth * round; 20_000]);
        }
        fs.commit().unwrap();
    }
    for name in ["2", "3", "4"] {
        let emptied = fs.lookup(&root, name.as_bytes()).unwrap().inode;
        for nth in 1..=20 {
            fs.unlink(&emptied, format!("{nth}").as_bytes()).unwrap();
        }
    }
    fs.commit().unwrap();
    let everything = ManualRun { protection: Some(Duration::ZERO), ..ManualRun::default() };
    fs.clean(&everything).unwrap();
    fs.unmount().unwrap();
    Image::from(device.snapshot())
}

/// The volume as it was after each of its checkpoints, and the log of that.
fn history(image: &Image) -> Vec<(Image, LogAt)> {
    let as_of = |log: &LogAt| {
        let mut then = image.clone();
        then.superblock.set_last_log(LogCursor {
            block: log.block,
            seq: log.header.seq,
            cno: log.header.cno,
        });
        then.edit_superblocks(|_| {});
        let size = then.block_size();
        for later in image.logs().iter().filter(|it| it.header.cno > log.header.cno) {
            let at = later.block.0 as usize * size;
            then.bytes[at..at + size].fill(0);
        }
        then
    };
    let logs = image.logs().into_iter().filter(|log| log.header.has(SR));
    logs.map(|log| (as_of(&log), log)).collect()
}

/// The newest checkpoint was given up, because the super root could not be put together without the nodes of the
/// DAT.
#[test]
fn a_super_root_follows_from_the_one_before_without_the_blocks_beside_it() {
    for (image, log) in history(&with_nodes()).into_iter().skip(1) {
        let whole = content(&image.bytes);
        let end = log.block.plus(log.header.nblocks.into());
        for count in 1..=4 {
            let lost: Vec<_> = (end.0 - count..end.0).map(BlockNr).collect();
            let mut damaged = image.clone();
            lose(&mut damaged, &lost);
            let patient = Patient::new(damaged);
            let plan = patient.heal();
            let healed = content(&patient.bytes());
            assert!(healed == whole, "{count} blocks of {}: {}", log.header.cno, said(&plan));
        }
    }
}

/// The newest checkpoint was given up, because neither block told where the inodes are.
#[test]
fn a_checkpoint_is_found_without_its_entry_and_the_node_of_its_inodes_beside_it() {
    let mut tried = 0;
    for (image, log) in history(&with_nodes()) {
        let node = image.blocks_of(Ino::IFILE).into_iter().rfind(|it| it.info.is_node());
        let Some(node) = node.filter(|node| node.log == log.block) else { continue };
        let whole = content(&image.bytes);
        let mut damaged = image.clone();
        lose(&mut damaged, &[node.block, node.block.plus(1)]);
        let patient = Patient::new(damaged);
        let plan = patient.heal();
        let healed = content(&patient.bytes());
        assert!(healed == whole, "{}: {}", log.header.cno, said(&plan));
        tried += 1;
    }
    assert!(tried > 3, "{tried}");
}

/// The newest checkpoint was given up, because nothing but the node itself told where it belongs in the cpfile.
#[test]
fn a_super_root_follows_without_the_node_of_the_cpfile_among_the_blocks_beside_it() {
    let device = formatted(32 << 20, 1024, 256);
    let fs = mount(&device);
    for nth in 1..=60 {
        make(&fs, &format!("{nth}"), &[nth; 2000]);
        fs.commit().unwrap();
    }
    fs.unmount().unwrap();
    let image = Image::from(device.snapshot());
    let whole = content(&image.bytes);
    let (node, super_root) = (image.node(Ino::CPFILE), image.super_root());
    assert_eq!(node.log, super_root.log);
    let lost: Vec<_> = (node.block.0..=super_root.block.0).map(BlockNr).collect();
    let mut damaged = image.clone();
    lose(&mut damaged, &lost);
    let patient = Patient::new(damaged);
    let plan = patient.heal();
    assert!(content(&patient.bytes()) == whole, "{} blocks: {}", lost.len(), said(&plan));
}
