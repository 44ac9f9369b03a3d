//! A volume has one writer, also if it can be reached by a loop device and past it.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Loop, SIZE, image};
use nilfs_device::{Access, Device, FileDevice, Holder, IoSlice, OpenError};

fn open(path: &Path, access: Access) -> Result<FileDevice, OpenError> {
    FileDevice::open(path, access)
}

#[track_caller]
fn usable(path: &Path) -> FileDevice {
    open(path, Access::ReadWrite).unwrap()
}

/// The device is refused because `below`, or itself, is in use by this process.
#[track_caller]
fn refused(path: &Path, because_of: Option<&Path>) {
    let error = open(path, Access::ReadWrite).unwrap_err();
    let OpenError::Busy { below, holder, .. } = &error else { panic!("{error}") };
    assert_eq!(below.as_deref(), because_of, "{error}");
    let ours = matches!(holder, Holder::Process { pid, .. } if *pid == std::process::id());
    assert!(ours, "{error}");
}

#[track_caller]
fn refused_for_loop(path: &Path, device: &Loop) {
    let error = open(path, Access::ReadWrite).unwrap_err();
    let OpenError::Busy { holder: Holder::Loop(found), .. } = &error else { panic!("{error}") };
    assert_eq!(*found, device.0, "{error}");
}

#[test]
fn an_image_on_a_loop_device_can_be_read_but_not_written() {
    let Some(image) = image() else { return };
    usable(&image.path);
    let device = Loop::attach(&[], &image.path);
    let second_name = image.path.with_file_name("second name");
    fs::hard_link(&image.path, &second_name).unwrap();
    for name in [&image.path, &second_name] {
        refused_for_loop(name, &device);
        for access in [Access::ReadOnly, Access::Inspect] {
            assert!(open(name, access).is_ok());
        }
    }
    // The volume is used through the loop device then.
    let _writer = usable(&device.0);
    refused_for_loop(&image.path, &device);
}

/// An image that was in use, then attached to a loop device, could be mounted and formatted through
/// that, and what had been fsynced was gone.
#[test]
fn a_loop_device_is_refused_while_its_image_is_written() {
    let Some(image) = image() else { return };
    let writer = usable(&image.path);
    let device = Loop::attach(&[], &image.path);
    refused(&device.0, Some(&image.path));
    assert!(open(&device.0, Access::ReadOnly).is_err());
    assert!(open(&device.0, Access::Forced).is_err());
    drop(writer);
    usable(&device.0);
}

#[test]
fn it_does_not_matter_what_became_of_the_name_of_the_image() {
    let Some(image) = image() else { return };
    let elsewhere = image.path.with_file_name("moved");
    let writer = usable(&image.path);
    let device = Loop::attach(&[], &image.path);
    fs::rename(&image.path, &elsewhere).unwrap();
    refused(&device.0, Some(&elsewhere));
    // Another file at the old place is nobody's.
    File::create(&image.path).unwrap().set_len(SIZE).unwrap();
    usable(&image.path);
    fs::remove_file(&elsewhere).unwrap();
    assert!(open(&device.0, Access::ReadWrite).is_err(), "the image has no name any more");
    drop(writer);
    usable(&device.0);
}

#[test]
fn who_looks_at_a_loop_device_sees_what_is_written_past_it() {
    let Some(image) = image() else { return };
    let writer = usable(&image.path);
    let device = Loop::attach(&[], &image.path);
    // Somebody has it open, so that the kernel keeps what it has read.
    let _kept = File::open(&device.0).unwrap();
    let look = || {
        let mut byte = [0];
        let reader = open(&device.0, Access::Inspect).unwrap();
        assert!(writer.is_read());
        reader.read_at(4096, &mut byte).unwrap();
        byte[0]
    };
    for content in 1..4 {
        writer.write_at(4096, &[IoSlice::new(&[content])]).unwrap();
        assert_eq!(look(), content);
    }
}

#[test]
fn two_loop_devices_that_show_the_same_are_not_both_written() {
    let Some(image) = image() else { return };
    let (one, other) = (Loop::attach(&[], &image.path), Loop::attach(&[], &image.path));
    let writer = usable(&one.0);
    refused(&other.0, Some(&one.0));
    drop(writer);
    let _writer = usable(&other.0);
    refused(&one.0, Some(&other.0));
}

#[test]
fn parts_of_an_image_are_volumes_of_their_own() {
    let Some(image) = image() else { return };
    let first = Loop::attach(&["--sizelimit", "4194304"], &image.path);
    let second = Loop::attach(&["--offset", "4194304"], &image.path);
    let last = Loop::attach(&["--offset", "6291456"], &image.path);
    let _one = usable(&first.0);
    let _two = usable(&second.0);
    refused(&last.0, Some(&second.0));
}

#[test]
fn a_loop_device_on_a_loop_device_is_one_way_to_the_image() {
    let Some(image) = image() else { return };
    let writer = usable(&image.path);
    let lower = Loop::attach(&[], &image.path);
    let upper = Loop::attach(&[], &lower.0);
    refused(&upper.0, Some(&image.path));
    drop(writer);
    refused_for_loop(&image.path, &lower);
    refused_for_loop(&lower.0, &upper);
    usable(&upper.0);
    // Somebody uses the lower one without looking, as the kernel does for a mount.
    let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
    let _user = File::options().read(true).custom_flags(exclusive).open(&lower.0).unwrap();
    let error = open(&upper.0, Access::ReadWrite).unwrap_err();
    assert!(matches!(&error, OpenError::Busy { below: Some(it), .. } if *it == lower.0), "{error}");
}

/// Writes to the image a partition table with two partitions.
fn partition(image: &Path) {
    const LINUX: u8 = 0x83;
    let mut table = [0_u8; 512];
    for (number, start) in [(0, 2048_u32), (1, 6144)] {
        let entry = &mut table[446 + 16 * number..][..16];
        entry[4] = LINUX;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..16].copy_from_slice(&4096_u32.to_le_bytes());
    }
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    File::options().write(true).open(image).unwrap().write_all(&table).unwrap();
}

#[test]
fn a_partition_of_a_loop_device_is_refused_while_the_image_is_written() {
    let Some(image) = image() else { return };
    partition(&image.path);
    let writer = usable(&image.path);
    let device = Loop::attach(&["--partscan"], &image.path);
    // The kernel may know no partition tables.
    let _ = Command::new("partx").arg("--add").arg(&device.0).stderr(Stdio::null()).status();
    let nth = |number: u32| PathBuf::from(format!("{}p{number}", device.0.display()));
    if !nth(1).exists() {
        eprintln!("not tested: no partitions on loop devices");
        return;
    }
    refused(&nth(1), Some(&image.path));
    drop(writer);
    // Both can be in use, and nobody gets the whole then.
    let _one = usable(&nth(1));
    let _two = usable(&nth(2));
    refused_for_loop(&image.path, &device);
    let whole = open(&device.0, Access::ReadWrite);
    assert!(matches!(whole, Err(OpenError::Busy { .. })), "{whole:?}");
    let second = Loop::attach(&[], &image.path);
    let error = open(&second.0, Access::ReadWrite).unwrap_err();
    assert!(
        matches!(&error, OpenError::Busy { below: Some(it), .. } if *it == device.0),
        "{error}"
    );
}

/// A device of the device mapper, removed at the end.
struct Mapped(String);

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = Command::new("dmsetup").args(["remove", "--retry", &self.0]).status();
    }
}

#[test]
fn a_mapped_device_on_a_loop_device_is_refused_while_the_image_is_written() {
    let Some(image) = image() else { return };
    let writer = usable(&image.path);
    let device = Loop::attach(&[], &image.path);
    let mapped = Mapped(format!("nilfs-test-{}", std::process::id()));
    let table = format!("0 {} linear {} 0", SIZE / 512, device.0.display());
    let dmsetup = Command::new("dmsetup").args(["create", &mapped.0, "--table", &table]).output();
    if !dmsetup.is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: there is no device mapper");
        return;
    }
    let path = Path::new("/dev/mapper").join(&mapped.0);
    refused(&path, Some(&image.path));
    drop(writer);
    usable(&path);
}
