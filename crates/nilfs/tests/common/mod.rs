//! What the tests of the command share: running it, and a small volume to run it on.

// Each test program takes of it what it needs.
#![allow(dead_code)]

pub mod interrupts;
pub mod loops;
pub mod markdown;
pub mod tool;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Clock, Filesystem, MountOptions, NewInode, SetAttr, Timestamp};
use nilfs_ondisk::crc::Crc;
use nilfs_ondisk::geometry::secondary_superblock;
use nilfs_ondisk::inode::{DeviceCode, S_IFBLK, S_IFDIR, S_IFREG};
use nilfs_ondisk::summary::MAGIC;
use nilfs_ondisk::{BlockSize, ByteCount, Cno};
use tempfile::TempDir;

/// Bytes of the small volume.
pub const VOLUME_SIZE: u64 = 32 * 64 * 1024 + 4096;
/// Bytes of its blocks.
const BLOCK: usize = 1024;
/// Seed of its checksums.
pub const CRC_SEED: u32 = 0x1234_5678;
/// When everything on it happened.
pub const TIME: i64 = 1_700_000_000;

/// How the command ended.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    /// How a process ended.
    pub fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The output of a command that must have worked.
    #[track_caller]
    pub fn output(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{}", self.stdout);
        self.stdout
    }

    /// The sentence of a command that must have failed: one line on stderr, nothing else.
    #[track_caller]
    pub fn sentence(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{}", self.stderr);
        let sentence = self.stderr.strip_prefix("nilfs: ").expect(&self.stderr).trim_end();
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
        sentence.to_owned()
    }
}

/// Runs `nilfs` with arguments, nobody to ask, and times in UTC.
pub fn nilfs<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> CommandOutput {
    let output = Command::new(env!("CARGO_BIN_EXE_nilfs"))
        .args(arguments)
        .env("TZ", "UTC")
        .env("STATE_DIRECTORY", env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null())
        .output()
        .expect("nilfs can be run");
    CommandOutput::of(&output)
}

/// A small volume in a directory of its own, which goes away with it.
pub struct Volume {
    pub directory: TempDir,
    pub image: PathBuf,
    /// The last checkpoint with the file `gone` in it.
    pub before_deletion: Cno,
}

impl Volume {
    /// Runs a subcommand on it; `IMAGE` among the words stands for the image.
    pub fn nilfs(&self, line: &str) -> CommandOutput {
        nilfs(line.split(' ').map(|word| match word {
            "IMAGE" => self.image.as_os_str(),
            word => OsStr::new(word),
        }))
    }

    /// A path next to the image.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Where entries begin in the first block of a sufile, their size, and where their flags are.
const SUFILE_FIRST: usize = 32;
const SUFILE_ENTRY: usize = 16;
const SUFILE_FLAGS: usize = 12;
/// A segment that is in use.
const SUFILE_DIRTY: u8 = 2;

/// Lets `change` have the roll-forward records of the nth log that has some, from their head on, and
/// corrects the checksums of the log.
pub fn forge_records(image: &Path, nth: usize, change: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(image).unwrap();
    let head = (0..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(b"NfRf"));
    let head = head.into_iter().nth(nth).expect("a log with records");
    let (start, summary) = log_around(&bytes, head);
    forge_log(&mut bytes[start..], |log| change(&mut log[head - start..summary]));
    fs::write(image, bytes).unwrap();
}

/// Lets the newest sufile say that all of the volume's `segments` are in use, and corrects the
/// checksums of its log.
pub fn forge_full_sufile(image: &Path, segments: u64) {
    let mut bytes = fs::read(image).unwrap();
    let field = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let is_header = |at: &usize| {
        let (clean, dirty) = (field(&bytes, *at), field(&bytes, at + 8));
        (1..segments).contains(&clean) && clean + dirty == segments
    };
    let header = (0..bytes.len()).step_by(BLOCK).rfind(is_header).expect("a sufile");
    let (start, _) = log_around(&bytes, header);
    forge_log(&mut bytes[start..], |log| {
        let sufile = &mut log[header - start..][..BLOCK];
        sufile[..8].fill(0);
        sufile[8..16].copy_from_slice(&segments.to_le_bytes());
        for entry in sufile[SUFILE_FIRST..].chunks_mut(SUFILE_ENTRY).take(segments as usize) {
            entry[SUFILE_FLAGS] |= SUFILE_DIRTY;
        }
    });
    fs::write(image, bytes).unwrap();
}

/// Where the log begins that has this byte, and how many bytes its summary has.
fn log_around(bytes: &[u8], at: usize) -> (usize, usize) {
    let is_log = |at: &usize| bytes[at + 8..].starts_with(&MAGIC.to_le_bytes());
    let start = (0..=at / BLOCK).rev().map(|block| block * BLOCK).find(is_log).unwrap();
    (start, le32(bytes, start + 48))
}

fn le32(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Changes a log and corrects its checksums.
fn forge_log(log: &mut [u8], change: impl FnOnce(&mut [u8])) {
    change(log);
    let (blocks, summary) = (le32(log, 40), le32(log, 48));
    for (field, covered) in [(4, 8..summary), (0, 4..blocks * BLOCK)] {
        let mut crc = Crc::new(CRC_SEED);
        crc.update(&log[covered]);
        log[field..field + 4].copy_from_slice(&crc.value().to_le_bytes());
    }
}

/// Changes both superblocks at an offset, and corrects their checksums.
pub fn forge_superblocks(image: &Path, offset: usize, value: &[u8]) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    for at in [1024, secondary_superblock(VOLUME_SIZE).unwrap()] {
        let mut copy = [0; 1024];
        file.read_exact_at(&mut copy, at).unwrap();
        copy[offset..offset + value.len()].copy_from_slice(value);
        copy[16..20].fill(0);
        let mut crc = Crc::new(CRC_SEED);
        crc.update(&copy[..280]);
        copy[16..20].copy_from_slice(&crc.value().to_le_bytes());
        file.write_all_at(&copy, at).unwrap();
    }
}

struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: TIME, nanoseconds: 7 }
    }
}

/// An empty volume, the same each time.
pub fn empty_volume() -> Volume {
    volume_of(&formatted(), Cno(1))
}

/// A volume with a file, a hole, a directory, links, and a file that exists in the past only.
pub fn volume() -> Volume {
    let device = formatted();
    let before_deletion = fill(Arc::clone(&device)).unwrap();
    volume_of(&device, before_deletion)
}

/// The same volume after two fsyncs and a power cut: the first has appended to a file, the second has
/// everything else that can change.
pub fn synced_volume() -> Volume {
    let device = formatted();
    let before_deletion = fill(Arc::clone(&device)).unwrap();
    change_and_sync(Arc::clone(&device)).unwrap();
    volume_of(&device, before_deletion)
}

/// A volume with one file `large` of this many bytes, which takes a moment to copy.
pub fn volume_with_a_file_of(bytes: usize) -> Volume {
    let device = formatted_with(2 * bytes as u64 + VOLUME_SIZE);
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: DeviceCode::default() };
    let file = fs.create(&fs.root().unwrap().inode, b"large", &new).unwrap().inode;
    let chunk = vec![0x5a; 1 << 20];
    for offset in (0..bytes).step_by(chunk.len()) {
        fs.write(&file, offset as u64, &chunk[..chunk.len().min(bytes - offset)]).unwrap();
    }
    drop(file);
    fs.unmount().unwrap();
    volume_of(&device, Cno(1))
}

// The image is made in memory: a lock on a file would be inherited, for a moment, by the commands
// that other tests of the same process start.
fn formatted() -> Arc<MemoryDevice> {
    formatted_with(VOLUME_SIZE)
}

fn formatted_with(bytes: u64) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(bytes);
    let parameters = Parameters {
        block_size: BlockSize::from_bytes(BLOCK as u64).unwrap(),
        blocks_per_segment: 64,
        label: b"lab".to_vec(),
        ..Parameters::new([0x5a; 16], CRC_SEED, TIME as u64)
    };
    format(&device, &parameters).unwrap();
    Arc::new(device)
}

fn volume_of(device: &MemoryDevice, before_deletion: Cno) -> Volume {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("small.img");
    fs::write(&image, device.snapshot()).unwrap();
    Volume { directory, image, before_deletion }
}

fn change_and_sync(device: Arc<MemoryDevice>) -> nilfs_engine::Result<()> {
    // Both logs are to fit into the rest of the segment.
    let flash_page = ByteCount(BLOCK as u64);
    let options = MountOptions { clock: Arc::new(Still), flash_page, ..MountOptions::default() };
    let fs = Filesystem::mount(device, options)?;
    let root = fs.root()?.inode;
    let directory = fs.lookup(&root, b"directory")?.inode;
    let file = fs.lookup(&directory, b"file")?.inode;
    fs.write(&file, 8, b"appended\n")?;
    fs.sync_file(&file)?;
    fs.unlink(&root, b"bell\x07")?;
    let sub = fs.create(&directory, b"sub", &new_inode(S_IFDIR | 0o755))?.inode;
    let rdev = DeviceCode { major: 8, minor: 300 };
    let node = NewInode { rdev, ..new_inode(S_IFBLK | 0o600) };
    fs.create(&sub, b"disk", &node)?;
    fs.set_attr(&file, &SetAttr { size: Some(3), ..SetAttr::default() })?;
    fs.sync_file(&file)
}

fn new_inode(mode: u16) -> NewInode {
    NewInode { mode, uid: 1000, gid: 100, rdev: DeviceCode::default() }
}

fn fill(device: Arc<MemoryDevice>) -> nilfs_engine::Result<Cno> {
    let options = MountOptions { clock: Arc::new(Still), ..MountOptions::default() };
    let fs = Filesystem::mount(device, options)?;
    let root = fs.root()?.inode;
    let new = new_inode;
    let gone = fs.create(&root, b"gone", &new(S_IFREG | 0o644))?.inode;
    fs.write(&gone, 0, b"it was here\n")?;
    let before_deletion = fs.commit()?;
    fs.unlink(&root, b"gone")?;
    drop(gone);
    let directory = fs.create(&root, b"directory", &new(S_IFDIR | 0o2750))?.inode;
    let file = fs.create(&directory, b"file", &new(S_IFREG | 0o640))?.inode;
    fs.write(&file, 0, b"content\n")?;
    fs.link(&file, &root, b"second name")?;
    let sparse = fs.create(&root, b"sparse", &new(S_IFREG | 0o600))?.inode;
    fs.write(&sparse, 1 << 20, b"end")?;
    fs.symlink(&root, b"link", b"directory/file", 1000, 100)?;
    fs.create(&root, b"bell\x07", &new(S_IFREG | 0o644))?;
    fs.unmount()?;
    Ok(before_deletion)
}
