//! Blocks that are lost together with the summary that told whose they were: what the DAT, inodes and the order of
//! blocks in a log tell of the others brings these back.

mod support;

use nilfs_check::Severity;
use nilfs_engine::{Filesystem, InodeRef, NewInode};
use nilfs_ondisk::inode::S_IFREG;
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, Ino};
use support::{BLOCK_SIZES, Image, LogAt, Patient, checked, content, formatted, mount};

fn make(fs: &Filesystem, directory: &InodeRef, name: &str, mode: u16) -> InodeRef {
    let new = NewInode { mode, uid: 0, gid: 0, rdev: Default::default() };
    fs.create(directory, name.as_bytes(), &new).unwrap().inode
}

fn root(fs: &Filesystem) -> InodeRef {
    fs.root().unwrap().inode
}

/// Content of which no two blocks are alike.
fn bytes_of(blocks: u64, block_size: u64, seed: u8) -> Vec<u8> {
    (0..blocks * block_size).map(|at| (at / block_size) as u8 ^ seed | 1).collect()
}

fn lose(image: &mut Image, blocks: impl IntoIterator<Item = BlockNr>) {
    let size = image.block_size();
    for block in blocks {
        image.bytes[block.0 as usize * size..][..size].fill(0);
    }
}

/// The blocks of the summary of a log.
fn summary(image: &Image, log: &LogAt) -> impl Iterator<Item = BlockNr> + use<> {
    let (start, blocks) = (log.block, log.header.summary_blocks(image.geometry().block_size));
    (0..blocks).map(move |nth| start.plus(nth))
}

/// The blocks of a log that are these of a file.
fn blocks_in(
    image: &Image,
    log: &LogAt,
    ino: Ino,
    is_one: impl Fn(&BlockInfo) -> bool,
) -> Vec<BlockNr> {
    let first = log.block.plus(log.header.summary_blocks(image.geometry().block_size));
    let infos = log.files.iter().flat_map(|it| it.blocks.iter().map(|info| (it.ino, *info)));
    let all = infos.zip(first.0..);
    all.filter(|((of, info), _)| *of == ino && is_one(info)).map(|(_, at)| BlockNr(at)).collect()
}

/// The last log with nodes of a file.
fn log_with_node(image: &Image, ino: Ino) -> LogAt {
    let mut logs = image.logs();
    logs.sort_by_key(|log| (log.header.seq, log.block));
    let is_it = |log: &&LogAt| !blocks_in(image, log, ino, BlockInfo::is_node).is_empty();
    logs.into_iter().rev().find(|log| is_it(&log)).unwrap()
}

/// Returns how many nodes of the file there were in the log.
fn lose_summary_and_nodes(image: &mut Image, log: &LogAt, ino: Ino) -> usize {
    let nodes = blocks_in(image, log, ino, BlockInfo::is_node);
    let count = nodes.len();
    let lost: Vec<_> = summary(image, log).chain(nodes).collect();
    lose(image, lost);
    count
}

/// Where a node was lost with the summary that told of the data right before it, these became a hole; so did those
/// of which other logs told, if the first of the node was among the former.
#[test]
fn data_stay_in_a_file_that_loses_its_node_with_the_summary() {
    for block_size in BLOCK_SIZES {
        for overwritten in [0, 3, 9] {
            let device = formatted(40 << 20, block_size, 256);
            let fs = mount(&device);
            let file = make(&fs, &root(&fs), "file", S_IFREG | 0o644);
            fs.write(&file, 0, &bytes_of(20, block_size, 0x40)).unwrap();
            fs.commit().unwrap();
            if overwritten > 0 {
                fs.write(&file, 0, &bytes_of(overwritten, block_size, 0x20)).unwrap();
                fs.commit().unwrap();
            }
            let ino = file.ino();
            let log = log_with_node(&Image::from(device.snapshot()), ino);
            // The summary is not that of the newest log.
            make(&fs, &root(&fs), "later", S_IFREG | 0o644);
            drop(file);
            fs.unmount().unwrap();
            let mut image = Image::from(device.snapshot());
            let whole = content(&image.bytes);
            lose_summary_and_nodes(&mut image, &log, ino);
            let patient = Patient::new(image);
            let plan = patient.heal_but_for(Severity::Warning);
            assert!(content(&patient.bytes()) == whole, "{overwritten}: {:?}", plan.repairs);
        }
    }
}

/// Where a leaf was lost with the node above it and the summary that told of both, the data of the leaf became a hole:
/// there was no room for their entries in another.
#[test]
fn data_stay_in_a_file_that_loses_two_levels_of_nodes_with_the_summary() {
    for block_size in BLOCK_SIZES {
        let device = formatted(64 << 20, block_size, 256);
        let fs = mount(&device);
        let file = make(&fs, &root(&fs), "deep", S_IFREG | 0o644);
        let leaf = (block_size - 8) / 16;
        fs.write(&file, 0, &bytes_of(leaf * 9, block_size, 0x40)).unwrap();
        fs.commit().unwrap();
        // Its last leaf, and the node above, are written once more.
        let last = bytes_of(1, block_size, 0x11);
        fs.write(&file, (leaf * 9 - 1) * block_size, &last).unwrap();
        fs.commit().unwrap();
        let ino = file.ino();
        let log = log_with_node(&Image::from(device.snapshot()), ino);
        make(&fs, &root(&fs), "later", S_IFREG | 0o644);
        drop(file);
        fs.unmount().unwrap();
        let mut image = Image::from(device.snapshot());
        let whole = content(&image.bytes);
        assert_eq!(lose_summary_and_nodes(&mut image, &log, ino), 2);
        let patient = Patient::new(image);
        let plan = patient.heal_but_for(Severity::Warning);
        let healed = content(&patient.bytes());
        assert!(healed["/deep"] == whole["/deep"], "{:?}", plan.repairs);
    }
}

/// Where the root directory lost its inode and its block with the summary that told of both, the newest checkpoint was
/// given up, and what had been fsynced after it.
#[test]
fn the_newest_checkpoint_stays_without_the_block_of_its_root_directory() {
    let device = formatted(16 << 20, 1024, 256);
    let fs = mount(&device);
    let files = ["one", "two", "three"].map(|name| {
        let file = make(&fs, &root(&fs), name, S_IFREG | 0o644);
        fs.write(&file, 0, name.as_bytes()).unwrap();
        fs.commit().unwrap();
        file
    });
    // The inode of the root directory is not written again: it is in another block than that of the file.
    fs.write(&files[2], 0, b"again").unwrap();
    drop(files);
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let newest = checked(&image.bytes).unwrap().newest;
    let layout = Palloc::new(image.geometry().block_size, image.geometry().inode_size);
    let lost =
        [image.data(Ino::ROOT, 0), image.data(Ino::IFILE, layout.entry(Ino::ROOT.0).block.0)];
    assert_eq!(lost[0].log, lost[1].log);
    let log = image.logs().into_iter().find(|log| log.block == lost[0].log).unwrap();
    assert!(!log.files.is_empty() && log.header.cno < newest);
    let lost: Vec<_> = summary(&image, &log).chain(lost.map(|it| it.block)).collect();
    lose(&mut image, lost);
    let patient = Patient::new(image);
    let plan = patient.heal_but_for(Severity::Warning);
    let healed = content(&patient.bytes());
    assert!(checked(&patient.bytes()).unwrap().newest > newest, "{:?}", plan.repairs);
    assert_eq!(healed["/one"].3, b"one", "{:?}", plan.repairs);
    assert_eq!(healed["/two"].3, b"two", "{:?}", plan.repairs);
    let has = |bytes: &[u8]| healed.values().any(|file| file.3 == bytes);
    assert!(has(b"again"), "{:?}", plan.repairs);
}
