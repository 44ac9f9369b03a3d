//! Threads that work side by side do not see each other's operations, and what each of them
//! synced is there after a power cut.

use nilfs_sim::crowd::crowd;
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::Settings;

#[test]
fn each_thread_has_its_own_way() {
    for_each_seed("each_thread_has_its_own_way", 6, |seed| {
        let settings =
            Settings { shape: Shape::ROOMY, mounting: Mounting::READ_WRITE, may_fill: false };
        if let Err(what) = crowd(settings, seed, 4, 150, 20) {
            panic!("seed {seed}: {what}");
        }
    });
}
