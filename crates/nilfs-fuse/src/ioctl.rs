//! Inode flags as `chattr` and `lsattr` see them, and the inode's generation.
//!
//! Permissions are the kernel's affair: it translates `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR`
//! (and their 32-bit forms) into requests of its own after it has checked the caller. So a 32-bit
//! form that arrives here did not pass any check and is not known.

use std::ffi::{c_int, c_long};

use rustix::ioctl::{Opcode, opcode};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// What a process asks of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InodeIoctl {
    GetFlags,
    SetFlags(u32),
    GetExtended,
    SetExtended(Extended),
    GetGeneration,
}

/// Linux's `struct fsxattr`, in the byte order of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Extended {
    flags: u32,
    extent_size: u32,
    /// Only told, never set.
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

const GET_FLAGS: Opcode = opcode::read::<c_long>(b'f', 1);
const SET_FLAGS: Opcode = opcode::write::<c_long>(b'f', 2);
const GET_EXTENDED: Opcode = opcode::read::<Extended>(b'X', 31);
const SET_EXTENDED: Opcode = opcode::write::<Extended>(b'X', 32);
const GET_GENERATION: Opcode = opcode::read::<c_long>(b'v', 1);

/// `FS_*_FL` bits and the `FS_XFLAG_*` bits that mean the same.
const EXTENDED_FLAGS: [(u32, u32); 5] = [
    (0x10, 0x08), // immutable
    (0x20, 0x10), // append only
    (0x08, 0x20), // synchronous
    (0x80, 0x40), // no atime
    (0x40, 0x80), // no dump
];

impl InodeIoctl {
    /// The request with this number, if it is one of ours and has its argument.
    pub fn parse(command: u32, input: &[u8]) -> Option<Self> {
        let word = || Some(u32::from_ne_bytes(*input.first_chunk()?));
        Some(match command {
            GET_FLAGS => Self::GetFlags,
            SET_FLAGS => Self::SetFlags(word()?),
            GET_EXTENDED => Self::GetExtended,
            SET_EXTENDED => Self::SetExtended(Extended::read_from_prefix(input).ok()?.0),
            GET_GENERATION => Self::GetGeneration,
            _ => return None,
        })
    }

    /// The answer to a request that asks for `value`, in at most `room` bytes.
    pub fn answer(self, value: u32, room: usize) -> Vec<u8> {
        let mut answer = value.to_ne_bytes().to_vec();
        match self {
            Self::SetFlags(_) | Self::SetExtended(_) => answer.clear(),
            Self::GetExtended => answer.resize(size_of::<Extended>(), 0),
            // The number says "long", but everybody passes an int, the kernel included.
            Self::GetFlags | Self::GetGeneration => answer.truncate(size_of::<c_int>()),
        }
        answer.truncate(room);
        answer
    }
}

/// `FS_XFLAG_*` bits from `FS_*_FL` bits.
pub(crate) fn extended(flags: u32) -> u32 {
    let pairs = EXTENDED_FLAGS.iter().filter(|(plain, _)| flags & plain != 0);
    pairs.fold(0, |bits, (_, extended)| bits | extended)
}

impl Extended {
    /// Returns `flags` with those changed that an `FS_XFLAG_*` bit stands for; `None` if something is
    /// asked for that no inode has, such as a project or hints about extents.
    pub fn applied_to(self, flags: u32) -> Option<u32> {
        let known = EXTENDED_FLAGS.iter().fold(0, |bits, (_, extended)| bits | extended);
        let hints = [self.extent_size, self.project, self.cow_extent_size];
        if self.flags & !known != 0 || hints != [0; 3] {
            return None;
        }
        Some(EXTENDED_FLAGS.iter().fold(flags, |flags, (plain, bit)| {
            if self.flags & bit != 0 { flags | plain } else { flags & !plain }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_linux_s() {
        assert_eq!(GET_FLAGS, 0x8008_6601);
        assert_eq!(SET_FLAGS, 0x4008_6602);
        assert_eq!(GET_EXTENDED, 0x801c_581f);
        assert_eq!(SET_EXTENDED, 0x401c_5820);
        assert_eq!(GET_GENERATION, 0x8008_7601);
    }

    #[test]
    fn extended_flags_keep_what_they_cannot_say() {
        let flags = 0x10 | 0x1_0000;
        assert_eq!(extended(flags), 0x08);
        let of = |flag| Extended { flags: flag, ..Extended::default() }.applied_to(flags);
        assert_eq!((of(0x40), of(0x8000)), (Some(0x80 | 0x1_0000), None));
    }
}
