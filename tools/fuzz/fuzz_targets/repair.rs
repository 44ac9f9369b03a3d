//! Repairs of forged volumes: a plan writes nothing, and when it is carried out, the volume is as the
//! plan says, not worse than before, and opens if nothing is left. The undo file puts every byte back.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nilfs_check::{Options, Report, check};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::Filesystem;
use nilfs_fuzz::forgery::{Input, forge};
use nilfs_fuzz::memory_file::memory_file;
use nilfs_fuzz::volumes::options;
use nilfs_repair::{UndoDevice, apply_undo, plan};

/// The identity that a volume gets if its own is lost.
const UUID: [u8; 16] = [0x11; 16];

fuzz_target!(|input: Input| {
    let image = forge(input);
    let memory = Arc::new(MemoryDevice::from(image.clone()));
    let device: Arc<dyn Device> = Arc::clone(&memory) as _;
    let checks = Options { findings_per_rule: 1 << 20, threads: 1, ..Options::default() };
    let made = plan(&device, &checks, UUID);
    assert!(memory.snapshot() == image, "a plan writes nothing");
    let Ok(made) = made else {
        return;
    };
    if !made.can_be_applied() {
        return;
    }
    let saved = memory_file(&[]);
    let undo = saved.try_clone().expect("there are descriptors");
    let undoing = UndoDevice::new(Arc::clone(&device), saved, made.uuid).expect("a header");
    made.apply(&undoing, &mut |_| {}).expect("what a plan writes lies on the volume");
    let report = check(&*memory, &checks).expect("what is repaired can be checked");
    let left = errors(&report);
    assert_eq!(made.after.as_ref().map(errors), Some(left), "the plan said otherwise: {report}");
    if let Ok(before) = &made.before {
        assert!(left <= errors(before), "{before}\nbecame\n{report}");
    }
    if left == 0 {
        let copy = Arc::new(MemoryDevice::from(memory.snapshot()));
        let fs = Filesystem::mount(copy, options()).expect("what is sound can be mounted");
        fs.unmount().expect("and closed");
    }
    apply_undo(undo, &*memory).expect("what was repaired can be undone");
    assert!(memory.snapshot() == image, "an undo file puts everything back");
});

fn errors(report: &Report) -> usize {
    report.errors().count()
}
