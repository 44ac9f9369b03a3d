//! After a power cut at any moment the file system is in a state that it really had, nothing is
//! lost that was synced, and the volume goes on working.

use nilfs_engine::Order;
use nilfs_sim::cuts::Cuts;
use nilfs_sim::generate::Profile;
use nilfs_sim::history::History;
use nilfs_sim::op::Op;
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::shrink::shrink;
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::{Failure, Settings, World};

/// Small volumes of all kinds.
fn settings(seed: u64) -> Settings {
    let shape = match seed % 5 {
        0 => Shape { block_size: 4096, blocks_per_segment: 32, segments: 48 },
        1 => Shape { block_size: 2048, blocks_per_segment: 32, segments: 64 },
        _ => Shape::SMALL,
    };
    let order = if seed.is_multiple_of(4) { Order::Strict } else { Order::Relaxed };
    // With little memory, checkpoints come uncalled.
    let dirty_limit =
        if seed.is_multiple_of(3) { 32 << 10 } else { Mounting::READ_WRITE.dirty_limit };
    let protection = [0, 10, 100, 3600][seed as usize % 4];
    let mounting = Mounting { order, dirty_limit, protection, ..Mounting::READ_WRITE };
    Settings { shape, mounting, may_fill: true }
}

fn live_and_cut(
    cuts: Cuts,
    seed: u64,
    (profile, count): (Profile, usize),
    cut: impl Fn(&History) -> Result<(), String>,
) {
    let settings = cuts.settings;
    let lived = World::new(settings).map_err(|what| Failure { ops: Vec::new(), what });
    let survived = lived.and_then(|mut world| {
        world.live(seed, profile, count)?;
        let ops = world.ops().to_vec();
        cut(world.history()).map_err(|what| Failure { ops, what })
    });
    if let Err(failure) = survived {
        let fails = |ops: &[Op]| match World::replay(settings, ops) {
            Ok(world) => cut(world.history()).err(),
            Err(what) => Some(what),
        };
        panic!("seed {seed}, {settings:?}: {}", shrink(failure, fails));
    }
}

#[test]
fn at_every_event_of_short_lives() {
    for_each_seed("at_every_event_of_short_lives", 16, |seed| {
        let cuts = Cuts { settings: settings(seed), ops_afterwards: 20 };
        let life = (Profile::SYNCS, 25);
        live_and_cut(cuts, seed, life, |history| cuts.everywhere(history, 0, seed));
    });
}

#[test]
fn at_random_events_of_long_lives() {
    for_each_seed("at_random_events_of_long_lives", 12, |seed| {
        let cuts = Cuts { settings: settings(seed), ops_afterwards: 30 };
        let life = (Profile::SYNCS, 250);
        live_and_cut(cuts, seed, life, |history| cuts.somewhere(history, 60, seed));
    });
}

/// Old blocks are moved, old checkpoints given up, and segments written again: all of that at every
/// moment.
#[test]
fn at_every_event_of_a_cleaning() {
    for_each_seed("at_every_event_of_a_cleaning", 6, |seed| {
        let cuts = Cuts { settings: settings(seed), ops_afterwards: 12 };
        let life = (Profile::CHORES, 60);
        live_and_cut(cuts, seed, life, |history| {
            let from = cleaning(history, seed).unwrap_or(history.events.len());
            let to = (from + EVENTS_OF_CLEANING).min(history.events.len());
            cuts.between(history, from..=to, seed)
        });
    });
}

/// Events behind the beginning of a cleaning that are tried.
const EVENTS_OF_CLEANING: usize = 60;

/// Where one of the cleanings of a life begins that write something.
fn cleaning(history: &History, seed: u64) -> Option<usize> {
    let cleanings = history.steps.iter().filter(|step| step.cleans && step.ended > step.began + 5);
    let begins: Vec<usize> = cleanings.map(|step| step.began).collect();
    begins.get(seed as usize % begins.len().max(1)).copied()
}

#[test]
fn at_random_events_of_lives_with_cleaning() {
    for_each_seed("at_random_events_of_lives_with_cleaning", 8, |seed| {
        let cuts = Cuts { settings: settings(seed), ops_afterwards: 30 };
        let life = (Profile::CHORES, 200);
        live_and_cut(cuts, seed, life, |history| cuts.somewhere(history, 40, seed));
    });
}
