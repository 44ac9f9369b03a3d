//! Inode flags as `chattr` and `lsattr` see them, and the inode's generation.
//!
//! Permissions are the kernel's affair: it translates `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR`
//! (and their 32-bit forms) into requests of its own after it has checked the caller. So a 32-bit
//! form that arrives here did not pass any check and is not known.

use std::ffi::{c_int, c_long};

use rustix::ioctl::{Opcode, opcode};

/// What a process asks of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InodeIoctl {
    GetFlags,
    SetFlags(u32),
    GetExtended,
    SetExtended(u32),
    GetGeneration,
}

const GET_FLAGS: Opcode = opcode::read::<c_long>(b'f', 1);
const SET_FLAGS: Opcode = opcode::write::<c_long>(b'f', 2);
const GET_EXTENDED: Opcode = opcode::read::<[u8; EXTENDED_SIZE]>(b'X', 31);
const SET_EXTENDED: Opcode = opcode::write::<[u8; EXTENDED_SIZE]>(b'X', 32);
const GET_GENERATION: Opcode = opcode::read::<c_long>(b'v', 1);

/// Bytes of `struct fsxattr`: flags, four more words and padding.
const EXTENDED_SIZE: usize = 28;

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
            SET_EXTENDED => Self::SetExtended(word()?),
            GET_GENERATION => Self::GetGeneration,
            _ => return None,
        })
    }

    /// The answer to a request that asks for `value`, in at most `room` bytes.
    pub fn answer(self, value: u32, room: usize) -> Vec<u8> {
        let mut answer = value.to_ne_bytes().to_vec();
        match self {
            Self::SetFlags(_) | Self::SetExtended(_) => answer.clear(),
            Self::GetExtended => answer.resize(EXTENDED_SIZE, 0),
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

/// `flags` with those changed that an `FS_XFLAG_*` bit stands for; `None` if a bit has no meaning
/// here.
pub(crate) fn with_extended(flags: u32, extended: u32) -> Option<u32> {
    let known = EXTENDED_FLAGS.iter().fold(0, |bits, (_, extended)| bits | extended);
    if extended & !known != 0 {
        return None;
    }
    Some(EXTENDED_FLAGS.iter().fold(flags, |flags, (plain, bit)| {
        if extended & bit != 0 { flags | plain } else { flags & !plain }
    }))
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
        assert_eq!(with_extended(flags, 0x40), Some(0x80 | 0x1_0000));
        assert_eq!(with_extended(flags, 0x8000), None);
    }
}
