//! The volumes that are damaged: small ones with something of everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nilfs_device::{Device, Event, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::scan::Scan;
use nilfs_engine::{
    Amount, CleanerOptions, Cno, DeviceCode, Error, Filesystem, InodeRef, ManualRun, MountOptions,
    NewInode, SnapshotChange, Timestamp,
};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use nilfs_ondisk::{BlockNr, BlockSize, Seq};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::blocks::{Block, Synced, in_use};
use super::cost::Cost;
use super::picture::Picture;
use crate::clock::{EPOCH, ThreadClock};
use crate::medium::{Medium, content, medium};

/// The bytes of a segment.
const SEGMENT: u64 = 128 << 10;

/// The bytes of a segment that has many sync logs.
const LARGE_SEGMENT: u64 = 512 << 10;

/// The bytes of a volume.
const VOLUME: u64 = 5 << 20;

/// The bytes of a volume of large segments.
const LARGE_VOLUME: u64 = 12 << 20;

/// Syncs before a crash.
const SYNCED: u64 = 9;

/// Syncs before a crash that are in more than one segment.
const MANY_SYNCED: u64 = 24;

/// After this time, the superblocks follow the log.
const LONG: Duration = Duration::from_secs(20);

/// In this time, they do not, however often it passes.
const SHORT: Duration = Duration::from_millis(10);

/// How a volume was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// Unmounted.
    Clean,
    /// Without power: with checkpoints after the one that the superblocks name, and sync logs after the
    /// newest.
    Crashed,
    /// As [`Left::Crashed`], with large segments and many sync logs after the newest checkpoint, in its segment
    /// and the next.
    Synced,
    /// Without power, soon after it was made: the superblocks name the empty checkpoint.
    Fresh,
    /// Made and filled by Linux, and unmounted.
    Linux,
    /// As [`Left::Linux`], then mounted here, written, and without power as [`Left::Crashed`].
    LinuxThenCrashed,
}

/// Name of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Which {
    /// How it was left.
    pub left: Left,
    /// Bytes of its blocks.
    pub block_bytes: u32,
}

impl Which {
    /// All there are.
    pub const ALL: [Self; 11] = [
        Self { left: Left::Clean, block_bytes: 4096 },
        Self { left: Left::Crashed, block_bytes: 4096 },
        Self { left: Left::Clean, block_bytes: 1024 },
        Self { left: Left::Crashed, block_bytes: 1024 },
        Self { left: Left::Synced, block_bytes: 4096 },
        Self { left: Left::Synced, block_bytes: 1024 },
        Self { left: Left::Fresh, block_bytes: 1024 },
        Self { left: Left::Linux, block_bytes: 4096 },
        Self { left: Left::LinuxThenCrashed, block_bytes: 4096 },
        Self { left: Left::Linux, block_bytes: 1024 },
        Self { left: Left::LinuxThenCrashed, block_bytes: 1024 },
    ];

    /// Makes the volume, the same each time.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(self, seed: u64) -> Result<Sample, String> {
        ThreadClock::set(EPOCH);
        let (start, events, synced) = match self.left {
            Left::Clean | Left::Crashed | Left::Synced => {
                Writer::begin(self, seed, formatted(self))?.live(self)?
            }
            Left::Fresh => Writer::begin(self, seed, formatted(self))?.begin_to_live()?,
            Left::Linux => (linux_image(self)?, Vec::new(), BTreeMap::new()),
            Left::LinuxThenCrashed => {
                Writer::begin(self, seed, linux_image(self)?)?.live_briefly()?
            }
        };
        let former = former(&start, &events, self.block_bytes as usize);
        let unflushed = unflushed(&events, self.block_bytes.into());
        let written = written(&events, self.block_bytes.into());
        let content = after(start, &events);
        let picture = look(&content)?;
        let blocks = in_use(&content, &picture, &synced)?;
        let device = MemoryDevice::from(content.clone());
        let report = nilfs_check::check(&device, &Default::default());
        let report = report.map_err(|error| error.to_string())?;
        if !report.is_consistent() {
            return Err(format!("the volume is not sound: {report}"));
        }
        let (newest, newest_log) = (report.newest, report.newest_log.block);
        let which = self;
        Ok(Sample {
            which,
            content,
            former,
            picture,
            newest,
            newest_log,
            blocks,
            unflushed,
            written,
        })
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = match self.left {
            Left::Clean => "clean",
            Left::Crashed => "crashed",
            Left::Synced => "synced",
            Left::Fresh => "fresh",
            Left::Linux => "linux",
            Left::LinuxThenCrashed => "linux-crashed",
        };
        f.pad(&format!("{left}-{}k", self.block_bytes / 1024))
    }
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(|which| which.to_string()).join(", ");
        let found = Self::ALL.into_iter().find(|which| which.to_string() == text);
        found.ok_or_else(|| format!("{text} is none of {}", names()))
    }
}

/// A volume before it is damaged.
pub struct Sample {
    /// Its name.
    pub which: Which,
    /// Content of the device.
    pub content: Vec<u8>,
    /// Content of each block before it was written last.
    pub former: Vec<u8>,
    /// Its files, as a mount shows them.
    pub picture: Picture,
    /// The newest checkpoint.
    pub newest: Cno,
    /// Where the log of that begins.
    pub newest_log: BlockNr,
    /// Its blocks in use, by their numbers.
    pub blocks: Vec<Block>,
    /// Numbers of blocks that were written after the last flush.
    pub unflushed: BTreeSet<u64>,
    /// When blocks were written last: the number of the write, and of the block.
    pub written: BTreeMap<u64, (usize, u64)>,
}

impl Sample {
    /// The bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.which.block_bytes.into()
    }
}

/// Files that a mount shows which only looks: it must show those of a mount that writes.
fn look(content: &[u8]) -> Result<Picture, String> {
    let device = || -> Arc<dyn Device> { Arc::new(MemoryDevice::from(content.to_vec())) };
    let fs = Filesystem::mount(device(), options()).map_err(|error| error.to_string())?;
    let written = Picture::take(&*fs);
    let read = nilfs_engine::ReadOnlyVolume::mount(device(), Default::default());
    let read = Picture::take(&read.map_err(|error| error.to_string())?);
    match written.difference(&read) {
        None => Ok(written),
        Some(what) => Err(format!("a read-only mount shows {what} otherwise")),
    }
}

/// How volumes are mounted to be written.
#[must_use]
pub fn options() -> MountOptions {
    MountOptions {
        commit_interval: None,
        clock: Arc::new(ThreadClock),
        cleaner: CleanerOptions {
            protection: Duration::ZERO,
            step_interval: Duration::ZERO,
            max_clean: Amount::Percent(100),
            ..CleanerOptions::default()
        },
        ..MountOptions::default()
    }
}

fn formatted(which: Which) -> Vec<u8> {
    let (segment, volume) = match which.left {
        Left::Synced => (LARGE_SEGMENT, LARGE_VOLUME),
        _ => (SEGMENT, VOLUME),
    };
    let device = MemoryDevice::new(volume + 4096);
    let mut parameters = Parameters::new(*b"a damaged volume", 0x0b_1a_57, EPOCH.seconds as u64);
    parameters.block_size =
        BlockSize::from_bytes(which.block_bytes.into()).expect("the sizes of blocks are possible");
    parameters.blocks_per_segment = segment as u32 / which.block_bytes;
    format(&device, &parameters).expect("the shape of the volume is possible");
    device.snapshot()
}

fn linux_image(which: Which) -> Result<Vec<u8>, String> {
    let images =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/nilfs-check/tests/images");
    let path = images.join(format!("linux-{}.img.gz", which.block_bytes));
    let output = Command::new("gzip").arg("-dc").arg(&path).output();
    let output = output.map_err(|error| format!("gzip: {error}"))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("gzip cannot read {}", path.display())),
    }
}

/// Content of a device after all events.
fn after(mut content: Vec<u8>, events: &[Event]) -> Vec<u8> {
    for event in events {
        if let Event::Write { offset, bytes } = event {
            let at = *offset as usize;
            content[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
    content
}

/// Blocks that were written after the last flush.
fn unflushed(events: &[Event], size: u64) -> BTreeSet<u64> {
    let since = events.iter().rev().take_while(|event| !matches!(event, Event::Flush));
    let blocks = since.filter_map(|event| match event {
        Event::Write { offset, bytes } => {
            Some(offset / size..(offset + bytes.len() as u64).div_ceil(size))
        }
        _ => None,
    });
    blocks.flatten().collect()
}

/// When each block was written last: the number of the write, and of the block.
fn written(events: &[Event], size: u64) -> BTreeMap<u64, (usize, u64)> {
    let mut written = BTreeMap::new();
    for (nth, event) in events.iter().enumerate() {
        let Event::Write { offset, bytes } = event else { continue };
        let blocks = offset / size..(offset + bytes.len() as u64).div_ceil(size);
        written.extend(blocks.map(|block| (block, (nth, block))));
    }
    written
}

/// Content of each block before it got the content that it has after all events.
fn former(start: &[u8], events: &[Event], size: usize) -> Vec<u8> {
    let (mut now, mut former) = (start.to_vec(), vec![0; start.len()]);
    for event in events {
        let Event::Write { offset, bytes } = event else { continue };
        let (at, end) = (*offset as usize, *offset as usize + bytes.len());
        let before = now[at / size * size..end.next_multiple_of(size).min(now.len())].to_vec();
        now[at..end].copy_from_slice(bytes);
        for (nth, old) in before.chunks(size).enumerate() {
            let at = (at / size + nth) * size;
            if now[at..at + old.len()] != *old {
                former[at..at + old.len()].copy_from_slice(old);
            }
        }
    }
    former
}

type Lived = (Vec<u8>, Vec<Event>, BTreeMap<(BlockNr, Seq), Synced>);

/// Fills a volume.
struct Writer {
    start: Vec<u8>,
    medium: Arc<Medium>,
    fs: Arc<Filesystem>,
    random: StdRng,
    now: Timestamp,
    block_bytes: u64,
}

impl Writer {
    fn begin(which: Which, seed: u64, start: Vec<u8>) -> Result<Self, String> {
        let medium = Arc::new(medium(start.clone()));
        let below: Arc<dyn Device> = Arc::<Medium>::clone(&medium);
        let fs = Filesystem::mount(below, options()).map_err(|error| error.to_string())?;
        let random = StdRng::seed_from_u64(seed);
        let block_bytes = which.block_bytes.into();
        Ok(Self { start, medium, fs, random, now: EPOCH, block_bytes })
    }

    /// A whole life: much that is gone, a past, a present.
    fn live(mut self, which: Which) -> Result<Lived, String> {
        let lived = self.churn().and_then(|()| self.fill());
        lived.map_err(|error| format!("{error}: {:?}", self.fs.status()))?;
        match which.left {
            Left::Clean => {
                self.fs.unmount().map_err(|error| error.to_string())?;
                Ok((self.start, self.medium.below().take_events(), BTreeMap::new()))
            }
            Left::Synced => self.crash_after(MANY_SYNCED, false),
            _ => self.crash_after(SYNCED, true),
        }
    }

    /// The first checkpoints of a volume.
    fn begin_to_live(mut self) -> Result<Lived, String> {
        let begin = |writer: &mut Self| -> Result<(), Error> {
            for nth in 0..20 {
                let directory = writer.directory(&writer.root()?, &format!("directory {nth}"))?;
                writer.file_in(&directory, "file", 3)?;
            }
            writer.fs.commit()?;
            writer.pass(SHORT);
            writer.some_checkpoints()
        };
        begin(&mut self).map_err(|error| error.to_string())?;
        Ok((self.start, self.medium.below().take_events(), BTreeMap::new()))
    }

    fn live_briefly(mut self) -> Result<Lived, String> {
        self.some_checkpoints().map_err(|error| error.to_string())?;
        self.crash_after(SYNCED, true)
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) {
        let nanoseconds = self.now.nanoseconds + time.subsec_nanos();
        self.now.seconds += time.as_secs() as i64 + i64::from(nanoseconds / 1_000_000_000);
        self.now.nanoseconds = nanoseconds % 1_000_000_000;
        ThreadClock::set(self.now);
    }

    /// Every segment is used once, so that blocks have a former content.
    fn churn(&mut self) -> Result<(), Error> {
        for _ in 0..10 {
            self.file("churn", VOLUME / 8)?;
            self.fs.sync()?;
            self.pass(LONG);
            self.fs.unlink(&self.root()?, b"churn")?;
            self.fs.sync()?;
            self.pass(LONG);
            let newest = self.fs.status().cno.0;
            self.fs.delete_checkpoints(Cno(1)..=Cno(newest - 1))?;
            self.fs.sync()?;
            self.fs.clean(&ManualRun {
                protection: Some(Duration::ZERO),
                min_reclaimable: Some(Amount::Count(1)),
                ..ManualRun::default()
            })?;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<(), Error> {
        let block = self.block_bytes;
        let root = self.root()?;
        let docs = self.directory(&root, "docs")?;
        for nth in 0..48 {
            let name = format!("{nth:02} a name that is long enough to fill a block soon");
            let length = if nth % 4 == 0 { 300 + 40 * nth } else { 0 };
            self.file_in(&docs, &name, length)?;
        }
        let deep = self.directory(&docs, "sub")?;
        let deep = self.directory(&deep, "deep")?;
        self.file_in(&deep, "one", 3 * block)?;
        let two = self.file_in(&deep, "two", 100)?;
        self.fs.link(&two, &root, b"link")?;
        self.fs.symlink(&root, b"symlink", b"docs/sub/deep/one", 0, 0)?;
        let big = self.file("big", 30 * block + 77)?;
        self.file("old", 5 * block)?;
        let kept = self.fs.checkpoint_now()?;
        self.fs.change_snapshots(&[SnapshotChange::plain(kept, true)])?;
        self.pass(LONG);
        self.fs.unlink(&root, b"old")?;
        let bytes = self.bytes(6 * block);
        self.fs.write(&big, 9 * block, &bytes)?;
        let sparse = self.file("sparse", block)?;
        let bytes = self.bytes(2 * block);
        self.fs.write(&sparse, 300 * block, &bytes)?;
        self.fs.sync()?;
        self.pass(LONG);
        self.some_checkpoints()
    }

    /// Checkpoints that follow each other quickly: superblocks do not name the last ones.
    fn some_checkpoints(&mut self) -> Result<(), Error> {
        let root = self.root()?;
        for nth in 0..4 {
            let directory = self.directory(&root, &format!("checkpoint {nth}"))?;
            for file in 0..4 {
                self.file_in(&directory, &format!("file {file}"), 200 + 900 * file)?;
            }
            self.file(&format!("made by checkpoint {nth}"), 2 * self.block_bytes)?;
            self.fs.commit()?;
            self.pass(SHORT);
        }
        Ok(())
    }

    /// Syncs one file after the other, with a checkpoint between them or none, until the power fails.
    fn crash_after(mut self, syncs: u64, checkpoint: bool) -> Result<Lived, String> {
        let synced = self.sync_files(syncs, checkpoint).map_err(|error| error.to_string())?;
        let events = self.medium.below().take_events();
        debug_assert_eq!(after(self.start.clone(), &events), content(&self.medium));
        Ok((self.start, events, synced))
    }

    fn sync_files(
        &mut self,
        syncs: u64,
        checkpoint: bool,
    ) -> Result<BTreeMap<(BlockNr, Seq), Synced>, Error> {
        let mut costs = BTreeMap::new();
        let mut known = self.logs();
        let mut before = look(&content(&self.medium)).map_err(Error::Inconsistent)?;
        for nth in 0..syncs {
            let root = self.root()?;
            let name = format!("synced {nth}");
            let inode = match nth {
                2 => self.file(&name, 80 << 10)?,
                4 => {
                    let inode = self.fs.lookup(&root, b"synced 3")?.inode;
                    let bytes = self.bytes(self.block_bytes);
                    self.fs.write(&inode, 0, &bytes)?;
                    inode
                }
                6 => {
                    let directory = self.directory(&root, &name)?;
                    self.file_in(&directory, "file", 700)?
                }
                _ => self.file(&name, 300 + 1000 * nth)?,
            };
            self.fs.sync_file(&inode)?;
            self.pass(SHORT);
            // What was synced before a checkpoint, it has.
            let is_checkpoint = checkpoint && nth == 1;
            if is_checkpoint {
                self.fs.commit()?;
                costs.clear();
            }
            let (now, after) =
                (self.logs(), look(&content(&self.medium)).map_err(Error::Inconsistent)?);
            if !is_checkpoint {
                let cost = Cost::between(&before, &after);
                let synced = Synced { cost, is_last: nth + 1 == syncs };
                let new = now.iter().filter(|log| !known.contains(log));
                costs.extend(new.map(|log| (*log, synced.clone())));
            }
            (known, before) = (now, after);
        }
        Ok(costs)
    }

    fn logs(&self) -> Vec<(BlockNr, Seq)> {
        let device = MemoryDevice::from(content(&self.medium));
        let scan = Scan::run(&device, &|_| {});
        let logs = scan.into_iter().flat_map(|scan| scan.logs);
        logs.map(|log| (log.start, log.header.seq)).collect()
    }

    fn root(&self) -> Result<InodeRef, Error> {
        Ok(self.fs.root()?.inode)
    }

    fn directory(&mut self, parent: &InodeRef, name: &str) -> Result<InodeRef, Error> {
        Ok(self.fs.create(parent, name.as_bytes(), &new(S_IFDIR | 0o755))?.inode)
    }

    fn file(&mut self, name: &str, length: u64) -> Result<InodeRef, Error> {
        self.file_in(&self.root()?, name, length)
    }

    fn file_in(&mut self, parent: &InodeRef, name: &str, length: u64) -> Result<InodeRef, Error> {
        let file = self.fs.create(parent, name.as_bytes(), &new(S_IFREG | 0o644))?.inode;
        if length > 0 {
            let bytes = self.bytes(length);
            self.fs.write(&file, 0, &bytes)?;
        }
        Ok(file)
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.random.fill(&mut bytes[..]);
        bytes
    }
}

fn new(mode: u16) -> NewInode {
    NewInode { mode, uid: 1000, gid: 100, rdev: DeviceCode::default() }
}
