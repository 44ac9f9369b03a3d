//! Segment summaries: header, items, and after them roll-forward records and copies of other summaries.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_fuzz::volumes::Kind;
use nilfs_ondisk::SummaryCopy;
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
        let rest = bytes.get(end..).unwrap_or_default();
        let _ = Records::parse(rest);
        for copy in SummaryCopy::parse_all(rest, described) {
            let restored = copy.restore(size, geometry.blocks_per_segment, 7);
            assert!(restored.is_none_or(|(it, summary)| it.verify_summary(&summary, 7).is_ok()));
        }
    }
});
