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

/// How long the past is protected while the volume cleans itself, in seconds: one operation takes
/// one.
const PERIODS: [u64; 4] = [0, 10, 100, 3600];

#[test]
fn cleaning_all_the_time() {
    for_each_seed("cleaning_all_the_time", 24, |seed| {
        let block_size = 1024 << (seed / 4 % 3);
        let settings = Settings {
            shape: Shape { block_size, blocks_per_segment: 32, segments: 128 },
            mounting: Mounting { protection: PERIODS[seed as usize % 4], ..Mounting::READ_WRITE },
            may_fill: true,
        };
        live(settings, seed, Profile::CHORES, 250);
    });
}
