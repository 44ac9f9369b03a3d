//! Scrubs of forged volumes: a scrub ends and writes nothing, and after one that repairs, nothing that
//! counts as repaired is damaged for anybody.

#![no_main]

use std::ops::ControlFlow;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nilfs_device::MemoryDevice;
use nilfs_engine::scrub::{Scrubbed, Selection};
use nilfs_engine::scrub_device;
use nilfs_engine::{CleanerOptions, Filesystem, MountOptions, Result};
use nilfs_fuzz::forgery::{Input, forge};
use nilfs_fuzz::volumes::options;

fuzz_target!(|input: Input| {
    let image = forge(input);
    let memory = Arc::new(MemoryDevice::from(image.clone()));
    let only_read = scrub_device(&(Arc::clone(&memory) as _), &Selection::default(), &mut go_on);
    assert!(memory.snapshot() == image, "a scrub writes nothing");
    drop(only_read);
    let cleaner = CleanerOptions { enabled: false, ..CleanerOptions::default() };
    let Ok(fs) = Filesystem::mount(memory, MountOptions { cleaner, ..options() }) else {
        return;
    };
    if let Ok(found) = repair(&fs) {
        let again = fs.scrub(&Selection::default(), &mut go_on);
        judge(&found, &again.expect("what was scrubbed can be scrubbed again"));
    }
    let _ = fs.unmount();
});

fn go_on(_: nilfs_engine::scrub::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn repair(fs: &Filesystem) -> Result<Scrubbed> {
    let mut found = fs.scrub(&Selection::default(), &mut go_on)?;
    fs.repair(&mut found)?;
    Ok(found)
}

/// Fails if something is called repaired, and somebody still needs it as it is.
fn judge(found: &Scrubbed, again: &Scrubbed) {
    for repaired in found.damage.iter().filter(|damage| damage.repaired) {
        let still = again.damage.iter().find(|damage| {
            damage.blocks.start < repaired.blocks.end && repaired.blocks.start < damage.blocks.end
        });
        assert!(still.is_none_or(|it| it.needs.is_empty()), "{repaired:?} is still {still:?}");
    }
}
