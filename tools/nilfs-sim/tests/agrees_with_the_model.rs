//! Whatever programs do, the file system answers and looks as a POSIX file system should, before
//! and after checkpoints and remounts, and leaves a consistent volume.

use nilfs_engine::Order;
use nilfs_sim::generate::Profile;
use nilfs_sim::op::Op;
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::shrink::shrink;
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::{Failure, Settings, World};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn live(settings: Settings, seed: u64, profile: Profile, count: usize) {
    let lived = World::new(settings).map_err(|what| Failure { ops: Vec::new(), what });
    let ended = lived.and_then(|mut world| {
        world.live(seed, profile, count)?;
        let ops = world.ops().to_vec();
        world.end().map_err(|what| Failure { ops, what })
    });
    if let Err(failure) = ended {
        let fails = |ops: &[Op]| World::replay(settings, ops).and_then(World::end).err();
        panic!("seed {seed}, {}: {}", settings.shape, shrink(failure, fails));
    }
}

#[test]
fn long_mixed_lives() {
    for_each_seed("long_mixed_lives", 60, |seed| {
        let settings =
            Settings { shape: Shape::ROOMY, mounting: Mounting::READ_WRITE, may_fill: false };
        live(settings, seed, Profile::MIXED, 300);
    });
}

#[test]
fn other_block_sizes() {
    for_each_seed("other_block_sizes", 20, |seed| {
        let settings = Settings {
            shape: Shape {
                block_size: if seed % 2 == 0 { 2048 } else { 4096 },
                blocks_per_segment: 64,
                segments: 128,
            },
            mounting: Mounting { order: Order::Strict, ..Mounting::READ_WRITE },
            may_fill: false,
        };
        live(settings, seed, Profile::MIXED, 300);
    });
}

/// Volumes with all kinds of protection periods (one operation takes a second), with and without
/// discards.
fn cleaning(seed: u64) -> Settings {
    let mut random = StdRng::seed_from_u64(seed);
    let protection = [0, 3600, random.random_range(1..60), random.random_range(60..250)];
    Settings {
        shape: Shape {
            block_size: 1024 << random.random_range(0..3),
            blocks_per_segment: 32,
            segments: 128,
        },
        mounting: Mounting {
            protection: protection[seed as usize % 4],
            discard: random.random(),
            ..Mounting::READ_WRITE
        },
        may_fill: true,
    }
}

#[test]
fn cleaning_all_the_time() {
    for_each_seed("cleaning_all_the_time", 24, |seed| {
        live(cleaning(seed), seed, Profile::ADMINISTRATION, 250);
    });
}

/// While it is being cleaned, the device fails to read now and then. Freed segments are discarded,
/// so that one which was freed although it could not be read is missed at once.
#[test]
fn cleaning_a_device_that_reads_badly() {
    for_each_seed("cleaning_a_device_that_reads_badly", 12, |seed| {
        let mut settings = cleaning(seed);
        settings.mounting.discard = true;
        live(settings, seed, Profile { faults: true, ..Profile::ADMINISTRATION }, 200);
    });
}

#[test]
fn sizes_that_change_all_the_time() {
    for_each_seed("sizes_that_change_all_the_time", 12, |seed| {
        live(cleaning(seed), seed, Profile::SIZES, 250);
    });
}
