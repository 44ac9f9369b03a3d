//! Blocks of metadata files of which nothing is left are made anew from the logs and from each other.
//! No file is lost, in the present or in a snapshot.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use nilfs_device::Device;
use nilfs_engine::FileType;
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, Ino};
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, LoggedBlock, Patient, bad_sectors, content, vblock};

/// Damages the volumes that Linux has filled, and demands that no file has other content then.
#[track_caller]
fn heals(damage: impl Fn(&mut Image)) {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        damage(&mut image);
        let patient = Patient::new(image);
        let plan = patient.plan();
        patient.is_healed(plan.risk());
    }
}

/// Overwrites blocks of a file, found in a volume.
#[track_caller]
fn heals_garbage(block: impl Fn(&Image) -> LoggedBlock) {
    for garbage in [0, 0x5a, 0xff] {
        heals(|image| {
            let block = block(image);
            image.edit(block, |bytes| bytes.fill(garbage));
        });
    }
}

#[test]
fn segment_usage() {
    heals_garbage(|image| image.data(Ino::SUFILE, 0));
}

#[test]
fn checkpoints() {
    heals_garbage(|image| image.data(Ino::CPFILE, 0));
}

#[test]
fn descriptors_and_bitmaps() {
    for ino in [Ino::DAT, Ino::IFILE] {
        for nth in [0, 1] {
            heals_garbage(|image| image.data(ino, nth));
        }
    }
}

#[test]
fn entries_of_the_dat() {
    heals_garbage(|image| image.dat_entry(vblock(image.data(Ino::ROOT, 0))).0);
}

/// Of a file that has changed since the last version of its inode, the size is that of its blocks.
#[test]
fn inodes() {
    for garbage in [0, 0x5a] {
        for block_size in BLOCK_SIZES {
            let mut image = Image::by_linux(block_size);
            let expected = beginnings(&image.bytes);
            let block = block_of_inode(&image, image.named("tree"));
            image.edit(block, |bytes| bytes.fill(garbage));
            let patient = Patient::new(image);
            patient.heal();
            assert!(beginnings(&patient.bytes()) == expected, "block size {block_size}");
        }
    }
}

fn block_of_inode(image: &Image, ino: Ino) -> LoggedBlock {
    let layout = Palloc::new(image.geometry().block_size, 128);
    image.data(Ino::IFILE, layout.entry(ino.0).block.0)
}

/// The files by path, without zeros at their ends.
fn beginnings(bytes: &[u8]) -> BTreeMap<String, (FileType, Vec<u8>)> {
    let found = content(bytes).into_iter().map(|(path, (file_type, _, _, mut bytes))| {
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(used);
        (path, (file_type, bytes))
    });
    found.collect()
}

/// An inode of which no version is left: its file is there, with the blocks that it has.
#[test]
fn an_inode_without_any_version() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let ino = image.named("tree");
        let slot = Palloc::new(image.geometry().block_size, 128).entry(ino.0);
        let versions = image
            .blocks_of(Ino::IFILE)
            .into_iter()
            .filter(|it| matches!(it.info, BlockInfo::Data { offset, .. } if offset == slot.block));
        let expected = beginnings(&image.bytes).remove("/tree").unwrap();
        for version in versions.collect::<Vec<_>>() {
            image.edit(version, |block| block[slot.offset..slot.offset + 128].fill(0x5a));
        }
        let patient = Patient::new(image);
        let plan = patient.heal();
        assert_eq!(plan.risk(), Risk::Loses);
        let found = beginnings(&patient.bytes()).remove("/tree").unwrap();
        assert!(found == expected, "block size {block_size}: {:?}", plan.repairs);
    }
}

/// Lets blocks be unreadable, repairs the volume, and returns the files then.
#[track_caller]
fn repaired_around(image: Image, blocks: &[BlockNr]) -> Vec<u8> {
    let bad = Arc::new(bad_sectors(image, blocks));
    let device: Arc<dyn Device> = bad.clone();
    let plan =
        nilfs_repair::plan(&device, &nilfs_check::Options::default(), support::UUID).unwrap();
    assert!(plan.can_be_applied(), "{:?}, {:?}", plan.obstacle, plan.repairs);
    plan.apply(&*device, &mut |_| {}).unwrap();
    let report = nilfs_check::check(&*device, &nilfs_check::Options::default()).unwrap();
    // Content of a log of Linux, of which a block cannot be read, is unverified.
    assert!(report.is_consistent(), "{report}");
    bad.below().snapshot()
}

#[test]
fn blocks_that_cannot_be_read() {
    for block_size in BLOCK_SIZES {
        let image = Image::by_linux(block_size);
        let expected = beginnings(&image.bytes);
        let newest = image.newest_log().block;
        let blocks = [
            image.data(Ino::SUFILE, 0),
            image.data(Ino::CPFILE, 0),
            image.data(Ino::DAT, 0),
            image.data(Ino::DAT, 1),
            image.dat_entry(vblock(image.data(Ino::ROOT, 0))).0,
            image.data(Ino::IFILE, 0),
            image.data(Ino::IFILE, 1),
            block_of_inode(&image, image.named("tree")),
            image.node(image.named("tree")),
            image.node(Ino::DAT),
        ];
        let mut tried = 0;
        for block in blocks.into_iter().filter(|it| it.log != newest) {
            let repaired = repaired_around(image.clone(), &[block.block]);
            assert!(beginnings(&repaired) == expected, "block size {block_size}: {:?}", block.info);
            tried += 1;
        }
        assert!(tried > 1);
    }
}

/// What else cannot be read next to it does not keep anything from being repaired, and reads as zeros.
#[test]
fn content_that_cannot_be_read_next_to_it() {
    let mut tried = 0;
    for (block_size, name) in BLOCK_SIZES.into_iter().flat_map(|it| [(it, "direct"), (it, "tree")])
    {
        let image = Image::by_linux(block_size);
        let content = image.data(image.named(name), 0);
        let segment = |it: &LoggedBlock| image.geometry().segment_of(it.block);
        let metadata = [
            block_of_inode(&image, Ino::ROOT),
            block_of_inode(&image, image.named("sparse")),
            block_of_inode(&image, image.named("tree")),
            image.data(Ino::IFILE, 1),
        ];
        let beside = |it: &&LoggedBlock| segment(it) == segment(&content);
        let Some(beside) = metadata.iter().find(beside) else { continue };
        tried += 1;
        let mut expected = beginnings(&image.bytes);
        let repaired = repaired_around(image.clone(), &[beside.block, content.block]);
        let (_, whole) = expected.get_mut(&format!("/{name}")).unwrap();
        let end = whole.len().min(block_size as usize);
        whole[..end].fill(0);
        assert!(beginnings(&repaired)[&format!("/{name}")].1 == *whole, "block size {block_size}");
    }
    assert!(tried > 0, "there are such blocks");
}
