//! Whole volumes with forged metadata: every way to look at one, the checker, and a writable mount
//! end with a result, never with a panic, an endless loop or a flood of memory.

#![no_main]

use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::tree::{File, Parents, versions};
use nilfs_engine::{
    Files, Filesystem, MountOptions, NewInode, ReadOnlyOptions, ReadOnlyVolume, Seek, Tree, Volume,
};
use nilfs_fuzz::{options, seal, volume};
use nilfs_ondisk::inode::{DeviceCode, FileType, S_IFREG};
use nilfs_ondisk::{Cno, SegNum};

/// Most edits of one input.
const MAX_EDITS: usize = 8;
/// Files looked at on one volume, so that an input is quick.
const MAX_FILES: usize = 200;

/// A volume, and the places in it where a change means something.
struct Original {
    image: Vec<u8>,
    words: Vec<usize>,
}

impl Original {
    fn new(clean: bool) -> Self {
        let image = volume(clean);
        let words = (0..image.len() / 8).filter(|nth| {
            let word = &image[nth * 8..][..8];
            // Neither unused space nor content of files, which repeats one letter.
            word != [0; 8] && !word.iter().all(|byte| byte.is_ascii_alphabetic())
        });
        let words = words.map(|nth| nth * 8).collect();
        Self { image, words }
    }
}

static CLEAN: LazyLock<Original> = LazyLock::new(|| Original::new(true));
static CRASHED: LazyLock<Original> = LazyLock::new(|| Original::new(false));

/// An edit: which word, where in it and how much of it, and the new value.
type Edit = (u16, u8, u64);

fuzz_target!(|input: (bool, [Option<Edit>; MAX_EDITS])| {
    let (clean, edits) = input;
    let original = if clean { &CLEAN } else { &CRASHED };
    let mut image = original.image.clone();
    for (word, place, value) in edits.into_iter().flatten() {
        let width = 1 << (place % 4);
        let within = usize::from(place / 4 % 8) & !(width - 1);
        let at = original.words[usize::from(word) % original.words.len()] + within;
        image[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
    seal(&mut image);
    look(Arc::new(MemoryDevice::from(image.clone())));
    let _ = nilfs_check::check(&MemoryDevice::from(image.clone()), &Default::default());
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

fn walk(tree: &Tree) {
    let mut directories = Vec::from_iter(tree.root());
    let mut left = MAX_FILES;
    while let Some(directory) = directories.pop() {
        let mut names = Vec::new();
        let _ = tree.read_dir(&directory, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < MAX_FILES
        });
        for name in names {
            let Some(still) = left.checked_sub(1) else {
                return;
            };
            left = still;
            let Ok(found) = tree.lookup(&directory, &name) else {
                continue;
            };
            match found.file_type() {
                FileType::Directory if !matches!(&name[..], b"." | b"..") => {
                    directories.push(found);
                }
                FileType::Regular => read(tree, &found),
                FileType::Symlink => drop(tree.read_link(&found)),
                _ => {}
            }
        }
    }
}

fn read(tree: &Tree, file: &File) {
    let mut buffer = [0; 8192];
    let size = file.size();
    for offset in [0, size / 2, size.saturating_sub(1)] {
        let _ = tree.read(file, offset, &mut buffer);
        let _ = tree.seek(file, offset, Seek::Data);
        let _ = tree.seek(file, offset, Seek::Hole);
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
        files.unlink(&root.inode, b"large")
    });
    let _ = files.release_orphans();
    let _ = files.sync();
    let _ = files.unmount();
}
