//! When the device fails, the file system says so, writes nothing more that could do harm, and goes on
//! reading. Whichever request it is: what was synced before is there when the device is well again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nilfs_engine::RenameMode;
use nilfs_ondisk::inode::FileType;
use nilfs_sim::faults::{Left, Misbehaviour, Rehearsed, Workload};
use nilfs_sim::lives::settings_of_turmoil;
use nilfs_sim::op::{Op, Target};
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::workloads::{create, file, path, tree, truncate, write};
use nilfs_sim::world::Settings;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

fn settings() -> Settings {
    Settings {
        shape: Shape { block_size: 1024, blocks_per_segment: 32, segments: 24 },
        // With nothing in memory, every operation has to read.
        mounting: Mounting { protection: 0, cache_limit: 0, ..Mounting::READ_WRITE },
        may_fill: false,
    }
}

/// What programs do.
fn ordinary() -> Workload {
    let ops = vec![
        create("x", FileType::Regular),
        write("x", 0, 20_000, 7),
        Op::Fsync(file("x")),
        Op::Rename { from: path("x"), to: path("a/x"), mode: RenameMode::Replace },
        Op::Fsync(file("a")),
        Op::Unlink(path("c")),
        write("g", 1000, 3000, 8),
        Op::Fdatasync(file("g")),
        Op::Read { target: file("a/d/f"), offset: 6000, length: 3000 },
        truncate("a/d/f", 100),
        Op::Sync,
        Op::Link { target: file("a/d/f"), to: path("y") },
        Op::List(path("a")),
        Op::Commit,
        write("y", 50, 100, 9),
    ];
    Workload { settings: settings(), before: tree(), crashed: false, ops }
}

/// Many segments with few blocks that are alive.
fn cleaning() -> Workload {
    let mut before = tree();
    for nth in 0..8 {
        before.extend([write("g", 0, 12_000, nth), write("c", 2000, 3000, nth), Op::Commit]);
    }
    let clean = || Op::Clean { protection: 0, faults: None };
    let ops = vec![clean(), write("c", 0, 5000, 20), Op::Fsync(file("c")), clean(), Op::Sync];
    Workload { settings: settings(), before, crashed: false, ops }
}

/// What a mount has to recover, of each kind of record.
fn recovery() -> Workload {
    let mut before = tree();
    before.extend([
        create("x", FileType::Regular),
        write("x", 0, 6000, 4),
        Op::Fsync(file("x")),
        Op::Rename { from: path("c"), to: path("e/c"), mode: RenameMode::Replace },
        Op::Symlink { path: path("l"), length: 80 },
        truncate("g", 700),
        Op::Fsync(file("e")),
        write("a/d/f", 0, 3000, 6),
        Op::Fdatasync(file("a/d/f")),
    ]);
    let ops = vec![
        Op::Read { target: file("x"), offset: 0, length: 6000 },
        create("z", FileType::Directory),
        Op::Fsync(file("z")),
    ];
    Workload { settings: settings(), before, crashed: true, ops }
}

/// What administrators do.
fn administration() -> Workload {
    let mut before = tree();
    before.extend([
        write("c", 0, 9000, 4),
        Op::Checkpoint,
        Op::Unlink(path("a/b")),
        Op::Checkpoint,
    ]);
    let ops = vec![
        Op::SetSnapshot { nth: 1, snapshot: true },
        write("c", 500, 4000, 5),
        Op::RollBack { nth: 1 },
        Op::SetSnapshot { nth: 0, snapshot: false },
        create("x", FileType::Regular),
        Op::Checkpoint,
        Op::DeleteCheckpoints { first: 1, further: 1 },
        Op::Resize { percent: 90 },
        Op::Stat(Target::Path(path("c"))),
    ];
    let shape = Shape { segments: 40, ..settings().shape };
    Workload { settings: Settings { shape, ..settings() }, before, crashed: false, ops }
}

/// Tries each way in which a device can misbehave, with as many threads as there are processors.
fn try_each<T: Send>(
    ways: &[Misbehaviour],
    what: impl Fn(Misbehaviour) -> Result<T, String> + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut done = Vec::new();
        while let Some(how) = ways.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push(what(*how).unwrap_or_else(|what| panic!("{what}")));
        }
        done
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let done =
            workers.into_iter().map(|worker| worker.join().expect("it has said what failed"));
        done.flatten().collect()
    })
}

fn rehearsed(workload: &Workload) -> Rehearsed {
    let rehearsed = workload.rehearse().unwrap_or_else(|what| panic!("{what}"));
    let requests = rehearsed.requests();
    println!("{} operations; reads, writes, flushes: {requests:?}", workload.ops.len());
    assert!(requests.iter().all(|count| *count > 2));
    rehearsed
}

/// Each request fails: nothing is lost that was synced, somebody is told, and it goes on.
fn fail_everywhere(workload: &Workload) {
    let rehearsed = rehearsed(workload);
    let states = try_each(&rehearsed.failures(), |how| rehearsed.fail(how));
    println!("{} faults, {} states judged", states.len(), states.iter().sum::<u64>());
}

#[test]
fn each_request_of_ordinary_work_can_fail() {
    fail_everywhere(&ordinary());
}

#[test]
fn each_request_of_cleaning_can_fail() {
    fail_everywhere(&cleaning());
}

#[test]
fn each_request_of_a_recovery_can_fail() {
    fail_everywhere(&recovery());
}

#[test]
fn each_request_of_administration_can_fail() {
    fail_everywhere(&administration());
}

/// What is tried of each life that chance has made; `make torture` tries more lives.
const FAULTS_OF_A_LIFE: usize = 12;

#[test]
fn any_request_of_a_life_can_fail() {
    for_each_seed("any_request_of_a_life_can_fail", 12, |seed| {
        let workload = Workload::by_chance(settings_of_turmoil(seed), seed);
        let rehearsed = rehearsed(&workload.unwrap_or_else(|what| panic!("{what}")));
        let mut faults = rehearsed.failures();
        faults.shuffle(&mut StdRng::seed_from_u64(seed));
        faults.truncate(FAULTS_OF_A_LIFE);
        try_each(&faults, |how| rehearsed.fail(how));
    });
}

#[test]
fn each_read_can_return_garbage() {
    for workload in [ordinary(), cleaning(), recovery(), administration()] {
        let rehearsed = rehearsed(&workload);
        let left = try_each(&rehearsed.lies(1), |how| rehearsed.lie(how));
        let count = |what| left.iter().filter(|left| **left == what).count();
        let counts = [Left::Sound, Left::Repaired, Left::Damaged].map(count);
        println!("{} lies; sound, repaired, damaged: {counts:?}", left.len());
    }
}
