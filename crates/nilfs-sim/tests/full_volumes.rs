//! A full volume says so when something is written, never later: what was accepted can be
//! committed, and reading, deleting, unmounting and mounting go on.

use nilfs_engine::Order;
use nilfs_sim::generate::Profile;
use nilfs_sim::op::Op;
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::shrink::shrink;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::{Failure, Settings, World};

#[test]
fn what_was_accepted_can_be_committed() {
    for_each_seed("what_was_accepted_can_be_committed", 16, |seed| {
        let settings = Settings {
            shape: Shape {
                block_size: 1024,
                blocks_per_segment: [16, 32, 64][seed as usize % 3],
                segments: 24 + seed % 5 * 8,
            },
            order: Order::Relaxed,
            may_fill: true,
        };
        let lived = World::new(settings).map_err(|what| Failure { ops: Vec::new(), what });
        let ended = lived.and_then(|mut world| {
            world.live(seed, Profile::GREEDY, 400)?;
            let refused = world.refused_for_space();
            let ops = world.ops().to_vec();
            world.end().map_err(|what| Failure { ops, what })?;
            Ok(refused)
        });
        match ended {
            Ok(refused) => assert!(refused > 0, "seed {seed} did not fill {}", settings.shape),
            Err(failure) => {
                let fails = |ops: &[Op]| World::replay(settings, ops).and_then(World::end).err();
                panic!("seed {seed}, {}: {}", settings.shape, shrink(failure, fails));
            }
        }
    });
}
