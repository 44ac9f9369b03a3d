//! The promises of mkfs: the bytes of mkfs.nilfs2, nothing written when it refuses, and no
//! superblock before its log.

use nilfs_device::{Event, MemoryDevice, RecordingDevice};

use super::*;

const MIB: u64 = 1 << 20;

fn parameters(block_size: u64, blocks_per_segment: u32, seed: u32, time: u64) -> Parameters {
    Parameters {
        block_size: BlockSize::from_bytes(block_size).unwrap(),
        blocks_per_segment,
        // The whole device need not be touched.
        discard: false,
        ..Parameters::new([7; 16], seed, time)
    }
}

fn read(device: &dyn Device, offset: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    device.read_at(offset, &mut buffer).unwrap();
    buffer
}

/// Bytes from lines of 16, each with its address; what no line gives is zero.
fn hex_dump(size: usize, lines: &[(usize, &str)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (at, line) in lines {
        for (nth, pair) in line.as_bytes().chunks(2).enumerate() {
            let pair = std::str::from_utf8(pair).unwrap();
            bytes[at + nth] = u8::from_str_radix(pair, 16).unwrap();
        }
    }
    bytes
}

/// The superblock, summary and super root of docs/format.md §14, byte for byte.
#[test]
fn an_image_of_2_2_is_that_of_mkfs_nilfs2() {
    let device = MemoryDevice::new(256 * MIB);
    let uuid = hex_dump(16, &[(0, "2812c797466647eda23a6f186303d864")]);
    let parameters = Parameters {
        label: b"testvol".to_vec(),
        uuid: uuid.try_into().unwrap(),
        generation: Generation::V2_2,
        ..parameters(4096, 2048, 0x90ba_9212, 1_795_203_662)
    };
    format(&device, &parameters).unwrap();
    let superblock = hex_dump(
        1024,
        &[
            (0x00, "0200000000003434180100001292ba90"),
            (0x10, "b6c36a44020000001f00000000000000"),
            (0x20, "00000010000000000100000000000000"),
            (0x30, "00080000050000000100000000000000"),
            (0x40, "01000000000000000000000000000000"),
            (0x50, "00f00000000000004ea2006b00000000"),
            (0x60, "00000000000000004ea2006b00000000"),
            (0x70, "00003200010001004ea2006b00000000"),
            (0x80, "004eed0000000000000000000b000000"),
            (0x90, "80002000c00010002812c797466647ed"),
            (0xa0, "a23a6f186303d86474657374766f6c00"),
        ],
    );
    for at in [1024, 256 * MIB - 4096] {
        assert_eq!(read(&device, at, 1024), superblock, "superblock at {at}");
    }
    let summary = hex_dump(
        4096,
        &[
            (0x000, "6cc83955415e4daf11faaf1e40000700"),
            (0x010, "00000000000000004ea2006b00000000"),
            (0x020, "00080000000000000b00000005000000"),
            (0x030, "30010000000000000100000000000000"),
            (0x040, "02000000000000000100000000000000"),
            (0x050, "01000000010000000100000000000000"),
            (0x060, "00000000000000000600000000000000"),
            (0x070, "01000000000000000300000003000000"),
            (0x080, "02000000000000000000000000000000"),
            (0x090, "03000000000000000100000000000000"),
            (0x0a0, "04000000000000000200000000000000"),
            (0x0b0, "04000000000000000100000000000000"),
            (0x0c0, "01000000010000000500000000000000"),
            (0x0d0, "00000000000000000500000000000000"),
            (0x0e0, "01000000000000000100000001000000"),
            (0x0f0, "06000000000000000000000000000000"),
            (0x100, "03000000000000000100000000000000"),
            (0x110, "03000000030000000000000000000000"),
            (0x120, "01000000000000000200000000000000"),
        ],
    );
    assert_eq!(read(&device, 4096, 4096), summary, "summary");
    let super_root = hex_dump(
        4096,
        &[
            (0x000, "caa99cfe900100004ea2006b00000000"),
            (0x010, "03000000000000000000000000000000"),
            (0x020, "4ea2006b000000004ea2006b00000000"),
            (0x040, "00800100000000000000000000000000"),
            (0x050, "08000000000000000900000000000000"),
            (0x060, "0a000000000000000000000000000000"),
            (0x090, "01000000000000000000000000000000"),
            (0x0a0, "4ea2006b000000004ea2006b00000000"),
            (0x0c0, "00800100000000000000000000000000"),
            (0x0d0, "05000000000000000000000000000000"),
            (0x110, "01000000000000000000000000000000"),
            (0x120, "4ea2006b000000004ea2006b00000000"),
            (0x140, "00800100000000000000000000000000"),
            (0x150, "06000000000000000000000000000000"),
        ],
    );
    assert_eq!(read(&device, 11 * 4096, 4096), super_root, "super root");
}

/// The checksums over whole first logs in docs/format.md §14.
#[test]
fn first_logs_have_the_checksums_of_mkfs_nilfs2() {
    use Generation::{V2_2, V2_3};
    let (early, late) = (1_795_203_849, 1_795_204_559);
    for (generation, mib, block_size, per_segment, seed, time, datasum) in [
        (V2_2, 128, 1024, 2048, 0x67c6_e3b1, early, 0xad1a_1fc6),
        (V2_3, 40, 1024, 512, 0xaccd_f5ff, late, 0xa45b_409d),
        (V2_3, 64, 2048, 1024, 0xaccd_f5ff, late, 0xe793_e311),
        (V2_3, 200, 4096, 2048, 0xaccd_f5ff, late, 0xb8de_0453_u32),
    ] {
        let device = MemoryDevice::new(mib * MIB);
        let parameters =
            Parameters { generation, ..parameters(block_size, per_segment, seed, time) };
        let superblock = format(&device, &parameters).unwrap();
        let at = superblock.geometry().first_data_block.0 * block_size;
        let found = read(&device, at, 4);
        assert_eq!(found, datasum.to_le_bytes(), "{generation:?} -b {block_size}");
    }
}

/// The whole log must lie in segment 0, which is short by the superblock's area.
#[test]
fn the_first_log_fits_into_the_smallest_segment() {
    for generation in [Generation::V2_2, Generation::V2_3] {
        for block_size in [1024, 2048, 4096] {
            let parameters = Parameters { generation, ..parameters(block_size, 16, 1, 1) };
            let log = FirstLog::new(16 * 16 * block_size + 4096, &parameters).unwrap();
            assert!(log.start() + log.blocks() <= 16, "{generation:?} -b {block_size}");
        }
    }
}

#[test]
fn impossible_parameters_are_refused_before_anything_is_written() {
    let good = parameters(4096, 2048, 1, 1);
    let refused: &[(u64, Parameters, &str)] = &[
        (128 * MIB, good.clone(), "128 MiB is too small"),
        (4096, good.clone(), "4 KiB is too small"),
        (0, good.clone(), "0 B is too small"),
        (256 * MIB, parameters(8192, 2048, 1, 1), "8192 bytes is too large"),
        (256 * MIB, parameters(4096, 1000, 1, 1), "1000 blocks per segment"),
        (256 * MIB, parameters(4096, 8, 1, 1), "8 blocks per segment"),
        (256 * MIB, Parameters { reserved_percent: 0, ..good.clone() }, "0 % of reserved"),
        (256 * MIB, Parameters { reserved_percent: 100, ..good.clone() }, "100 % of reserved"),
        // Half of 31 segments leaves more than 8; a tenth of them does not.
        (256 * MIB, Parameters { reserved_percent: 90, ..good.clone() }, "at least 655364 KiB"),
        (256 * MIB, Parameters { label: vec![b'x'; 81], ..good.clone() }, "the label has 81"),
    ];
    for (size, parameters, expected) in refused {
        let device = RecordingDevice::new(MemoryDevice::new(*size));
        let error = format(&device, parameters).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(device.events(), [], "{expected}");
    }
}

/// The size that the refusal names is the least that is taken.
#[test]
fn the_least_size_is_exact() {
    for percent in [1, 5, 50, 51, 90, 99] {
        let parameters = Parameters { reserved_percent: percent, ..parameters(1024, 16, 1, 1) };
        let Err(MkfsError::TooSmall { least, .. }) = plan(0, &parameters) else {
            panic!("no bytes were enough");
        };
        assert!(plan(least - 1, &parameters).is_err(), "{percent} %");
        let geometry = plan(least, &parameters).unwrap().geometry();
        assert!(geometry.nsegments >= geometry.reserved_segments() + 8);
    }
}

/// A newcomer with a small card was told to take smaller segments, and not how.
#[test]
fn what_a_refusal_for_size_proposes_is_taken_and_nothing_larger_is() {
    for (size, block_size, percent) in
        [(64 * MIB, 4096, 5), (5 * MIB, 1024, 5), (127 * MIB, 2048, 60), (300 << 10, 1024, 5)]
    {
        let with = |blocks| Parameters {
            reserved_percent: percent,
            ..parameters(block_size, blocks, 1, 1)
        };
        let Err(MkfsError::TooSmall { fit, .. }) = plan(size, &with(1 << 20)) else {
            panic!("{size} bytes were enough");
        };
        let Fit::BlocksPerSegment(blocks) = fit else { panic!("{size}: {fit}") };
        plan(size, &with(blocks)).unwrap();
        assert!(plan(size, &with(2 * blocks)).is_err(), "{size}");
    }
    let tiny = plan(200 << 10, &parameters(4096, 2048, 1, 1)).unwrap_err();
    let MkfsError::TooSmall { fit: Fit::Smallest(least), .. } = tiny else { panic!("{tiny}") };
    plan(least, &parameters(1024, 16, 1, 1)).unwrap();
    assert!(plan(least - 1, &parameters(1024, 16, 1, 1)).is_err());
}

#[test]
fn a_superblock_is_written_only_when_its_log_is_durable() {
    let device = RecordingDevice::new(MemoryDevice::new(2 * MIB));
    format(&device, &parameters(1024, 16, 1, 1)).unwrap();
    let events = device.events();
    let secondary = secondary_superblock(2 * MIB).unwrap();
    let is_superblock = |event: &Event| {
        matches!(event, Event::Write { offset, bytes }
        if (*offset == PRIMARY_SUPERBLOCK || *offset == secondary) && bytes.len() == 1024)
    };
    let first = events.iter().position(is_superblock).unwrap();
    assert_eq!(events[first - 1], Event::Flush);
    assert_eq!(events.last(), Some(&Event::Flush));
    assert_eq!(events.iter().filter(|event| is_superblock(event)).count(), 2);
}

#[test]
fn old_content_at_both_ends_goes_and_a_boot_sector_stays() {
    for boot in [false, true] {
        for discard in [false, true] {
            let mut old = vec![0xab; 4 * MIB as usize];
            if boot {
                old[BOOT_SIGNATURE_AT..][..4].copy_from_slice(&BOOT_SIGNATURE);
            }
            let device = MemoryDevice::from(old.clone());
            let parameters = Parameters { discard, ..parameters(1024, 16, 1, 1) };
            format(&device, &parameters).unwrap();
            let new = device.snapshot();
            if boot {
                assert_eq!(new[..1024], old[..1024]);
            } else {
                assert_eq!(new[..1024], [0; 1024]);
            }
            let left = new[1024..MIB as usize].iter().filter(|byte| **byte == 0xab);
            assert_eq!(left.count(), 0, "boot {boot} discard {discard}");
            assert!(!new[3 * MIB as usize..].contains(&0xab));
            assert_eq!(new[2 * MIB as usize] == 0xab, !discard);
        }
    }
}
