//! Small workloads to be cut off anywhere: one operation in a small tree, or a few, with every way of
//! syncing between and after them.
//!
//! What breaks a file system in a power cut is nearly always to be had with two or three operations on
//! a few files, so all such sequences are worth more than long ones at random; [`crate::lives`] has
//! those.

use nilfs_engine::{RenameMode, SetAttr};
use nilfs_ondisk::inode::{DeviceCode, FileType};
use rand::Rng;
use rand::seq::IndexedRandom;

use crate::cuts::Cuts;
use crate::name::{Name, Path};
use crate::op::{Op, Target};
use crate::subject::Mounting;
use crate::volume::Shape;
use crate::world::{Settings, World};

/// A path of letters, as in "a/b".
pub fn path(text: &str) -> Path {
    let letters = text.bytes().filter(u8::is_ascii_lowercase);
    Path(letters.map(|letter| Name(u16::from(letter - b'a'))).collect())
}

/// A file by its path of letters.
pub fn file(text: &str) -> Target {
    Target::Path(path(text))
}

/// Makes a file.
pub fn create(text: &str, kind: FileType) -> Op {
    Op::Create { path: path(text), kind, mode: 0o755, rdev: DeviceCode::default() }
}

/// Writes some bytes.
pub fn write(text: &str, offset: u64, length: u64, fill: u32) -> Op {
    Op::Write { target: file(text), offset, length, fill }
}

fn rename(from: &str, to: &str, mode: RenameMode) -> Op {
    Op::Rename { from: path(from), to: path(to), mode }
}

fn link(from: &str, to: &str) -> Op {
    Op::Link { target: file(from), to: path(to) }
}

/// Changes the size of a file.
pub fn truncate(text: &str, size: u64) -> Op {
    let changes = SetAttr { size: Some(size), ..SetAttr::default() };
    Op::SetAttr { target: file(text), changes }
}

/// The tree before: directories a, a/d, e; files a/b = g, c, a/d/f.
pub fn tree() -> Vec<Op> {
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

/// The operations of which workloads consist: each does something in the tree.
pub fn operations() -> Vec<Op> {
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

const SETTINGS: Settings = Settings {
    shape: Shape { block_size: 1024, blocks_per_segment: 32, segments: 24 },
    mounting: Mounting::READ_WRITE,
    may_fill: false,
};

/// Operations on the tree; the power fails in the last of them.
#[derive(Debug, Clone)]
pub struct Workload {
    /// What is done before.
    pub before: Vec<Op>,
    /// What is cut off: at every moment, and after it.
    pub ops: Vec<Op>,
}

impl Workload {
    /// One operation or more, after each of which chance decides whether it is synced, and how. The
    /// power fails in the last of them and in its sync.
    pub fn by_chance(operations: &[Op], random: &mut impl Rng) -> Self {
        let mut before = Vec::new();
        let Some((last, first)) = operations.split_last() else {
            return Self { before, ops: Vec::new() };
        };
        for operation in first {
            before.push(operation.clone());
            if random.random() {
                before.extend(syncs_after(&before).choose(random).cloned());
            }
        }
        let mut ops = vec![last.clone()];
        let all = [&before[..], &ops].concat();
        ops.extend(syncs_after(&all).choose(random).cloned());
        Self { before, ops }
    }

    /// Cuts the power everywhere. Returns how many different states of the device were judged.
    ///
    /// # Errors
    /// The operations in words, where the power was cut and what was wrong afterwards.
    pub fn cut(&self) -> Result<u64, String> {
        let tree = tree();
        let ops = [&tree[..], &self.before, &self.ops].concat();
        let in_words = |what: String| {
            let ops: Vec<String> = ops[tree.len()..].iter().map(Op::to_string).collect();
            format!("{}: {what}", ops.join(", then "))
        };
        let world = World::replay(SETTINGS, &ops).map_err(in_words)?;
        let from = world.history().steps[tree.len() + self.before.len()].ended;
        let cuts = Cuts { settings: SETTINGS, ops_afterwards: 0 };
        cuts.everywhere(world.history(), from, 1).map_err(in_words)
    }
}

/// One operation, with each sync after it.
pub fn of_one(operation: &Op) -> Vec<Workload> {
    let after = syncs_after(std::slice::from_ref(operation)).into_iter();
    after.map(|sync| Workload { before: Vec::new(), ops: vec![operation.clone(), sync] }).collect()
}

/// One operation after another, with each sync or none between them, and each sync after them.
pub fn of_two(first: &Op, second: &Op) -> Vec<Workload> {
    let first = vec![first.clone()];
    let synced = syncs_after(&first).into_iter().map(|sync| [&first[..], &[sync]].concat());
    let mut workloads = Vec::new();
    for before in std::iter::once(first.clone()).chain(synced) {
        for sync in syncs_after(&[&before[..], std::slice::from_ref(second)].concat()) {
            workloads.push(Workload { before: before.clone(), ops: vec![second.clone(), sync] });
        }
    }
    workloads
}

/// Every way to sync the tree after some operations, as far as they are possible: as a whole, or one of
/// its files, or the data of one.
fn syncs_after(ops: &[Op]) -> Vec<Op> {
    let world = World::replay(SETTINGS, &[&tree()[..], ops].concat());
    let paths = world.map(|world| world.model().paths()).unwrap_or_default();
    let files = paths.iter().filter(|(_, kind)| *kind == FileType::Regular);
    let fsyncs = paths.iter().map(|(path, _)| Op::Fsync(Target::Path(path.clone())));
    let fdatasyncs = files.map(|(path, _)| Op::Fdatasync(Target::Path(path.clone())));
    fsyncs.chain(fdatasyncs).chain([Op::Sync, Op::Commit]).collect()
}
