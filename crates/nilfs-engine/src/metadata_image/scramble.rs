//! Names that say nothing: every name gets another one of the same length, the same one wherever it
//! occurs, and no two get the same one. So directories keep their layout and their meaning, and symbolic
//! links lead where they led.
//!
//! The key is random and is not kept. Letters, digits, `_` and `-` become others of these, and so do bytes
//! that are not ASCII; dots and all other punctuation stay.

use std::hash::{BuildHasher, RandomState};

use nilfs_ondisk::dirent::{HEADER_SIZE, record_at};
use nilfs_ondisk::superblock::{RawSuperblock, SUPERBLOCK_SIZE, Superblock};

/// Characters that become each other.
const WORD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";

/// Bytes from this one on become each other, too.
const NOT_ASCII: u8 = 0x80;

/// Where the label is in a superblock that is damaged.
const LABEL: usize = std::mem::offset_of!(RawSuperblock, s_volume_name);
const LABEL_BYTES: usize = 80;

/// Scrambles the names of a volume.
pub(super) struct Scramble(RandomState);

impl Scramble {
    pub(super) fn new() -> Self {
        Self(RandomState::new())
    }

    /// A name, in place. Each byte is moved on by what those before it have become, from the front and
    /// once more from the end: that can be undone byte by byte, so no two names of a length become one,
    /// and every byte depends on all others.
    fn name(&self, name: &mut [u8]) {
        for turn in [0_u8, 1] {
            for nth in 0..name.len() {
                let by = self.0.hash_one((turn, name.len(), &name[..nth]));
                name[nth] = moved_on(name[nth], by);
            }
            name.reverse();
        }
    }

    /// A block of a directory: its names, and what is left of others in between. After a record that is
    /// damaged, nothing is known to be no name.
    pub(super) fn directory(&self, block: &mut [u8]) {
        let mut offset = 0;
        while let Ok(record) = record_at(block, offset) {
            let (end, name_end) = (offset + record.len, offset + HEADER_SIZE + record.name.len());
            let is_used = record.is_used();
            let name = &mut block[offset + HEADER_SIZE..name_end];
            if is_used {
                self.name(name)
            } else {
                name.fill(0)
            }
            block[name_end..end].fill(0);
            offset = end;
        }
        if let Some(rest) = block.get_mut(offset + HEADER_SIZE..) {
            rest.fill(0);
        }
    }

    /// A block of the target of a symbolic link.
    pub(super) fn target(&self, block: &mut [u8]) {
        let end = block.iter().position(|byte| *byte == 0).unwrap_or(block.len());
        block[..end].split_mut(|byte| *byte == b'/').for_each(|name| self.name(name));
        block[end..].fill(0);
    }

    /// The label of the volume. `size` is that of the device (bytes).
    pub(super) fn superblock(&self, bytes: &mut [u8; SUPERBLOCK_SIZE], size: u64) {
        match Superblock::parse(bytes, size) {
            Ok(mut copy) => {
                self.target(&mut copy.raw_mut().s_volume_name);
                *bytes = copy.encode();
            }
            Err(_) => bytes[LABEL..LABEL + LABEL_BYTES].fill(0),
        }
    }
}

fn moved_on(byte: u8, by: u64) -> u8 {
    if byte >= NOT_ASCII {
        return byte.wrapping_add((by % 128) as u8) | NOT_ASCII;
    }
    match WORD.iter().position(|it| *it == byte) {
        Some(at) => WORD[(at + (by % 64) as usize) % 64],
        None => byte,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use nilfs_ondisk::Ino;
    use nilfs_ondisk::dirent::write_record;

    use super::*;

    #[test]
    fn no_two_names_become_one_and_all_stay_names() {
        let scramble = Scramble::new();
        let mut seen = HashSet::new();
        let short = (1..=255_u8).filter(|byte| *byte != b'/').map(|byte| vec![byte]);
        let long = (0..5000).map(|nth| format!("name.{nth:04} \u{e4}").into_bytes());
        for before in short.chain(long) {
            let mut after = before.clone();
            scramble.name(&mut after);
            assert_eq!(after.len(), before.len());
            assert!(!after.contains(&0) && !after.contains(&b'/'));
            assert!(before == b"." || (after != b"." && after != b".."));
            assert!(seen.insert(after), "{before:?}");
        }
    }

    #[test]
    fn nothing_is_left_of_names_in_a_directory() {
        let mut block = vec![0; 1024];
        write_record(&mut block, 0, 512, Ino(20), b"a present name", None);
        write_record(&mut block, 512, 256, Ino(0), b"an unused record", None);
        // Linux leaves the records of deleted names where they are, within the one before.
        block[100..114].copy_from_slice(b"a deleted name");
        // A record of no length.
        block[800..814].copy_from_slice(b"a damaged name");
        Scramble::new().directory(&mut block);
        let has = |name: &[u8]| block.windows(name.len()).any(|it| it == name);
        assert!(!has(b"present") && !has(b"unused") && !has(b"deleted") && !has(b"damaged"));
        let record = record_at(&block, 0).unwrap();
        assert_eq!((record.ino, record.len, record.name.len()), (Ino(20), 512, 14));
    }

    #[test]
    fn a_target_has_the_names_that_directories_have() {
        let scramble = Scramble::new();
        let mut target = *b"../dir/file.txt\0rest";
        scramble.target(&mut target);
        let (mut dir, mut file) = (*b"dir", *b"file.txt");
        scramble.name(&mut dir);
        scramble.name(&mut file);
        assert_eq!(target[..], [b"../", &dir[..], b"/", &file[..], b"\0\0\0\0\0"].concat());
        assert_ne!(&dir, b"dir");
    }
}
