//! Threads that work side by side do not see each other's operations, what each of them synced is
//! there after a power cut, and when they work on the same files nothing breaks.

use nilfs_sim::crowd::{crowd, riot};
use nilfs_sim::generate::Profile;
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::Settings;

/// With little memory, checkpoints come uncalled, and inodes come and go. With none, directories are
/// searched without an index.
fn settings(seed: u64) -> Settings {
    let dirty_limit =
        if seed.is_multiple_of(2) { 64 << 10 } else { Mounting::READ_WRITE.dirty_limit };
    let cache_limit = [0, 64 << 20, 64 << 10][seed as usize % 3];
    let discard = seed / 2 % 2 == 1;
    let mounting = Mounting { dirty_limit, cache_limit, discard, ..Mounting::READ_WRITE };
    Settings { shape: Shape::ROOMY, mounting, may_fill: false }
}

#[test]
fn each_thread_has_its_own_way() {
    for_each_seed("each_thread_has_its_own_way", 12, |seed| {
        if let Err(what) = crowd(settings(seed), seed, 4, 150, 20) {
            panic!("seed {seed}: {what}");
        }
    });
}

#[test]
fn threads_in_the_same_tree_break_nothing() {
    for_each_seed("threads_in_the_same_tree_break_nothing", 12, |seed| {
        if let Err(what) = riot(settings(seed), Profile::SYNCS, seed, 4, 200, seed % 2 == 1) {
            panic!("seed {seed}: {what}");
        }
    });
}
