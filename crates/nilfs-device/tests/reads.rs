//! How what is read reaches the driver of a block device.

mod common;

use std::fs;
use std::path::PathBuf;

use common::{Loop, SIZE, image};
use nilfs_device::{Access, Device, FileDevice, IoSlice, Part};

/// Requests that the driver got for reading a MiB, if it takes at most `kib` in one.
fn requests_of_a_mib(kib: u64) -> Option<u64> {
    let image = image()?;
    let device = Loop::attach(&[], &image.path);
    let directory = PathBuf::from("/sys/block").join(device.0.file_name().unwrap());
    fs::write(directory.join("queue/read_ahead_kb"), "128").unwrap();
    fs::write(directory.join("queue/max_sectors_kb"), kib.to_string()).unwrap();
    let opened = FileDevice::open(&device.0, Access::ReadOnly).unwrap();
    opened.without_read_ahead();
    let requests = || {
        let stat = fs::read_to_string(directory.join("stat")).unwrap();
        stat.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let before = requests();
    opened.read_at(SIZE / 2, &mut vec![0; 1 << 20]).unwrap();
    Some(requests() - before)
}

/// A USB stick with requests of 120 KiB got two for each 128 KiB.
#[test]
fn what_is_read_is_divided_into_whole_requests() {
    for kib in [64, 120, 128] {
        let Some(requests) = requests_of_a_mib(kib) else { return };
        assert_eq!(requests, 1024_u64.div_ceil(kib), "requests of {kib} KiB");
    }
}

/// A long read goes past the system's memory, where what was written last may still be.
#[test]
fn a_long_read_finds_what_was_just_written() {
    const LENGTH: usize = 512 << 10;
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len(SIZE).unwrap();
    let device = FileDevice::open(image.path(), Access::ReadWrite).unwrap();
    let mut bytes = vec![0; LENGTH + 4096];
    let start = bytes.as_ptr().align_offset(4096);
    let read = &mut bytes[start..start + LENGTH];
    let mut expected = vec![0; LENGTH];
    for (content, at, flushed) in [(1, 0, true), (2, 4096, false), (3, LENGTH - 4096, false)] {
        device.write_at(at as u64, &[IoSlice::new(&[content; 4096])]).unwrap();
        expected[at..at + 4096].fill(content);
        if flushed {
            device.flush().unwrap();
            device.forget_cached(0, SIZE);
        }
        assert!(device.read_once(0, &mut [Part::Wanted(&mut *read)], true).unwrap());
        assert!(read == expected, "after the write at {at}");
    }
    assert!(
        device.read_once(SIZE - 4096, &mut [Part::Wanted(read)], true).is_err(),
        "beyond the end"
    );
}
