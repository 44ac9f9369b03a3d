//! Threads work side by side in the orders that seeds stand for: writers, fsyncs, cleaning,
//! snapshots, the engine's own threads, and unmounting. Time is virtual, so that commit intervals
//! end and the cleaner begins at every possible moment.

mod beside_checkpoints;
mod scrub;
mod slow_reader;

use std::sync::{Arc, Mutex};

use nilfs_device::Event;
use nilfs_engine::Policy;
use nilfs_sim::crowd::{crowd, farewell, riot};
use nilfs_sim::cuts::Cuts;
use nilfs_sim::generate::Profile;
use nilfs_sim::interleaving::{Choice, interleaved};
use nilfs_sim::op::Op;
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::{Settings, World};

const CHOICES: [Choice; 2] = [Choice::Random, Choice::Preemptions(5)];

/// With little memory, checkpoints come uncalled, and inodes come and go. What is discarded is
/// missed at once if it is still needed.
fn settings(seed: u64) -> Settings {
    let dirty_limit =
        if seed.is_multiple_of(2) { 64 << 10 } else { Mounting::READ_WRITE.dirty_limit };
    let cache_limit = [0, 64 << 20, 64 << 10][seed as usize % 3];
    let discard = seed / 2 % 2 == 1;
    let mounting = Mounting { dirty_limit, cache_limit, discard, ..Mounting::READ_WRITE };
    Settings { shape: Shape::SMALL, mounting, may_fill: false }
}

fn explore(test: &str, seeds: u64, work: fn(u64) -> Result<(), String>) {
    for_each_seed(test, seeds, |seed| {
        for choice in CHOICES {
            interleaved(seed, choice, move || {
                if let Err(what) = work(seed) {
                    panic!("seed {seed}, {choice:?}: {what}");
                }
            });
        }
    });
}

#[test]
fn each_thread_has_its_own_way() {
    explore("each_thread_has_its_own_way", 100, |seed| {
        crowd(settings(seed), seed, 3, 30, 5).map(|_| ())
    });
}

#[test]
fn threads_in_the_same_tree_break_nothing() {
    explore("threads_in_the_same_tree_break_nothing", 100, |seed| {
        riot(settings(seed), Profile::SYNCS, seed, 3, 30, false)
    });
}

/// Files come, go and change their numbers while others have them open, or look for them.
#[test]
fn threads_that_roll_each_other_back_break_nothing() {
    explore("threads_that_roll_each_other_back_break_nothing", 100, |seed| {
        riot(settings(seed), Profile::SYNCS, seed, 3, 30, true)
    });
}

/// Each of them cleans for itself when it finds no room.
#[test]
fn threads_on_a_full_volume_break_nothing() {
    explore("threads_on_a_full_volume_break_nothing", 40, |seed| {
        let shape = Shape { segments: 24, ..Shape::SMALL };
        let settings = Settings { shape, may_fill: true, ..settings(seed) };
        riot(settings, Profile::GREEDY, seed, 3, 20, false)
    });
}

#[test]
fn unmounting_takes_what_was_done_before_and_ends_all_writing() {
    explore("unmounting_takes_what_was_done_before_and_ends_all_writing", 250, |seed| {
        farewell(settings(seed), seed, 5, 15)
    });
}

#[test]
fn what_is_synced_during_a_checkpoint_is_there_after_it() {
    explore("what_is_synced_during_a_checkpoint_is_there_after_it", 100, |_| {
        beside_checkpoints::fsyncs_beside_checkpoints()
    });
}

#[test]
fn a_scrub_beside_writers_raises_no_alarm() {
    explore("a_scrub_beside_writers_raises_no_alarm", 40, scrub::beside_writers);
}

/// What the cleaner does by itself in idle moments, by each policy; the power fails meanwhile, too.
#[test]
fn cleaning_while_nobody_does_anything() {
    let shape = Shape { block_size: 1024, blocks_per_segment: 32, segments: 128 };
    let lived = move |seed: u64| -> Result<u64, String> {
        let policy = [Policy::Timestamp, Policy::Greedy, Policy::CostBenefit][seed as usize % 3];
        let discard = seed.is_multiple_of(2);
        let mounting = Mounting { protection: 0, policy, discard, ..Mounting::READ_WRITE };
        let settings = Settings { shape, mounting, may_fill: true };
        let mut world = World::new(settings)?;
        for round in 0..2 {
            world.step(&Op::Checkpoint)?;
            world.step(&Op::SetSnapshot { nth: 0, snapshot: true })?;
            world
                .live(
                    seed + (round << 32),
                    Profile { administration: 0, ..Profile::ADMINISTRATION },
                    120,
                )
                .map_err(|failure| failure.to_string())?;
        }
        let began = world.history().events.len();
        let freed = world.rest()?;
        let ended = world.history().events.len();
        let history = world.end()?;
        let cuts = Cuts { settings, ops_afterwards: 5 };
        cuts.between(&history, began..=ended.min(began + 6), seed)?;
        Ok(freed)
    };
    for_each_seed("cleaning_while_nobody_does_anything", 6, |seed| {
        interleaved(seed, Choice::InTurn, move || {
            let freed = lived(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            assert!(freed > 0, "seed {seed}: the cleaner has done nothing");
        });
    });
}

/// Otherwise a failure could not be replayed.
#[test]
fn a_seed_replays_every_byte() {
    let lived = |seed, choice| {
        let lived: Arc<Mutex<Vec<Event>>> = Arc::default();
        let events = Arc::clone(&lived);
        interleaved(seed, choice, move || {
            *events.lock().unwrap() = crowd(settings(seed), seed, 3, 40, 0).unwrap();
        });
        std::mem::take(&mut *lived.lock().unwrap())
    };
    for_each_seed("a_seed_replays_every_byte", 20, |seed| {
        for choice in CHOICES {
            let first = lived(seed, choice);
            assert!(first == lived(seed, choice), "seed {seed}, {choice:?} has two histories");
            assert!(first != lived(seed + 1, choice), "seed {seed}, {choice:?} decides nothing");
        }
    });
}
