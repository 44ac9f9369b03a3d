//! The file systems that take part: how each is made, mounted and recognized.
//!
//! A file system is its own mkfs and its own mount, as a distribution has them, plus the options
//! that a comparison asks for. All of it is lines of shell, so that it is the same on this machine
//! and in a virtual one.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::names::wrong;

/// The name of ours.
pub const OURS: &str = "nilfs";

/// A program somebody else wrote, and what Debian calls the package it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Its command.
    pub name: &'static str,
    /// The package.
    pub package: &'static str,
}

/// What every user of a [`FileSystem`] may say of its mount, after a colon.
pub const OPTIONS: [&str; 5] = ["noatime", "relatime", "strictatime", "discard", "nodiscard"];

/// Says that a device has pages of 4 KiB.
pub const SMALL_FLASH_PAGES: &str = "flash-page=4K";

/// What may be said of the mount of ours alone.
pub const OUR_OPTIONS: [&str; 4] =
    [SMALL_FLASH_PAGES, "verify=none", "verify=metadata", "verify=all"];

/// What never changes about a file system.
#[derive(Debug)]
struct Base {
    name: &'static str,
    title: &'static str,
    about: &'static str,
    kind: &'static str,
    magic: u64,
    needs: &'static [Program],
    /// The command that makes one; the device's path follows.
    format: &'static str,
    /// Options of every mount.
    mount: &'static str,
    /// The command that prints the version of the program that makes one.
    version: &'static str,
}

const E2FSPROGS: &[Program] = &[Program { name: "mke2fs", package: "e2fsprogs" }];
const BTRFS_PROGS: &[Program] = &[Program { name: "mkfs.btrfs", package: "btrfs-progs" }];
const F2FS_TOOLS: &[Program] = &[Program { name: "mkfs.f2fs", package: "f2fs-tools" }];
const EXT_MAGIC: u64 = 0xef53;
const BTRFS_MAGIC: u64 = 0x9123_683e;
const NILFS_MAGIC: u64 = 0x3434;
const F2FS_MAGIC: u64 = 0xf2f5_2010;
const VFAT_MAGIC: u64 = 0x4d44;
const FUSE_MAGIC: u64 = 0x6573_5546;

/// The tables are written at once, so that no kernel thread writes them during a measurement.
/// Block size and inodes are those of a large device: mke2fs takes others for a small one, and a
/// scaled-down device stands for a large one.
macro_rules! mke2fs {
    ($type:literal, $more:literal) => {
        concat!(
            "mke2fs -q -F -t ",
            $type,
            " -b 4096 -i 16384 -I 256 -E lazy_itable_init=0,lazy_journal_init=0",
            $more
        )
    };
}

const ALL: &[Base] = &[
    Base {
        name: "ext2",
        title: "ext2",
        about: "no journal, blocks overwritten in place",
        kind: "ext2",
        magic: EXT_MAGIC,
        needs: E2FSPROGS,
        format: mke2fs!("ext2", ""),
        mount: "",
        version: "mke2fs -V 2>&1 | head -n 1",
    },
    Base {
        name: "ext3",
        title: "ext3",
        about: "ext2 with a journal of metadata",
        kind: "ext3",
        magic: EXT_MAGIC,
        needs: E2FSPROGS,
        format: mke2fs!("ext3", ""),
        mount: "",
        version: "mke2fs -V 2>&1 | head -n 1",
    },
    Base {
        name: "ext4",
        title: "ext4",
        about: "extents, delayed allocation, a journal of metadata",
        kind: "ext4",
        magic: EXT_MAGIC,
        needs: E2FSPROGS,
        format: mke2fs!("ext4", ""),
        mount: "",
        version: "mke2fs -V 2>&1 | head -n 1",
    },
    Base {
        name: "ext4-nojournal",
        title: "ext4 without journal",
        about: "ext4 made with -O ^has_journal",
        kind: "ext4",
        magic: EXT_MAGIC,
        needs: E2FSPROGS,
        format: mke2fs!("ext4", " -O ^has_journal"),
        mount: "",
        version: "mke2fs -V 2>&1 | head -n 1",
    },
    Base {
        name: "btrfs",
        title: "btrfs",
        about: "copy on write, as on a disk (nossd)",
        kind: "btrfs",
        magic: BTRFS_MAGIC,
        needs: BTRFS_PROGS,
        format: "mkfs.btrfs -q -f",
        mount: "nossd",
        version: "mkfs.btrfs --version",
    },
    Base {
        name: "btrfs-ssd",
        title: "btrfs, ssd",
        about: "copy on write, mounted with -o ssd",
        kind: "btrfs",
        magic: BTRFS_MAGIC,
        needs: BTRFS_PROGS,
        format: "mkfs.btrfs -q -f",
        mount: "ssd",
        version: "mkfs.btrfs --version",
    },
    Base {
        name: "nilfs2",
        title: "NILFS2 of Linux",
        about: "the kernel's log-structured NILFS2, with its cleaner daemon",
        kind: "nilfs2",
        magic: NILFS_MAGIC,
        needs: &[
            Program { name: "mkfs.nilfs2", package: "nilfs-tools" },
            Program { name: "mount.nilfs2", package: "nilfs-tools" },
            Program { name: "nilfs_cleanerd", package: "nilfs-tools" },
        ],
        format: "mkfs.nilfs2 -q -f",
        mount: "",
        version: "mkfs.nilfs2 -V 2>&1 | head -n 1",
    },
    Base {
        name: "f2fs",
        title: "F2FS",
        about: "log-structured, made for flash behind a translation layer",
        kind: "f2fs",
        magic: F2FS_MAGIC,
        needs: F2FS_TOOLS,
        format: "mkfs.f2fs -q -f",
        mount: "",
        version: "mkfs.f2fs -V 2>&1 | head -n 1",
    },
    Base {
        name: "f2fs-lfs",
        title: "F2FS, log only",
        about: "F2FS mounted with -o mode=lfs: nothing is overwritten in place, as in its first \
                years; without it, F2FS of today overwrites on volumes below 16 GB",
        kind: "f2fs",
        magic: F2FS_MAGIC,
        needs: F2FS_TOOLS,
        format: "mkfs.f2fs -q -f",
        mount: "mode=lfs",
        version: "mkfs.f2fs -V 2>&1 | head -n 1",
    },
    Base {
        name: "vfat",
        title: "VFAT",
        about: "FAT32, as cards come from the shop",
        kind: "vfat",
        magic: VFAT_MAGIC,
        needs: &[Program { name: "mkfs.vfat", package: "dosfstools" }],
        // The clusters that mkfs.vfat takes for 16 GB, which a scaled-down device stands for.
        format: "mkfs.vfat -F 32 -s 16",
        mount: "",
        version: "truncate -s 1M \"$SCRATCH/v\"; mkfs.vfat \"$SCRATCH/v\" | head -n 1; \
                  rm \"$SCRATCH/v\"",
    },
    Base {
        name: OURS,
        title: "nilfs (ours)",
        about: "NILFS2 in user space: this project",
        kind: "fuse",
        magic: FUSE_MAGIC,
        needs: &[Program { name: "fusermount3", package: "fuse3" }],
        format: "mkfs -f",
        mount: "",
        version: "--version",
    },
];

/// Name that the kernel has for a mounted file system with this magic number of statfs(2); `None` if it
/// is none of these.
#[must_use]
pub fn type_of(magic: u64) -> Option<&'static str> {
    // The three have one number, and one driver in most kernels.
    const EXT: &str = "ext2/3/4";
    let base = ALL.iter().find(|base| base.magic == magic)?;
    Some(if magic == EXT_MAGIC { EXT } else { base.kind })
}

/// A file system with the options it is mounted with.
#[derive(Debug, Clone)]
pub struct FileSystem {
    /// As the user gave it, options included: "ext4:noatime".
    pub name: String,
    /// For people.
    pub title: String,
    /// What is special about it.
    pub about: &'static str,
    /// As for `mount -t`.
    pub kind: &'static str,
    /// The magic number that statfs has to give once it is mounted.
    pub magic: u64,
    /// The programs that must be there.
    pub needs: &'static [Program],
    base: &'static Base,
    options: Vec<&'static str>,
    nilfs: PathBuf,
}

/// All of them, without options. `nilfs` is our program.
#[must_use]
pub fn all(nilfs: &Path) -> Vec<FileSystem> {
    ALL.iter().map(|base| FileSystem::new(base, Vec::new(), nilfs)).collect()
}

/// The file system of a name such as "ext4" or "ext4:noatime:discard".
///
/// # Errors
/// There is none of that name, or no such option.
pub fn find(name: &str, nilfs: &Path) -> Result<FileSystem> {
    let mut words = name.split(':');
    let wanted = words.next().unwrap_or_default();
    let Some(base) = ALL.iter().find(|base| base.name == wanted) else {
        let names: Vec<&str> = ALL.iter().map(|base| base.name).collect();
        return Err(wrong("file system", wanted, &names));
    };
    let mut options = Vec::new();
    for word in words {
        let ours: &[&str] = if base.name == OURS { &OUR_OPTIONS } else { &[] };
        let known = [&OPTIONS, ours].concat();
        let Some(option) = known.iter().find(|option| **option == word) else {
            return Err(wrong(&format!("option of {}", base.name), word, &known));
        };
        options.push(*option);
    }
    Ok(FileSystem::new(base, options, nilfs))
}

impl FileSystem {
    fn new(base: &'static Base, options: Vec<&'static str>, nilfs: &Path) -> Self {
        let mut name = base.name.to_owned();
        let mut title = base.title.to_owned();
        for option in &options {
            name = format!("{name}:{option}");
            title = format!("{title}, {option}");
        }
        Self {
            name,
            title,
            about: base.about,
            kind: base.kind,
            magic: base.magic,
            needs: base.needs,
            base,
            options,
            nilfs: nilfs.to_owned(),
        }
    }

    /// Its name without options.
    #[must_use]
    pub fn base_name(&self) -> &'static str {
        self.base.name
    }

    /// Whether it is mounted with options that the user asked for.
    #[must_use]
    pub fn has_options(&self) -> bool {
        !self.options.is_empty()
    }

    /// The same with one option more.
    #[must_use]
    pub fn with(&self, option: &'static str) -> Self {
        let mut options = self.options.clone();
        options.push(option);
        Self::new(self.base, options, &self.nilfs)
    }

    /// Whether the access times of files are kept on the device at all. NILFS2 has no room for
    /// them.
    #[must_use]
    pub fn keeps_access_times(&self) -> bool {
        !matches!(self.base.name, "nilfs2" | OURS)
    }

    /// Whether a mount without history has another line: NILFS2 keeps all checkpoints of the last
    /// hour unless told otherwise.
    #[must_use]
    pub fn keeps_history(&self) -> bool {
        matches!(self.base.name, "nilfs2" | OURS)
    }

    /// The script that makes one.
    #[must_use]
    pub fn format(&self, device: &str) -> String {
        format!("{} {} >/dev/null", self.command(self.base.format), quote(device))
    }

    /// The script that mounts it and returns when it can be used. Without `history`, a file system
    /// that keeps its past gives it up as soon as it needs the room.
    #[must_use]
    pub fn mount(&self, device: &str, directory: &str, history: bool) -> String {
        let mut options: Vec<&str> = Vec::new();
        if !self.base.mount.is_empty() {
            options.push(self.base.mount);
        }
        // Not mounting with what is its default already, because not every kernel knows the word.
        options.extend(self.options.iter().filter(|option| **option != "nodiscard"));
        if !history && self.keeps_history() {
            options.push("pp=0");
        }
        let program = match self.base.name {
            OURS => self.command("mount"),
            _ => format!("mount -t {}", self.kind),
        };
        let options = match options.as_slice() {
            [] => String::new(),
            options => format!(" -o {}", options.join(",")),
        };
        format!("{program}{options} {} {}", quote(device), quote(directory))
    }

    /// The script that unmounts it and returns when all is on the device.
    #[must_use]
    pub fn unmount(&self, directory: &str) -> String {
        let program = if self.is_ours() { self.command("umount") } else { "umount".to_owned() };
        format!("{program} {}", quote(directory))
    }

    /// What makes all that was written below a directory, `$1`, durable. The kernel does not pass
    /// syncfs on to a FUSE server, it only writes its own cache back; the fsync of the root directory
    /// makes everything durable there.
    #[must_use]
    pub fn sync(&self) -> &'static str {
        match self.is_ours() {
            true => "sync -f \"$1\"; sync \"$(stat -c %m \"$1\")\"",
            false => "sync -f \"$1\"",
        }
    }

    /// The script that prints the version of the program that makes one, and that program's name.
    #[must_use]
    pub fn version(&self) -> (&'static str, String) {
        let name = self.base.needs.first().map_or(OURS, |program| program.name);
        let name = if self.is_ours() { OURS } else { name };
        (name, self.command(self.base.version))
    }

    fn is_ours(&self) -> bool {
        self.base.name == OURS
    }

    fn command(&self, command: &str) -> String {
        match self.is_ours() {
            true => format!("{} {command}", quote(&self.nilfs.to_string_lossy())),
            false => command.to_owned(),
        }
    }
}

/// The script that prints the names of those programs that are missing, one on a line.
#[must_use]
pub fn missing(programs: &[Program]) -> String {
    let names: Vec<&str> = programs.iter().map(|program| program.name).collect();
    format!(
        "for p in {}; do command -v \"$p\" >/dev/null 2>&1 || echo \"$p\"; done",
        names.join(" ")
    )
}

/// A word for the shell that stands for itself.
#[must_use]
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_after_the_name_and_reach_the_mount() {
        let found = find("btrfs-ssd:noatime:discard", Path::new("/nilfs")).unwrap();
        assert_eq!(found.name, "btrfs-ssd:noatime:discard");
        let line = found.mount("/dev/x", "/a b", true);
        assert_eq!(line, "mount -t btrfs -o ssd,noatime,discard '/dev/x' '/a b'");
    }

    #[test]
    fn ours_is_made_by_our_own_program() {
        let ours = find(OURS, Path::new("/it's/nilfs")).unwrap();
        assert_eq!(ours.format("/dev/x"), r"'/it'\''s/nilfs' mkfs -f '/dev/x' >/dev/null");
        assert_eq!(ours.mount("/d", "/m", false), r"'/it'\''s/nilfs' mount -o pp=0 '/d' '/m'");
    }

    /// The cost of checking blocks could not be compared.
    #[test]
    fn ours_is_mounted_with_each_way_of_checking_blocks() {
        for verify in ["none", "metadata", "all"] {
            let ours = find(&format!("nilfs:verify={verify}"), Path::new("/n")).unwrap();
            assert_eq!(
                ours.mount("/d", "/m", true),
                format!("'/n' mount -o verify={verify} '/d' '/m'")
            );
        }
    }

    #[test]
    fn a_name_or_option_that_does_not_exist_is_refused_with_those_that_do() {
        let nilfs = Path::new("nilfs");
        assert!(find("ext5", nilfs).unwrap_err().to_string().contains("ext4-nojournal"));
        assert!(find("ext4:fast", nilfs).unwrap_err().to_string().contains("strictatime"));
    }
}
