//! Figures of a volume about its space are true, regardless of what has been done with the volume: what is
//! available can be written and not much more, the rows of `nilfs df` are all there is, and a snapshot
//! gives back what that snapshot keeps alone.
//!
//! `nilfs df` called available what a snapshot kept that was also young, because it counted it as
//! protected; statfs, what had just been deleted, also where a snapshot or hard protection kept it; and
//! neither counted what had been overwritten under a snapshot before a checkpoint had it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{
    CleanerOptions, CleanerOrder, Cno, Error, Filesystem, ManualRun, MountOptions, NewInode,
    Timestamp, Usage,
};
use nilfs_sim::clock::{EPOCH, ThreadClock};
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::volume::{Shape, check};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const SHAPES: [Shape; 4] = [
    Shape { block_size: 1024, blocks_per_segment: 128, segments: 96 },
    Shape { block_size: 1024, blocks_per_segment: 64, segments: 128 },
    Shape { block_size: 4096, blocks_per_segment: 64, segments: 48 },
    Shape { block_size: 4096, blocks_per_segment: 128, segments: 80 },
];
/// Steps of the longest life.
const STEPS: usize = 12;
const PIECE: usize = 16 << 10;

/// A volume that has been lived on.
struct World {
    random: StdRng,
    seconds: i64,
    device: Arc<MemoryDevice>,
    fs: Arc<Filesystem>,
    /// Names of files.
    files: Vec<String>,
    snapshots: Vec<Cno>,
    cleaner: CleanerOptions,
    /// Bytes of the volume.
    all: u64,
    told: String,
}

impl World {
    /// Makes a world that has lived for so many steps: the same each time, so that a world can be asked in
    /// several ways what comes next, with what is in memory and in no checkpoint.
    fn after(seed: u64, steps: usize) -> Self {
        ThreadClock::set(EPOCH);
        let shape = SHAPES[seed as usize % SHAPES.len()];
        let device = Arc::new(MemoryDevice::from(shape.format()));
        let cleaner =
            CleanerOptions { hard_protection: seed.is_multiple_of(3), ..CleanerOptions::default() };
        let mut world = Self {
            random: StdRng::seed_from_u64(seed),
            seconds: EPOCH.seconds,
            fs: mount(&device, cleaner),
            device,
            files: Vec::new(),
            snapshots: Vec::new(),
            cleaner,
            all: shape.block_size * u64::from(shape.blocks_per_segment) * shape.segments,
            told: format!("seed {seed}, {shape}:"),
        };
        (0..steps).for_each(|_| world.step());
        world
    }

    fn step(&mut self) {
        let choice = self.random.random_range(0..100);
        self.let_pass(self.random.clone().random_range(1..200));
        match choice {
            0..25 => self.make(),
            25..40 => self.overwrite(),
            40..58 => self.remove(),
            58..68 => self.keep(),
            68..74 => self.let_go(),
            74..80 => self.note("sync", Self::sync),
            80..84 => self.note("fsync", Self::sync_one),
            84..89 => self.note("clean", Self::clean),
            89..93 => self.note("hours", |it| it.let_pass(7500)),
            93..96 => self.note("remount", Self::remount),
            _ => self.note("soft or hard", Self::change_protection),
        }
    }

    fn note(&mut self, what: &str, step: impl FnOnce(&mut Self)) {
        self.told += &format!(" {what};");
        step(self);
    }

    fn let_pass(&mut self, seconds: i64) {
        self.seconds += seconds;
        ThreadClock::set(Timestamp { seconds: self.seconds, nanoseconds: 0 });
    }

    /// Bytes of something, often of much.
    fn some_bytes(&mut self) -> u64 {
        let most = self.all / [3, 8, 40][self.random.random_range(0..3)];
        self.random.random_range(1..most)
    }

    fn make(&mut self) {
        let bytes = self.some_bytes();
        let name = format!("file {}", self.files.len() + self.told.len());
        self.told += &format!(" write {bytes};");
        self.write(&name, 0, bytes);
        self.files.push(name);
    }

    fn overwrite(&mut self) {
        let Some(nth) = self.some_file() else { return };
        let name = self.files[nth].clone();
        let size = self.size(&name);
        let (at, bytes) = (self.random.random_range(0..=size), self.some_bytes());
        self.told += &format!(" overwrite {bytes} of {size} at {at};");
        self.write(&name, at, bytes);
    }

    fn remove(&mut self) {
        let Some(nth) = self.some_file() else { return };
        let name = self.files.remove(nth);
        self.told += &format!(" rm {};", self.size(&name));
        let root = self.fs.root().unwrap().inode;
        self.fs.unlink(&root, name.as_bytes()).unwrap();
    }

    fn keep(&mut self) {
        self.told += " snapshot;";
        let cno = match self.fs.checkpoint_now() {
            Err(Error::NoSpace) => return,
            cno => cno.unwrap(),
        };
        match self.fs.set_snapshot(cno, true) {
            Err(Error::NoSpace) => {}
            made => {
                made.unwrap();
                self.snapshots.push(cno);
            }
        }
    }

    fn let_go(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        self.told += " delete a snapshot;";
        let nth = self.random.random_range(0..self.snapshots.len());
        let cno = self.snapshots.remove(nth);
        self.fs.set_snapshot(cno, false).unwrap();
    }

    fn sync(&mut self) {
        self.fs.sync().unwrap();
    }

    fn sync_one(&mut self) {
        let Some(nth) = self.some_file() else { return };
        let root = self.fs.root().unwrap().inode;
        let file = self.fs.lookup(&root, self.files[nth].as_bytes()).unwrap().inode;
        self.fs.sync_file(&file).unwrap();
    }

    fn clean(&mut self) {
        self.fs.clean(&ManualRun::default()).unwrap();
    }

    fn remount(&mut self) {
        self.fs.unmount().unwrap();
        check(&*self.device).unwrap_or_else(|what| panic!("{} {what}", self.told));
        self.fs = mount(&self.device, self.cleaner);
    }

    fn change_protection(&mut self) {
        self.cleaner.hard_protection = !self.cleaner.hard_protection;
        self.fs.order_cleaner(CleanerOrder::Configure(self.cleaner)).unwrap();
    }

    fn some_file(&mut self) -> Option<usize> {
        let count = self.files.len();
        (count > 0).then(|| self.random.random_range(0..count))
    }

    fn size(&self, name: &str) -> u64 {
        let root = self.fs.root().unwrap().inode;
        self.fs.lookup(&root, name.as_bytes()).unwrap().attr.size
    }

    /// Writes up to so many bytes from an offset on. Returns how many there was room for.
    fn write(&self, name: &str, at: u64, bytes: u64) -> u64 {
        let root = self.fs.root().unwrap().inode;
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: Default::default() };
        let file = match self.fs.create(&root, name.as_bytes(), &new) {
            Err(Error::Exists) => self.fs.lookup(&root, name.as_bytes()).unwrap().inode,
            Err(Error::NoSpace) => return 0,
            made => made.unwrap().inode,
        };
        let mut written = 0;
        while written < bytes {
            let piece = PIECE.min((bytes - written) as usize);
            match self.fs.write_some(&file, at + written, &[7; PIECE][..piece]) {
                Ok(count) => written += count as u64,
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{} {error}", self.told),
            }
        }
        written
    }

    fn usage(&self) -> Usage {
        self.fs.usage().unwrap_or_else(|error| panic!("{} {error}", self.told))
    }

    /// Bytes that statfs calls available.
    fn available(&self) -> u64 {
        let stat = self.fs.stat_fs().unwrap();
        stat.available * u64::from(stat.block_size)
    }
}

fn mount(device: &Arc<MemoryDevice>, cleaner: CleanerOptions) -> Arc<Filesystem> {
    let shared: Arc<dyn Device> = Arc::clone(device) as _;
    let clock = Arc::new(ThreadClock);
    let options = MountOptions { cleaner, clock, ..MountOptions::default() };
    Filesystem::mount(shared, options).unwrap()
}

/// How many bytes may be written where so many are available: a twentieth of that more or less, and of
/// the volume a hundredth, which takes what describes the data, and what checkpoints add to a past that is
/// kept. More, by what is in memory: of what is overwritten, only a checkpoint says whether a snapshot
/// has it.
fn expected(world: &World, available: u64) -> RangeInclusive<u64> {
    let slack = available / 20 + world.all / 100;
    available.saturating_sub(slack)..=available + slack + world.fs.status().dirty_bytes
}

/// Blocks that are not needed, or that a writer could take.
fn unused(usage: &Usage) -> u64 {
    let protected = if usage.hard_protection { 0 } else { usage.protected };
    usage.free + usage.reclaimable + protected
}

fn the_rows_are_all_there_is(world: &World) {
    let told = &world.told;
    let usage = world.usage();
    let parts = [usage.live, usage.snapshots, usage.protected, usage.reclaimable, usage.free];
    assert_eq!(parts.iter().sum::<u64>(), usage.total, "{told} {usage:?}");
    assert_eq!(usage.available * usage.block_size, world.available(), "{told} {usage:?}");
    // Of what is in no checkpoint, the rows know nothing.
    world.fs.sync().unwrap();
    let usage = world.usage();
    assert_eq!(unused(&usage), world.fs.stat_fs().unwrap().free, "{told} {usage:?}");
}

fn what_is_available_can_be_written(world: &World) {
    // Before the lives of all blocks are gathered, less may be known to be unused.
    let at_first = world.available();
    world.usage();
    let available = world.available();
    let expected = expected(world, available);
    let told = &world.told;
    let most = expected.end();
    assert!(at_first <= *most, "{told} {at_first}, then {available} bytes were available");
    let written = world.write("what fits", 0, u64::MAX);
    assert!(
        expected.contains(&written),
        "{told} {written} bytes could be written where {available} were available; {:?}",
        world.usage()
    );
}

fn a_snapshot_gives_back_what_it_keeps_alone(seed: u64, steps: usize) {
    let count = World::after(seed, steps).snapshots.len();
    for nth in 0..count {
        let world = World::after(seed, steps);
        world.fs.sync().unwrap();
        let before = world.usage();
        let cno = world.snapshots[nth];
        let alone = before.exclusive.iter().find(|it| it.cno == cno).unwrap().blocks;
        world.fs.set_snapshot(cno, false).unwrap();
        let after = world.usage();
        let told = &world.told;
        let metadata = 32;
        let least = unused(&before) + alone - metadata;
        assert!(unused(&after) >= least, "{told} {cno}: {before:?}, {after:?}");
    }
}

#[test]
fn what_a_volume_says_about_its_space_is_so() {
    for_each_seed("what_a_volume_says_about_its_space_is_so", 24, |seed| {
        for steps in 1..=STEPS {
            the_rows_are_all_there_is(&World::after(seed, steps));
            what_is_available_can_be_written(&World::after(seed, steps));
            a_snapshot_gives_back_what_it_keeps_alone(seed, steps);
        }
        let world = World::after(seed, STEPS);
        world.fs.unmount().unwrap();
        check(&*world.device).unwrap_or_else(|what| panic!("{} {what}", world.told));
    });
}
