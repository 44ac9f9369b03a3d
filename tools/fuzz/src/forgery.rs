//! A volume edited as an input says.
//!
//! Random bytes would never get past the checksums of a volume. So a forgery is a sound volume with a
//! few edits, sealed again as somebody who forges an image would do.

use std::sync::LazyLock;

use nilfs_ondisk::crc::{BlockSum, crc32_le};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::summary::{LogHeader, SR, seal_again};
use nilfs_ondisk::superblock::{RawSuperblock, SUPERBLOCK_SIZE, Superblock};
use nilfs_ondisk::{Geometry, SegNum};
use zerocopy::FromBytes;

use crate::volumes::{CRC_SEED, Kind};

/// Most edits of one input.
const MAX_EDITS: usize = 8;
/// In the byte that says what is forged: the checksums stay as they were.
const UNSEALED: u8 = 0x80;

/// An edit: which word, where in it and how much of it, and the new value.
type Edit = (u16, u8, u64);

/// What an input says: which volume, and its edits.
pub type Input = (u8, [Option<Edit>; MAX_EDITS]);

/// A volume, and the places in it where a change means something.
struct Original {
    image: Vec<u8>,
    words: Vec<usize>,
}

impl Original {
    fn new(kind: Kind) -> Self {
        let image = kind.volume();
        let words = (0..image.len() / 8).filter(|nth| {
            let word = &image[nth * 8..][..8];
            // Neither unused space nor content of files, which repeats one letter.
            word != [0; 8] && !word.iter().all(|byte| byte.is_ascii_alphabetic())
        });
        let words = words.map(|nth| nth * 8).collect();
        Self { image, words }
    }
}

static ORIGINALS: [LazyLock<Original>; Kind::COUNT] = {
    const fn nth<const N: usize>() -> LazyLock<Original> {
        LazyLock::new(|| Original::new(Kind::nth(N)))
    }
    [
        nth::<0>(),
        nth::<1>(),
        nth::<2>(),
        nth::<3>(),
        nth::<4>(),
        nth::<5>(),
        nth::<6>(),
        nth::<7>(),
        nth::<8>(),
        nth::<9>(),
        nth::<10>(),
        nth::<11>(),
    ]
};

/// The sound volume that is meant by a byte.
pub fn sound(which: u8) -> Vec<u8> {
    original(which).1.image.clone()
}

fn original(which: u8) -> (Kind, &'static Original) {
    let nth = usize::from(which & !UNSEALED) % Kind::COUNT;
    (Kind::nth(nth), &ORIGINALS[nth])
}

/// The volume that an input describes.
pub fn forge((which, edits): Input) -> Vec<u8> {
    let (kind, original) = original(which);
    let mut image = original.image.clone();
    for (word, place, value) in edits.into_iter().flatten() {
        let width = 1 << (place % 4);
        let within = usize::from(place / 4 % 8) & !(width - 1);
        let at = original.words[usize::from(word) % original.words.len()] + within;
        image[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
    if which & UNSEALED == 0 {
        seal(&mut image, &kind.geometry());
    }
    image
}

/// Makes the checksums of superblocks, super roots, summaries and logs those of what is in them now, as
/// far as they can still be recognised.
fn seal(image: &mut [u8], geometry: &Geometry) {
    let size = image.len() as u64;
    for at in [Some(PRIMARY_SUPERBLOCK), secondary_superblock(size)].into_iter().flatten() {
        let copy = &mut image[at as usize..][..SUPERBLOCK_SIZE];
        if let Ok((raw, _)) = RawSuperblock::read_from_prefix(copy)
            && let Ok(superblock) = Superblock::from_raw(raw, size)
        {
            copy.copy_from_slice(&superblock.encode());
        }
    }
    let block_size = geometry.block_size.bytes();
    for segment in (0..geometry.nsegments).map(SegNum) {
        let mut at = geometry.segment_start(segment).0 as usize * block_size;
        let end = geometry.segment_end(segment).0 as usize * block_size;
        while let Some(length) = seal_log(&mut image[at..end], geometry) {
            at += length;
        }
    }
}

/// Seals the log at the start of the bytes and returns its length, or `None` if there is none.
fn seal_log(bytes: &mut [u8], geometry: &Geometry) -> Option<usize> {
    let block_size = geometry.block_size;
    let header = LogHeader::parse(bytes, block_size, geometry.blocks_per_segment).ok()?;
    let length = header.nblocks as usize * block_size.bytes();
    let log = bytes.get_mut(..length)?;
    if header.has(SR) {
        let root = &mut log[length - block_size.bytes()..];
        let covered = usize::from(u16::from_le_bytes([root[4], root[5]]));
        if (4..=root.len()).contains(&covered) {
            let sum = crc32_le(CRC_SEED, &root[4..covered]);
            root[..4].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let described = header.described_blocks(block_size) as usize * block_size.bytes();
    let summary = header.summary_blocks(block_size) as usize * block_size.bytes();
    let (summary, payload) = log[..described].split_at_mut(summary);
    let sums: Vec<_> = payload.chunks(block_size.bytes()).map(BlockSum::of).collect();
    seal_again(summary, &header, &sums, block_size, CRC_SEED);
    Some(length)
}
