//! Roll-forward records: those that are read are read again as they are written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_ondisk::roll_forward::Records;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(records)) = Records::parse(bytes) {
        let encoded = records.encode();
        assert_eq!(encoded.len(), records.size());
        assert_eq!(Records::parse(&encoded).ok().flatten(), Some(records));
    }
});
