//! Volumes with damage: what a repair must do to each of them.

#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

#[path = "../../../nilfs-check/tests/support/mod.rs"]
mod images;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use images::{BLOCK_SIZES, Image, LogAt, LoggedBlock, add, read, value, vblock, write};
use nilfs_check::{CheckError, Options, Report, Severity};
use nilfs_device::{Device, FaultyDevice, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{
    Attr, BlockNr, Cno, FileType, Files, Filesystem, FsyncBy, Ino, MountOptions, NewInode, Volume,
};
use nilfs_ondisk::BlockSize;
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::inode::S_IFREG;
use nilfs_ondisk::summary::{BlockInfo, SR};
use nilfs_repair::{Plan, Risk};
use nilfs_sim::generate::Profile;
use nilfs_sim::op::Op;
use nilfs_sim::power::{Disk, Survivors};
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::{Settings, World};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// The identity that a volume gets if its own is lost.
pub const UUID: [u8; 16] = [0x11; 16];

/// Operations that have made a volume.
const OPERATIONS: usize = 300;

/// What a file is: its type, links, size and content.
pub type File = (FileType, u16, u64, Vec<u8>);

/// Files by path.
pub type Content = BTreeMap<String, File>;

/// Makes a new volume.
pub fn formatted(bytes: u64, block_size: u64, blocks_per_segment: u32) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    let parameters = Parameters {
        block_size: BlockSize::from_bytes(block_size).unwrap(),
        blocks_per_segment,
        ..Parameters::new([7; 16], 0x1234_5678, 1_700_000_000)
    };
    format(&*device, &parameters).unwrap();
    device
}

/// Mounts a volume as users do.
pub fn mount(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    Filesystem::mount(Arc::clone(device) as _, MountOptions::default()).unwrap()
}

/// Fills the block of the newest super root with other bytes, of which a checksum cannot tell what they were.
pub fn lose_super_root(image: &mut Image) {
    let logs = image.logs().into_iter().filter(|log| log.header.has(SR));
    let newest = logs.max_by_key(|log| (log.header.seq, log.block)).unwrap();
    let block = newest.block.0 as usize + newest.header.nblocks as usize - 1;
    let size = image.block_size();
    image.bytes[block * size..][..size].fill(0x5a);
}

/// A volume after a power cut, with a checkpoint between fsyncs, and its files.
pub fn synced_around_checkpoint() -> (Image, Content) {
    let device = formatted(16 << 20, 4096, 64);
    let fs = mount(&device);
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    for (nth, name) in ["before", "with", "after"].into_iter().enumerate() {
        let file = fs.create(&fs.root().unwrap().inode, name.as_bytes(), &new).unwrap().inode;
        fs.write(&file, 0, name.as_bytes()).unwrap();
        fs.sync_file(&file).unwrap();
        if nth == 1 {
            fs.sync().unwrap();
        }
    }
    let files = present(&*fs);
    (Image::from(device.snapshot()), files)
}

/// Volumes with damage of which each needs another kind of repair.
pub fn damaged() -> Vec<(&'static str, Image)> {
    let mut no_superblocks = Image::by_linux(1024);
    let secondary = secondary_superblock(no_superblocks.bytes.len() as u64).unwrap();
    for at in [PRIMARY_SUPERBLOCK as usize, secondary as usize] {
        no_superblocks.bytes[at..at + 1024].fill(0);
    }
    let mut cursor = Image::by_linux(1024);
    cursor.edit_superblocks(|raw| raw.s_last_pseg.set(raw.s_last_pseg.get() + 1));
    let mut one_copy = Image::by_linux(1024);
    one_copy.bytes[PRIMARY_SUPERBLOCK as usize + 20] ^= 1;
    let mut counter = Image::by_linux(1024);
    let header = counter.data(Ino::SUFILE, 0);
    counter.edit(header, |block| add(block, 0, 1));
    // The heads of its logs are destroyed where they are.
    let mut newest = Image::by_linux(1024);
    let root = newest.super_root().block.0 as usize * 1024;
    newest.bytes[root + 40] ^= 1;
    let mut maps = Image::by_linux(1024);
    for ino in [maps.named("tree"), Ino::IFILE, Ino::DAT] {
        let node = maps.node(ino);
        maps.edit(node, |block| block.fill(0x5a));
    }
    let mut names = Image::by_linux(1024);
    names.edit_record(Ino::ROOT, "many", |record| record[..8].fill(0));
    let deep = names.data(names.named("deep"), 0);
    names.edit(deep, |block| block.fill(0x5a));
    let (mut super_root, _) = synced_around_checkpoint();
    lose_super_root(&mut super_root);
    vec![
        ("newest checkpoint", newest),
        ("a super root among sync logs", super_root),
        ("maps", maps),
        ("names", names),
        ("no superblocks", no_superblocks),
        ("cursor", cursor),
        ("one copy", one_copy),
        ("a counter of the sufile", counter),
    ]
}

/// A number from the environment.
pub fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(otherwise, |given| given.parse().expect("a number"))
}

/// Changes some bytes of logs, late ones more often; half of the time so that checksums are right.
pub fn damage(image: &mut Image, random: &mut StdRng) {
    let logs = image.logs();
    for _ in 0..random.random_range(1..4) {
        let early = random.random_range(0..logs.len()).min(random.random_range(0..logs.len()));
        let log = &logs[logs.len() - 1 - early];
        let size = image.block_size();
        let block = log.block.0 as usize + random.random_range(0..log.header.nblocks as usize);
        let within = if random.random() { 256 } else { size };
        let at = block * size + random.random_range(0..within) / 8 * 8;
        let value: u64 = match random.random_range(0..4) {
            0 => 0,
            1 => u64::MAX,
            2 => random.random_range(0..64),
            _ => random.random(),
        };
        let width = [1, 2, 4, 8][random.random_range(0..4)];
        image.bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        if random.random_range(0..4) == 0 {
            image.bytes[block * size..(block + 1) * size].fill(value as u8);
        }
        if random.random() {
            let length = log.header.nblocks as usize * size;
            image.seal_within(log.block, length);
        }
    }
}

/// Changes some numbers in blocks that the newest checkpoint uses: of metadata, directories and maps,
/// with right checksums.
pub fn damage_what_is_in_use(image: &mut Image, random: &mut StdRng) {
    let metadata = [Ino::DAT, Ino::CPFILE, Ino::SUFILE, Ino::IFILE, Ino::ROOT];
    let all = [&metadata[..], &image.names_in_root()].concat();
    for _ in 0..random.random_range(1..5) {
        let blocks = image.blocks_of(all[random.random_range(0..all.len())]);
        // Of a block that was written again, the last one is in use.
        let Some(chosen) = blocks.choose(random) else { continue };
        let is_same = |it: &&LoggedBlock| match (it.info, chosen.info) {
            (BlockInfo::Data { offset, .. }, BlockInfo::Data { offset: other, .. }) => {
                offset == other
            }
            (info, other) => info == other,
        };
        let used = *blocks.iter().rfind(is_same).unwrap_or(chosen);
        let width = [1, 2, 4, 8][random.random_range(0..4)];
        // Most of what matters is near the start.
        let within = image.block_size() / if random.random() { 1 } else { 8 };
        let at = random.random_range(0..within) / width * width;
        let bytes = value(random).to_le_bytes();
        image.edit(used, |block| block[at..at + width].copy_from_slice(&bytes[..width]));
    }
}

/// A volume with a past that was cleaned, and snapshots, in segments of which some are clean.
pub fn lived(block_size: u64) -> Image {
    let blocks_per_segment = (64 << 10) / block_size as u32;
    let shape = Shape { block_size, blocks_per_segment, segments: 96 };
    let mounting = Mounting { fsync: FsyncBy::Checkpoint, protection: 0, ..Mounting::READ_WRITE };
    let mut world = World::new(Settings { shape, mounting, may_fill: false }).unwrap();
    let lived = world.live(block_size, Profile::ADMINISTRATION, OPERATIONS);
    lived.unwrap_or_else(|failure| panic!("{failure}"));
    world.step(&Op::Clean { protection: 0, faults: None }).unwrap();
    let history = world.end().unwrap();
    let mut disk = Disk::new(history.start);
    history.events.iter().for_each(|event| disk.play(event));
    Image::from(disk.after_cut(Survivors::All))
}

/// Damages a volume until the checker sees an error.
pub fn damage_visibly(image: &mut Image, random: &mut StdRng) {
    let kind = random.random_range(0..4);
    while checked(&image.bytes).is_ok_and(|report| report.is_consistent()) {
        match kind {
            0 => damage(image, random),
            1 => image.damage_sound_logs(random),
            _ => damage_what_is_in_use(image, random),
        }
    }
}

/// Checks all of a volume.
pub fn checked(bytes: &[u8]) -> Result<Report, CheckError> {
    let options = Options { findings_per_rule: 1 << 20, ..Options::default() };
    nilfs_check::check(&MemoryDevice::from(bytes.to_vec()), &options)
}

/// A damaged volume.
pub struct Patient {
    pub device: Arc<dyn Device>,
    memory: Arc<MemoryDevice>,
}

impl Patient {
    pub fn new(image: Image) -> Self {
        let memory = Arc::new(MemoryDevice::from(image.bytes));
        Self { device: Arc::clone(&memory) as Arc<dyn Device>, memory }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.memory.snapshot()
    }

    pub fn plan(&self) -> Plan {
        nilfs_repair::plan(&self.device, &nilfs_check::Options::default(), UUID)
            .expect("it can be repaired")
    }

    /// Repairs the volume, and demands that all of it is sound then and as the checker predicted.
    #[track_caller]
    pub fn heal(&self) -> Plan {
        self.heal_but_for(Severity::Note)
    }

    /// As [`Patient::heal`], but for findings that are no worse than this.
    #[track_caller]
    pub fn heal_but_for(&self, worst: Severity) -> Plan {
        let before = self.bytes();
        let plan = self.plan();
        assert!(self.bytes() == before, "a plan writes nothing");
        assert!(!plan.repairs.is_empty(), "something is to be repaired");
        if let Some(obstacle) = &plan.obstacle {
            panic!("{obstacle}; {:?}", plan.repairs);
        }
        plan.apply(&*self.device, &mut |_| {}).unwrap();
        let report = nilfs_check::check(&*self.device, &nilfs_check::Options::default()).unwrap();
        assert!(report.worst() <= Some(worst), "{report}after {:?}", plan.repairs);
        let again = self.plan();
        assert!(again.repairs.is_empty(), "nothing is left to be repaired: {:?}", again.repairs);
        plan
    }

    /// Everything in the volume as a repair would leave it, before it is made.
    pub fn seen_as_repaired(&self) -> Content {
        let settings = nilfs_repair::Settings { uuid: UUID, accept: false, in_view: true };
        let (options, observer) = Default::default();
        let plan = nilfs_repair::plan_observed(&self.device, &options, settings, &observer)
            .expect("it can be repaired");
        content_on(plan.view(&self.device))
    }

    /// Repairs the volume and demands that no file of the undamaged volume is other than it was, and that
    /// this could be seen without the repair.
    #[track_caller]
    pub fn is_healed(&self, risk: Risk) -> Image {
        let before = self.bytes();
        let seen = self.seen_as_repaired();
        assert!(self.bytes() == before, "a view writes nothing");
        let plan = self.heal();
        assert!(seen == content(&self.bytes()), "a view shows what a repair leaves");
        assert!(content(&self.bytes()).keys().any(|path| path.starts_with("snapshot")));
        assert_eq!(plan.risk(), risk, "{:?}", plan.repairs);
        let healed = Image::from(self.bytes());
        let whole = Image::by_linux(healed.block_size() as u64);
        assert!(content(&healed.bytes) == content(&whole.bytes), "no file has changed");
        healed
    }
}

/// Damages the volumes that Linux has filled, and demands that they are healed without a loss.
#[track_caller]
pub fn heals(damage: impl Fn(&mut Image)) {
    heals_with(Risk::Safe, damage);
}

/// As [`heals`], with repairs of this risk.
#[track_caller]
pub fn heals_with(risk: Risk, damage: impl Fn(&mut Image)) {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        damage(&mut image);
        Patient::new(image).is_healed(risk);
    }
}

/// Everything in the newest checkpoint of a volume and in its snapshots.
pub fn content(bytes: &[u8]) -> Content {
    content_on(Arc::new(MemoryDevice::from(bytes.to_vec())))
}

/// As [`content`], of the volume on a device.
fn content_on(device: Arc<dyn Device>) -> Content {
    let volume = Volume::open(device).expect("the volume can be opened");
    let mut found = content_of(&volume, None);
    let all = volume.checkpoints(Cno(1), usize::MAX).expect("checkpoints are listed");
    for snapshot in all.iter().filter(|it| it.snapshot) {
        let tree = volume.tree(Some(snapshot.cno)).expect("the snapshot can be opened");
        walk(&tree, Ino::ROOT, &format!("snapshot {}:", snapshot.cno), &mut found);
    }
    found
}

/// Everything in a checkpoint of a volume; in the newest if none is named.
pub fn content_of(volume: &Volume, cno: Option<Cno>) -> Content {
    present(&volume.tree(cno).expect("there is such a checkpoint"))
}

/// All files of a tree or a mounted volume.
pub fn present(files: &dyn Files) -> Content {
    let mut found = Content::new();
    walk(files, Ino::ROOT, "", &mut found);
    found
}

fn walk(files: &dyn Files, directory: Ino, path: &str, found: &mut Content) {
    let mut entries = Vec::new();
    files
        .read_dir(directory, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.ino));
            true
        })
        .expect("the directory can be read");
    for (name, ino) in entries {
        if matches!(&name[..], b"." | b"..") {
            continue;
        }
        let path = format!("{path}/{}", String::from_utf8_lossy(&name));
        let file = read_file(files, ino).expect("it can be read");
        let file_type = file.0;
        found.insert(path.clone(), file);
        if file_type == FileType::Directory {
            walk(files, ino, &path, found);
        }
    }
}

/// A file by its number.
pub fn read_file(files: &dyn Files, ino: Ino) -> Result<File, nilfs_engine::Error> {
    let attr: Attr = files.hold(ino)?;
    let mut bytes = Vec::new();
    if attr.file_type == FileType::Regular {
        bytes = vec![0; attr.size.min(1 << 23) as usize];
        files.read(ino, 0, &mut bytes)?;
    }
    files.let_go(ino, 1);
    Ok((attr.file_type, attr.nlink as u16, attr.size, bytes))
}

/// A device with this volume, of which some blocks cannot be read until they are written.
pub fn bad_sectors(image: Image, blocks: &[BlockNr]) -> FaultyDevice<MemoryDevice> {
    let size = image.block_size() as u64;
    let (device, faults) = FaultyDevice::new(MemoryDevice::from(image.bytes));
    faults.scratch(blocks.iter().map(|it| it.0 * size..(it.0 + 1) * size));
    device
}
