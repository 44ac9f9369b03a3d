//! A power cut after one operation and a sync, or two of each, in a small tree. What was synced is
//! there, under its new name, whole, and what was not is as it was or as it became.

use nilfs_ondisk::inode::FileType;
use nilfs_sim::op::{Op, Target};
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::workloads::{Workload, create, file, of_one, operations, path, truncate, write};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Cuts the power at every moment of a workload.
fn cut(workload: &Workload) {
    workload.cut().unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn what_was_synced_is_there() {
    operations().iter().flat_map(of_one).for_each(|workload| cut(&workload));
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
        cut(&Workload { before: Vec::new(), ops: [&ops[..], &[sync]].concat() });
    }
}

/// As programs write a file that nobody may see before it is complete.
#[test]
fn a_file_that_gets_its_first_name_is_whole() {
    let handle = || Target::Handle(0);
    let made = [
        Op::CreateNameless { directory: path("e"), mode: 0o644, handle: 0 },
        Op::Write { target: handle(), offset: 100, length: 2500, fill: 9 },
    ];
    let named = [Op::Link { target: handle(), to: path("e/x") }];
    for sync in [Op::Fdatasync(handle()), Op::Fsync(handle()), Op::Commit, Op::Sync] {
        for last in [Op::Fsync(file("e")), Op::Fsync(handle()), Op::Commit] {
            let ops = [&made[..], std::slice::from_ref(&sync), &named, &[last]].concat();
            cut(&Workload { before: Vec::new(), ops });
        }
    }
}

/// A file that has lost its name while it was open gets another one.
#[test]
fn a_file_that_gets_a_name_again_is_whole() {
    let handle = || Target::Handle(0);
    let ops = [
        Op::Open { path: path("c"), handle: 0 },
        Op::Unlink(path("c")),
        Op::Write { target: handle(), offset: 100, length: 1500, fill: 9 },
    ];
    for sync in [Op::Fsync(handle()), Op::Fsync(file("e")), Op::Commit, Op::Sync] {
        let link = Op::Link { target: handle(), to: path("e/x") };
        let ops = [&ops[..], &[sync, link, Op::Fsync(file("e"))]].concat();
        cut(&Workload { before: Vec::new(), ops });
    }
}

/// Of what was written nothing is left but zeros before the end, in a block that no checkpoint has.
/// The log of an fsync left it out, and a hole was found in its place.
#[test]
fn a_new_block_that_was_cut_to_zeros_is_no_hole() {
    let ops = vec![
        create("x", FileType::Regular),
        write("x", 800, 100, 9),
        truncate("x", 500),
        Op::Fsync(file("x")),
    ];
    cut(&Workload { before: Vec::new(), ops });
}

/// Every pair of operations, each time with other syncs between and after them. `make torture` tries
/// them with all syncs.
#[test]
fn two_operations_with_syncs() {
    for_each_seed("two_operations_with_syncs", 1, |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        for first in operations() {
            for second in operations() {
                cut(&Workload::by_chance(&[first.clone(), second], &mut random));
            }
        }
    });
}
