//! What directories and inodes say about each other can be wrong, and is put right.

mod support;

use std::sync::Arc;

use nilfs_device::Device;
use nilfs_engine::{NewInode, Volume};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use nilfs_ondisk::palloc::Palloc;
use nilfs_repair::Risk;
use support::{
    BLOCK_SIZES, Image, Patient, UUID, add, bad_sectors, content, formatted, heals, mount, write,
};

const I_BLOCKS: usize = 0;
const I_SIZE: usize = 8;
const I_LINKS: usize = 50;

#[test]
fn counts_of_links() {
    for name in ["direct", "deep"] {
        heals(|image| {
            let ino = image.named(name);
            image.edit_inode(ino, |inode| inode[I_LINKS] += 1);
        });
    }
    heals(|image| {
        let ino = image.named("direct");
        image.edit_inode(ino, |inode| inode[I_LINKS..I_LINKS + 2].fill(0));
    });
}

#[test]
fn counts_of_blocks() {
    heals(|image| {
        let ino = image.named("tree");
        image.edit_inode(ino, |inode| add(inode, I_BLOCKS, 8));
    });
}

#[test]
fn sizes_of_directories() {
    heals(|image| {
        let size = image.block_size() as u64;
        let ino = image.named("many");
        image.edit_inode(ino, |inode| add(inode, I_SIZE, size));
    });
}

/// Links of which the target was damaged as well kept a size that no file can have, and so did pipes: all that met
/// such an inode failed, a mount among it.
#[test]
fn no_file_keeps_a_size_that_none_can_have() {
    for block_size in BLOCK_SIZES {
        let image = Image::by_linux(block_size);
        for ino in image.names_in_root() {
            let mut image = image.clone();
            image.edit_inode(ino, |inode| write(inode, I_SIZE, 1 << 63 | 5));
            let mut destroyed = image.clone();
            let first = image.blocks_of(ino).into_iter().rfind(|it| !it.info.is_node());
            let first: Vec<_> = first.iter().map(|it| it.block).collect();
            for block in &first {
                let at = block.0 as usize * image.block_size();
                destroyed.bytes[at..at + 1024].iter_mut().for_each(|it| *it ^= 0x5a);
            }
            let devices = [
                bad_sectors(image.clone(), &[]),
                bad_sectors(destroyed, &[]),
                bad_sectors(image, &first),
            ];
            for (nth, device) in devices.into_iter().enumerate() {
                let device: Arc<dyn Device> = Arc::new(device);
                let plan = nilfs_repair::plan(&device, &Default::default(), UUID).unwrap();
                plan.apply(&*device, &mut |_| {}).unwrap();
                let file = Volume::open(device).unwrap().tree(None).unwrap().file(ino);
                assert!(file.is_ok(), "{block_size}, inode {ino}, {nth}: {file:?}");
            }
        }
    }
}

/// A directory whose inode was lost became a file, because an older version of the inode is that of a file which had the
/// number before; and what was in it went to lost+found.
#[test]
fn a_directory_with_the_number_of_an_older_file_stays_a_directory() {
    let device = formatted(16 << 20, 4096, 64);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let new = |kind| NewInode { mode: kind | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let older = fs.create(&root, b"older", &new(S_IFREG)).unwrap().inode;
    fs.write(&older, 0, &[1; 20_000]).unwrap();
    fs.commit().unwrap();
    let number = older.ino();
    drop(older);
    fs.unlink(&root, b"older").unwrap();
    fs.commit().unwrap();
    let dir = fs.create(&root, b"dir", &new(S_IFDIR)).unwrap().inode;
    assert_eq!(dir.ino(), number);
    let file = fs.create(&dir, b"file", &new(S_IFREG)).unwrap().inode;
    fs.write(&file, 0, &[2; 5000]).unwrap();
    fs.unmount().unwrap();

    let mut image = Image::from(device.snapshot());
    let layout = Palloc::new(image.geometry().block_size, image.geometry().inode_size);
    let inodes = image.data(Ino::IFILE, layout.entry(number.0).block.0).block;
    let at = inodes.0 as usize * image.block_size();
    image.bytes[at..at + 4096].iter_mut().for_each(|byte| *byte ^= 0x5a);
    let patient = Patient::new(image);
    assert_eq!(patient.heal().risk(), Risk::Loses);
    let found = content(&patient.bytes());
    assert!(found["/dir/file"].3.starts_with(&[2; 5000]), "{:?}", found.keys());
}

#[test]
fn types_in_names() {
    heals(|image| image.edit_record(Ino::ROOT, "direct", |record| record[11] = 2));
}

#[test]
fn dots() {
    for (at, wrong) in [(0, 2), (16, 77)] {
        heals(|image| {
            let ino = image.named("many");
            let first = image.data(ino, 0);
            image.edit(first, |block| write(block, at, wrong));
        });
    }
}

#[test]
fn a_number_that_is_in_use_and_not_marked_so() {
    heals(|image| {
        let ino = image.named("direct");
        let bitmap = image.data(Ino::IFILE, 1);
        image.edit(bitmap, |block| block[ino.0 as usize / 8] &= !(1 << (ino.0 % 8)));
    });
}

/// What has become other on the device fails the checksum of its log as well. That is gone, too: the
/// segment is emptied.
#[test]
fn bytes_that_have_become_others() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let root = image.data(Ino::ROOT, 0);
        let at = nilfs_ondisk::dirent::records(image.block(root.block))
            .map(Result::unwrap)
            .find(|record| record.name == b"fifo")
            .unwrap()
            .offset;
        if root.log == image.newest_log().block {
            continue;
        }
        let byte = root.block.0 as usize * image.block_size() + at + 11;
        image.bytes[byte] = 2;
        Patient::new(image).is_healed(Risk::Safe);
    }
}

/// Damaged content must not be taken for sound because it was moved along: it is named, and nothing more is
/// lost by that.
#[test]
fn other_damage_of_a_log_is_not_moved_along_silently() {
    let mut image = Image::by_linux(1024);
    let newest = image.newest_log().block;
    let slots = nilfs_ondisk::palloc::Palloc::new(image.geometry().block_size, 128);
    // An inode and content of any file in the same log.
    let (slot, inode, content) = ["direct", "tree", "shrunk", "sparse", "many", "deep", "moved"]
        .into_iter()
        .map(|name| slots.entry(image.named(name).0))
        .map(|slot| (slot, image.data(Ino::IFILE, slot.block.0)))
        .filter(|(_, inode)| inode.log != newest)
        .find_map(|(slot, inode)| {
            let files = ["direct", "tree", "shrunk", "sparse"].map(|name| image.named(name));
            let mut blocks = files.into_iter().flat_map(|ino| image.blocks_of(ino));
            let content = blocks.find(|it| it.log == inode.log && !it.info.is_node())?;
            Some((slot, inode, content))
        })
        .expect("there is such a log");
    image.bytes[content.block.0 as usize * 1024] ^= 1;
    let alone = Patient::new(image.clone()).plan();
    assert!(alone.repairs.is_empty(), "nothing says what the content was: {:?}", alone.repairs);
    image.bytes[inode.block.0 as usize * 1024 + slot.offset + I_LINKS] += 1;
    let both = Patient::new(image).plan();
    assert_eq!(both.risk(), Risk::Safe, "{:?}", both.repairs);
    assert!(!both.doubtful.is_empty(), "the content is named that may be damaged");
}
