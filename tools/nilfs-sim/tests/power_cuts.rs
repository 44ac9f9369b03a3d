//! After a power cut at any moment nothing is lost that was synced, nothing is there that never was,
//! and the volume goes on working.

use nilfs_sim::cuts::{Cuts, Moment};
use nilfs_sim::generate::Profile;
use nilfs_sim::history::{History, Step};
use nilfs_sim::lives::{self, settings, settings_of_turmoil};
use nilfs_sim::op::Op;
use nilfs_sim::seeds::for_each_seed;

/// Lives and cuts the power.
fn live_and_cut(
    cuts: Cuts,
    seed: u64,
    life: (Profile, usize),
    cut: impl Fn(&History) -> Result<u64, String>,
) {
    lives::live_and_cut(cuts.settings, seed, life, cut).unwrap_or_else(|what| panic!("{what}"));
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
            return Ok(0);
        };
        let middle = step.began + (step.ended - step.began) / 2;
        let first = step.began..=middle.min(step.began + EVENTS_OF_A_STEP);
        let last = (middle + 1).max(step.ended.saturating_sub(EVENTS_OF_A_STEP))..=step.ended;
        Ok(cuts.between(history, first, seed)? + cuts.between(history, last, seed)?)
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
        let cuts = Cuts { settings: settings_of_turmoil(seed), ops_afterwards: 20 };
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
            (0..ROWS).try_fold(0, |judged, row| {
                let cut = cuts.in_a_row(history, 3, Moment::Any, seed ^ row << 32);
                Ok(judged + cut.map_err(|what| format!("row {row}, {what}"))?)
            })
        });
    });
}
