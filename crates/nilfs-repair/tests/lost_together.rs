//! Blocks of metadata that are lost together, because they lie in one piece of the device: nothing is lost that
//! another block tells, and nothing of what they have in common with other checkpoints.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use nilfs_check::Severity;
use nilfs_device::MemoryDevice;
use nilfs_engine::{Cno, Filesystem, InodeRef, NewInode, SetAttr, Volume};
use nilfs_ondisk::inode::{INODE_SIZE, S_IFDIR, S_IFREG};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::summary::{BlockInfo, SR};
use nilfs_ondisk::{BlockNr, Ino};
use nilfs_repair::Risk;
use support::{
    BLOCK_SIZES, Content, Image, LogAt, Patient, content, content_of, formatted, mount, present,
};

fn root(fs: &Filesystem) -> InodeRef {
    fs.root().unwrap().inode
}

fn make(fs: &Filesystem, name: &str, bytes: &[u8]) -> InodeRef {
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let file = fs.create(&root(fs), name.as_bytes(), &new).unwrap().inode;
    fs.write(&file, 0, bytes).unwrap();
    file
}

fn lose(image: &mut Image, blocks: impl IntoIterator<Item = BlockNr>) {
    let size = image.block_size();
    for block in blocks {
        image.bytes[block.0 as usize * size..][..size].fill(0);
    }
}

/// The blocks of a log after its summary.
fn described(image: &Image, log: &LogAt) -> Vec<(Ino, BlockInfo, BlockNr)> {
    let first = log.block.plus(log.header.summary_blocks(image.geometry().block_size));
    let infos = log.files.iter().flat_map(|it| it.blocks.iter().map(|info| (it.ino, *info)));
    infos.zip(first.0..).map(|((ino, info), block)| (ino, info, BlockNr(block))).collect()
}

/// The log with the newest super root.
fn newest_log(image: &Image) -> LogAt {
    let logs = image.logs().into_iter().filter(|log| log.header.has(SR));
    logs.max_by_key(|log| (log.header.seq, log.block)).unwrap()
}

/// The blocks of the newest checkpoint's log of these kinds.
fn newest_blocks(image: &Image, is_one: impl Fn(Ino, &BlockInfo) -> bool) -> Vec<BlockNr> {
    let all = described(image, &newest_log(image)).into_iter();
    all.filter(|(ino, info, _)| is_one(*ino, info)).map(|it| it.2).collect()
}

fn of_past(bytes: &[u8], cno: Cno) -> Content {
    let volume = Volume::open(Arc::new(MemoryDevice::from(bytes.to_vec()))).unwrap();
    content_of(&volume, Some(cno))
}

/// A file of so many blocks that its map has nodes on two levels, and the blocks of these nodes.
fn with_deep_map(block_size: u64) -> (Image, Vec<BlockNr>) {
    let device = formatted(64 << 20, block_size, 256);
    let fs = mount(&device);
    let leaf = (block_size - 8) / 16;
    let blocks = leaf * if block_size == 1024 { 9 } else { 8 };
    let bytes: Vec<u8> =
        (0..blocks * block_size).map(|at| (at / block_size % 251) as u8 + 1).collect();
    let ino = make(&fs, "deep", &bytes).ino();
    fs.unmount().unwrap();
    let image = Image::from(device.snapshot());
    let nodes = image.blocks_of(ino).into_iter().filter(|it| it.info.is_node());
    let nodes: Vec<_> = nodes.map(|it| it.block).collect();
    (image, nodes)
}

/// Where several nodes of a map were lost with the one above them, all of them but that were given up, and their
/// blocks were freed.
#[test]
fn nodes_that_are_lost_together_are_made_anew() {
    for block_size in BLOCK_SIZES {
        let (image, nodes) = with_deep_map(block_size);
        assert!(nodes.len() > 8, "{nodes:?}");
        let whole = content(&image.bytes);
        // The one above the others was written last.
        for first in [0, 1, nodes.len() / 2, nodes.len() - 3] {
            let mut image = image.clone();
            lose(&mut image, nodes[first..].iter().copied());
            let patient = Patient::new(image);
            let plan = patient.heal();
            assert_eq!(plan.risk(), Risk::Safe, "{:?}", plan.repairs);
            assert!(content(&patient.bytes()) == whole, "from {first} on: {:?}", plan.repairs);
        }
    }
}

/// As it is where these nodes are lost with the inode of their file.
#[test]
fn nodes_that_are_lost_with_their_inode_are_made_anew() {
    for block_size in BLOCK_SIZES {
        let (image, nodes) = with_deep_map(block_size);
        let whole = content(&image.bytes);
        let mut image = image;
        let inodes = newest_blocks(&image, |ino, info| ino == Ino::IFILE && !info.is_node());
        lose(&mut image, nodes.into_iter().chain(inodes.last().copied()));
        let patient = Patient::new(image);
        let plan = patient.heal();
        let healed = content(&patient.bytes());
        assert!(healed["/deep"] == whole["/deep"], "{:?}", plan.repairs);
    }
}

/// Old entries of the DAT do not say which blocks have come to an end since: the newest checkpoint got the ifile of
/// the one before, without a word.
#[test]
fn the_newest_node_is_not_taken_for_an_older_one() {
    for block_size in BLOCK_SIZES {
        let device = formatted(32 << 20, block_size, 256);
        let fs = mount(&device);
        for round in 0..4 {
            for nth in 0..100_u8 {
                make(&fs, &format!("file {round} {nth}"), &[nth; 700]);
            }
            fs.commit().unwrap();
        }
        make(&fs, "last", b"last");
        fs.unmount().unwrap();
        let mut image = Image::from(device.snapshot());
        let whole = content(&image.bytes);
        let lost = newest_blocks(&image, |ino, info| match ino {
            Ino::IFILE => info.is_node(),
            Ino::DAT => !info.is_node(),
            ino => ino == Ino::CPFILE,
        });
        assert!(lost.len() > 3, "{lost:?}");
        lose(&mut image, lost);
        let patient = Patient::new(image);
        let plan = patient.heal();
        assert!(content(&patient.bytes()) == whole, "{:?}", plan.repairs);
    }
}

/// Names were taken out of a snapshot because a later checkpoint, of which the map led to the same blocks, did not
/// have the files.
#[test]
fn a_name_of_another_checkpoint_is_not_taken_out() {
    let device = formatted(32 << 20, 1024, 256);
    let fs = mount(&device);
    (0..40_u8).for_each(|nth| drop(make(&fs, &format!("file {nth}"), &[nth; 100])));
    let earlier = fs.commit().unwrap();
    fs.set_snapshot(earlier, true).unwrap();
    let then = Image::from(device.snapshot());
    for nth in (0..40).step_by(2) {
        fs.unlink(&root(&fs), format!("file {nth}").as_bytes()).unwrap();
    }
    let later = fs.commit().unwrap();
    let mut blocks = Image::from(device.snapshot());
    let inodes = blocks.data(Ino::IFILE, root_slot(&blocks).0);
    make(&fs, "more", b"more");
    fs.unmount().unwrap();
    let image = Image::from(device.snapshot());
    let before = of_past(&image.bytes, earlier);
    assert!(later > earlier && before.len() >= 40);
    let (key, at) = root_slot(&then);
    let old = then.block(then.data(Ino::IFILE, key).block)[at..][..INODE_SIZE].to_vec();
    blocks.bytes.copy_from_slice(&image.bytes);
    blocks.edit(inodes, |block| block[at..][..INODE_SIZE].copy_from_slice(&old));
    let patient = Patient::new(Image::from(blocks.bytes));
    let plan = patient.plan();
    assert!(plan.obstacle.is_none(), "{:?}", plan.obstacle);
    plan.apply(&*patient.device, &mut |_| {}).unwrap();
    assert!(of_past(&patient.bytes(), earlier) == before, "{:?}", plan.repairs);
}

/// Where the inode of the root directory is: the block of the ifile, and the byte in it.
fn root_slot(image: &Image) -> (u64, usize) {
    let layout = Palloc::new(image.geometry().block_size, image.geometry().inode_size);
    let slot = layout.entry(Ino::ROOT.0);
    (slot.block.0, slot.offset)
}

/// A snapshot that has the numbers of files in common with a lost checkpoint stays as it is.
#[test]
fn a_lost_checkpoint_of_the_past_is_given_up_alone() {
    let device = formatted(32 << 20, 4096, 256);
    let fs = mount(&device);
    let files: Vec<_> =
        (0..300_u16).map(|nth| make(&fs, &format!("file {nth}"), &[nth as u8; 100])).collect();
    let earlier = fs.commit().unwrap();
    fs.set_snapshot(earlier, true).unwrap();
    let change = |mode| {
        for file in &files {
            fs.set_attr(file, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
        }
        fs.commit().unwrap();
        Image::from(device.snapshot())
    };
    let then = change(0o600);
    change(0o640);
    let expected = present(&*fs);
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let before = of_past(&image.bytes, earlier);
    let lost = newest_blocks(&then, |ino, _| ino == Ino::IFILE);
    let log = newest_log(&then);
    let summaries = [log.block, log.block.plus(log.header.nblocks.into())];
    for block in lost.into_iter().chain(summaries) {
        image.bytes[block.0 as usize * 4096..][..4096].fill(0xa7);
    }
    let patient = Patient::new(image);
    let plan = patient.heal_but_for(Severity::Warning);
    assert!(of_past(&patient.bytes(), earlier) == before, "{:?}", plan.repairs);
    let healed = mount(&Arc::new(MemoryDevice::from(patient.bytes())));
    assert!(present(&*healed) == expected, "{:?}", plan.repairs);
}

/// A file got its size, owner and permissions from noise in an older version of its block.
#[test]
fn what_is_damaged_itself_is_no_older_version() {
    let device = formatted(32 << 20, 4096, 256);
    let fs = mount(&device);
    let files: Vec<_> =
        (0..8_u8).map(|nth| make(&fs, &format!("file {nth}"), &[nth; 900])).collect();
    fs.commit().unwrap();
    let (mut lost, mut cnos) = (BTreeSet::new(), Vec::new());
    for mode in [0o600, 0o640] {
        for file in &files {
            fs.set_attr(file, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
        }
        cnos.push(fs.commit().unwrap());
        let image = Image::from(device.snapshot());
        lost.extend(newest_blocks(&image, |ino, _| ino == Ino::IFILE).last().copied());
    }
    // No checkpoint has the first one any more, and it is still there.
    fs.delete_checkpoints(cnos[0]..=cnos[0]).unwrap();
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    for block in lost {
        // A regular file, by its type.
        image.bytes[block.0 as usize * 4096..][..4096].fill(0x81);
    }
    let patient = Patient::new(image);
    let plan = patient.heal();
    let fs = mount(&Arc::new(MemoryDevice::from(patient.bytes())));
    for nth in 0..8 {
        let name = format!("file {nth}");
        let attr = fs.lookup(&root(&fs), name.as_bytes()).unwrap().attr;
        assert_eq!(
            (attr.size, attr.mode & 0o7777, attr.uid),
            (900, 0o644, 0),
            "{:?}",
            plan.repairs
        );
    }
}

/// The log of an fsync and the summary after it were taken for one log, which hid the newest checkpoint; nothing was
/// repaired.
#[test]
fn the_newest_log_begins_where_the_superblock_says() {
    for block_size in BLOCK_SIZES {
        let device = formatted(32 << 20, block_size, 256);
        let fs = mount(&device);
        make(&fs, "one", b"one");
        fs.commit().unwrap();
        for name in ["two", "three"] {
            fs.sync_file(&make(&fs, name, name.as_bytes())).unwrap();
        }
        fs.unmount().unwrap();
        let mut image = Image::from(device.snapshot());
        let whole = content(&image.bytes);
        let newest = newest_log(&image).block;
        let logs = image.logs().into_iter().filter(|log| log.block < newest);
        let before = logs.max_by_key(|log| log.block).unwrap().block;
        lose(&mut image, (before.0..=newest.0).map(BlockNr));
        let patient = Patient::new(image);
        let plan = patient.heal_but_for(Severity::Warning);
        assert!(content(&patient.bytes()) == whole, "{:?}", plan.repairs);
    }
}

/// All files were taken out of their directories, in the checkpoint before, too.
#[test]
fn a_bitmap_of_zeros_is_no_bitmap() {
    for block_size in BLOCK_SIZES {
        let device = formatted(32 << 20, block_size, 256);
        let fs = mount(&device);
        (0..30_u8).for_each(|nth| drop(make(&fs, &format!("file {nth}"), &[nth; 900])));
        let earlier = fs.commit().unwrap();
        let one = fs.lookup(&root(&fs), b"file 1").unwrap().inode;
        fs.set_attr(&one, &SetAttr { mode: Some(0o644), ..SetAttr::default() }).unwrap();
        make(&fs, "another", b"another");
        fs.unmount().unwrap();
        let mut image = Image::from(device.snapshot());
        let (whole, before) = (content(&image.bytes), of_past(&image.bytes, earlier));
        let layout = Palloc::new(image.geometry().block_size, image.geometry().inode_size);
        let blocks = [layout.bit(0).block, layout.entry(Ino::FIRST_USER.0).block];
        let lost = blocks.map(|block| image.data(Ino::IFILE, block.0).block);
        let summary = newest_log(&image).block;
        lose(&mut image, lost.into_iter().chain([summary]));
        let patient = Patient::new(image);
        let plan = patient.heal_but_for(Severity::Warning);
        let healed = content(&patient.bytes());
        for (path, file) in whole.iter().filter(|(path, _)| path.starts_with("/file")) {
            assert!(healed.get(path) == Some(file), "{path}: {:?}", plan.repairs);
        }
        assert!(of_past(&patient.bytes(), earlier) == before, "{:?}", plan.repairs);
    }
}

/// A file that had lost its name and the bit of its number was gone, though its inode was whole.
#[test]
fn a_file_with_links_is_there_without_its_name_and_its_bit() {
    let device = formatted(32 << 20, 4096, 256);
    let fs = mount(&device);
    let file = make(&fs, "file", b"content").ino();
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let layout = Palloc::new(image.geometry().block_size, image.geometry().inode_size);
    let bit = layout.bit(file.0);
    let bitmap = image.data(Ino::IFILE, bit.block.0);
    image.edit(bitmap, |block| block[bit.bit / 8] &= !(1 << (bit.bit % 8)));
    image.edit_record(Ino::ROOT, "file", |record| record[..8].fill(0));
    let patient = Patient::new(image);
    // In the checkpoint that was the newest, the name stays lost.
    let plan = patient.heal_but_for(Severity::Warning);
    let fs = mount(&Arc::new(MemoryDevice::from(patient.bytes())));
    let found = fs.lookup(&root(&fs), b"lost+found").unwrap().inode;
    let found = fs.lookup(&found, format!("#{file}").as_bytes());
    assert_eq!(found.unwrap().attr.size, 7, "{:?}", plan.repairs);
}

/// A block of inodes that no file has in use was called damaged for ever.
#[test]
fn a_block_of_inodes_that_no_file_uses_is_made_anew() {
    let device = formatted(32 << 20, 1024, 256);
    let fs = mount(&device);
    let names: Vec<_> = (0..40).map(|nth| format!("file {nth}")).collect();
    names.iter().for_each(|name| drop(make(&fs, name, b"content")));
    fs.commit().unwrap();
    names.iter().for_each(|name| fs.unlink(&root(&fs), name.as_bytes()).unwrap());
    fs.commit().unwrap();
    let then = Image::from(device.snapshot());
    names.iter().for_each(|name| drop(make(&fs, name, b"other")));
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let whole = content(&image.bytes);
    let layout = Palloc::new(image.geometry().block_size, image.geometry().inode_size);
    let lost = then.data(Ino::IFILE, layout.entry(Ino::FIRST_USER.0 + 20).block.0).block;
    image.bytes[lost.0 as usize * 1024..][..1024].fill(0x81);
    let patient = Patient::new(image);
    patient.heal();
    assert!(content(&patient.bytes()) == whole);
}

/// Three pointers of a node were taken out in one go. The volume was written before the others were, and new blocks got
/// their numbers: the file had blocks of other files then.
#[test]
fn all_pointers_to_what_is_lost_are_taken_out_at_once() {
    let device = formatted(32 << 20, 1024, 256);
    let fs = mount(&device);
    let bytes: Vec<u8> = (0..100 << 10).map(|at| (at >> 10) as u8 + 1).collect();
    let large = make(&fs, "large", &bytes).ino();
    fs.commit().unwrap();
    (0..20_u8).for_each(|nth| drop(make(&fs, &format!("file {nth}"), &[0xff; 3000])));
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let whole = content(&image.bytes);
    let at = image.data(large, 40).log;
    let numbers = image.blocks_of(large).into_iter().filter(|it| it.log == at);
    let numbers = numbers.filter_map(|it| it.info.vblock());
    let layout = Palloc::new(image.geometry().block_size, image.geometry().dat_entry_size);
    let blocks: BTreeSet<_> = numbers.map(|it| layout.entry(it.0).block.0).collect();
    let lost = image.data(Ino::DAT, *blocks.iter().nth(1).unwrap()).block;
    let log = image.logs().into_iter().find(|log| log.block == at).unwrap();
    let summary = log.header.summary_blocks(image.geometry().block_size);
    lose(&mut image, (0..summary).map(|nth| log.block.plus(nth)).chain([lost]));
    let patient = Patient::new(image);
    let plan = patient.heal_but_for(Severity::Warning);
    let healed = content(&patient.bytes());
    let holes = plan.repairs.iter().filter(|it| it.action.starts_with("make a hole"));
    assert!(holes.count() > 3, "{:?}", plan.repairs);
    for (path, file) in whole.iter().filter(|(path, _)| *path != "/large") {
        assert!(healed.get(path) == Some(file), "{path}: {:?}", plan.repairs);
    }
    let fs = mount(&Arc::new(MemoryDevice::from(patient.bytes())));
    let file = fs.lookup(&root(&fs), b"large").unwrap().inode;
    let mut found = vec![0; bytes.len()];
    fs.read(&file, 0, &mut found).unwrap();
    let is_own = |(found, was): (&u8, &u8)| found == was || *found == 0;
    assert!(found.iter().zip(&bytes).all(is_own), "no byte of another file");
}

/// A new directory got the number of a deleted file. Where the bitmap and the inodes were lost that had told so, a file
/// was made for that number, and all fsyncs were given up that have a directory there.
#[test]
fn a_lost_inode_becomes_what_fsyncs_say_it_is() {
    let device = formatted(32 << 20, 1024, 256);
    let fs = mount(&device);
    let files: Vec<_> =
        (0..20_u8).map(|nth| make(&fs, &format!("file {nth}"), &[nth; 100]).ino()).collect();
    fs.commit().unwrap();
    fs.unlink(&root(&fs), b"file 5").unwrap();
    fs.commit().unwrap();
    let then = Image::from(device.snapshot());
    let new = |mode| NewInode { mode, uid: 7, gid: 7, rdev: Default::default() };
    let directory = fs.create(&root(&fs), b"new", &new(S_IFDIR | 0o750)).unwrap().inode;
    assert_eq!(directory.ino(), files[5]);
    for name in ["one", "two"] {
        let file = fs.create(&directory, name.as_bytes(), &new(S_IFREG | 0o640)).unwrap().inode;
        fs.write(&file, 0, name.as_bytes()).unwrap();
        fs.sync_file(&file).unwrap();
    }
    let expected = present(&*fs);
    let mut image = Image::from(device.snapshot());
    let layout = Palloc::new(image.geometry().block_size, image.geometry().inode_size);
    let keys = [layout.bit(files[5].0).block, layout.entry(files[5].0).block];
    lose(&mut image, keys.map(|key| then.data(Ino::IFILE, key.0).block));
    let patient = Patient::new(image);
    let plan = patient.plan();
    plan.apply(&*patient.device, &mut |_| {}).unwrap();
    let healed = mount(&Arc::new(MemoryDevice::from(patient.bytes())));
    let found = present(&*healed);
    assert!(expected.keys().any(|path| path == "/new/two"));
    // It has one block more.
    for (path, file) in expected.iter().filter(|(path, _)| *path != "/new") {
        assert!(found.get(path) == Some(file), "{path}: {:?}", plan.repairs);
    }
}

/// Files of which the directory was made anew, without names, were put into lost+found by the second repair only.
#[test]
fn files_of_a_lost_directory_are_found_at_once() {
    let device = formatted(32 << 20, 4096, 256);
    let fs = mount(&device);
    let new = |mode| NewInode { mode, uid: 0, gid: 0, rdev: Default::default() };
    let directory = fs.create(&root(&fs), b"directory", &new(S_IFDIR | 0o755)).unwrap().inode;
    let create = |nth: u8| {
        let name = format!("file {nth}");
        let file = fs.create(&directory, name.as_bytes(), &new(S_IFREG | 0o644)).unwrap().inode;
        fs.write(&file, 0, &[nth; 700]).unwrap();
    };
    (1..9).for_each(create);
    fs.commit().unwrap();
    create(9);
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let lost = newest_blocks(&image, |ino, _| ino == Ino::IFILE || ino == directory.ino());
    let summary = newest_log(&image).block;
    lose(&mut image, lost.into_iter().chain([summary]));
    let patient = Patient::new(image);
    let plan = patient.plan();
    assert!(plan.obstacle.is_none(), "{:?}", plan.obstacle);
    plan.apply(&*patient.device, &mut |_| {}).unwrap();
    assert!(patient.plan().repairs.is_empty(), "{:?}", patient.plan().repairs);
    let healed = content(&patient.bytes());
    for nth in 1..9_u8 {
        let is_there = healed.values().any(|file| file.3 == [nth; 700]);
        assert!(is_there, "file {nth}: {:?}", plan.repairs);
    }
}

/// An inode of noise was believed where its log has lost its checksums, if its type was a possible one.
#[test]
fn an_inode_of_noise_is_made_anew() {
    let device = formatted(32 << 20, 4096, 256);
    let fs = mount(&device);
    let file = make(&fs, "file", &[7; 700]).ino();
    fs.commit().unwrap();
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.set_attr(&fs.lookup(&root(&fs), b"file").unwrap().inode, &mode).unwrap();
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let whole = content(&image.bytes);
    let layout = Palloc::new(image.geometry().block_size, image.geometry().inode_size);
    let slot = layout.entry(file.0);
    let inodes = image.data(Ino::IFILE, slot.block.0);
    // A regular file, by its type.
    image.edit(inodes, |block| block[slot.offset..][..INODE_SIZE].fill(0x81));
    let patient = Patient::new(image);
    let plan = patient.heal();
    assert!(content(&patient.bytes()) == whole, "{:?}", plan.repairs);
}

/// Where both were lost that tell what the newest checkpoint has, it became that before under another number, without a
/// word, and what had been fsynced in between was lost.
#[test]
fn a_checkpoint_of_which_nothing_tells_is_given_up_by_name() {
    let device = formatted(32 << 20, 1024, 256);
    let fs = mount(&device);
    (0..200_u8).for_each(|nth| drop(make(&fs, &format!("file {nth}"), &[nth; 3000])));
    fs.commit().unwrap();
    for name in ["one", "two"] {
        fs.sync_file(&make(&fs, name, name.as_bytes())).unwrap();
    }
    (0..60).for_each(|nth| drop(make(&fs, &format!("late {nth}"), b"late")));
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let whole = content(&image.bytes);
    let log = newest_log(&image);
    let nodes = newest_blocks(&image, |ino, info| ino == Ino::DAT && info.is_node());
    assert!(!nodes.is_empty());
    let summary = log.header.summary_blocks(image.geometry().block_size);
    assert!(summary > 1, "of the first block, the header stays");
    lose(&mut image, (1..summary).map(|nth| log.block.plus(nth)).chain(nodes));
    let patient = Patient::new(image);
    let plan = patient.heal_but_for(Severity::Warning);
    let healed = content(&patient.bytes());
    for (path, file) in whole.iter().filter(|(path, _)| !path.starts_with("/late")) {
        assert!(healed.get(path) == Some(file), "{path}: {:?}", plan.repairs);
    }
    let says = |words| plan.repairs.iter().any(|it| it.action.contains(words));
    assert!(says("go on from checkpoint"), "{:?}", plan.repairs);
}
