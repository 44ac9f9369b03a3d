//! Roots of block maps: what is accepted can be written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_ondisk::bmap::{ROOT_SIZE, Root};

fuzz_target!(|bytes: [u8; ROOT_SIZE]| {
    if let Ok(root) = Root::parse(&bytes) {
        assert_eq!(Root::parse(&root.encode()), Ok(root));
    }
});
