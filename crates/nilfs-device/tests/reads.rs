//! How what is read reaches the driver of a block device.

mod common;

use std::fs;
use std::path::PathBuf;

use common::{Loop, SIZE, image};
use nilfs_device::{Access, Device, FileDevice};

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
