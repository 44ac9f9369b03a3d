//! Of which type a file is, more than one field says: where one of them is damaged, the others are
//! believed, and nothing is lost.

mod support;

use std::mem::offset_of;
use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_engine::{FileType, Filesystem, MountOptions, NewInode};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::RawInode;
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, Patient, heals};

const ALL: [FileType; 7] = [
    FileType::Regular,
    FileType::Directory,
    FileType::Symlink,
    FileType::CharDevice,
    FileType::BlockDevice,
    FileType::Fifo,
    FileType::Socket,
];

/// Changes the type of an inode.
fn set_type(image: &mut Image, ino: Ino, file_type: FileType) {
    let at = offset_of!(RawInode, i_mode);
    image.edit_inode(ino, |inode| {
        let mode = u16::from_le_bytes([inode[at], inode[at + 1]]);
        let mode = file_type.mode_bits() | mode & 0o7777;
        inode[at..at + 2].copy_from_slice(&mode.to_le_bytes());
    });
}

/// The mode was believed: the content of a file became names, also in snapshots, and what was in a
/// directory came into lost+found.
#[test]
fn a_mode_against_everything_else() {
    for (name, right) in [
        ("direct", FileType::Regular),
        ("tree", FileType::Regular),
        ("many", FileType::Directory),
        ("deep", FileType::Directory),
        ("moved", FileType::Directory),
    ] {
        for wrong in ALL.into_iter().filter(|it| *it != right) {
            heals(|image| {
                let ino = image.named(name);
                set_type(image, ino, wrong);
            });
        }
    }
}

/// The newest checkpoint was given up.
#[test]
fn a_mode_of_the_root_directory() {
    for wrong in ALL.into_iter().filter(|it| *it != FileType::Directory) {
        heals(|image| set_type(image, Ino::ROOT, wrong));
    }
}

/// Of a record that says something else than all the rest, the type is set right.
#[test]
fn a_type_in_a_name_against_everything_else() {
    for name in ["direct", "tree", "many", "deep", "fifo"] {
        heals(|image| {
            image.edit_record(Ino::ROOT, name, |record| record[11] = 7);
        });
    }
}

/// The mode and the name of a file without content are all there is, and either may be wrong.
#[test]
fn where_as_much_speaks_for_either_type_it_is_a_guess() {
    for block_size in BLOCK_SIZES {
        let device = Arc::new(MemoryDevice::from(Image::by_mkfs(block_size).bytes));
        let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
        let mode = FileType::Fifo.mode_bits() | 0o644;
        let new = NewInode { mode, uid: 0, gid: 0, rdev: Default::default() };
        let root = fs.root().unwrap().inode;
        drop(fs.create(&root, b"fifo", &new).unwrap());
        drop(root);
        fs.unmount().unwrap();
        drop(fs);
        let mut image = Image::from(Arc::into_inner(device).unwrap().snapshot());
        let ino = image.named("fifo");
        set_type(&mut image, ino, FileType::Socket);
        let plan = Patient::new(image).heal();
        assert_eq!(plan.risk(), Risk::Loses, "{:?}", plan.repairs);
    }
}
