//! `nilfs mkfs`: the bytes of mkfs.nilfs2, and no data overwritten unasked.

mod common;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{CommandOutput, nilfs};
use nilfs_device::{Access, Device, FileDevice, MemoryDevice};
use nilfs_engine::mkfs::{Generation, Parameters, format};
use nilfs_ondisk::BlockSize;
use nilfs_ondisk::superblock::{FEATURE_BLOCK_COUNT, Superblock};

const SIZE: u64 = 40 << 20;

fn mkfs(options: &str, image: &Path) -> CommandOutput {
    let words = ["mkfs"].into_iter().chain(options.split_whitespace());
    nilfs(words.map(Into::into).chain([image.as_os_str().to_owned()]))
}

/// The checksum over the first log that mkfs.nilfs2 2.3 writes (docs/format.md §14).
#[test]
fn with_everything_fixed_the_image_is_that_of_mkfs_nilfs2() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("fixed.img");
    let fixed = "--time 1795204559 --seed 0xaccdf5ff -U 11111111-2222-3333-4444-555555555555";
    mkfs(&format!("--size 40M -b 1024 -B 512 {fixed}"), &image).output();
    let mut datasum = [0; 4];
    File::open(&image).unwrap().read_exact_at(&mut datasum, 4096).unwrap();
    assert_eq!(u32::from_le_bytes(datasum), 0xa45b_409d);
}

/// The whole image, against the mkfs.nilfs2 of this machine, whichever generation it is of.
#[test]
fn every_byte_is_that_of_the_real_mkfs_nilfs2() {
    for block_size in ["1024", "2048", "4096"] {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(SIZE).unwrap();
        let theirs = Command::new("mkfs.nilfs2")
            .args(["-q", "-b", block_size, "-B", "256", "-m", "7", "-L", "lab"])
            .arg(image.path())
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .stdin(Stdio::null())
            .status()
            .expect("mkfs.nilfs2 is needed: install nilfs-tools");
        assert!(theirs.success());
        let theirs = fs::read(image.path()).unwrap();
        let superblock = Superblock::parse(&theirs[1024..2048], SIZE).unwrap();
        let raw = superblock.raw();
        let parameters = Parameters {
            block_size: BlockSize::from_bytes(block_size.parse().unwrap()).unwrap(),
            blocks_per_segment: 256,
            reserved_percent: 7,
            label: b"lab".to_vec(),
            generation: match raw.s_feature_compat_ro.get() & FEATURE_BLOCK_COUNT {
                0 => Generation::V2_2,
                _ => Generation::V2_3,
            },
            ..Parameters::new(raw.s_uuid, superblock.crc_seed(), raw.s_ctime.get())
        };
        let device = MemoryDevice::new(SIZE);
        format(&device, &parameters).unwrap();
        let mut ours = vec![0; SIZE as usize];
        device.read_at(0, &mut ours).unwrap();
        let differing = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
        assert_eq!(differing, None, "-b {block_size}: first differing byte");
    }
}

#[test]
fn data_are_overwritten_only_on_demand() {
    let volume = common::volume();
    let before = fs::read(&volume.image).unwrap();
    for name in ["lab", "a partition table (dos)"] {
        let sentence = volume.nilfs("mkfs -B 16 IMAGE").sentence(6);
        assert!(sentence.contains(name) && sentence.contains("-f"), "{sentence}");
        // Second round: no volume any more, but a partition table.
        let table = File::options().write(true).open(&volume.image).unwrap();
        if name == "lab" {
            assert_eq!(fs::read(&volume.image).unwrap(), before);
            table.write_all_at(&vec![0; before.len()], 0).unwrap();
            let entry = [0x80, 0, 2, 0, 0x83, 0, 2, 0, 1, 0, 0, 0, 0, 1, 0, 0];
            table.write_all_at(&entry, 446).unwrap();
            table.write_all_at(&[0x55, 0xaa], 510).unwrap();
        }
    }
    volume.nilfs("mkfs -f -B 16 IMAGE").output();
    assert!(volume.nilfs("info IMAGE").output().contains("clean"));
}

#[test]
fn a_dry_run_says_what_would_be_done_and_writes_nothing() {
    let volume = common::volume();
    let before = fs::read(&volume.image).unwrap();
    let said = volume.nilfs("mkfs -n -B 16 IMAGE").output();
    assert!(said.starts_with("would make a NILFS2 volume"), "{said}");
    assert_eq!(fs::read(&volume.image).unwrap(), before);
    let new = volume.beside("new.img");
    assert!(mkfs("-n --size 1G", &new).output().contains("127 segments of 8 MiB"));
    assert!(!new.exists());
}

#[test]
fn no_image_is_left_behind_when_it_cannot_be_made() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("new.img");
    let sentence = mkfs("--size 2M", &image).sentence(2);
    let words =
        "2 MiB is too small: with segments of 8 MiB a volume needs at least 131076 KiB; -B 16 ";
    assert!(sentence.contains(words), "{sentence}");
    let sentence = mkfs("--size 1G -B 1000", &image).sentence(2);
    assert!(sentence.contains("a power of two"), "{sentence}");
    mkfs("-n --size 131076K", &image).output();
    let sentence = mkfs("--size 1G", &directory.path().join("missing/new.img")).sentence(4);
    assert!(sentence.starts_with("cannot create "), "{sentence}");
    let sentence = mkfs("", &image).sentence(4);
    assert!(sentence.contains("--size SIZE creates an image"), "{sentence}");
    assert!(!image.exists());
}

#[test]
fn an_image_is_not_resized() {
    let mut image = tempfile::NamedTempFile::new().unwrap();
    image.write_all(b"letters").unwrap();
    let sentence = mkfs("-f --size 1G", image.path()).sentence(6);
    assert!(sentence.contains("has 7 B, not 1 GiB"), "{sentence}");
    assert_eq!(fs::read(image.path()).unwrap(), b"letters");
}

/// Everybody on the machine could read what was on a volume, and what had been deleted there.
#[test]
fn an_image_is_for_its_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("new.img");
    mkfs("-B 16 --size 2M", &image).output();
    let mode = |image: &Path| fs::metadata(image).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&image), 0o600);
    // What somebody has chosen stays.
    fs::set_permissions(&image, Permissions::from_mode(0o640)).unwrap();
    mkfs("-f -B 16", &image).output();
    assert_eq!(mode(&image), 0o640);
}

#[test]
fn a_device_in_use_is_left_alone() {
    let volume = common::volume();
    let _writer = FileDevice::open(&volume.image, Access::ReadWrite).unwrap();
    let sentence = volume.nilfs("mkfs -f -B 16 IMAGE").sentence(5);
    let pid = std::process::id();
    assert!(sentence.contains(&format!("in use by process {pid}")), "{sentence}");
}
