//! The far ends of the format: high block maps, many links, many names.

use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::SetAttr;
use nilfs_ondisk::inode::{DeviceCode, FileType};
use nilfs_sim::clock::EPOCH;
use nilfs_sim::name::{Name, Path};
use nilfs_sim::op::{Op, Target};
use nilfs_sim::outcome::{Outcome, Refusal};
use nilfs_sim::subject::{Mounting, Subject};
use nilfs_sim::volume::{Shape, check};
use nilfs_sim::world::{Settings, World};

fn top(number: u16) -> Path {
    Path::root().join(Name(number))
}

fn create(path: Path, kind: FileType) -> Op {
    Op::Create { path, kind, mode: 0o755, rdev: DeviceCode::default() }
}

fn write(path: &Path, offset: u64, length: u64, fill: u32) -> Op {
    Op::Write { target: Target::Path(path.clone()), offset, length, fill }
}

fn truncate(path: &Path, size: u64) -> Op {
    let changes = SetAttr { size: Some(size), ..SetAttr::default() };
    Op::SetAttr { target: Target::Path(path.clone()), changes }
}

fn live(shape: Shape, ops: &[Op]) {
    let settings = Settings { shape, mounting: Mounting::READ_WRITE, may_fill: false };
    World::replay(settings, ops).and_then(World::end).unwrap_or_else(|what| panic!("{what}"));
}

/// Blocks of 1 KiB hold 63 pointers, so 13 MB take a block map of four levels.
#[test]
fn files_grow_and_shrink_through_all_heights_of_their_map() {
    let shape = Shape { block_size: 1024, blocks_per_segment: 512, segments: 160 };
    let mut ops = vec![create(top(0), FileType::Regular)];
    let sizes = [1, 6, 7, 63, 64, 189, 190, 3969, 3970, 11907, 11908, 13000];
    let mut from = 0;
    for (nth, blocks) in sizes.into_iter().enumerate() {
        ops.push(write(&top(0), from * 1024, (blocks - from) * 1024, nth as u32 + 1));
        ops.push(Op::Commit);
        from = blocks;
    }
    ops.push(Op::Remount);
    ops.push(write(&top(0), 5000 * 1024 + 7, 100, 99));
    ops.push(Op::Sync);
    for blocks in sizes.into_iter().rev() {
        ops.push(truncate(&top(0), blocks * 1024 - 5));
        ops.push(Op::Commit);
    }
    ops.push(truncate(&top(0), 0));
    live(shape, &ops);
}

/// The two ends of the greatest file, with a hole of 8 EiB between them.
#[test]
fn the_greatest_file_is_sparse() {
    let last = i64::MAX as u64 - 10;
    let ops = [
        create(top(0), FileType::Regular),
        write(&top(0), 0, 10, 1),
        write(&top(0), last, 10, 2),
        write(&top(0), last + 1, 10, 3),
        Op::Remount,
        write(&top(0), 1 << 40, 10, 4),
        Op::Remount,
        truncate(&top(0), last),
        truncate(&top(0), 1 << 63),
        Op::Remount,
        truncate(&top(0), 5),
    ];
    live(Shape::SMALL, &ops);
}

#[test]
fn a_file_has_at_most_32000_links() {
    let shape = Shape { block_size: 4096, blocks_per_segment: 512, segments: 64 };
    let device = Arc::new(MemoryDevice::from(shape.format()));
    let below: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&device);
    let mut subject =
        Subject::mount(below, Mounting::READ_WRITE).unwrap_or_else(|what| panic!("{what}"));
    subject.apply(&create(top(0), FileType::Regular));
    let mut link = |number| {
        subject.apply(&Op::Link { target: Target::Path(top(0)), to: top(Name::NUMBERED + number) })
    };
    for nth in 1..32000 {
        let linked = link(nth);
        assert!(matches!(linked, Outcome::Facts(_)), "link {nth}: {linked}");
    }
    assert_eq!(link(0), Outcome::Refused(Refusal::TooManyLinks));
    subject.unmount().unwrap_or_else(|what| panic!("{what}"));
    check(&*device).unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn a_large_directory_keeps_its_names() {
    let device = Arc::new(MemoryDevice::from(Shape::ROOMY.format()));
    let below: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&device);
    let mount = || Subject::mount(Arc::clone(&below), Mounting::READ_WRITE);
    let mut subject = mount().unwrap_or_else(|what| panic!("{what}"));
    let count = 6000;
    let number = |nth| top(Name::NUMBERED + nth);
    for nth in 0..count {
        let created = subject.apply(&create(number(nth), FileType::Fifo));
        assert!(matches!(created, Outcome::Facts(_)), "{nth}: {created}");
    }
    for nth in (0..count).step_by(3) {
        assert_eq!(subject.apply(&Op::Unlink(number(nth))), Outcome::Done);
    }
    subject.unmount().unwrap_or_else(|what| panic!("{what}"));
    let again = mount().unwrap_or_else(|what| panic!("{what}"));
    let tree = again.tree().unwrap_or_else(|what| panic!("{what}"));
    assert_eq!(tree.files.len(), 4001);
    assert_eq!(tree.files[&b""[..]].facts.mtime, EPOCH);
    again.unmount().unwrap_or_else(|what| panic!("{what}"));
    check(&*device).unwrap_or_else(|what| panic!("{what}"));
}

/// A program can stay in a directory that is gone, and a file can lose its last name.
#[test]
fn what_is_held_open_outlives_its_name() {
    let inside = top(1).join(Name(2));
    let handle = || Target::Handle(0);
    let ops = [
        create(top(0), FileType::Regular),
        write(&top(0), 0, 3000, 1),
        Op::Open { path: top(0), handle: 0 },
        Op::Unlink(top(0)),
        Op::Commit,
        Op::Write { target: handle(), offset: 5000, length: 100, fill: 2 },
        Op::Sync,
        Op::Read { target: handle(), offset: 0, length: 6000 },
        Op::Link { target: handle(), to: top(3) },
        Op::Stat(handle()),
        Op::Close(0),
        create(top(1), FileType::Directory),
        Op::Open { path: top(1), handle: 1 },
        Op::RemoveDirectory(top(1)),
        Op::Stat(Target::Handle(1)),
        create(inside, FileType::Regular),
        Op::Sync,
        Op::Remount,
    ];
    live(Shape::SMALL, &ops);
}
