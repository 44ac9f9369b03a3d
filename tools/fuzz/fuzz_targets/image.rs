//! Whole volumes with forged metadata: every way to look at one, the checker, and a writable mount
//! end with a result, never with a panic, an endless loop or a flood of memory.

#![no_main]

use std::ops::ControlFlow;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::tree::{Parents, versions};
use nilfs_engine::{
    Files, Filesystem, MountOptions, NewInode, ReadOnlyOptions, ReadOnlyVolume, Volume,
};
use nilfs_fuzz::forgery::{Input, forge};
use nilfs_fuzz::tour::walk;
use nilfs_fuzz::volumes::options;
use nilfs_ondisk::inode::{DeviceCode, S_IFREG};
use nilfs_ondisk::{Cno, SegNum};

fuzz_target!(|input: Input| {
    let image = forge(input);
    look(Arc::new(MemoryDevice::from(image.clone())));
    let checks = nilfs_check::Options { threads: 1, ..Default::default() };
    let _ = nilfs_check::check(&MemoryDevice::from(image.clone()), &checks);
    write(Arc::new(MemoryDevice::from(image.clone())), options());
    let force = MountOptions { give_up_unrecoverable: true, ..options() };
    write(Arc::new(MemoryDevice::from(image)), force);
});

fn look(device: Arc<dyn Device>) {
    let Ok(volume) = Volume::open(Arc::clone(&device)) else {
        return;
    };
    let _ = volume.checkpoint_totals();
    let _ = volume.clean_segments();
    let _ = volume.recovery_plan();
    let _ = volume.segments(SegNum(0));
    for segment in 0..volume.geometry().nsegments.min(100) {
        let _ = volume.logs(SegNum(segment));
    }
    let checkpoints = volume.checkpoints(Cno(1), 100).unwrap_or_default();
    let past = checkpoints.first().map(|checkpoint| checkpoint.cno);
    if let (Ok(before), Ok(after)) = (volume.tree(past), volume.tree(None)) {
        let _ = before.changes(&after, || Parents::of(&after).map(Arc::new));
    }
    let _ = versions(&volume, b"directory/file", None, &mut |_| ControlFlow::Continue(()));
    for checkpoint in [None, past] {
        let options = ReadOnlyOptions { checkpoint, ..ReadOnlyOptions::default() };
        if let Ok(volume) = ReadOnlyVolume::mount(Arc::clone(&device), options) {
            let _ = volume.stat_fs();
            let _ = volume.usage();
            walk(volume.shown());
        }
    }
}

fn write(device: Arc<dyn Device>, options: MountOptions) {
    let Ok(files) = Filesystem::mount(device, options) else {
        return;
    };
    let _ = files.root().and_then(|root| {
        let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: DeviceCode::default() };
        let file = files.create(&root.inode, b"new", &new)?.inode;
        files.write(&file, 0, b"new content")?;
        files.unlink(&root.inode, b"large")?;
        files.unlink(&root.inode, b"sparse")
    });
    if let Ok(space) = files.stat_fs() {
        assert!(space.free <= space.blocks, "more is free than there is: {space:?}");
    }
    let _ = files.release_orphans();
    let _ = files.sync();
    let _ = files.unmount();
}
