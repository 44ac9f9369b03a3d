//! What was written to a volume over its life: a record of ours at the end of the superblock's
//! reserved bytes. The format gives them no meaning, Linux and nilfs-utils carry them along, and
//! mkfs clears them. A record that is not there or is damaged stands for zeros.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 988 | 4 | magic, `nilt` |
//! | 992 | 4 | version, 1 |
//! | 996 | 8 | bytes that programs have written to files |
//! | 1004 | 8 | bytes of all logs |
//! | 1012 | 8 | segments that the cleaner has freed |
//! | 1020 | 4 | CRC-32 of the above, with the volume's seed |

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::crc::crc32_le;
use crate::superblock::{RawSuperblock, SUPERBLOCK_SIZE};

const MAGIC: [u8; 4] = *b"nilt";
const VERSION: u32 = 1;

/// Bytes of the record.
const SIZE: usize = size_of::<Record>();

/// Bytes of the record in front of its checksum.
const CHECKED: usize = std::mem::offset_of!(Record, crc);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Record {
    magic: [u8; 4],
    version: U32,
    user_bytes: U64,
    written_bytes: U64,
    segments_freed: U64,
    crc: U32,
}

/// Totals over the life of a volume, as far as this program has written to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Bytes of files that programs have written.
    pub user_bytes: u64,
    /// Bytes of all logs, the cleaner's included.
    pub written_bytes: u64,
    /// Segments that the cleaner has freed.
    pub segments_freed: u64,
}

impl Lifetime {
    /// What a superblock says.
    #[must_use]
    pub fn parse(raw: &RawSuperblock) -> Self {
        Self::find(raw).unwrap_or_default()
    }

    fn find(raw: &RawSuperblock) -> Option<Self> {
        let (_, record) = Record::read_from_suffix(&raw.s_reserved).ok()?;
        let known = record.magic == MAGIC && record.version.get() == VERSION && !is_claimed(raw);
        let whole = record.crc.get() == checksum(raw.s_crc_seed.get(), record.as_bytes());
        (known && whole).then(|| Self {
            user_bytes: record.user_bytes.get(),
            written_bytes: record.written_bytes.get(),
            segments_freed: record.segments_freed.get(),
        })
    }

    /// Lets a superblock say it.
    pub fn encode(&self, raw: &mut RawSuperblock) {
        if is_claimed(raw) {
            return;
        }
        let mut record = Record {
            magic: MAGIC,
            version: U32::new(VERSION),
            user_bytes: U64::new(self.user_bytes),
            written_bytes: U64::new(self.written_bytes),
            segments_freed: U64::new(self.segments_freed),
            crc: U32::new(0),
        };
        record.crc = U32::new(checksum(raw.s_crc_seed.get(), record.as_bytes()));
        let at = raw.s_reserved.len() - SIZE;
        raw.s_reserved[at..].copy_from_slice(record.as_bytes());
    }
}

fn checksum(seed: u32, record: &[u8]) -> u32 {
    crc32_le(seed, &record[..CHECKED])
}

/// Whether a later revision of the format has given the bytes a meaning.
fn is_claimed(raw: &RawSuperblock) -> bool {
    usize::from(raw.s_bytes.get()) > SUPERBLOCK_SIZE - SIZE
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;
    use zerocopy::little_endian::U16;

    use super::*;

    const TOTALS: Lifetime =
        Lifetime { user_bytes: 1 << 40, written_bytes: 3 << 40, segments_freed: 7 };

    fn superblock() -> RawSuperblock {
        let mut raw = RawSuperblock::new_zeroed();
        raw.s_crc_seed = U32::new(0x1234_5678);
        raw.s_bytes = U16::new(280);
        raw
    }

    #[test]
    fn what_was_kept_is_found_again_where_it_is_documented() {
        let mut raw = superblock();
        TOTALS.encode(&mut raw);
        assert_eq!(Lifetime::parse(&raw), TOTALS);
        let bytes = raw.as_bytes();
        assert_eq!((&bytes[988..992], &bytes[992..996]), (&b"nilt"[..], &[1, 0, 0, 0][..]));
        assert_eq!(bytes[996..1004], (1_u64 << 40).to_le_bytes());
        assert!(bytes[280..988].iter().all(|byte| *byte == 0), "nothing else is touched");
    }

    #[test]
    fn a_volume_without_a_record_begins_with_zeros() {
        assert_eq!(Lifetime::parse(&superblock()), Lifetime::default());
    }

    #[test]
    fn damage_anywhere_in_the_record_is_noticed() {
        let mut good = superblock();
        TOTALS.encode(&mut good);
        for byte in 744 - SIZE..744 {
            let mut raw = good;
            raw.s_reserved[byte] ^= 1;
            assert_eq!(Lifetime::parse(&raw), Lifetime::default(), "byte {byte}");
        }
    }

    #[test]
    fn bytes_that_the_format_has_come_to_use_are_left_alone() {
        let mut raw = superblock();
        raw.s_bytes = U16::new(1024);
        raw.s_reserved.fill(0x5a);
        TOTALS.encode(&mut raw);
        assert_eq!(raw.s_reserved, [0x5a; 744]);
        assert_eq!(Lifetime::parse(&raw), Lifetime::default());
    }
}
