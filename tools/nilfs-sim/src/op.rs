//! What a world does to a file system: operations as data, so that a sequence can be printed,
//! replayed and cut shorter.

use std::fmt;

use nilfs_engine::{RenameMode, Seek, SetAttr};
use nilfs_ondisk::Cno;
use nilfs_ondisk::inode::{DeviceCode, FileType};

use crate::model::Model;
use crate::name::Path;

/// The number under which a world holds a file open.
pub type Handle = u8;

/// A file, named by path or held open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// By path.
    Path(Path),
    /// By an open handle; the file may have lost its last name.
    Handle(Handle),
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Makes a regular file, directory, device node, FIFO or socket.
    Create {
        /// Where.
        path: Path,
        /// What; not a symbolic link.
        kind: FileType,
        /// Permission bits.
        mode: u16,
        /// Device number; zero for what is no device.
        rdev: DeviceCode,
    },
    /// Makes a regular file without a name, and holds it open, under a number that is free or gets free
    /// by this.
    CreateNameless {
        /// The directory that hands down what it does to its files.
        directory: Path,
        /// Permission bits.
        mode: u16,
        /// The number.
        handle: Handle,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Where.
        path: Path,
        /// Length of its target in bytes; the text follows from it.
        length: usize,
    },
    /// Gives a file one more name, or its first.
    Link {
        /// The file.
        target: Target,
        /// The new name.
        to: Path,
    },
    /// Removes a name of something that is no directory.
    Unlink(Path),
    /// Removes an empty directory.
    RemoveDirectory(Path),
    /// Moves a name.
    Rename {
        /// Old name.
        from: Path,
        /// New name.
        to: Path,
        /// What happens to a file that has the new name already.
        mode: RenameMode,
    },
    /// Writes bytes that follow from `fill` and the offset, see [`pattern`].
    Write {
        /// The file.
        target: Target,
        /// Where in the file, in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// Which bytes.
        fill: u32,
    },
    /// Changes attributes, among them the size.
    SetAttr {
        /// The file.
        target: Target,
        /// What to change.
        changes: SetAttr,
    },
    /// Sets the inode flags (`FS_*_FL`).
    SetFlags {
        /// The file.
        target: Target,
        /// All flags.
        flags: u32,
    },
    /// Reads bytes.
    Read {
        /// The file.
        target: Target,
        /// Where in the file, in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Looks for the next data or hole.
    Seek {
        /// The file.
        target: Target,
        /// Where to start, in bytes.
        offset: u64,
        /// What to look for.
        what: Seek,
    },
    /// Reads the attributes.
    Stat(Target),
    /// Reads the target of a symbolic link.
    ReadLink(Path),
    /// Lists a directory.
    List(Path),
    /// Holds a file open, under a number that is free or gets free by this.
    Open {
        /// The file.
        path: Path,
        /// The number.
        handle: Handle,
    },
    /// Lets an open file go.
    Close(Handle),
    /// Makes a file durable with its attributes and names.
    Fsync(Target),
    /// Makes a file's data durable.
    Fdatasync(Target),
    /// Makes everything durable.
    Sync,
    /// Takes a checkpoint without making it durable.
    Commit,
    /// Unmounts and mounts again.
    Remount,
    /// Takes a checkpoint even if nothing has changed, and makes it durable.
    Checkpoint,
    /// Makes snapshots of checkpoints, or the other way round.
    SetSnapshot {
        /// Which of the checkpoints that are not yet as wanted, newest first, counted around.
        nth: u16,
        /// What is wanted.
        snapshot: bool,
    },
    /// Follows a rule of retention: the newest of the checkpoints that are [a rule's](is_of_rule)
    /// becomes a snapshot, all others of them stop being one.
    FollowRule,
    /// Deletes checkpoints that follow each other.
    DeleteCheckpoints {
        /// The first of them: which of all but the newest, oldest first, counted around.
        first: u16,
        /// How many further ones.
        further: u16,
    },
    /// Makes everything what it was in a checkpoint.
    RollBack {
        /// Which of the checkpoints of which it is known what they show, newest first, counted around.
        nth: u16,
    },
    /// Cleans all there is to clean.
    Clean {
        /// Checkpoints younger than this many seconds are kept.
        protection: u64,
        /// From this seed follows which of the reads fail meanwhile; `None`: none.
        faults: Option<u64>,
    },
    /// Gives the volume another size.
    Resize {
        /// Hundredths of what it had at first.
        percent: u8,
    },
    /// Discards all free space.
    Trim,
}

/// A checkpoint as a list of them shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Its number.
    pub cno: Cno,
    /// When it was made, in seconds.
    pub time: u64,
    /// Whether it is a snapshot.
    pub snapshot: bool,
}

/// Whether snapshots of a checkpoint are made by a rule of retention; all others by somebody.
#[must_use]
pub fn is_of_rule(cno: Cno) -> bool {
    !cno.0.is_multiple_of(2)
}

impl Op {
    /// The first and the last checkpoint that the operation is about, out of those that exist.
    #[must_use]
    pub fn checkpoints(&self, all: &[Listed]) -> Option<(Cno, Cno)> {
        match *self {
            Self::SetSnapshot { nth, snapshot } => {
                let wanted = |it: &&Listed| it.snapshot != snapshot;
                let others: Vec<_> = all.iter().rev().filter(wanted).collect();
                let cno = others.get(usize::from(nth).checked_rem(others.len())?)?.cno;
                Some((cno, cno))
            }
            Self::FollowRule => {
                let newest = all.iter().rfind(|it| is_of_rule(it.cno))?.cno;
                Some((newest, newest))
            }
            Self::DeleteCheckpoints { first, further } => {
                let (_, others) = all.split_last()?;
                let first = usize::from(first).checked_rem(others.len())?;
                let last = (first + usize::from(further)).min(others.len() - 1);
                Some((others[first].cno, others[last].cno))
            }
            _ => None,
        }
    }

    /// Whether it leaves everything as it is.
    #[must_use]
    pub fn only_looks(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::Seek { .. }
                | Self::Stat(_)
                | Self::ReadLink(_)
                | Self::List(_)
        )
    }

    /// Whether a full volume may refuse it, as long as it frees nothing. It may not refuse what
    /// only makes durable what it has accepted.
    #[must_use]
    pub fn needs_space(&self) -> bool {
        matches!(
            self,
            Self::Create { .. }
                | Self::CreateNameless { .. }
                | Self::Symlink { .. }
                | Self::Link { .. }
                | Self::Unlink(_)
                | Self::RemoveDirectory(_)
                | Self::Rename { .. }
                | Self::Write { .. }
                | Self::SetAttr { .. }
                | Self::SetFlags { .. }
                | Self::Checkpoint
                | Self::SetSnapshot { .. }
                | Self::FollowRule
                | Self::DeleteCheckpoints { .. }
                | Self::RollBack { .. }
                | Self::Resize { .. }
        )
    }

    /// Whether it gives something back: a name or the end of a file.
    #[must_use]
    pub fn frees_space(&self, model: &Model) -> bool {
        match self {
            Self::Unlink(_) | Self::RemoveDirectory(_) => true,
            Self::SetAttr { target, changes } => {
                let node = model.find(target).ok().and_then(|id| model.node(id));
                changes.size.is_some_and(|size| node.is_some_and(|node| size < node.facts().size))
            }
            _ => false,
        }
    }
}

/// The `length` bytes at `offset` of a file that was written with `fill`. A `fill` of zero is all
/// zero bytes.
#[must_use]
pub fn pattern(fill: u32, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length as usize + 16);
    let mut word = offset / 8;
    while bytes.len() < length as usize + 8 {
        bytes.extend_from_slice(&mixed(fill, word).to_le_bytes());
        word = word.wrapping_add(1);
    }
    let skip = (offset % 8) as usize;
    bytes.drain(..skip);
    bytes.truncate(length as usize);
    bytes
}

/// A word that differs for every `fill` and position.
fn mixed(fill: u32, word: u64) -> u64 {
    if fill == 0 {
        return 0;
    }
    let mut x = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(fill) << 32 | 1);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// The text of a symbolic link of `length` bytes.
#[must_use]
pub fn link_text(length: usize) -> Vec<u8> {
    (0..length).map(|i| b"./target/"[i % 9]).collect()
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.fmt(f),
            Self::Handle(handle) => write!(f, "#{handle}"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { path, kind, mode, rdev } => {
                write!(f, "create {kind:?} {path} mode {mode:o}")?;
                if rdev.encode() != 0 {
                    write!(f, " rdev {}:{}", rdev.major, rdev.minor)?;
                }
                Ok(())
            }
            Self::CreateNameless { directory, mode, handle } => {
                write!(f, "create a nameless file in {directory} mode {mode:o} as #{handle}")
            }
            Self::Symlink { path, length } => write!(f, "symlink {path} of {length} bytes"),
            Self::Link { target, to } => write!(f, "link {target} {to}"),
            Self::Unlink(path) => write!(f, "unlink {path}"),
            Self::RemoveDirectory(path) => write!(f, "rmdir {path}"),
            Self::Rename { from, to, mode } => write!(f, "rename {from} {to} {mode:?}"),
            Self::Write { target, offset, length, fill } => {
                write!(f, "write {target} at {offset} {length} bytes fill {fill}")
            }
            Self::SetAttr { target, changes } => write!(f, "setattr {target} {changes:?}"),
            Self::SetFlags { target, flags } => write!(f, "setflags {target} {flags:#x}"),
            Self::Read { target, offset, length } => {
                write!(f, "read {target} at {offset} {length} bytes")
            }
            Self::Seek { target, offset, what } => write!(f, "seek {target} at {offset} {what:?}"),
            Self::Stat(target) => write!(f, "stat {target}"),
            Self::ReadLink(path) => write!(f, "readlink {path}"),
            Self::List(path) => write!(f, "list {path}"),
            Self::Open { path, handle } => write!(f, "open {path} as #{handle}"),
            Self::Close(handle) => write!(f, "close #{handle}"),
            Self::Fsync(target) => write!(f, "fsync {target}"),
            Self::Fdatasync(target) => write!(f, "fdatasync {target}"),
            Self::Sync => f.write_str("sync"),
            Self::Commit => f.write_str("commit"),
            Self::Remount => f.write_str("remount"),
            Self::Checkpoint => f.write_str("checkpoint"),
            Self::FollowRule => write!(f, "follow the rule of retention"),
            Self::SetSnapshot { nth, snapshot: true } => write!(f, "make snapshot {nth}"),
            Self::SetSnapshot { nth, snapshot: false } => write!(f, "give up snapshot {nth}"),
            Self::DeleteCheckpoints { first, further } => {
                write!(f, "delete checkpoint {first} and {further} more")
            }
            Self::RollBack { nth } => write!(f, "roll back to checkpoint {nth}"),
            Self::Clean { protection, faults: None } => {
                write!(f, "clean, protecting {protection} s")
            }
            Self::Clean { protection, faults: Some(seed) } => {
                write!(f, "clean, protecting {protection} s, reads fail by seed {seed}")
            }
            Self::Resize { percent } => write!(f, "resize to {percent} %"),
            Self::Trim => f.write_str("trim"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn a_pattern_is_the_same_however_it_is_cut() {
        let whole = pattern(7, 5, 100);
        for (offset, length) in [(5, 1), (6, 7), (8, 8), (13, 92)] {
            let start = offset as usize - 5;
            let part = &whole[start..start + length as usize];
            assert_eq!(pattern(7, offset, length), part);
        }
        assert_ne!(pattern(8, 5, 100), whole);
    }
}
