//! A power cut after one operation and a sync, or two of each, in a small tree. What was synced is
//! there, under its new name, whole, and what was not is as it was or as it became.

use nilfs_engine::{RenameMode, SetAttr};
use nilfs_ondisk::inode::{DeviceCode, FileType};
use nilfs_sim::cuts::Cuts;
use nilfs_sim::name::{Name, Path};
use nilfs_sim::op::{Op, Target};
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::{Settings, World};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// A path of letters, as in "a/b".
fn path(text: &str) -> Path {
    let letters = text.bytes().filter(u8::is_ascii_lowercase);
    Path(letters.map(|letter| Name(u16::from(letter - b'a'))).collect())
}

fn file(text: &str) -> Target {
    Target::Path(path(text))
}

fn create(text: &str, kind: FileType) -> Op {
    Op::Create { path: path(text), kind, mode: 0o755, rdev: DeviceCode::default() }
}

fn write(text: &str, offset: u64, length: u64, fill: u32) -> Op {
    Op::Write { target: file(text), offset, length, fill }
}

fn rename(from: &str, to: &str, mode: RenameMode) -> Op {
    Op::Rename { from: path(from), to: path(to), mode }
}

fn link(from: &str, to: &str) -> Op {
    Op::Link { target: file(from), to: path(to) }
}

fn truncate(text: &str, size: u64) -> Op {
    let changes = SetAttr { size: Some(size), ..SetAttr::default() };
    Op::SetAttr { target: file(text), changes }
}

/// The tree before: directories a, a/d, e; files a/b = g, c, a/d/f.
fn tree() -> Vec<Op> {
    vec![
        create("a", FileType::Directory),
        create("a/d", FileType::Directory),
        create("e", FileType::Directory),
        create("a/b", FileType::Regular),
        create("c", FileType::Regular),
        create("a/d/f", FileType::Regular),
        write("a/b", 0, 5000, 1),
        write("c", 0, 3000, 2),
        write("a/d/f", 7000, 2000, 3),
        link("a/b", "g"),
        Op::Sync,
    ]
}

fn operations() -> Vec<Op> {
    use RenameMode::{Exchange, Replace};
    vec![
        create("x", FileType::Regular),
        create("a/d/x", FileType::Fifo),
        create("e/x", FileType::Directory),
        Op::Symlink { path: path("a/x"), length: 100 },
        link("c", "a/x"),
        link("a/d/f", "e/x"),
        Op::Unlink(path("a/b")),
        Op::Unlink(path("c")),
        Op::RemoveDirectory(path("e")),
        rename("c", "x", Replace),
        rename("c", "a/d/x", Replace),
        rename("a", "x", Replace),
        rename("a/d", "x", Replace),
        rename("a/d", "e", Replace),
        rename("c", "a/b", Replace),
        rename("a/d/f", "c", Replace),
        rename("a", "c", Exchange),
        rename("a/d", "e", Exchange),
        rename("a/b", "c", Exchange),
        write("c", 100, 1000, 9),
        write("c", 3000, 1000, 9),
        write("a/d/f", 0, 10, 9),
        write("c", 1 << 33, 10, 9),
        truncate("c", 100),
        truncate("a/b", 0),
        truncate("c", 90_000),
        Op::SetAttr {
            target: file("a/d"),
            changes: SetAttr { mode: Some(0o700), uid: Some(5), ..SetAttr::default() },
        },
        Op::SetFlags { target: file("c"), flags: 0x80 },
    ]
}

/// Every way to sync a tree: as a whole, or one of its files, or the data of one.
fn syncs(world: &World) -> Vec<Op> {
    let paths = world.model().paths();
    let files = paths.iter().filter(|(_, kind)| *kind == FileType::Regular);
    let fsyncs = paths.iter().map(|(path, _)| Op::Fsync(Target::Path(path.clone())));
    let fdatasyncs = files.map(|(path, _)| Op::Fdatasync(Target::Path(path.clone())));
    fsyncs.chain(fdatasyncs).chain([Op::Sync, Op::Commit]).collect()
}

const SETTINGS: Settings = Settings {
    shape: Shape { block_size: 1024, blocks_per_segment: 32, segments: 24 },
    mounting: Mounting::READ_WRITE,
    may_fill: false,
};

fn replay(ops: &[Op]) -> World {
    World::replay(SETTINGS, ops).unwrap_or_else(|what| panic!("{what}"))
}

/// Does `before` on the tree, then `ops`, and cuts the power at every moment in these.
fn cut(before: &[Op], ops: &[Op]) {
    let world = replay(&[&tree()[..], before, ops].concat());
    let from = world.history().steps[tree().len() + before.len()].ended;
    let cuts = Cuts { settings: SETTINGS, ops_afterwards: 0 };
    if let Err(what) = cuts.everywhere(world.history(), from, 1) {
        let ops: Vec<String> = before.iter().chain(ops).map(Op::to_string).collect();
        panic!("{}: {what}", ops.join(", then "));
    }
}

/// The syncs that are possible after some operations on the tree.
fn syncs_after(ops: &[Op]) -> Vec<Op> {
    syncs(&replay(&[&tree()[..], ops].concat()))
}

#[test]
fn what_was_synced_is_there() {
    for operation in operations() {
        for sync in syncs_after(std::slice::from_ref(&operation)) {
            cut(&[], &[operation.clone(), sync]);
        }
    }
}

/// A program goes on writing to a file that was deleted while it had it open.
#[test]
fn a_file_without_a_name_is_nobodys_trouble() {
    let handle = || Target::Handle(0);
    let ops = [
        Op::Open { path: path("c"), handle: 0 },
        Op::Unlink(path("c")),
        Op::Sync,
        Op::Write { target: handle(), offset: 100, length: 1500, fill: 9 },
    ];
    for sync in [Op::Fdatasync(handle()), Op::Fsync(handle()), Op::Commit] {
        cut(&[], &[&ops[..], &[sync]].concat());
    }
}

/// Of what was written nothing is left but zeros before the end, in a block that no checkpoint has.
/// The log of an fsync left it out, and a hole was found in its place.
#[test]
fn a_new_block_that_was_cut_to_zeros_is_no_hole() {
    let ops = [
        create("x", FileType::Regular),
        write("x", 800, 100, 9),
        truncate("x", 500),
        Op::Fsync(file("x")),
    ];
    cut(&[], &ops);
}

/// Every pair of operations, each time with other syncs between and after them.
#[test]
fn two_operations_with_syncs() {
    for_each_seed("two_operations_with_syncs", 1, |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        for first in operations() {
            for second in operations() {
                let mut before = vec![first.clone()];
                if random.random() {
                    before.extend(syncs_after(&before).choose(&mut random).cloned());
                }
                let mut ops = vec![second];
                let both = [&before[..], &ops].concat();
                ops.extend(syncs_after(&both).choose(&mut random).cloned());
                cut(&before, &ops);
            }
        }
    });
}

/// The same with all syncs.
#[test]
#[ignore = "takes hours"]
fn two_operations_with_all_syncs() {
    for first in operations() {
        let first = vec![first];
        let between = syncs_after(&first).into_iter().map(|sync| [&first[..], &[sync]].concat());
        for before in std::iter::once(first.clone()).chain(between) {
            for second in operations() {
                for sync in syncs_after(&[&before[..], std::slice::from_ref(&second)].concat()) {
                    cut(&before, &[second.clone(), sync]);
                }
            }
        }
    }
}
