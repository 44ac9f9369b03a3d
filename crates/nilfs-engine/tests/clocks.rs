//! Protection where the clock is wrong: in 1970, ahead, or put back.
//!
//! Checkpoints were no older than those before. So one that was made in the year 3000 made all later ones
//! as young, and with hard protection the volume stayed full until then.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use common::{check, in_the_past, make, new, pattern, volume};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{
    CleanerOptions, Clock, Cno, Error, Filesystem, ManualRun, MountOptions, ReadOnlyOptions,
    ReadOnlyVolume, Timestamp, Usage, Volume,
};

const PERIOD: i64 = 3600;
const NOW: i64 = 1_795_000_000;
const FUTURE: i64 = 32_503_680_000;
/// Bytes of one version of the file.
const VERSION: usize = 2 << 20;

/// A clock that a test sets.
struct Hands(AtomicI64);

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: self.0.load(Ordering::Relaxed), nanoseconds: 0 }
    }
}

/// A volume, and the clock of the machine that it is mounted on.
struct Board {
    device: Arc<MemoryDevice>,
    fs: Arc<Filesystem>,
    clock: Arc<Hands>,
    cleaner: CleanerOptions,
}

impl Board {
    fn new(hard_protection: bool, now: i64) -> Self {
        let device = volume(4096, 32);
        let protection = Duration::from_secs(PERIOD as u64);
        let cleaner = CleanerOptions { protection, hard_protection, ..CleanerOptions::default() };
        let clock = Arc::new(Hands(AtomicI64::new(now)));
        let fs = mount(&device, &clock, cleaner);
        Self { device, fs, clock, cleaner }
    }

    fn set(&self, now: i64) {
        self.clock.0.store(now, Ordering::Relaxed);
    }

    fn let_pass(&self, seconds: i64) {
        self.clock.0.fetch_add(seconds, Ordering::Relaxed);
    }

    fn remount(&mut self) {
        self.fs.unmount().unwrap();
        check(&*self.device);
        self.fs = mount(&self.device, &self.clock, self.cleaner);
    }

    /// Puts another version of the file in the place of the one before. Returns the checkpoint that has it.
    fn replace(&self, nth: usize) -> Cno {
        let root = self.fs.root().unwrap().inode;
        match self.fs.unlink(&root, b"file") {
            Ok(()) | Err(Error::NotFound) => {}
            Err(error) => panic!("{error}"),
        }
        let file = make(&self.fs, &root, "file");
        self.fs.write(&file, 0, &pattern(nth, VERSION)).unwrap();
        self.fs.checkpoint_now().unwrap()
    }

    /// Figures that `nilfs df` shows, of the mount and of the device.
    fn usages(&self) -> [Usage; 2] {
        self.fs.sync().unwrap();
        let options = ReadOnlyOptions {
            cleaner: self.cleaner,
            clock: Arc::clone(&self.clock) as _,
            ..ReadOnlyOptions::default()
        };
        let read_only = ReadOnlyVolume::mount(Arc::clone(&self.device) as _, options).unwrap();
        [self.fs.usage().unwrap(), read_only.usage().unwrap()]
    }

    /// Checks that nothing is said to be kept for longer than the period from now on.
    fn check_words(&self, when: &str) {
        let now = self.clock.now().seconds as u64;
        for usage in self.usages() {
            let until = usage.protected_until.unwrap_or(0);
            assert!(until <= now + PERIOD as u64, "{when}: {until} when it is {now}: {usage:?}");
        }
    }

    fn available(&self) -> u64 {
        self.fs.usage().unwrap();
        let stat = self.fs.stat_fs().unwrap();
        stat.available * u64::from(stat.block_size)
    }

    /// Writes until the volume is full. Returns how many bytes.
    fn fill(&self) -> u64 {
        let root = self.fs.root().unwrap().inode;
        let file = self.fs.create(&root, b"filling", &new(0o100_644)).unwrap().inode;
        let mut written = 0;
        loop {
            match self.fs.write_some(&file, written, &[7; 64 << 10]) {
                Ok(count) => written += count as u64,
                Err(Error::NoSpace) => return written,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn has(&self, cno: Cno) -> bool {
        let shared: Arc<dyn Device> = Arc::clone(&self.device) as _;
        let listed = Volume::open(shared).unwrap().checkpoints(cno, 1).unwrap();
        listed.first().is_some_and(|it| it.cno == cno)
    }
}

fn mount(
    device: &Arc<MemoryDevice>,
    clock: &Arc<Hands>,
    cleaner: CleanerOptions,
) -> Arc<Filesystem> {
    let clock = Arc::clone(clock) as _;
    let options = MountOptions { cleaner, clock, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device) as _, options).unwrap()
}

/// Times that clocks have shown, one after the other, before they are right.
const WRONG: [&[i64]; 7] = [
    &[FUTURE],
    &[20],
    &[NOW, FUTURE, NOW + 100],
    &[NOW, 20, NOW + 100],
    &[FUTURE, 20, FUTURE + 10],
    &[NOW + 86_400, NOW - 86_400],
    &[20, NOW, 30, FUTURE, 40],
];

/// An hour after a checkpoint under a clock that is right, nothing older than that checkpoint is protected,
/// however wrong the clock was before; and what the right clock has seen is protected for the hour.
#[test]
fn a_wrong_time_protects_nothing_for_longer_than_the_period() {
    for (clocks, hard) in WRONG.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        for remounts in [false, true] {
            let case = format!("{clocks:?}, hard: {hard}, remounts: {remounts}");
            let mut board = Board::new(hard, clocks[0]);
            let fresh = board.available();
            for (nth, &clock) in clocks.iter().enumerate() {
                board.set(clock);
                if remounts {
                    board.remount();
                }
                board.replace(nth);
                board.check_words(&case);
            }
            board.set(NOW + 1000);
            board.replace(90);
            board.check_words(&case);
            board.let_pass(PERIOD / 2);
            let recent = board.replace(91);
            board.replace(92);
            if remounts {
                board.remount();
            }
            // Versions from before the clock was right go, those that it saw half an hour ago stay.
            board.let_pass(PERIOD / 2 + 1);
            let available = board.available();
            let versions = fresh.saturating_sub(available) / VERSION as u64;
            assert!(versions <= if hard { 3 } else { 1 }, "{case}: {available} of {fresh} bytes");
            board.check_words(&case);
            let before = board.has(recent).then(|| in_the_past(&board.device, recent, "file"));
            board.fill();
            if hard {
                assert!(board.has(recent), "{case}: it was promised for an hour");
                assert_eq!(before, Some(in_the_past(&board.device, recent, "file")), "{case}");
            }
            board.let_pass(PERIOD);
            board.fs.unlink(&board.fs.root().unwrap().inode, b"filling").unwrap();
            board.fs.sync().unwrap();
            board.let_pass(PERIOD);
            for usage in board.usages() {
                assert_eq!((usage.protected, usage.protected_until), (0, None), "{case}");
            }
            assert!(fresh - board.available() < 3 << 20, "{case}");
            assert!(board.fill() > fresh * 85 / 100, "{case}");
            board.fs.unmount().unwrap();
            check(&*board.device);
        }
    }
}

/// A board boots with its clock in 1970, and it is not known yet what time it is: what was made before is
/// kept until the clock of this time has gone on for an hour, not for ever and not for no time.
#[test]
fn while_the_clock_is_in_1970_an_hour_is_an_hour() {
    let mut board = Board::new(true, NOW);
    let before = board.replace(1);
    board.set(20);
    board.remount();
    board.replace(2);
    board.let_pass(PERIOD - 10);
    let told = board.available();
    let written = board.fill();
    assert!((told * 9 / 10..told * 11 / 10).contains(&written), "{written} of {told}");
    assert!(board.has(before));
    board.let_pass(11);
    let more = board.available();
    assert!(more > VERSION as u64 * 9 / 10, "{more} bytes after the hour");
    board.fs.clean(&ManualRun::default()).unwrap();
    assert!(!board.has(before));
}

/// The volume had been idle for longer than the period when its space was counted, so all that was made
/// afterwards counted as unprotected: it was called available, and the writer was refused.
#[test]
fn what_is_made_after_an_idle_hour_is_promised_again() {
    let board = Board::new(true, NOW);
    board.replace(1);
    board.let_pass(2 * PERIOD);
    let idle = board.available();
    for nth in 2..5 {
        board.replace(nth);
    }
    let told = board.fs.stat_fs().unwrap();
    let told = told.available * u64::from(told.block_size);
    assert!(told + 2 * VERSION as u64 * 9 / 10 < idle, "{told} of {idle}: two versions are kept");
    let written = board.fill();
    assert!((told * 9 / 10..told * 11 / 10).contains(&written), "{written} of {told}");
}
