//! Segment summaries: header, items, and what roll-forward records there are after them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_fuzz::volumes::Kind;
use nilfs_ondisk::crc::Crc;
use nilfs_ondisk::roll_forward::Records;
use nilfs_ondisk::summary::{Items, LogHeader, parse_items};

fuzz_target!(|bytes: &[u8]| {
    let geometry = Kind::nth(0).geometry();
    let size = geometry.block_size;
    let Ok(header) = LogHeader::parse(bytes, size, geometry.blocks_per_segment) else {
        return;
    };
    let _ = header.verify_summary(bytes, 7);
    let mut crc = Crc::new(7);
    crc.update(bytes);
    let _ = header.verify_log(crc, size);
    if let Ok(Items { files, end, sums }) = parse_items(&header, bytes, size) {
        let blocks: usize = files.iter().map(|file| file.blocks.len()).sum();
        assert!(blocks as u64 + header.summary_blocks(size) <= u64::from(header.nblocks));
        let described = header.described_blocks(size) - header.summary_blocks(size);
        assert!(sums.is_none_or(|sums| sums.len() as u64 == described));
        let _ = Records::parse(bytes.get(end..).unwrap_or_default());
    }
});
