//! The cleaner and the owner of a log, with no file system around them: what it sees of a mounted
//! volume is enough for a step.

use std::ops::Range;
use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_ondisk::{Ino, SegNum};

use super::options::{CleanerOptions, ManualRun};
use super::*;
use crate::commit::Frozen;
use crate::fixtures::{
    BLOCK, FILE_BLOCKS, NOW, check, content, copy_of, empty_volume, make_file, mount, open, writer,
};
use crate::log::segment_writer::Written;
use crate::log::withheld::NewEnd;

const SEGMENTS: u64 = 40;

/// A volume that nobody uses but its cleaner.
struct Unused {
    store: Arc<Store>,
    space: Space,
    log: Mutex<SegmentWriter>,
    cleaner: Cleaner,
}

impl Unused {
    fn open(device: &Arc<MemoryDevice>) -> Self {
        let volume = open(device);
        let unused = Self {
            store: Arc::clone(&volume.store),
            space: Space::default(),
            log: Mutex::new(Rank::Log, writer(&volume)),
            cleaner: Cleaner::new(CleanerOptions::default()),
        };
        unused.refresh_space(&unused.log.lock());
        unused
    }

    fn taken_over(&self, changes: &MetadataChanges, written: Written) -> MetadataOutcome {
        if let Some(effects) = &written.effects {
            self.cleaner.follow(effects, changes, self.seconds());
        }
        MetadataOutcome { refused: written.refused, deleted_checkpoints: 0 }
    }

    /// Flushes, names the newest checkpoint in the superblocks, and ends the log.
    fn close(self) {
        let mut log = self.log.lock();
        log.flush().unwrap();
        log.close(true, &NOW).unwrap();
    }
}

impl Mounted for Unused {
    fn store(&self) -> &Store {
        &self.store
    }

    fn space(&self) -> &Space {
        &self.space
    }

    fn seconds(&self) -> u64 {
        NOW.seconds as u64
    }

    fn changes(&self) -> u64 {
        0
    }

    fn syncs(&self) -> u64 {
        0
    }

    fn dirty_limit(&self) -> u64 {
        64 << 20
    }

    fn barrier(&self) -> bool {
        true
    }

    fn kept_checkpoints(&self) -> Vec<Cno> {
        Vec::new()
    }

    fn give_up(&self, _: &[Range<Cno>]) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn log(&self) -> &Mutex<SegmentWriter> {
        &self.log
    }

    fn writable_log(&self) -> Result<MutexGuard<'_, SegmentWriter>> {
        Ok(self.log.lock())
    }

    fn write_ahead(&self) -> Result<MutexGuard<'_, SegmentWriter>> {
        Ok(self.log.lock())
    }

    fn write_ahead_of_metadata(&self) -> Result<MutexGuard<'_, SegmentWriter>> {
        Ok(self.log.lock())
    }

    fn commit(&self) -> Result<Cno> {
        Ok(self.log.lock().cno())
    }

    fn commit_locked(
        &self,
        log: &mut SegmentWriter,
        changes: &MetadataChanges,
    ) -> Result<MetadataOutcome> {
        let written = log.write_checkpoint(&Frozen::default(), changes, &NOW)?;
        Ok(self.taken_over(changes, written))
    }

    fn commit_metadata(
        &self,
        log: &mut SegmentWriter,
        changes: &MetadataChanges,
    ) -> Result<MetadataOutcome> {
        self.commit_locked(log, changes)
    }

    fn flush_locked(&self, log: &mut SegmentWriter) -> Result<()> {
        log.flush()
    }

    fn write_superblocks(&self, log: &mut SegmentWriter) -> Result<()> {
        log.write_superblocks(&NOW)
    }

    fn or_stop(&self, _: &mut SegmentWriter, result: Result<()>) -> Result<()> {
        result
    }

    fn release_freed(&self, log: &mut SegmentWriter) {
        if log.release_freed() {
            self.refresh_space(log);
        }
    }

    fn refresh_space(&self, log: &SegmentWriter) {
        self.space.refresh(&self.store.geometry(), log, self.cleaner.needed_blocks());
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
    let freed = unused.cleaner.on(&unused).clean(&everything()).unwrap();
    assert!(freed > 3, "{freed} segments");
    unused.close();
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
    let cleaning = unused.cleaner.on(&unused);
    // What lives is moved far away from where the log is.
    cleaning.clean(&everything()).unwrap();
    let end = SegNum(SEGMENTS / 2);
    let in_use_beyond = || {
        let usages = unused.log.lock().segment_usages().unwrap();
        usages.iter().filter(|(segment, usage)| *segment >= end && usage.is_dirty()).count()
    };
    let in_use = in_use_beyond();
    assert!(in_use > 0 && !unused.log.lock().reaches(end));
    let clean = SEGMENTS - end.0 - in_use as u64;
    unused.log.lock().set_end(Some(NewEnd { segment: end, clean }));
    unused.cleaner.leave_segments_from(end);
    assert_eq!(cleaning.evacuate(Evacuated::From(end)).unwrap(), in_use as u64);
    assert_eq!(in_use_beyond(), 0);
    unused.close();
    check(&device);
    assert_eq!(content(&open(&device), ino), before);
}
