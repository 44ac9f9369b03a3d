//! After a power cut at any moment nothing is lost that was synced, nothing is there that never was,
//! and the volume goes on working.

use nilfs_engine::{FsyncBy, Order};
use nilfs_sim::cuts::{Cuts, Moment};
use nilfs_sim::generate::Profile;
use nilfs_sim::history::{History, Step};
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
    let fsync = if seed % 7 == 6 { FsyncBy::Checkpoint } else { FsyncBy::Log };
    // Small pages leave room for many logs in a segment, large ones for none but the first.
    let flash_page = [4 << 10, 1 << 10, 16 << 10][seed as usize / 2 % 3];
    // With little memory, checkpoints come uncalled, and inodes come and go.
    let dirty_limit =
        if seed.is_multiple_of(3) { 32 << 10 } else { Mounting::READ_WRITE.dirty_limit };
    let cache_limit = [64 << 20, 0, 64 << 10, 0][seed as usize % 4];
    let protection = [0, 10, 100, 3600][seed as usize % 4];
    let discard = seed % 2 == 1;
    let memory = Mounting { dirty_limit, cache_limit, ..Mounting::READ_WRITE };
    let mounting = Mounting { order, fsync, flash_page, protection, discard, ..memory };
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
        at_every_event_of("a cleaning", (Profile::ADMINISTRATION, 60), seed, |steps| {
            let cleans = |op: &Op| matches!(op, Op::Clean { .. });
            steps.iter().filter(|step| step.op.as_ref().is_some_and(cleans)).collect()
        });
    });
}

#[test]
fn at_every_event_while_a_volume_shrinks() {
    for_each_seed("at_every_event_while_a_volume_shrinks", 6, |seed| {
        at_every_event_of("a shrinking", (Profile::SIZES, 120), seed, |steps| {
            resizes(steps, |by| by < 0)
        });
    });
}

#[test]
fn at_every_event_while_a_volume_grows() {
    for_each_seed("at_every_event_while_a_volume_grows", 6, |seed| {
        at_every_event_of("a growing", (Profile::SIZES, 120), seed, |steps| {
            resizes(steps, |by| by > 0)
        });
    });
}

#[test]
fn at_every_event_of_a_trim() {
    for_each_seed("at_every_event_of_a_trim", 4, |seed| {
        at_every_event_of("a trim", (Profile::SIZES, 120), seed, |steps| {
            steps.iter().filter(|step| step.op == Some(Op::Trim)).collect()
        });
    });
}

/// How often the power of one life fails three times.
const ROWS: u64 = 10;

/// Events of a step that are tried at its beginning, and as many at its end.
const EVENTS_OF_A_STEP: usize = 30;

/// Cuts the power at every event of the busiest of the `wanted` steps of a life.
fn at_every_event_of(
    what: &str,
    life: (Profile, usize),
    seed: u64,
    wanted: impl Fn(&[Step]) -> Vec<&Step>,
) {
    let cuts = Cuts { settings: settings(seed), ops_afterwards: 12 };
    live_and_cut(cuts, seed, life, |history| {
        let busiest = |step: &&Step| step.ended - step.began;
        let Some(step) = wanted(&history.steps).into_iter().max_by_key(busiest) else {
            println!("seed {seed}: no step of this life is {what}");
            return Ok(());
        };
        let middle = step.began + (step.ended - step.began) / 2;
        let first = step.began..=middle.min(step.began + EVENTS_OF_A_STEP);
        let last = (middle + 1).max(step.ended.saturating_sub(EVENTS_OF_A_STEP))..=step.ended;
        cuts.between(history, first, seed)?;
        cuts.between(history, last, seed)
    });
}

/// The steps that have changed the size of the volume, by hundredths that fit.
fn resizes(steps: &[Step], fits: impl Fn(i16) -> bool) -> Vec<&Step> {
    let mut before = 100;
    let mut found = Vec::new();
    for step in steps {
        if let Some(Op::Resize { percent }) = step.op {
            let now = i16::from(percent);
            if fits(now - std::mem::replace(&mut before, now)) {
                found.push(step);
            }
        }
    }
    found
}

#[test]
fn at_random_events_of_lives_with_cleaning() {
    for_each_seed("at_random_events_of_lives_with_cleaning", 8, |seed| {
        let cuts = Cuts { settings: settings(seed), ops_afterwards: 30 };
        let life = (Profile::ADMINISTRATION, 200);
        live_and_cut(cuts, seed, life, |history| cuts.somewhere(history, 40, seed));
    });
}

/// Everything at once: each kind of sync, cleaning, snapshots, other sizes, trims, on volumes that are
/// small enough to be full at times.
#[test]
fn at_random_events_of_turmoil() {
    for_each_seed("at_random_events_of_turmoil", 12, |seed| {
        let settings = settings(seed);
        let shape = Shape { segments: 24 + seed % 3 * 8, ..settings.shape };
        let settings = Settings { shape, ..settings };
        let cuts = Cuts { settings, ops_afterwards: 20 };
        let life = (Profile::TURMOIL, 150);
        live_and_cut(cuts, seed, life, |history| cuts.somewhere(history, 40, seed));
    });
}

/// The power fails, and after a few operations it fails again, or before the first of them.
#[test]
fn three_in_a_row() {
    for_each_seed("three_in_a_row", 20, |seed| {
        let cuts = Cuts { settings: settings(seed), ops_afterwards: 8 };
        live_and_cut(cuts, seed, (Profile::TURMOIL, 60), |history| {
            (0..ROWS).try_for_each(|row| {
                cuts.in_a_row(history, 3, Moment::Any, seed ^ row << 32)
                    .map_err(|what| format!("row {row}, {what}"))
            })
        });
    });
}
