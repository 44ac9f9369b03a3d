//! Superblocks: as they come, and with a checksum that is right for them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_ondisk::superblock::{RawSuperblock, Superblock};
use zerocopy::FromBytes;

const DEVICE_SIZE: u64 = 1 << 30;

fuzz_target!(|bytes: &[u8]| {
    let _ = Superblock::parse(bytes, DEVICE_SIZE);
    let Ok((raw, _)) = RawSuperblock::read_from_prefix(bytes) else {
        return;
    };
    let Ok(superblock) = Superblock::from_raw(raw, DEVICE_SIZE) else {
        return;
    };
    let _ = superblock.refuse_unknown_features(true);
    let geometry = superblock.geometry();
    assert!(geometry.has_block(superblock.last_log().block));
    let again = Superblock::parse(&superblock.encode(), DEVICE_SIZE);
    assert_eq!(again.map(|superblock| superblock.geometry()), Ok(geometry));
});
