//! Rescues from forged volumes, by what is left of them: whatever is shown ends, and nothing is
//! written.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::rescue::Rescue;
use nilfs_engine::{Files, ReadOnlyOptions, ReadOnlyVolume};
use nilfs_fuzz::forgery::{Input, forge};
use nilfs_fuzz::tour::{walk, walk_numbers};

/// Checkpoints that are looked at, so that an input is quick.
const MAX_CHECKPOINTS: usize = 12;

fuzz_target!(|input: Input| {
    let image = forge(input);
    let memory = Arc::new(MemoryDevice::from(image.clone()));
    salvage(Arc::clone(&memory) as _);
    let options = ReadOnlyOptions { rescue: true, ..ReadOnlyOptions::default() };
    if let Ok(volume) = ReadOnlyVolume::mount(Arc::clone(&memory) as _, options) {
        let _ = volume.stat_fs();
        let _ = volume.usage();
        walk(volume.shown());
    }
    assert!(memory.snapshot() == image, "a rescue writes nothing");
});

fn salvage(device: Arc<dyn Device>) {
    let Ok(mut rescue) = Rescue::open(device, Box::new(|_| ())) else {
        return;
    };
    for checkpoint in rescue.checkpoints().iter().take(MAX_CHECKPOINTS) {
        let _ = rescue.place_of(checkpoint.cno);
    }
    let _ = (rescue.newest_known(), rescue.notes());
    for nth in 0..MAX_CHECKPOINTS {
        let Some(found) = rescue.tree(nth) else {
            return;
        };
        walk(&found.tree);
        walk_numbers(&found.tree);
    }
}
