//! A full volume says so when something is written, never later: what was accepted can be
//! committed, and reading, deleting, unmounting and mounting go on, also after a power cut.

use nilfs_ondisk::inode::{DeviceCode, FileType};
use nilfs_sim::cuts::Cuts;
use nilfs_sim::generate::Profile;
use nilfs_sim::name::{Name, Path};
use nilfs_sim::op::{Op, Target};
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::shrink::shrink;
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::{Failure, Settings, World};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Operations at a time until the volume is full.
const ROUND: usize = 100;
/// How often the volume must have said that it is full before the world ends.
const REFUSALS: usize = 15;
const CUTS: usize = 8;
/// Power cuts one after the other; each recovery takes space that only a cleaner could give back.
const CUTS_IN_A_ROW: u64 = 3;

fn settings(seed: u64) -> Settings {
    Settings {
        shape: Shape {
            block_size: 1024,
            blocks_per_segment: [16, 32, 128][seed as usize % 3],
            segments: 20 + seed % 5 * 6,
        },
        mounting: Mounting::READ_WRITE,
        may_fill: true,
    }
}

fn fill(settings: Settings, seed: u64) -> Result<World, Failure> {
    let mut world = World::new(settings).map_err(|what| Failure { ops: Vec::new(), what })?;
    for round in 0.. {
        world.live(seed + (round << 32), Profile::GREEDY, ROUND)?;
        if world.refused_for_space() >= REFUSALS {
            break;
        }
    }
    Ok(world)
}

fn end(settings: Settings, seed: u64, world: World) -> Result<(), String> {
    Cuts { settings, ops_afterwards: 3 }.again_and_again(world.history(), CUTS_IN_A_ROW, seed)?;
    let history = world.end()?;
    Cuts { settings, ops_afterwards: 20 }.somewhere(&history, CUTS, seed)
}

#[test]
fn what_was_accepted_can_be_committed() {
    for_each_seed("what_was_accepted_can_be_committed", 24, |seed| {
        let settings = settings(seed);
        let ended = fill(settings, seed).and_then(|world| {
            let ops = world.ops().to_vec();
            end(settings, seed, world).map_err(|what| Failure { ops, what })
        });
        if let Err(failure) = ended {
            let fails = |ops: &[Op]| {
                let world = World::replay(settings, ops);
                world.and_then(|world| end(settings, seed, world)).err()
            };
            panic!("seed {seed}, {}: {}", settings.shape, shrink(failure, fails));
        }
    });
}

/// The dearest changes: single blocks all over large files, whose old addresses lie all over the
/// DAT. They must not cost more than was reckoned when they were accepted.
#[test]
fn scattered_overwrites_can_be_committed() {
    for_each_seed("scattered_overwrites_can_be_committed", 6, |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        let shape = Shape { block_size: 1024, blocks_per_segment: 64, segments: 90 };
        let settings = Settings { shape, mounting: Mounting::READ_WRITE, may_fill: true };
        let mut world = World::new(settings).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        let mut step = |op: &Op| {
            world.step(op).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            world.refused_for_space()
        };
        let file = |nth| Path::root().join(Name(nth));
        for nth in 0..3 {
            let (kind, rdev) = (FileType::Regular, DeviceCode::default());
            step(&Op::Create { path: file(nth), kind, mode: 0o644, rdev });
        }
        let mut fill = 0;
        let mut overwrite = |random: &mut StdRng, length| {
            fill += 1;
            let target = Target::Path(file(random.random_range(0..3)));
            let offset = random.random_range(0..700) * 1024;
            Op::Write { target, offset, length, fill }
        };
        for _ in 0..25 {
            for _ in 0..20 {
                step(&overwrite(&mut random, 3000));
            }
            step(&Op::Commit);
        }
        while step(&overwrite(&mut random, 1)) < REFUSALS {}
        step(&Op::Sync);
        world.end().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    });
}
