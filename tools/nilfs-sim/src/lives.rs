//! Long lives at random to be cut off: on volumes of all kinds, with everything that users and
//! administrators do.

use nilfs_engine::{FsyncBy, Order};

use crate::generate::Profile;
use crate::history::History;
use crate::op::Op;
use crate::shrink::shrink;
use crate::subject::Mounting;
use crate::volume::Shape;
use crate::world::{Failure, Settings, World};

/// Small volumes of all kinds.
pub fn settings(seed: u64) -> Settings {
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

/// Small volumes of all kinds, of which some are full at times.
pub fn settings_of_turmoil(seed: u64) -> Settings {
    let settings = settings(seed);
    let shape = Shape { segments: 24 + seed % 3 * 8, ..settings.shape };
    Settings { shape, ..settings }
}

/// Lives for `count` operations, and lets `cut` look at the history of that, which returns how many
/// states of the device it has judged.
///
/// # Errors
/// What went wrong, in a life that was made as short as that goes.
pub fn live_and_cut(
    settings: Settings,
    seed: u64,
    (profile, count): (Profile, usize),
    cut: impl Fn(&History) -> Result<u64, String>,
) -> Result<u64, String> {
    let lived = World::new(settings).map_err(|what| Failure { ops: Vec::new(), what });
    let survived = lived.and_then(|mut world| {
        world.live(seed, profile, count)?;
        let ops = world.ops().to_vec();
        cut(world.history()).map_err(|what| Failure { ops, what })
    });
    survived.map_err(|failure| {
        let fails = |ops: &[Op]| match World::replay(settings, ops) {
            Ok(world) => cut(world.history()).err(),
            Err(what) => Some(what),
        };
        format!("seed {seed}, {settings:?}: {}", shrink(failure, fails))
    })
}
