//! Names and notes of snapshots: as they come, and with a checksum that is right for them. Those that
//! are read are read again as they are written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_ondisk::crc::Crc;
use nilfs_ondisk::notes;

const SEED: u32 = 7;

/// Where the head has its checksum.
const CRC_AT: usize = 16;

fuzz_target!(|bytes: &[u8]| {
    let _ = notes::parse(bytes, SEED);
    let mut sealed = bytes.to_vec();
    let in_use = notes::bytes_in_use(bytes).unwrap_or(0);
    if let Some(used) = sealed.get_mut(CRC_AT + 4..in_use) {
        let (head, after) = (&bytes[..CRC_AT], used);
        let mut crc = Crc::new(SEED);
        crc.update(head);
        crc.update(&[0; 4]);
        crc.update(after);
        sealed[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.value().to_le_bytes());
    }
    if let Ok(found) = notes::parse(&sealed, SEED) {
        let written = notes::encode(&found, SEED).expect("what fits once fits again");
        assert_eq!(notes::parse(&written, SEED).ok(), Some(found));
    }
});
