//! Directory blocks: records cover the block, and names come and go without harm. How much room a block
//! has then is known.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_ondisk::Ino;
use nilfs_ondisk::dirent::{Inserted, NAME_MAX, Removal, insert, records};
use nilfs_ondisk::inode::FileType;

fuzz_target!(|input: (u8, &[u8])| {
    let (length, bytes) = input;
    let mut block = bytes.to_vec();
    block.resize(1024, 0);
    let total = |block: &[u8]| {
        records(block).map(|record| record.map(|record| record.len)).sum::<Result<usize, _>>()
    };
    let Ok(covered) = total(&block) else {
        return;
    };
    assert_eq!(covered, block.len());
    let name = vec![b'n'; usize::from(length).clamp(1, NAME_MAX)];
    let slack =
        |block: &[u8]| records(block).map(|record| record.map_or(0, |record| record.slack())).max();
    let inserted = insert(&mut block, Ino(12), &name, FileType::Regular);
    let Ok(Some(Inserted { offset, slack: left })) = inserted else {
        return;
    };
    assert_eq!(slack(&block), Some(left));
    assert_eq!(total(&block), Ok(block.len()));
    let is_there = |block: &[u8]| {
        records(block).any(|record| {
            record.is_ok_and(|record| {
                record.offset == offset && record.name == name && record.is_used()
            })
        })
    };
    assert!(is_there(&block));
    let gained = Removal::of(&block, offset).map(|removal| removal.apply(&mut block));
    assert_eq!(gained.ok(), slack(&block));
    assert_eq!(total(&block), Ok(block.len()));
    assert!(!is_there(&block));
});
