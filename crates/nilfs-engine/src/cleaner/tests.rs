//! The cleaner and the owner of a log, with no file system around them: what it sees of a mounted
//! volume is enough for a step.

use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_ondisk::{Ino, SegNum};

use super::options::{CleanerOptions, ManualRun};
use super::*;
use crate::commit::Frozen;
use crate::fixtures::{
    BLOCK, FILE_BLOCKS, check, content, copy_of, empty_volume, make_file, mount, open, writer,
};
use crate::host::SystemClock;
use crate::log::segment_writer::SegmentWriter;
use crate::log::withheld::NewEnd;
use crate::tree::Shared;
use crate::writer::{Alone, Memory, OnError, Writer, WriterOptions};

const SEGMENTS: u64 = 40;

/// A volume that is used by nothing but its cleaner.
struct Unused {
    writer: Writer,
    memory: Untouched,
}

/// Memory in which nothing ever changes.
struct Untouched {
    cleaner: Cleaner,
}

impl Unused {
    fn open(device: &Arc<MemoryDevice>) -> Self {
        let volume = open(device);
        let view = volume.view(volume.found.cno).unwrap();
        let options = WriterOptions {
            on_error: OnError::default(),
            clock: Arc::new(SystemClock),
            barrier: true,
            dirty_limit: 64 << 20,
        };
        let log = (writer(&volume), Shared::new(view, 1 << 20));
        let unused = Self {
            writer: Writer::new(&volume.store, log, volume.lifetime, options),
            memory: Untouched { cleaner: Cleaner::new(CleanerOptions::default()) },
        };
        unused.writing().lock().refresh();
        unused
    }

    fn writing(&self) -> Writing<'_> {
        self.writer.with(&self.memory)
    }

    fn cleaning(&self) -> Cleaning<'_> {
        self.memory.cleaner.on(self.writing())
    }
}

impl Memory for Untouched {
    fn freeze(&self, _: &Alone<'_>) -> Frozen {
        Frozen::default()
    }

    fn published(&self, _: Frozen, changes: &MetadataChanges, effects: Effects, time: u64) {
        self.cleaner.follow(&effects, changes, time);
    }

    fn write_ahead(&self, _: u64) -> crate::Result<()> {
        Ok(())
    }

    fn has_unwritten(&self) -> bool {
        false
    }

    fn has_orphans(&self) -> bool {
        false
    }

    fn needed(&self, _: &SegmentWriter) -> Option<Needed> {
        self.cleaner.needed_blocks()
    }

    fn cleaned(&self) -> Cleaned {
        self.cleaner.cleaned()
    }
}

/// A closed volume with a file of which most old versions are dead.
fn used_volume() -> (Arc<MemoryDevice>, Ino) {
    let device = empty_volume(SEGMENTS);
    let fs = mount(&device);
    let file = make_file(&fs);
    for round in 0..200_u32 {
        let offset = u64::from(round) % FILE_BLOCKS * BLOCK as u64;
        fs.write(&file, offset, &[b'a' + (round % 26) as u8; BLOCK]).unwrap();
        fs.commit().unwrap();
    }
    fs.unmount().unwrap();
    (copy_of(&device), file.ino())
}

fn everything() -> ManualRun {
    ManualRun { protection: Some(std::time::Duration::ZERO), ..ManualRun::default() }
}

#[test]
fn what_is_dead_becomes_clean_and_what_lives_stays() {
    let (device, ino) = used_volume();
    let before = (content(&open(&device), ino), open(&device).clean_segments().unwrap());
    let unused = Unused::open(&device);
    let freed = unused.cleaning().clean(&everything()).unwrap();
    assert!(freed > 3, "{freed} segments");
    unused.writing().close().unwrap();
    check(&device);
    let after = open(&device);
    assert_eq!(content(&after, ino), before.0);
    assert!(after.clean_segments().unwrap() > before.1 + 3);
}

#[test]
fn segments_that_have_to_go_are_emptied_whatever_lives_in_them() {
    let (device, ino) = used_volume();
    let before = content(&open(&device), ino);
    let unused = Unused::open(&device);
    let cleaning = unused.cleaning();
    // What lives is moved far away from where the log is.
    cleaning.clean(&everything()).unwrap();
    let end = SegNum(SEGMENTS / 2);
    let in_use_beyond = || {
        let usages = unused.writer.look().segment_usages().unwrap();
        usages.iter().filter(|(segment, usage)| *segment >= end && usage.is_dirty()).count()
    };
    let in_use = in_use_beyond();
    assert!(in_use > 0 && !unused.writer.look().reaches(end));
    let clean = SEGMENTS - end.0 - in_use as u64;
    unused.writing().lock().set_end(Some(NewEnd { segment: end, clean }));
    unused.memory.cleaner.leave_segments_from(end);
    assert_eq!(cleaning.evacuate(Evacuated::From(end)).unwrap(), in_use as u64);
    assert_eq!(in_use_beyond(), 0);
    unused.writing().close().unwrap();
    check(&device);
    assert_eq!(content(&open(&device), ino), before);
}
