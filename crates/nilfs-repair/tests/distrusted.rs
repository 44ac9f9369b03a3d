//! Blocks of metadata that are not what was written, by the checksums that their logs have of them.

mod support;

use std::collections::BTreeSet;
use std::mem::offset_of;

use nilfs_check::Severity;
use nilfs_ondisk::crc::crc32_le;
use nilfs_ondisk::dirent;
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, Ino};
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, LoggedBlock, Patient, checked, content, lived};

const MODE: usize = offset_of!(RawInode, i_mode);
const UID: usize = offset_of!(RawInode, i_uid);

/// The present inode of a file, and the block in which it lies.
fn inode(image: &Image, ino: Ino) -> (LoggedBlock, usize, RawInode) {
    let slot = Palloc::new(image.geometry().block_size, image.geometry().inode_size).entry(ino.0);
    let found = image.data(Ino::IFILE, slot.block.0);
    let inode = RawInode::parse(&image.block(found.block)[slot.offset..]).unwrap();
    (found, slot.offset, inode)
}

/// Changes a block, and leaves every checksum as it was.
fn corrupt(image: &mut Image, block: BlockNr, change: impl FnOnce(&mut [u8])) {
    let size = image.block_size();
    change(&mut image.bytes[block.0 as usize * size..][..size]);
}

/// All that was in such a block was believed where it looked like something: files got a set-uid mode and
/// another owner, by a repair that said that nothing was lost.
#[test]
fn an_inode_that_was_not_written_is_not_believed() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let before = content(&image.bytes);
        let ino = image.named("direct");
        let (found, at, was) = inode(&image, ino);
        image.give_sums(found.log);
        corrupt(&mut image, found.block, |block| {
            block[at + MODE..at + MODE + 2].copy_from_slice(&0o106_777_u16.to_le_bytes());
            block[at + UID..at + UID + 4].copy_from_slice(&[7; 4]);
        });
        assert_ne!(inode(&image, ino).2.i_mode, was.i_mode);
        let patient = Patient::new(image);
        // Of the past, something is missing that nothing gives back.
        let plan = patient.heal_but_for(Severity::Warning);
        assert_eq!(plan.risk(), Risk::Loses, "{:?}", plan.repairs);
        let named: Vec<_> = plan.repairs.iter().flat_map(|it| &it.concerned.files).collect();
        assert!(named.contains(&&ino), "{:?}", plan.repairs);
        let healed = Image::from(patient.bytes());
        let is = inode(&healed, ino).2;
        assert_eq!((is.i_mode.get() & 0o6000, is.i_uid.get()), (0, 0));
        let after = content(&healed.bytes);
        assert!(before.keys().all(|path| after.contains_key(path)), "each file is there");
    }
}

/// A device that had written the block of another directory there gave files names that they never had, and
/// took theirs from others.
#[test]
fn names_that_were_not_written_are_not_believed() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let before = content(&image.bytes);
        let root = image.data(Ino::ROOT, 0);
        image.give_sums(root.log);
        let (direct, tree) = (image.named("direct"), image.named("tree"));
        corrupt(&mut image, root.block, |block| {
            let records: Vec<_> = dirent::records(block).map(Result::unwrap).collect();
            let at = |ino| records.iter().find(|it| it.ino == ino).unwrap().offset;
            let (direct_at, tree_at) = (at(direct), at(tree));
            block[direct_at..direct_at + 8].copy_from_slice(&tree.0.to_le_bytes());
            block[tree_at..tree_at + 8].copy_from_slice(&direct.0.to_le_bytes());
        });
        let patient = Patient::new(image);
        // Of the past, something is missing that nothing gives back.
        let plan = patient.heal_but_for(Severity::Warning);
        assert_eq!(plan.risk(), Risk::Loses, "{:?}", plan.repairs);
        let after = content(&patient.bytes());
        for name in ["/direct", "/tree"] {
            let here = after.get(name);
            assert!(here.is_none_or(|file| *file == before[name]), "{name} is another file");
        }
        let lost = before.iter().filter(|(path, _)| !path.starts_with("snapshot"));
        for (path, file) in lost {
            assert!(after.values().any(|it| it.3 == file.3 && it.0 == file.0), "{path} is gone");
        }
    }
}

/// Older versions of fsck correct blocks and the checksum of their log, and leave those of the blocks: such a
/// checksum is no proof, even if something else in the log is damaged later.
#[test]
fn a_checksum_that_contradicts_its_log_proves_nothing() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let root = image.data(Ino::ROOT, 0);
        image.give_sums(root.log);
        let size = image.block_size();
        let name = image.named("direct");
        corrupt(&mut image, root.block, |block| {
            let records: Vec<_> = dirent::records(block).map(Result::unwrap).collect();
            let at = records.iter().find(|it| it.ino == name).unwrap().offset;
            // The padding after a name.
            let length = usize::from(block[at + 10]);
            block[at + 12 + length..at + 20].fill(0x55);
        });
        let start = root.log.0 as usize * size;
        let header = image.logs().into_iter().find(|it| it.block == root.log).unwrap().header;
        let end = start + header.nblocks as usize * size;
        let sum = crc32_le(image.superblock.crc_seed(), &image.bytes[start + 4..end]);
        image.bytes[start..start + 4].copy_from_slice(&sum.to_le_bytes());
        let before = content(&image.bytes);
        let files = image.names_in_root().into_iter();
        let of_file = |ino| image.blocks_of(ino).into_iter().rfind(|it| it.log == root.log);
        let file = files.filter_map(of_file).map(|it| it.block).next().unwrap();
        corrupt(&mut image, file, |block| block[0] ^= 3);
        let report = image.check().unwrap();
        assert!(report.changed_metadata.is_empty(), "{:?}", report.changed_metadata);
        let plan = Patient::new(image).plan();
        assert!(plan.repairs.is_empty(), "{:?}", plan.repairs);
        assert!(before.contains_key("/direct"));
    }
}

/// An older version of a block in its place is made anew from that version, if there is no other: the result was held to
/// be what had been found, and so to be damaged, and each repair moved it once more.
#[test]
fn an_older_version_in_the_place_of_a_block_is_not_repaired_for_ever() {
    let offset = |it: &LoggedBlock| match it.info {
        BlockInfo::Data { offset, .. } => Some(offset.0),
        _ => None,
    };
    let mut tried = 0;
    for block_size in BLOCK_SIZES {
        let image = lived(block_size);
        let size = image.block_size();
        for ino in [Ino::CPFILE, Ino::ROOT] {
            let versions = image.blocks_of(ino);
            let keys: BTreeSet<u64> = versions.iter().filter_map(offset).collect();
            for key in keys {
                let newest = image.data(ino, key).block;
                let is_other = |it: &&LoggedBlock| {
                    offset(it) == Some(key) && image.block(it.block) != image.block(newest)
                };
                for older in versions.iter().filter(is_other).rev().take(3) {
                    let mut image = image.clone();
                    let at = |block: BlockNr| block.0 as usize * size;
                    image.bytes.copy_within(at(older.block)..at(older.block) + size, at(newest));
                    // In a segment that has been freed, no block is looked at.
                    if !checked(&image.bytes).is_ok_and(|report| report.is_consistent()) {
                        Patient::new(image).heal_but_for(Severity::Warning);
                        tried += 1;
                    }
                }
            }
        }
    }
    assert!(tried > 3, "only {tried} blocks have an older version");
}
