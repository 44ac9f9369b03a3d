//! Bad input: one sentence, the documented exit code, and not a byte written.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::{VOLUME_SIZE, nilfs};
use nilfs_ondisk::geometry::secondary_superblock;

/// Every way to open a volume; `IMAGE` and `DIR` stand for the image and a directory.
const WAYS: [&str; 10] = [
    "info IMAGE",
    "ls IMAGE",
    "cat IMAGE /directory/file",
    "stat IMAGE /",
    "cp -r IMAGE / DIR/copy",
    "checkpoints IMAGE",
    "segments IMAGE",
    "dump IMAGE 0",
    "mount IMAGE DIR",
    "mount -o ro IMAGE DIR",
];

/// Opens the image in every way; each must fail with the code and the words, and write nothing.
#[track_caller]
fn refused_by(ways: &[&str], image: &Path, code: i32, words: &str) {
    let before = fs::read(image).unwrap_or_default();
    let directory = tempfile::tempdir().unwrap();
    for way in ways {
        let line = way.replace("DIR", directory.path().to_str().unwrap());
        let outcome = nilfs(line.split(' ').map(|word| match word {
            "IMAGE" => image.as_os_str().to_owned(),
            word => word.into(),
        }));
        let sentence = outcome.sentence(code);
        assert!(sentence.contains(words), "{way}: {sentence}");
        assert_eq!(fs::read(image).unwrap_or_default(), before, "{way}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "{way}");
    }
}

/// A volume both of whose superblocks have been changed at an offset, with right checksums.
fn forged(offset: usize, value: &[u8]) -> common::Volume {
    let volume = common::volume();
    common::forge_superblocks(&volume.image, offset, value);
    volume
}

#[test]
fn what_is_no_volume_is_refused() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let contents: [&[u8]; 4] = [&[], b"not a volume\n", &[0; 1 << 20], &[0xa5; 1 << 20]];
    for content in contents {
        fs::write(image.path(), content).unwrap();
        refused_by(&WAYS, image.path(), 3, "not a NILFS2 volume");
    }
}

/// A command that only takes paths on a mount said of another file system that it is not mounted, with the
/// code of a failure.
#[test]
fn another_file_system_is_called_what_it_is_also_where_no_image_is_taken() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(8 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image.path()).status();
    assert!(made.unwrap().success());
    let words = "not a NILFS2 volume: it holds ext4 data; mount -t ext4 is for that";
    let ways = ["undelete IMAGE", "restore --at 1 IMAGE", "ls IMAGE"];
    refused_by(&ways, image.path(), 3, words);
    // What is no volume at all may well be a file that is to be restored.
    fs::write(image.path(), "notes").unwrap();
    refused_by(&ways[..2], image.path(), 1, "is not on a mounted volume");
}

#[test]
fn garbage_in_both_superblocks_is_named() {
    let volume = common::volume();
    let file = File::options().write(true).open(&volume.image).unwrap();
    for at in [1024, secondary_superblock(VOLUME_SIZE).unwrap()] {
        file.write_all_at(&[0xff; 8], at + 0x40).unwrap();
    }
    refused_by(&WAYS, &volume.image, 3, "checksum s_sum");
    refused_by(&["mount IMAGE DIR"], &volume.image, 3, "nilfs salvage copies the files out");
}

#[test]
fn unknown_features_are_named() {
    let volume = forged(0x110, &[0x20]);
    refused_by(&WAYS, &volume.image, 3, "unknown incompat features 0x20");
    let volume = forged(0x108, &[0x41]);
    refused_by(&["mount IMAGE DIR"], &volume.image, 3, "unknown compat_ro features 0x40");
    assert_eq!(volume.nilfs("cat IMAGE /directory/file").output(), "content\n");
}

#[test]
fn a_geometry_out_of_range_is_named() {
    for (offset, value, words) in [
        (0x14, 7, "s_log_block_size is 7, expected 0 to 6"),
        (0x30, 8, "s_blocks_per_segment is 8, expected at least 16"),
        (0x34, 100, "s_r_segments_percentage is 100, expected 1 to 99"),
        (0x18, 0, "s_nsegments is 0, expected at least 1"),
        (0x28, 63, "s_first_data_block is 63"),
        (0x90, 64, "s_inode_size is 64, expected 128 to 1024"),
    ] {
        refused_by(&WAYS, &forged(offset, &[value]).image, 3, words);
    }
}

#[test]
fn a_truncated_device_is_said_to_be_shorter_than_its_volume() {
    let volume = common::volume();
    let file = File::options().write(true).open(&volume.image).unwrap();
    let lacks = |missing: u64, words: &str| {
        file.set_len(VOLUME_SIZE - missing).unwrap();
        refused_by(&WAYS, &volume.image, 3, words);
        refused_by(&["check IMAGE", "tune -l IMAGE", "resize IMAGE 1M"], &volume.image, 3, words);
    };
    lacks(1 << 20, "the device or image is 1 MiB shorter than the volume on it (2.0 MiB)");
    lacks(VOLUME_SIZE - 20480, "is 2.0 MiB shorter than the volume on it (2.0 MiB)");
    // Too short for any volume.
    for (size, words) in [(20479, "20.0 KiB is too small"), (0, "it is empty")] {
        file.set_len(size).unwrap();
        refused_by(&WAYS, &volume.image, 3, words);
        refused_by(&["check IMAGE"], &volume.image, 3, words);
    }
}

#[test]
fn a_log_that_is_damaged_beyond_rescue_is_named() {
    let volume = common::empty_volume();
    let file = File::options().write(true).open(&volume.image).unwrap();
    file.write_all_at(&[0xff; 4096], 4096).unwrap();
    refused_by(&WAYS, &volume.image, 3, "damaged");
}

#[test]
fn a_missing_or_unfit_device_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    refused_by(&WAYS, &missing, 4, "No such file or directory");
    refused_by(&WAYS, directory.path(), 4, "is a directory, not a block device");
    refused_by(&WAYS, Path::new("/dev/null"), 4, "is a special file, not a block device");
}

#[test]
fn a_missing_file_or_checkpoint_is_named() {
    let volume = common::volume();
    for (line, words) in [
        ("ls IMAGE /nowhere", "/nowhere: no such file or directory"),
        ("cat IMAGE /directory", "/directory: is a directory"),
        ("stat IMAGE /directory/file/more", "/directory/file/more: not a directory"),
        ("cp IMAGE /directory here", "/directory is a directory; use -r"),
        ("ls --at 999 IMAGE", "there is no checkpoint 999; the newest is 3 of 2023-11-14 22:13:20"),
        (
            "ls --at 2023-11-13 IMAGE",
            "no checkpoint is as old as 2023-11-13; the oldest is 1 of 2023-11-14 22:13:20",
        ),
        ("dump IMAGE 32", "segment 32: there is no such segment"),
    ] {
        let sentence = volume.nilfs(line).sentence(1);
        assert!(sentence.contains(words), "{line}: {sentence}");
    }
}

/// Where the image came first and was missing, it was taken for a moment, and the operand after it was said
/// to be missing.
#[test]
fn of_several_operands_the_missing_one_is_named_first() {
    let volume = common::volume();
    for command in ["diff", "rollback"] {
        for (operands, named) in [
            ("missing.img photos", "there is no file missing.img"),
            ("missing.img 1", "there is no file missing.img"),
            ("missing.img", "there is no file missing.img"),
            ("1 ./missing.img", "cannot open ./missing.img"),
            ("1 ./missing.img photos", "cannot open ./missing.img"),
        ] {
            let sentence = volume.nilfs(&format!("{command} {operands}")).sentence(4);
            assert!(sentence.starts_with(named), "{operands}: {sentence}");
        }
        // The volume is there, and has no such snapshot.
        let sentence = volume.nilfs(&format!("{command} missing IMAGE")).sentence(1);
        assert!(sentence.contains("no snapshot called missing"), "{sentence}");
    }
    let sentence = volume.nilfs("diff 1 missing.img photos").sentence(4);
    assert!(sentence.starts_with("there is no file missing.img"), "{sentence}");
}

#[test]
fn a_wrong_command_line_is_one_sentence() {
    let volume = common::volume();
    for (line, words) in [
        ("ls --frobnicate IMAGE", "unexpected argument '--frobnicate' found; see nilfs ls --help"),
        ("check", "required arguments were not provided: <DEVICE|DIR>"),
        ("frobnicate IMAGE", "unrecognized subcommand 'frobnicate'"),
        ("ls --at 0 IMAGE", "invalid value '0' for '--at <WHEN>'"),
        ("mkfs -b 512 IMAGE", "possible values: 1024, 2048, 4096"),
        ("mkfs --size 4X new", "X is none of the units K, M, G and T"),
        ("mkfs --size +4M new", "the size itself is wanted here, without a sign"),
        ("trim --from +4M IMAGE", "the size itself is wanted here, without a sign"),
        ("defrag --budget=-4M IMAGE", "the size itself is wanted here, without a sign"),
        ("clean --until +4M IMAGE", "expected a number, a share such as 10% or a size"),
        ("mount -o dirty=+4M IMAGE /", "option dirty=+4M: expected a size such as 512M"),
        ("mkfs -L", "a value is required for '--label <LABEL>'"),
        ("mount -o frobnicate IMAGE /", "unknown option frobnicate"),
    ] {
        let sentence = volume.nilfs(line).sentence(2);
        assert!(sentence.contains(words), "{line}: {sentence}");
    }
}
