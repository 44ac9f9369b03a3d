//! Long writes: past the system's memory, while whoever asked for them goes on.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nilfs_device::{Access, Device, FileDevice, IoSlice, Part};
use tempfile::NamedTempFile;

/// The allocator of our program: its blocks must lie as a direct write needs them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZE: usize = 8 << 20;
const LENGTH: usize = 2 << 20;

fn image() -> (NamedTempFile, FileDevice) {
    // The directory for temporary files may be in memory.
    let image = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len(SIZE as u64).unwrap();
    let device = FileDevice::open(image.path(), Access::ReadWrite).unwrap();
    (image, device)
}

/// Bytes that differ from place to place and from one `version` to another.
fn content(version: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 13 + version * 89) as u8).collect()
}

fn blocks(content: &[u8], block: usize) -> Vec<Arc<Box<[u8]>>> {
    content.chunks(block).map(|block| Arc::new(block.into())).collect()
}

fn is_in_memory(device: &FileDevice, offset: usize) -> bool {
    device.read_without_waiting(offset as u64, &mut [0; 4096]).unwrap()
}

#[test]
fn a_long_write_leaves_nothing_in_the_memory_of_the_system() {
    let (image, device) = image();
    device.write_at(0, &[IoSlice::new(&[1; 4096])]).unwrap();
    device.flush().unwrap();
    device.forget_cached(0, SIZE as u64);
    if is_in_memory(&device, 0) {
        eprintln!("not tested: this file system does not let go of what it has in memory");
        return;
    }
    for (version, block) in [1024, 2048, 4096, 65536].into_iter().enumerate() {
        let (offset, written) = (LENGTH + block, content(version, LENGTH));
        device.begin_to_write(offset as u64, blocks(&written, block)).unwrap();
        device.flush().unwrap();
        assert!(!is_in_memory(&device, offset + LENGTH / 2), "blocks of {block} bytes");
        let found = std::fs::read(image.path()).unwrap();
        assert!(found[offset..offset + LENGTH] == written, "blocks of {block} bytes");
        device.forget_cached(0, SIZE as u64);
    }
}

/// Whatever comes while a write is under way comes after it.
#[test]
fn what_is_being_written_is_found_and_can_be_written_over() {
    let (image, device) = image();
    let mut expected = vec![0; SIZE];
    let mut memory = vec![0; LENGTH + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let read = &mut memory[start..start + LENGTH];
    for version in 0..24 {
        // Some overlap the one before.
        let offset = version * 5 % 4 * (LENGTH / 2);
        let written = content(version, LENGTH);
        let (middle, range) = (offset + LENGTH / 2, offset..offset + LENGTH);
        expected[range.clone()].copy_from_slice(&written);
        // Now the system has in memory what was there before.
        device.read_at(offset as u64, read).unwrap();
        if version % 6 == 1 {
            device.forget_cached(0, SIZE as u64);
        }
        device.begin_to_write(offset as u64, blocks(&written, 4096)).unwrap();
        match version % 6 {
            0 => device.read_at(offset as u64, read).unwrap(),
            1 => {
                let parts = &mut [Part::Wanted(&mut *read)];
                assert!(device.read_once(offset as u64, parts, true).unwrap());
            }
            2 => {
                if !device.read_without_waiting(offset as u64, read).unwrap() {
                    continue;
                }
            }
            3 => {
                let parts = &mut [Part::Wanted(&mut *read)];
                if !device.read_once(offset as u64, parts, false).unwrap() {
                    continue;
                }
            }
            4 => {
                device.write_at(middle as u64, &[IoSlice::new(&[version as u8; 512])]).unwrap();
                expected[middle..middle + 512].fill(version as u8);
                device.read_at(offset as u64, read).unwrap();
            }
            _ => {
                device.write_out(offset as u64, LENGTH as u64, true).unwrap();
                let last = range.end - 4096;
                image.as_file().read_exact_at(&mut read[last - offset..], last as u64).unwrap();
                read[..last - offset].copy_from_slice(&expected[offset..last]);
            }
        }
        assert!(*read == expected[range], "write {version}");
    }
    drop(device);
    assert!(std::fs::read(image.path()).unwrap() == expected);
}

#[test]
fn what_lies_askew_is_written_as_well() {
    let (image, device) = image();
    let mut expected = vec![0; SIZE];
    for (version, (offset, piece)) in [(513, 4096), (4096, 1000)].into_iter().enumerate() {
        let written = content(version, LENGTH);
        expected[offset..offset + LENGTH].copy_from_slice(&written);
        device.begin_to_write(offset as u64, blocks(&written, piece)).unwrap();
        device.flush().unwrap();
        assert!(std::fs::read(image.path()).unwrap() == expected, "at {offset}");
    }
    let beyond = device.begin_to_write((SIZE - 4096) as u64, blocks(&expected[..LENGTH], 4096));
    assert!(beyond.is_err(), "beyond the end");
}

/// A card with one open unit would open and close two where the next write overtakes the one before.
#[test]
fn what_is_written_next_goes_on_its_way_after_what_is_under_way() {
    let (image, device) = image();
    for version in 0..8 {
        let written = content(version, LENGTH);
        device.begin_to_write(LENGTH as u64, blocks(&written, 4096)).unwrap();
        device.write_at(0, &[IoSlice::new(&[version as u8; 4096])]).unwrap();
        device.write_out(0, 4096, false).unwrap();
        let (last, mut found) = (LENGTH - 4096, [0; 4096]);
        image.as_file().read_exact_at(&mut found, (LENGTH + last) as u64).unwrap();
        assert!(found == written[last..], "write {version}");
    }
}
