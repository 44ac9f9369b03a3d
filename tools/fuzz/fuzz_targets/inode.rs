//! Inodes: type, device number and block map.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::inode::{DeviceCode, RawInode};

fuzz_target!(|bytes: &[u8]| {
    let Ok(inode) = RawInode::parse(bytes) else {
        return;
    };
    let _ = inode.file_type();
    let _ = inode.validate_metadata_file("inode");
    let _ = Root::parse(&inode.i_bmap);
    let slot = inode.i_blocks.get();
    let code = DeviceCode::decode(slot);
    assert_eq!(DeviceCode::decode(code.encode()), code);
});
