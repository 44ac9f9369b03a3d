//! Each rule about block maps, inodes and names is seen to be broken when it is: one structure at a
//! time is damaged in volumes that Linux filled, with right checksums around it.

mod support;

use nilfs_check::{Rule, Severity};
use nilfs_ondisk::bmap::max_children;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{Cno, Ino};
use support::{Image, LoggedBlock, add, expect, expect_error, read, vblock, write};

const I_BLOCKS: usize = 0;
const I_SIZE: usize = 8;
const I_MTIME_NSEC: usize = 36;
const I_MODE: usize = 48;
const I_LINKS: usize = 50;
const I_BMAP: usize = 56;
const NODE_KEYS: usize = 16;

fn is_present(image: &Image, found: &LoggedBlock) -> bool {
    let (dat, at) = image.dat_entry(vblock(*found));
    read(&image.block(dat.block)[at..], 16) == Cno::MAX.0
}

/// A present B-tree node of the file "tree".
fn node(image: &Image) -> LoggedBlock {
    let nodes = image.blocks_of(image.named("tree")).into_iter();
    let found = nodes.filter(|found| found.info.is_node()).rfind(|found| is_present(image, found));
    found.expect("the file has nodes")
}

fn pointer_at(image: &Image, nth: usize) -> usize {
    NODE_KEYS + 8 * (max_children(image.geometry().block_size) + nth)
}

#[test]
fn b_tree_nodes() {
    for (says, at, value) in [("level", 1, 2), ("nchildren", 2, 0), ("flags", 0, 1)] {
        expect_error(Rule::BlockMap, says, |image| {
            let found = node(image);
            image.edit(found, |block| block[at] = value);
        });
    }
    expect_error(Rule::BlockMap, "first key", |image| {
        let found = node(image);
        image.edit(found, |block| add(block, NODE_KEYS, 1));
    });
    expect_error(Rule::BlockMap, "key", |image| {
        let found = node(image);
        image.edit(found, |block| {
            let first = read(block, NODE_KEYS);
            write(block, NODE_KEYS + 8, first);
        });
    });
    expect_error(Rule::Pointer, "the pointer of key", |image| {
        let found = node(image);
        let at = pointer_at(image, 1);
        image.edit(found, |block| write(block, at, 0));
    });
    expect_error(Rule::Pointer, "not allocated", |image| {
        let found = node(image);
        let at = pointer_at(image, 1);
        image.edit(found, |block| write(block, at, 1 << 50));
    });
    // One block for two places, and the other block for none.
    let share = |image: &mut Image| {
        let found = node(image);
        let at = pointer_at(image, 0);
        image.edit(found, |block| {
            let first = read(block, at);
            write(block, at + 8, first);
        });
    };
    expect_error(Rule::SharedBlock, "used twice", share);
    expect(Severity::Note, Rule::NotChecked, "leaked blocks", share);
    // Two neighbours changed places: each is somebody's block, but not this one's.
    expect_error(Rule::Owner, "its log says it is block", |image| {
        let found = node(image);
        let at = pointer_at(image, 0);
        image.edit(found, |block| {
            let (first, second) = (read(block, at), read(block, at + 8));
            write(block, at, second);
            write(block, at + 8, first);
        });
    });
}

#[test]
fn b_tree_nodes_of_neighbours_do_not_overlap() {
    let mut image = Image::by_linux(1024);
    let tree = image.named("tree");
    let is_first = |found: &LoggedBlock| {
        let block = image.block(found.block);
        is_present(&image, found) && block[1] == 1 && read(block, NODE_KEYS) == 0
    };
    let nodes = image.blocks_of(tree).into_iter();
    let first = nodes.filter(|found| found.info.is_node()).rfind(is_first);
    let children = |block: &[u8]| usize::from(u16::from_le_bytes([block[2], block[3]]));
    image.edit(first.unwrap(), |block| {
        let last = NODE_KEYS + 8 * (children(block) - 1);
        write(block, last, 1 << 30);
    });
    let report = image.check().unwrap();
    let seen = |says| report.errors().any(|f| f.rule == Rule::BlockMap && f.message.contains(says));
    assert!(seen("the next node begins at"), "{report}");
}

#[test]
fn nodes_of_the_dat() {
    let mut image = Image::by_linux(1024);
    let found = image.node(Ino::DAT);
    let at = pointer_at(&image, 0);
    image.edit(found, |block| write(block, at, 1 << 40));
    let report = image.check().unwrap();
    let seen = |f: &&nilfs_check::Finding| f.place.ino == Some(Ino::DAT) && f.rule == Rule::Pointer;
    assert!(report.errors().any(|f| seen(&f)), "{report}");
}

#[test]
fn block_map_roots() {
    expect_error(Rule::BlockMap, "nchildren", |image| {
        let ino = image.named("tree");
        image.edit_inode(ino, |inode| inode[I_BMAP + 2] = 9);
    });
    expect_error(Rule::BlockMap, "level", |image| {
        let ino = image.named("sparse");
        image.edit_inode(ino, |inode| inode[I_BMAP + 1] = 14);
    });
    expect_error(Rule::Leak, "nothing uses it", |image| {
        let ino = image.named("shrunk");
        image.edit_inode(ino, |inode| write(inode, I_BMAP + 8, 0));
    });
    expect_error(Rule::Leak, "nothing uses it", |image| {
        let ino = image.named("tree");
        image.edit_inode(ino, |inode| inode[I_BMAP..I_BMAP + 56].fill(0));
    });
    expect_error(Rule::SharedBlock, "used twice", |image| {
        let other = vblock(image.data(image.named("many"), 0));
        let ino = image.named("shrunk");
        image.edit_inode(ino, |inode| write(inode, I_BMAP + 8, other.0));
    });
}

#[test]
fn a_finfo_of_another_file() {
    expect_error(Rule::Owner, "its log says it is block", |image| {
        let found = image.data(image.named("direct"), 0);
        // The first finfo of the log, wherever the block's own is: its inode number.
        image.edit_summary(found.log, |block| add(block, 64, 100));
    });
}

#[test]
fn inodes() {
    let direct = |image: &Image| image.named("direct");
    expect_error(Rule::Inode, "i_mode", |image| {
        image.edit_inode(direct(image), |inode| inode[I_MODE + 1] = 0xf0);
    });
    expect_error(Rule::InodeSize, "beyond the end of the file", |image| {
        image.edit_inode(direct(image), |inode| write(inode, I_SIZE, 10));
    });
    expect_error(Rule::Inode, "i_size", |image| {
        image.edit_inode(direct(image), |inode| write(inode, I_SIZE, 1 << 63));
    });
    expect_error(Rule::InodeBlocks, "i_blocks", |image| {
        image.edit_inode(direct(image), |inode| add(inode, I_BLOCKS, 1));
    });
    expect(Severity::Warning, Rule::Inode, "i_mtime_nsec", |image| {
        image.edit_inode(direct(image), |inode| inode[I_MTIME_NSEC + 3] = 0xff);
    });
    expect(Severity::Warning, Rule::Tail, "is not 0", |image| {
        let ino = direct(image);
        let last = 9000 / image.block_size() as u64;
        let found = image.data(ino, last);
        image.edit(found, |block| *block.last_mut().unwrap() = 7);
    });
    for (says, size) in [("expected 1 to", 0), ("the target has", 40)] {
        expect_error(Rule::Symlink, says, |image| {
            let ino = image.named("symlink");
            image.edit_inode(ino, |inode| write(inode, I_SIZE, size));
        });
    }
}

#[test]
fn links() {
    for (name, links) in [("hardlink", 1), ("many", 3), ("fifo", 2)] {
        expect_error(Rule::LinkCount, "i_links_count is", |image| {
            let ino = image.named(name);
            image.edit_inode(ino, |inode| inode[I_LINKS] = links);
        });
    }
    expect_error(Rule::LinkCount, "i_links_count is", |image| {
        image.edit_inode(Ino::ROOT, |inode| inode[I_LINKS] += 1);
    });
    expect_error(Rule::DirectoryEntry, "which is deleted", |image| {
        let ino = image.named("direct");
        image.edit_inode(ino, |inode| inode[I_LINKS] = 0);
    });
    expect(Severity::Note, Rule::Orphan, "no name", |image| {
        let ino = image.named("direct");
        image.edit_inode(ino, |inode| inode[I_LINKS] = 0);
    });
    expect_error(Rule::Unreachable, "no name leads", |image| {
        // The record becomes unused, so the file has no name any more.
        image.edit_record(Ino::ROOT, "direct", |record| write(record, 0, 0));
    });
    expect_error(Rule::DirectoryEntry, "which is not in use", |image| {
        image.edit_record(Ino::ROOT, "direct", |record| write(record, 0, 5000));
    });
    expect_error(Rule::DirectoryEntry, "which is reserved", |image| {
        image.edit_record(Ino::ROOT, "direct", |record| write(record, 0, 10));
    });
    expect_error(Rule::DirectoryEntry, "claims type", |image| {
        image.edit_record(Ino::ROOT, "direct", |record| record[11] = 2);
    });
}

#[test]
fn directories() {
    for (says, name, at, value) in [
        ("\".\" names inode", ".", 0, 13),
        ("the first record is not", ".", 12, b'x'),
        ("the second record is not", "..", 12, b'x'),
        ("rec_len", ".", 8, 12),
    ] {
        expect_error(Rule::Directory, says, |image| {
            let ino = image.named("many");
            image.edit_record(ino, name, |record| record[at] = value);
        });
    }
    expect_error(Rule::Directory, "\"..\" names inode", |image| {
        let ino = image.named("many");
        image.edit_record(ino, "..", |record| record[0] = 13);
    });
    expect_error(Rule::Directory, "name", |image| {
        image.edit_record(Ino::ROOT, "direct", |record| record[13] = b'/');
    });
    expect_error(Rule::Directory, "stands twice", |image| {
        image.edit_record(Ino::ROOT, "sparse", |record| record[12..18].copy_from_slice(b"direct"));
    });
    expect_error(Rule::Directory, "i_size promises", |image| {
        let ino = image.named("many");
        let size = image.block_size() as u64;
        image.edit_inode(ino, |inode| add(inode, I_SIZE, size));
    });
    expect_error(Rule::Directory, "expected a multiple", |image| {
        let ino = image.named("many");
        image.edit_inode(ino, |inode| add(inode, I_SIZE, 8));
    });
    expect_error(Rule::Directory, "no directory", |image| {
        image.edit_inode(Ino::ROOT, |inode| inode[I_MODE + 1] = 0x81);
    });
}

/// A directory that hangs below itself is not endless, and nobody reaches it.
#[test]
fn a_loop_of_directories_is_unreachable() {
    expect_error(Rule::Unreachable, "no name leads", |image| {
        let (deep, er) = (image.named("deep"), Ino(image.named("deep").0 + 1));
        image.edit_record(er, "..", |record| write(record, 0, deep.0));
        image.edit_record(deep, "..", |record| write(record, 0, er.0));
        image.edit_record(Ino::ROOT, "deep", |record| write(record, 0, 0));
    });
    expect_error(Rule::LinkCount, "names lead to the directory", |image| {
        let deep = image.named("deep");
        image.edit_record(Ino::ROOT, "moved", |record| write(record, 0, deep.0));
    });
}

/// What is wrong in an old checkpoint is seen there, even if the present is right.
#[test]
fn old_checkpoints_are_checked_too() {
    expect_error(Rule::DirectoryEntry, "claims type", |image| {
        let old = image
            .blocks_of(Ino::ROOT)
            .into_iter()
            .rfind(|found| {
                let (dat, at) = image.dat_entry(vblock(*found));
                let end = read(&image.block(dat.block)[at..], 16);
                let start = read(&image.block(dat.block)[at..], 8);
                let has_names = matches!(found.info, BlockInfo::Data { .. })
                    && image.block(found.block).windows(4).any(|w| w == b"fifo");
                let kept = image.snapshots().iter().any(|s| start <= s.0 && s.0 < end);
                has_names && kept && end != Cno::MAX.0
            })
            .expect("an old version of the root directory is kept");
        image.edit(old, |block| {
            let at = block.windows(4).position(|w| w == b"fifo").unwrap();
            block[at - 1] = 1;
        });
    });
}
