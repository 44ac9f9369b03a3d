//! A full volume says so when something is written, never later: what was accepted can be
//! committed, and reading, deleting, unmounting and mounting go on, also after a power cut.

use nilfs_sim::cuts::cut_somewhere;
use nilfs_sim::generate::Profile;
use nilfs_sim::op::Op;
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::shrink::shrink;
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::{Failure, Settings, World};

/// Operations at a time until the volume is full.
const ROUND: usize = 100;
/// How often the volume must have said that it is full before the world ends.
const REFUSALS: usize = 15;
const CUTS: usize = 8;

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
    let history = world.end()?;
    cut_somewhere(settings, &history, seed, CUTS)
}

#[test]
fn what_was_accepted_can_be_committed() {
    for_each_seed("what_was_accepted_can_be_committed", 16, |seed| {
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
