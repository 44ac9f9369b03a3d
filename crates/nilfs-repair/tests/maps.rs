//! Block maps that cannot be read are made anew from what the logs say, and no file is lost.

mod support;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use nilfs_device::MemoryDevice;
use nilfs_engine::{Cno, ManualRun, NewInode};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::S_IFREG;
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, Patient, content, formatted, mount};

const MAP: Range<usize> = 56..112;
/// Where the inodes of the DAT, the cpfile and the sufile are in a super root.
const IN_SUPER_ROOT: [usize; 3] = [16, 16 + 128, 16 + 256];

/// Damages the volumes that Linux has filled, and demands that no file is another then.
#[track_caller]
fn heals(damage: impl Fn(&mut Image) -> bool) {
    let mut tried = 0;
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        if damage(&mut image) {
            tried += 1;
            Patient::new(image).is_healed(Risk::Safe);
        }
    }
    assert!(tried > 0, "there is nothing to damage");
}

/// Damages the node of a file that was written last.
#[track_caller]
fn heals_node(ino: impl Fn(&Image) -> Ino, damage: impl Fn(&mut [u8])) {
    heals(|image| {
        let ino = ino(image);
        let has_nodes = image.blocks_of(ino).iter().any(|it| it.info.is_node());
        if has_nodes {
            let node = image.node(ino);
            image.edit(node, |block| damage(block));
        }
        has_nodes
    });
}

#[test]
fn nodes_of_a_file() {
    for garbage in [0, 0x5a, 0xff] {
        heals_node(|image| image.named("tree"), |block| block.fill(garbage));
    }
}

#[test]
fn nodes_with_a_key_out_of_order_or_a_pointer_to_nowhere() {
    let tree = |image: &Image| image.named("tree");
    heals_node(tree, |block| block[24..32].fill(0));
    heals_node(tree, |block| {
        let pointers = 16 + (block.len() - 16) / 16 * 8;
        block[pointers + 8..pointers + 16].fill(0x77);
    });
}

#[test]
fn nodes_of_metadata_files() {
    for ino in [Ino::DAT, Ino::IFILE] {
        for garbage in [0, 0x5a] {
            heals_node(|_| ino, |block| block.fill(garbage));
        }
    }
}

#[test]
fn roots_of_files() {
    for name in ["tree", "direct", "many", "sparse"] {
        heals(|image| {
            let ino = image.named(name);
            image.edit_inode(ino, |inode| inode[MAP].fill(0x5b));
            true
        });
    }
}

#[test]
fn roots_of_metadata_files() {
    for at in IN_SUPER_ROOT {
        heals(|image| {
            let root = image.super_root();
            image.edit(root, |block| block[at + MAP.start..at + MAP.end].fill(0x5b));
            true
        });
    }
    heals(|image| {
        image.edit_checkpoint(image.newest(), |entry| {
            entry[64 + MAP.start..64 + MAP.end].fill(0x5b)
        });
        true
    });
}

/// Takes all entries from the root of the map of a file, but for its level. Returns the file.
fn lose_entries(image: &mut Image, level: u8) -> Ino {
    let ino = image.named("tree");
    image.edit_inode(ino, |inode| {
        inode[MAP].fill(0);
        (inode[MAP.start], inode[MAP.start + 1]) = (1, level);
    });
    ino
}

/// A root that has lost its entries, and with them its level, looks like that of an empty file: the file
/// became zeros, without a loss.
#[test]
fn roots_without_entries() {
    for level in [1, 2, 3] {
        heals(|image| {
            lose_entries(image, level);
            true
        });
    }
}

/// A mount showed zeros for the file, and would have written beside them.
#[test]
fn a_root_without_entries_is_no_hole_to_a_mount() {
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        let mut image = sound.clone();
        let ino = lose_entries(&mut image, 1);
        let device = Arc::new(MemoryDevice::from(image.bytes));
        let fs = mount(&device);
        let file = fs.by_number(ino).unwrap();
        assert!(fs.read(&file, 0, &mut [0; 10]).unwrap_err().is_damage());
        // Damage that has been seen makes the mount read-only.
        assert!(fs.write(&file, 5, b"a part of a block").is_err());
        drop((file, fs));
        let patient = Patient::new(Image::from(device.snapshot()));
        patient.heal();
        assert_eq!(content(&patient.bytes()), content(&sound.bytes));
    }
}

/// A volume on which many virtual blocks have been freed: those of the files that are deleted.
fn with_freed_numbers(
    (device_bytes, file_bytes): (u64, usize),
    files: Range<u16>,
    deletes: impl Fn(u16) -> bool,
) -> Image {
    let device = formatted(device_bytes, 1024, 256);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    for nth in files.clone() {
        let file = fs.create(&root, nth.to_string().as_bytes(), &new).unwrap().inode;
        fs.write(&file, 0, &vec![nth as u8; file_bytes]).unwrap();
        fs.commit().unwrap();
    }
    for nth in files.filter(|nth| deletes(*nth)) {
        fs.unlink(&root, nth.to_string().as_bytes()).unwrap();
    }
    let newest = fs.commit().unwrap().0;
    fs.delete_checkpoints(Cno(1)..=Cno(newest - 1)).unwrap();
    fs.clean(&ManualRun { protection: Some(Duration::ZERO), ..ManualRun::default() }).unwrap();
    fs.unmount().unwrap();
    Image::from(device.snapshot())
}

/// Damages each node of the DAT in the newest log, and demands that nothing is lost. Returns the levels of these.
#[track_caller]
fn heals_nodes_of_the_dat(image: &Image) -> BTreeSet<u8> {
    let whole = content(&image.bytes);
    let size = image.block_size();
    let newest = image.newest_log();
    let nodes = image.blocks_of(Ino::DAT).into_iter().filter(|it| it.info.is_node());
    let nodes: Vec<_> = nodes.filter(|it| it.log == newest.block).collect();
    assert!(!nodes.is_empty());
    for node in &nodes {
        let mut image = image.clone();
        let at = node.block.0 as usize * size;
        image.bytes[at..at + size].iter_mut().for_each(|byte| *byte ^= 0x5a);
        let patient = Patient::new(image);
        let plan = patient.heal();
        assert_eq!(plan.risk(), Risk::Safe, "block {}: {:?}", node.block, plan.repairs);
        assert!(content(&patient.bytes()) == whole, "block {}", node.block);
    }
    nodes.iter().map(|it| image.block(it.block)[1]).collect()
}

/// Blocks of the DAT are taken out when none of their entries is in use. A node that was lost had no room for all of
/// which the logs know, so it was not made anew, and the newest checkpoint was given up.
#[test]
fn a_node_of_the_dat_beside_blocks_that_have_been_taken_out() {
    let image = with_freed_numbers((32 << 20, 100 << 10), 0..60, |nth| nth % 7 != 0);
    heals_nodes_of_the_dat(&image);
}

/// A node was made anew with leaves that had become parts of others, or that had another first key since. And a leaf
/// had no room for blocks of groups of which not even the bitmap was left.
#[test]
fn a_node_of_the_dat_whose_children_have_become_others() {
    for deleted in [30..180, 100..170] {
        let image = with_freed_numbers((96 << 20, 150 << 10), 0..200, |nth| deleted.contains(&nth));
        assert!(heals_nodes_of_the_dat(&image).contains(&2));
    }
}

/// A leaf and the node above it lie side by side in the log. The blocks of the leaf became a hole, without a word.
#[test]
fn a_leaf_and_the_node_above_it() {
    let device = formatted(16 << 20, 1024, 64);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let file = fs.create(&root, b"file", &new).unwrap().inode;
    let bytes: Vec<u8> = (0..400 << 10).map(|nth: u32| (nth / 1024 + 1) as u8).collect();
    fs.write(&file, 0, &bytes).unwrap();
    fs.commit().unwrap();
    fs.unmount().unwrap();
    let image = Image::from(device.snapshot());
    let whole = content(&image.bytes);
    let nodes = image.blocks_of(file.ino()).into_iter().filter(|it| it.info.is_node());
    let (leaves, above): (Vec<_>, Vec<_>) = nodes.partition(|it| image.block(it.block)[1] == 1);
    assert!(leaves.len() > 2 && above.len() == 1);
    for leaf in leaves {
        let mut image = image.clone();
        for lost in [leaf.block, above[0].block] {
            let at = lost.0 as usize * image.block_size();
            image.bytes[at..at + 1024].iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
        let patient = Patient::new(image);
        let plan = patient.heal();
        assert_eq!(plan.risk(), Risk::Safe, "block {}: {:?}", leaf.block, plan.repairs);
        assert!(content(&patient.bytes()) == whole, "block {}", leaf.block);
    }
}
