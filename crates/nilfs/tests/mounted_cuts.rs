//! The power fails under a mounted volume: below is a device that records every request of the process
//! that serves it, above a program that works through the kernel. Whatever a cut leaves at any moment
//! mounts, keeps the rules of the format, and shows every sync that had returned to the program, with
//! its names and content as of moments that the promises of the mount allow (nilfs-sim's oracle).
//!
//! The worlds of nilfs-sim cut the engine alone. Here, the kernel, the transport, the process's own
//! threads and its device file are between the program and the disk. `NILFS_SEED=n` replays a program,
//! though not when background work happens; `NILFS_TEST_SCALE=n` tries n times as many.

mod common {
    pub mod ours;
    pub mod workload;
}

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use common::ours::{Mounted, scale};
use common::workload::{Program, as_programs_do};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{Order, Timestamp};
use nilfs_lab::export::{Export, ExportOptions, events};
use nilfs_sim::clock::EPOCH;
use nilfs_sim::generate::{Generator, Profile};
use nilfs_sim::history::{History, Promise, Root, Step};
use nilfs_sim::model::Model;
use nilfs_sim::op::Op;
use nilfs_sim::oracle::Crash;
use nilfs_sim::outcome::Outcome;
use nilfs_sim::past::Past;
use nilfs_sim::power::{Disk, Sector, Survivors};
use nilfs_sim::subject::{Mounting, ReadOnlySubject, Subject};
use nilfs_sim::tree::Tree;
use nilfs_sim::volume::{Shape, check};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Operations of a program.
const OPERATIONS: usize = 120;

/// Programs, each on a volume of its own.
const PROGRAMS: u64 = 6;

/// The program's clock is not the model's, so no time is judged.
const NO_TIME: Timestamp = EPOCH;

fn without_times(mut tree: Tree) -> Tree {
    for file in tree.files.values_mut() {
        (file.facts.mtime, file.facts.ctime) = (NO_TIME, NO_TIME);
    }
    tree
}

fn memory(content: Vec<u8>) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::from(content))
}

/// What a mount shows that writes nothing.
fn shown(content: &[u8]) -> Result<Tree, String> {
    ReadOnlySubject::mount(memory(content.to_vec()), None)?.tree().map(without_times)
}

/// How a volume is mounted, in words and for the judge.
fn mounting(seed: u64) -> (&'static str, Mounting) {
    let relaxed = Mounting::READ_WRITE;
    let strict = Mounting { order: Order::Strict, ..relaxed };
    [
        ("rw,pp=0", relaxed),
        ("rw,pp=0,discard", Mounting { discard: true, ..relaxed }),
        ("rw,pp=0,order=strict", strict),
    ][seed as usize % 3]
}

/// The requests that a device had when each operation began and when it had ended, and after these
/// the mount's end; and everything that it was asked for.
fn live(seed: u64, options: &str, order: Order) -> History {
    let start = Shape::SMALL.format();
    let directory = tempfile::tempdir().unwrap();
    let [image, kept] = ["image", "kept"].map(|name| directory.path().join(name));
    fs::write(&image, &start).unwrap();
    let bytes = start.len() as u64;
    let (model, pace) = (None, false);
    let keep_data = Some(kept.clone());
    let export = ExportOptions { image, bytes, model, pace, queue_depth: 64, keep_data };
    let export = Export::start(export).unwrap();
    let now = || export.mark("now").requests;

    let root = ReadOnlySubject::mount(memory(start.clone()), None).unwrap().root().unwrap();
    let mut model = Model::new(Shape::SMALL.block_size, &root);
    let mut steps = vec![Step {
        began: 0,
        ended: 0,
        promise: Promise::Everything,
        state: model.clone(),
        past: Past::default(),
        op: None,
    }];
    let mut generator = Generator::new(seed, Profile { far: false, ..Profile::SYNCS });
    let mounted = Mounted::of(export.path(), options);
    let mut program = Program::new(mounted.root());
    while steps.len() <= OPERATIONS {
        let Some(op) = as_programs_do(generator.next_op(&model), &model) else { continue };
        let began = now();
        let done = program.apply(&op);
        let ended = now();
        let before = model.clone();
        let outcome = model.apply(&op, NO_TIME);
        let refused = matches!(outcome, Outcome::Refused(_));
        assert_eq!(done.is_err(), refused, "seed {seed}: {op}: {done:?}, expected {outcome}");
        let outcome = if refused { outcome } else { Outcome::Done };
        let promise = Promise::of(&op, &outcome, &before, order, Root::Volume);
        let (state, past, op) = (model.clone(), Past::default(), Some(op));
        steps.push(Step { began, ended, promise, state, past, op });
    }
    let began = now();
    drop(program);
    mounted.unmount();
    let ended = now();
    model.close_all();
    let (promise, state, op) = (Promise::Everything, model, Some(Op::Remount));
    steps.push(Step { began, ended, promise, state, past: Past::default(), op });

    let trace = export.end().unwrap();
    // The marks count reads, too.
    let mut places = vec![0];
    let mut changes = Vec::new();
    for event in events(&trace, &kept).unwrap() {
        changes.extend(event.unwrap());
        places.push(changes.len());
    }
    for step in &mut steps {
        (step.began, step.ended) = (places[step.began], places[step.ended]);
    }
    History { start, events: changes, steps }
}

/// Judges one state of the device.
fn judge(history: &History, at: usize, content: &[u8], how: Mounting) -> Result<(), String> {
    let found = shown(content)?;
    Crash { steps: &history.steps, at, order: how.order }.state(&found)?;
    check(&*memory(content.to_vec()))?;
    let device = memory(content.to_vec());
    let recovered = Subject::mount(Arc::clone(&device), how)?;
    if let Some(what) = found.difference(&without_times(recovered.tree()?)) {
        return Err(format!("mounted to be written: {what}"));
    }
    recovered.unmount()?;
    check(&*device)
}

/// What a cut leaves when `at` requests have been served, judged.
fn cut(history: &History, disk: &Disk, at: usize, how: Mounting, random: &mut StdRng) -> u64 {
    let by_chance = Sector::ALL.map(|sector| Survivors::Random(sector, random.random()));
    // Where little waits to be flushed, different ways come to the same.
    let mut seen = BTreeSet::new();
    for survivors in Survivors::CORNERS.into_iter().chain(by_chance) {
        let content = disk.after_cut(survivors);
        if seen.insert(content.clone()) {
            judge(history, at, &content, how).unwrap_or_else(|what| {
                let steps = history.steps.iter();
                let ops = steps.filter_map(|step| Some((step.ended, step.op.as_ref()?)));
                let ops = ops.map(|(at, op)| format!("\n  until {at}: {op}"));
                panic!(
                    "power cut after request {at} of {}, {survivors:?}: {what}{}",
                    history.events.len(),
                    ops.collect::<String>()
                )
            });
        }
    }
    seen.len() as u64
}

/// Cuts the power at every moment of a program's life.
fn cut_everywhere(seed: u64) -> u64 {
    let (options, how) = mounting(seed);
    println!("seed {seed}, {options} (replay with NILFS_SEED={seed})");
    let history = live(seed, options, how.order);
    let mut random = StdRng::seed_from_u64(seed);
    let mut disk = Disk::new(history.start.clone());
    let mut judged = cut(&history, &disk, 0, how, &mut random);
    for (nth, event) in history.events.iter().enumerate() {
        disk.play(event);
        judged += cut(&history, &disk, nth + 1, how, &mut random);
    }
    // A device that does not flush has nothing now, and the judge must not be content with that.
    let none = judge(&history, history.events.len(), &history.start, how);
    assert!(none.is_err(), "the program has synced nothing");
    judged
}

#[test]
fn what_a_mount_has_synced_survives_a_power_cut_at_any_moment() {
    let seed = std::env::var("NILFS_SEED").ok().map(|seed| seed.parse().expect("NILFS_SEED"));
    let seeds = seed.map_or(1..=PROGRAMS * u64::from(scale()), |seed| seed..=seed);
    let judged: u64 = seeds.map(cut_everywhere).sum();
    println!("{judged} states of the device judged");
}
