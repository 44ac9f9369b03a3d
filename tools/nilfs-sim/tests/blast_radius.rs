//! A block that is damaged costs what only it had. One bit once cost the newest checkpoint, or all that
//! was synced after it, and nobody said so, because what was judged was a log and not a block.
//!
//! Here, some blocks of each volume are damaged in every way; `nilfs-blast` does that with all.

use std::collections::BTreeSet;
use std::sync::Mutex;

use nilfs_sim::blast::blocks::Holds;
use nilfs_sim::blast::damage::{Damage, Harm};
use nilfs_sim::blast::samples::{Left, Sample, Which};
use nilfs_sim::blast::verdict::{Verdict, judge};
use nilfs_sim::clock::ThreadClock;

/// Seed of volumes, bits and noise.
const SEED: u64 = 1;

/// One in so many blocks of a kind is damaged.
const ONE_IN: usize = 10;

/// One in so many, of a volume that has many more.
const ONE_IN_MANY: usize = 50;

/// Damages one in so many blocks of each kind of a volume: no promise is broken.
fn damage_some(which: Which, one_in: usize) {
    let sample = which.make(SEED).unwrap();
    let mut damages = Vec::new();
    for holds in Holds::ALL {
        let blocks = sample.blocks.iter().filter(|block| block.holds == holds);
        for (nth, block) in blocks.step_by(one_in).enumerate() {
            // Each kind of block gets every kind of damage, and each block two.
            for harm in [Harm::ALL[nth % 6], Harm::ALL[(nth + 3) % 6]] {
                damages.push(Damage::of_block(&sample, block.number, harm));
            }
        }
    }
    let (count, wrong) = judge_all(&sample, damages);
    assert!(count > 50, "{which}: {count} damaged volumes are too few to judge anything by");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Judges damaged volumes on all cores. Returns how many there were, and what was wrong.
fn judge_all(sample: &Sample, damages: Vec<Damage>) -> (usize, Vec<String>) {
    let (next, results) = (Mutex::new(damages.into_iter()), Mutex::new((0, Vec::new())));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                ThreadClock::set(ThreadClock::at_step(1_000_000));
                loop {
                    let next = next.lock().unwrap().next();
                    let Some(damage) = next else { return };
                    let Some(verdict) = judge(sample, &damage, SEED, None) else { continue };
                    let wrong = wrong(sample, &damage, &verdict);
                    let mut results = results.lock().unwrap();
                    results.0 += 1;
                    results.1.extend(wrong);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

/// Violations, with how to see them again.
fn wrong(sample: &Sample, damage: &Damage, verdict: &Verdict) -> Vec<String> {
    let block = damage.blocks(sample).next();
    let number = damage.bytes.start / sample.block_bytes();
    let shown = verdict.violations.iter().map(|what| {
        let (which, harm) = (sample.which, damage.harm);
        let holds = block.map_or_else(|| "free".into(), |it| it.holds.to_string());
        format!("--seed {SEED} --volume {which} --harm {harm} --block {number} ({holds}): {what}")
    });
    shown.collect()
}

#[test]
fn of_volumes_that_were_unmounted() {
    for block_bytes in [4096, 1024] {
        let which = Which { left: Left::Clean, block_bytes };
        damage_some(which, ONE_IN);
    }
}

#[test]
fn of_volumes_that_have_lost_power() {
    for block_bytes in [4096, 1024] {
        let which = Which { left: Left::Crashed, block_bytes };
        damage_some(which, ONE_IN);
    }
}

#[test]
fn of_volumes_with_many_sync_logs() {
    for block_bytes in [4096, 1024] {
        let which = Which { left: Left::Synced, block_bytes };
        damage_some(which, ONE_IN);
    }
}

/// Strangers found faults with more names, deeper directories, larger maps, reused numbers and full volumes that
/// the small volumes above do not have.
#[test]
fn of_volumes_that_have_lived_for_longer() {
    let of = |left, block_bytes| Which { left, block_bytes };
    for which in [of(Left::LivedIn, 1024), of(Left::LivedInCrashed, 4096), of(Left::Full, 4096)] {
        damage_some(which, ONE_IN_MANY);
    }
}

/// Runs of zeros that cost more than was in them: a summary with nodes and blocks of directories beside it, and most of
/// the newest log, which takes many rounds of corrections.
#[test]
fn of_a_summary_and_what_lies_beside_it() {
    zeros_break_no_promise((Left::Full, 4096), &[(7_077_888, 16 << 10), (2_596_864, 64 << 10)]);
    zeros_break_no_promise((Left::LivedInCrashed, 1024), &[(6_381_568, 16 << 10)]);
    zeros_break_no_promise((Left::LivedIn, 1024), &[(6_070_272, 16 << 10), (6_144_000, 64 << 10)]);
}

/// Several checkpoints had lost all of their inodes, and none of them was given up: each would have left its errors to
/// the one before.
#[test]
fn of_the_inodes_of_checkpoints_that_follow_each_other() {
    zeros_break_no_promise((Left::LivedIn, 4096), &[(1_777_664, 512 << 10)]);
}

/// Judges runs of zeros on a volume, given by where they begin and how many bytes they have.
fn zeros_break_no_promise((left, block_bytes): (Left, u32), runs: &[(u64, u64)]) {
    let sample = Which { left, block_bytes }.make(SEED).unwrap();
    for (start, length) in runs {
        let damage = Damage { harm: Harm::Zeros, bytes: *start..start + length };
        let verdict = judge(&sample, &damage, SEED, None).unwrap();
        assert!(verdict.violations.is_empty(), "{left:?}, {start}: {:?}", verdict.violations);
    }
}

/// A bitmap of the past, in logs without checksums of their blocks, was made anew from inodes of another checkpoint: of
/// two versions of a block, the one that the cleaner had written last was taken for the newer.
#[test]
fn of_bitmaps_that_linux_has_written() {
    let sample = Which { left: Left::Linux, block_bytes: 4096 }.make(SEED).unwrap();
    let bitmaps = sample.blocks.iter().filter(|block| block.holds == Holds::InodeBitmap);
    let damages = bitmaps.flat_map(|block| {
        [Harm::Zeros, Harm::Garbage].map(|harm| Damage::of_block(&sample, block.number, harm))
    });
    for damage in damages {
        let verdict = judge(&sample, &damage, SEED, None).unwrap();
        assert!(verdict.violations.is_empty(), "{:?}: {:?}", damage.bytes, verdict.violations);
    }
}

/// Of 159 fresh volumes, 47 were mounted as the empty checkpoint that the superblocks name, and a check found
/// nothing.
#[test]
fn of_a_fresh_volume_one_bit_in_any_block_loses_no_checkpoint() {
    let sample = Which { left: Left::Fresh, block_bytes: 1024 }.make(SEED).unwrap();
    let blocks = sample.blocks.iter().map(|block| block.number);
    let damages = blocks.map(|number| Damage::of_block(&sample, number, Harm::Bit));
    let (count, wrong) = judge_all(&sample, damages.collect());
    assert!(count > 100, "{count} damaged volumes are too few");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The judge itself raises no alarm where a power cut may have done just that: nothing of the newest
/// checkpoints had been flushed.
#[test]
fn what_had_not_been_flushed_may_be_lost() {
    let sample = Which { left: Left::Fresh, block_bytes: 1024 }.make(SEED).unwrap();
    let blocks = sample.blocks.iter().filter(|block| block.log == Some(sample.newest_log));
    let harms = [Harm::Zeros, Harm::Garbage, Harm::Stale];
    let damages = blocks
        .step_by(3)
        .flat_map(|block| harms.map(|harm| Damage::of_block(&sample, block.number, harm)));
    let (count, wrong) = judge_all(&sample, damages.collect());
    assert!(count > 10, "{count} damaged volumes are too few");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let unmounted = Which { left: Left::Clean, block_bytes: 1024 }.make(SEED).unwrap();
    assert!(unmounted.unflushed.is_empty());
}

/// The judge itself raises no alarm where nothing is wrong: noise where nothing lies costs nothing.
#[test]
fn noise_in_free_space_costs_nothing() {
    for which in [Left::Clean, Left::Crashed].map(|left| Which { left, block_bytes: 4096 }) {
        let sample = which.make(SEED).unwrap();
        let used: BTreeSet<u64> = sample.blocks.iter().map(|block| block.number).collect();
        // Logs may go on right behind those in use, so that noise is looked at there.
        let segment = |number: u64| number / 32;
        let of_used: BTreeSet<u64> = used.iter().map(|number| segment(*number)).collect();
        let free = (32..sample.content.len() as u64 / 4096 - 1)
            .filter(|it| !of_used.contains(&segment(*it)));
        let damages = free.step_by(23);
        let damages = damages.map(|number| Damage::of_block(&sample, number, Harm::Garbage));
        let (count, wrong) = judge_all(&sample, damages.collect());
        assert!(count > 10, "{which}: only {count} blocks are free");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
