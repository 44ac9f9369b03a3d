//! What the tests of the command share: running it, and a small volume to run it on.

// Each test program takes of it what it needs.
#![allow(dead_code)]

pub mod tool;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Clock, Filesystem, MountOptions, NewInode, Timestamp};
use nilfs_ondisk::inode::{DeviceCode, S_IFDIR, S_IFREG};
use nilfs_ondisk::{BlockSize, Cno};
use tempfile::TempDir;

/// Bytes of the small volume.
pub const VOLUME_SIZE: u64 = 32 * 64 * 1024 + 4096;
/// Seed of its checksums.
pub const CRC_SEED: u32 = 0x1234_5678;
/// When everything on it happened.
pub const TIME: i64 = 1_700_000_000;

/// How the command ended.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
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
pub fn nilfs<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_nilfs"))
        .args(arguments)
        .env("TZ", "UTC")
        .stdin(Stdio::null())
        .output()
        .expect("nilfs can be run");
    Outcome::of(&output)
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
    pub fn nilfs(&self, line: &str) -> Outcome {
        nilfs(line.split(' ').map(|word| match word {
            "IMAGE" => self.image.as_os_str(),
            word => OsStr::new(word),
        }))
    }

    /// A path beside the image.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
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
        block_size: BlockSize::from_bytes(1024).unwrap(),
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
    std::fs::write(&image, device.snapshot()).unwrap();
    Volume { directory, image, before_deletion }
}

fn fill(device: Arc<MemoryDevice>) -> nilfs_engine::Result<Cno> {
    let options = MountOptions { clock: Arc::new(Still), ..MountOptions::default() };
    let fs = Filesystem::mount(device, options)?;
    let root = fs.root()?.inode;
    let new = |mode| NewInode { mode, uid: 1000, gid: 100, rdev: DeviceCode::default() };
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
