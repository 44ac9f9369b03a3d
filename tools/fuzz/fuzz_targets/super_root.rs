//! Super roots: as they come, and with a checksum that is right for them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_fuzz::volumes::Kind;
use nilfs_ondisk::crc::crc32_le;
use nilfs_ondisk::super_root::SuperRoot;

const SEED: u32 = 7;

fuzz_target!(|bytes: &[u8]| {
    let geometry = Kind::nth(0).geometry();
    let _ = SuperRoot::parse(bytes, &geometry, SEED);
    let mut block = bytes.to_vec();
    block.resize(geometry.block_size.bytes(), 0);
    let covered = usize::from(u16::from_le_bytes([block[4], block[5]]));
    if (4..=block.len()).contains(&covered) {
        let sum = crc32_le(SEED, &block[4..covered]);
        block[..4].copy_from_slice(&sum.to_le_bytes());
    }
    if let Ok(root) = SuperRoot::parse(&block, &geometry, SEED) {
        let mut written = vec![0; block.len()];
        root.encode(&mut written, &geometry, SEED);
        assert!(SuperRoot::parse(&written, &geometry, SEED).is_ok());
    }
});
