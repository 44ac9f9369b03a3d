//! A scrub of a sound volume raises no alarm beside writers, the cleaner and discarding.

use std::sync::Arc;
use std::time::Duration;

use nilfs_device::MemoryDevice;
use nilfs_engine::scrub::Selection;
use nilfs_engine::{
    Amount, CleanerOptions, Filesystem, InodeRef, ManualRun, MountOptions, NewInode,
};
use nilfs_ondisk::inode::{DeviceCode, FileType};
use nilfs_sim::interleaving::taking_time;
use nilfs_sim::op::pattern;
use nilfs_sim::volume::{Shape, check};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use shuttle::thread;

const SHAPE: Shape = Shape { block_size: 1024, blocks_per_segment: 32, segments: 48 };

const WRITERS: u64 = 2;
/// Changes that a writer makes.
const CHANGES: u64 = 30;
/// Files of a writer.
const FILES: u64 = 4;
const CLEANINGS: usize = 6;
const SCRUBS: usize = 3;

/// Two of 140 scrubs called files damaged whose segments were freed, discarded and written again while they
/// ran.
pub fn beside_writers(seed: u64) -> Result<(), String> {
    let device = Arc::new(MemoryDevice::from(SHAPE.format()));
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    let discard = !seed.is_multiple_of(4);
    let options = MountOptions { cleaner, discard, ..MountOptions::default() };
    let fs = Filesystem::mount(taking_time(Arc::clone(&device) as _), options).map_err(in_words)?;
    let root = fs.root().map_err(in_words)?.inode;
    for writer in 0..WRITERS {
        write(&fs, &root, seed + writer, writer)?;
    }
    let alarms = thread::scope(|scope| {
        let writers = (0..WRITERS).map(|writer| {
            let (fs, root) = (&fs, &root);
            scope.spawn(move || write(fs, root, seed + 10 + writer, writer))
        });
        let writers: Vec<_> = writers.collect();
        let cleaner = scope.spawn(|| {
            let everything =
                ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
            (0..CLEANINGS).try_for_each(|_| fs.clean(&everything).map(|_| ()).map_err(in_words))
        });
        let mut alarms = Vec::new();
        for _ in 0..SCRUBS {
            let found =
                fs.scrub(&Selection::default(), &mut |_| std::ops::ControlFlow::Continue(()));
            let found = found.map_err(in_words)?;
            alarms.extend(found.damage.iter().map(|damage| format!("{damage:?}")));
        }
        for thread in writers.into_iter().chain([cleaner]) {
            thread.join().map_err(|_| "a thread has panicked")??;
        }
        Ok::<_, String>(alarms)
    })?;
    drop(root);
    fs.unmount().map_err(in_words)?;
    check(&*device)?;
    if alarms.is_empty() {
        Ok(())
    } else {
        Err(format!("the volume is sound: {}", alarms.join("; ")))
    }
}

/// Overwrites, deletes and syncs files of its own.
fn write(fs: &Filesystem, root: &InodeRef, seed: u64, writer: u64) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    for nth in 0..CHANGES {
        let name = format!("{writer} {}", random.random_range(0..FILES)).into_bytes();
        let found = fs.lookup(root, &name);
        if found.is_ok() && random.random_ratio(1, 6) {
            fs.unlink(root, &name).map_err(in_words)?;
            continue;
        }
        let mode = FileType::Regular.mode_bits() | 0o644;
        let new = NewInode { mode, uid: 0, gid: 0, rdev: DeviceCode::default() };
        let file = match found {
            Ok(found) => found.inode,
            Err(_) => fs.create(root, &name, &new).map_err(in_words)?.inode,
        };
        let at = random.random_range(0..20_000);
        let content = pattern(nth as u32, at, random.random_range(1..30_000));
        fs.write(&file, at, &content).map_err(in_words)?;
        if random.random_ratio(3, 5) {
            fs.sync_file(&file).map_err(in_words)?;
        }
    }
    Ok(())
}

fn in_words(error: nilfs_engine::Error) -> String {
    error.to_string()
}
