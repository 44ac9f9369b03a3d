//! Undo files from hostile hands: an error before anything is written, or exactly what the records
//! say. The bytes are taken as they come, and as records that are forged with the right checksums.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nilfs_device::{Device, IoSlice, MemoryDevice};
use nilfs_fuzz::forgery::sound;
use nilfs_fuzz::memory_file::memory_file;
use nilfs_ondisk::crc::Crc;
use nilfs_repair::{UndoDevice, apply_undo};

/// The identity of the volumes.
const UUID: [u8; 16] = [1; 16];
/// Most records of one input.
const MAX_RECORDS: usize = 6;

/// Where in the volume, how many bytes, and which; and a bit of its head that is then turned.
type Record = (u64, u16, u8, Option<u8>);

/// A volume, records, how many bytes at the end are missing, and a whole file.
type Input<'a> = (u8, [Option<Record>; MAX_RECORDS], u8, &'a [u8]);

fuzz_target!(|input: Input| {
    let (which, records, cut, bytes) = input;
    let image = sound(which);
    try_out(&image, bytes, &[]);
    let mut file = header(&image);
    let mut written = Vec::new();
    for (nth, (offset, length, fill, turned)) in (1..).zip(records.into_iter().flatten()) {
        // Most of them near the volume.
        let offset = if fill % 8 == 0 { offset } else { offset % (image.len() as u64 + 8) };
        let content = vec![fill; length.into()];
        let mut record = record(nth, offset, &content);
        if let Some(bit) = turned {
            record[usize::from(bit / 8)] ^= 1 << (bit % 8);
        }
        file.extend(record);
        if !content.is_empty() {
            written.push((offset, content));
        }
    }
    file.truncate(file.len() - usize::from(cut).min(file.len()));
    try_out(&image, &file, &written);
});

/// A header as it is made for the volume.
fn header(image: &[u8]) -> Vec<u8> {
    let file = memory_file(&[]);
    let mut written = file.try_clone().expect("there are descriptors");
    let device = MemoryDevice::from(image.to_vec());
    UndoDevice::new(device, file, UUID).expect("there is memory for a header");
    let mut header = Vec::new();
    std::io::Seek::rewind(&mut written).expect("a file can be read again");
    std::io::Read::read_to_end(&mut written, &mut header).expect("a file can be read");
    header
}

fn record(nth: u64, offset: u64, content: &[u8]) -> Vec<u8> {
    let mut head = b"NfUr".to_vec();
    head.extend((content.len() as u32).to_le_bytes());
    head.extend(offset.to_le_bytes());
    head.extend(nth.to_le_bytes());
    let mut crc = Crc::new(0);
    crc.update(&head);
    crc.update(content);
    head.extend(crc.value().to_le_bytes());
    head.extend([0; 4]);
    [&head, content].concat()
}

/// Undoes by a file; whatever comes of that is in `records` or was there before.
fn try_out(image: &[u8], file: &[u8], records: &[(u64, Vec<u8>)]) {
    let memory = MemoryDevice::from(image.to_vec());
    let undone = apply_undo(memory_file(file), &memory);
    let now = memory.snapshot();
    let Ok(total) = undone else {
        assert!(now == image, "a file that is refused changes nothing");
        return;
    };
    // The first ones, as long as they are whole; those with the primary superblock come last.
    let mut whole = Vec::new();
    let mut left = total;
    for (offset, content) in records {
        let Some(rest) = left.checked_sub(content.len() as u64) else { break };
        left = rest;
        whole.push((*offset, content));
    }
    assert_eq!(left, 0, "the records say how many bytes are put back");
    whole.sort_by_key(|(offset, _)| *offset <= 1024);
    let expected = Arc::new(MemoryDevice::from(image.to_vec()));
    for (offset, content) in whole {
        let put_back = expected.write_at(offset, &[IoSlice::new(content)]);
        put_back.expect("a record beyond the volume is refused");
    }
    assert!(now == expected.snapshot(), "what is put back is what the records say");
}
