//! Entries and headers of the cpfile, the sufile and the DAT, and the arithmetic of their slots.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_fuzz::volumes::Kind;
use nilfs_ondisk::checkpoint::{CpfileLayout, RawCheckpoint, RawCpfileHeader};
use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::segment_usage::{RawSegmentUsage, RawSufileHeader, SufileLayout};
use nilfs_ondisk::{Cno, SegNum};

fuzz_target!(|input: (u64, &[u8])| {
    let (number, bytes) = input;
    let _ = RawCpfileHeader::parse(bytes);
    let _ = RawCheckpoint::parse(bytes).map(|entry| (entry.is_valid(), entry.is_snapshot()));
    let _ = RawSufileHeader::parse(bytes);
    let _ = RawSegmentUsage::parse(bytes).map(|usage| (usage.is_clean(), usage.is_bad()));
    let _ = DatEntry::parse(bytes).map(|entry| entry.contains(Cno(number)));
    let geometry = Kind::nth(0).geometry();
    let block_size = geometry.block_size.bytes();
    let at = CpfileLayout::new(&geometry).slot(Cno(number)).offset;
    assert!(at + geometry.checkpoint_size <= block_size);
    let at = SufileLayout::new(&geometry).slot(SegNum(number)).offset;
    assert!(at + geometry.segment_usage_size <= block_size);
    for size in [geometry.inode_size, geometry.dat_entry_size] {
        let slot = Palloc::new(geometry.block_size, size).entry(number);
        assert!(slot.offset + size <= block_size);
    }
});
