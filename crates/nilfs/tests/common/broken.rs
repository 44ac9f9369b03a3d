//! A volume that a test breaks and salvages, and what came out of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Filesystem, Ino, InodeRef, Log, MountOptions, NewInode, SegNum};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::superblock::Superblock;
use nilfs_ondisk::{BlockNr, BlockSize};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{CommandOutput, nilfs};

pub const BLOCK: usize = 1024;
/// Blocks of each large file: more than a B-tree of one level can have.
pub const LARGE: usize = 400;
/// Files in each directory: their names fill several blocks.
pub const FILES: usize = 40;

/// A broken volume, and what was written to it.
pub struct Broken {
    pub directory: TempDir,
    pub bytes: Vec<u8>,
    /// The versions of each file, the newest last.
    pub versions: BTreeMap<String, Vec<Vec<u8>>>,
    pub inodes: BTreeMap<String, Ino>,
}

/// What came out.
pub struct Salvaged {
    pub to: PathBuf,
    pub report: Value,
    pub code: Option<i32>,
}

pub fn new(mode: u16) -> NewInode {
    NewInode { mode, uid: 1000, gid: 100, rdev: Default::default() }
}

/// Each version of each file has a content of its own.
pub fn content(name: &str, version: usize, blocks: usize) -> Vec<u8> {
    let seed: usize = name.bytes().map(usize::from).sum::<usize>() + 1000 * version;
    (0..blocks * BLOCK + 100).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

impl Broken {
    /// A volume with large files and directories of small ones, each of which has an older version.
    /// It is not broken yet.
    pub fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let parameters = Parameters {
            block_size: BlockSize::from_bytes(BLOCK as u64).unwrap(),
            blocks_per_segment: 256,
            ..Parameters::new([7; 16], 0x1234_5678, 1_700_000_000)
        };
        format(&*device, &parameters).unwrap();
        let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
        let root = fs.root().unwrap().inode;
        let (mut versions, mut inodes) = (BTreeMap::new(), BTreeMap::new());
        for directory in ["one", "two"] {
            let dir = fs.create(&root, directory.as_bytes(), &new(S_IFDIR | 0o750)).unwrap().inode;
            inodes.insert(directory.to_owned(), dir.ino());
            let names = (0..FILES).map(|nth| format!("a file with number {nth}"));
            for name in names.chain(["large".to_owned()]) {
                let file = fs.create(&dir, name.as_bytes(), &new(S_IFREG | 0o640)).unwrap().inode;
                let path = format!("{directory}/{name}");
                inodes.insert(path.clone(), file.ino());
                versions.insert(path, Vec::new());
            }
        }
        for version in 0..3 {
            for (path, written) in &mut versions {
                let file = find(&fs, path);
                let blocks = if path.ends_with("large") { LARGE } else { 2 };
                let bytes = content(path, version, blocks);
                fs.write(&file, 0, &bytes).unwrap();
                written.push(bytes);
            }
            fs.commit().unwrap();
        }
        fs.unmount().unwrap();
        let directory = tempfile::tempdir().unwrap();
        Self { directory, bytes: device.snapshot(), versions, inodes }
    }

    pub fn superblock(&self) -> Superblock {
        let at = PRIMARY_SUPERBLOCK as usize;
        Superblock::parse(&self.bytes[at..], self.bytes.len() as u64).unwrap()
    }

    pub fn overwrite_superblocks(&mut self, copy: &[u8]) {
        for at in [PRIMARY_SUPERBLOCK, secondary_superblock(self.bytes.len() as u64).unwrap()] {
            self.bytes[at as usize..][..copy.len()].copy_from_slice(copy);
        }
    }

    /// All logs, the oldest first.
    pub fn logs(&self) -> Vec<Log> {
        let device = Arc::new(MemoryDevice::from(self.bytes.clone()));
        let volume = nilfs_engine::Volume::open(device).unwrap();
        let segments = (0..volume.geometry().nsegments).map(SegNum);
        let mut logs: Vec<Log> = segments.flat_map(|it| volume.logs(it).unwrap()).collect();
        logs.sort_by_key(|log| (log.header.seq, log.start));
        logs
    }

    /// The places of all blocks of a file that fit, the oldest first.
    pub fn blocks(&self, ino: Ino, fits: impl Fn(&BlockInfo) -> bool) -> Vec<usize> {
        let mut found = Vec::new();
        for log in self.logs() {
            let summary = log.header.summary_blocks(self.superblock().geometry().block_size);
            let BlockNr(mut at) = log.start.plus(summary);
            for file in &log.files {
                for info in &file.blocks {
                    if file.ino == ino && fits(info) {
                        found.push(at as usize * BLOCK);
                    }
                    at += 1;
                }
            }
        }
        found
    }

    pub fn newest(&self, ino: Ino, fits: impl Fn(&BlockInfo) -> bool) -> usize {
        *self.blocks(ino, fits).last().expect("the file has such a block")
    }

    /// Another checkpoint, so that what was written before is not in the newest log, without which there
    /// would be no checkpoint.
    pub fn go_on(&mut self) {
        let device = Arc::new(MemoryDevice::from(std::mem::take(&mut self.bytes)));
        let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
        fs.checkpoint_now().unwrap();
        fs.unmount().unwrap();
        self.bytes = device.snapshot();
    }

    /// Writes a block of a file anew, in a checkpoint that is not the newest.
    pub fn change(&mut self, path: &str, nth: usize) {
        let device = Arc::new(MemoryDevice::from(std::mem::take(&mut self.bytes)));
        let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
        let written = self.versions.get_mut(path).unwrap();
        let mut bytes = written.last().unwrap().clone();
        bytes[nth * BLOCK..][..BLOCK].fill(0x77);
        fs.write(&find(&fs, path), (nth * BLOCK) as u64, &[0x77; BLOCK]).unwrap();
        written.push(bytes);
        fs.commit().unwrap();
        fs.unmount().unwrap();
        self.bytes = device.snapshot();
        self.go_on();
    }

    /// Salvages it where these blocks cannot be read.
    #[track_caller]
    pub fn salvage_without(&self, mut blocks: Vec<usize>) -> Salvaged {
        blocks.sort_unstable();
        let (mut map, mut at) = ("# by hand\n0x0 + 1\n".to_owned(), 0);
        for block in blocks {
            map += &format!("{at:#x} {:#x} +\n{block:#x} {:#x} -\n", block - at, BLOCK / 2);
            at = block + BLOCK / 2;
        }
        map += &format!("{at:#x} {:#x} +\n", self.bytes.len() - at);
        let path = self.directory.path().join("map");
        fs::write(&path, map).unwrap();
        self.salvage(&["--map", path.to_str().unwrap()])
    }

    /// Puts garbage in the place of a block.
    pub fn damage(&mut self, at: usize) {
        self.bytes[at..at + BLOCK].fill(0xa5);
    }

    pub fn image(&self) -> PathBuf {
        self.directory.path().join("broken.img")
    }

    /// Salvages it with more words on the command line, and compares what has come out with the
    /// report.
    #[track_caller]
    pub fn salvage(&self, words: &[&str]) -> Salvaged {
        let (output, salvaged) = self.try_to_salvage(words);
        let salvaged = salvaged.unwrap_or_else(|| panic!("{output:?}"));
        salvaged.compare(&self.versions);
        salvaged
    }

    /// As [`Broken::salvage`], without a comparison; `None` if nothing has come out.
    #[track_caller]
    pub fn try_to_salvage(&self, words: &[&str]) -> (CommandOutput, Option<Salvaged>) {
        fs::write(self.image(), &self.bytes).unwrap();
        let to = tempfile::tempdir_in(self.directory.path()).unwrap().keep();
        let (image, directory) = (self.image(), to.clone());
        let mut line = vec!["salvage", "--json", "--all", "--to", directory.to_str().unwrap()];
        line.extend(words);
        line.push(image.to_str().unwrap());
        let output = nilfs(line);
        assert_eq!(fs::read(self.image()).unwrap(), self.bytes, "nothing is written to the volume");
        let code = output.code;
        let report =
            || serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let salvaged = matches!(code, Some(0 | 1)).then(|| Salvaged { to, report: report(), code });
        (output, salvaged)
    }
}

pub fn find(fs: &Filesystem, path: &str) -> InodeRef {
    let (directory, name) = path.split_once('/').unwrap();
    let root = fs.root().unwrap().inode;
    let directory = fs.lookup(&root, directory.as_bytes()).unwrap().inode;
    fs.lookup(&directory, name.as_bytes()).unwrap().inode
}

/// Whether a copy is a version of a file but for these parts.
pub fn differs_within(version: &[u8], copy: &[u8], parts: &[(usize, usize)]) -> bool {
    let mut copy = copy.to_vec();
    for part in parts.iter().map(|(offset, length)| *offset..offset + length) {
        if let (Some(to), Some(from)) = (copy.get_mut(part.clone()), version.get(part)) {
            to.copy_from_slice(from);
        }
    }
    copy == version
}

impl Salvaged {
    pub fn states(&self) -> BTreeMap<&str, &str> {
        let files = self.report["files"].as_array().unwrap().iter();
        let text = |value: &'_ Value| value.as_str().unwrap().len();
        files.clone().for_each(|file| assert!(text(&file["state"]) > 0));
        files.map(|it| (it["path"].as_str().unwrap(), it["state"].as_str().unwrap())).collect()
    }

    /// The paths of files that are not whole.
    pub fn not_whole(&self) -> Vec<(&str, &str)> {
        self.states().into_iter().filter(|(_, state)| *state != "whole").collect()
    }

    pub fn file(&self, path: &str) -> Vec<u8> {
        fs::read(self.to.join(path)).unwrap()
    }

    pub fn missing(&self, path: &str) -> Vec<(usize, usize)> {
        self.parts(path, "missing")
    }

    /// The parts of a file about which the report says something.
    pub fn parts(&self, path: &str, kind: &str) -> Vec<(usize, usize)> {
        let files = self.report["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["path"] == path).unwrap();
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        let part = |it: &Value| (number(&it["offset_bytes"]), number(&it["length_bytes"]));
        file[kind].as_array().map_or(Vec::new(), |parts| parts.iter().map(part).collect())
    }

    /// Every file is what the report says of it.
    #[track_caller]
    pub fn compare(&self, versions: &BTreeMap<String, Vec<Vec<u8>>>) {
        // Where the newest checkpoint is lost, whole is what an older one has.
        let is_newest = self.report["checkpoint"] == self.report["newest_known_checkpoint"];
        for (path, state) in self.states() {
            let Some(written) = versions.get(path) else { continue };
            let newest = written.last().unwrap();
            let as_said = match state {
                "whole" if is_newest => self.file(path) == *newest,
                "whole" | "older" => written.contains(&self.file(path)),
                "partial" => {
                    let (found, missing) = (self.file(path), self.missing(path));
                    let has_holes = missing.iter().all(|(offset, length)| {
                        found[*offset..offset + length].iter().all(|byte| *byte == 0)
                    });
                    has_holes
                        && written.iter().any(|version| differs_within(version, &found, &missing))
                }
                // Attributes may have been guessed, and where it ends is one of them.
                "damaged" => {
                    let found = self.file(path);
                    written.iter().any(|version| {
                        let (same, rest) = found.split_at(found.len().min(version.len()));
                        version.starts_with(same) && rest.iter().all(|byte| *byte == 0)
                    })
                }
                // Nothing is claimed of these.
                "unverified" | "lost" => true,
                state => panic!("{path} is {state}"),
            };
            assert!(as_said, "{path} is not {state}");
        }
    }

    #[track_caller]
    pub fn is_whole(&self, count: usize) {
        assert_eq!(self.not_whole(), []);
        assert_eq!((self.code, self.states().len()), (Some(0), count));
    }
}
