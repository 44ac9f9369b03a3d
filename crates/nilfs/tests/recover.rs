//! `nilfs recover`: what a mount would recover, without one; and what nothing can recover.

mod common;

use std::fs;

use common::{Volume, forge_full_sufile, forge_records, forge_superblocks, synced_volume};

/// Where the version is in the head of records.
const VERSION: usize = 4;
/// Where the number is.
const NUMBER: usize = 24;
/// Where the flags are in the superblock: that there may be records is the highest but one.
const COMPAT_RO: usize = 0x108;

fn cat(volume: &Volume, line: &str) -> String {
    volume.nilfs(line).output()
}

fn info(volume: &Volume) -> String {
    volume.nilfs("info IMAGE").output()
}

#[track_caller]
fn assert_closed(volume: &Volume) {
    let info = info(volume);
    assert!(info.contains("clean\n") && !info.contains("roll_forward"), "{info}");
    volume.nilfs("check IMAGE").output();
    let again = volume.nilfs("recover IMAGE").output();
    assert!(again.ends_with("nothing to recover: the volume was closed cleanly\n"), "{again}");
}

#[test]
fn what_was_fsynced_is_recovered_without_a_mount() {
    let volume = synced_volume();
    let listed = cat(&volume, "ls -lR IMAGE");
    let said = volume.nilfs("recover --verbose IMAGE").output();
    for words in [
        "rolled forward: the log of 2023-11-14 22:13:20 in block ",
        "  name \"bell\\u{7}\" in directory 2: removed\n",
        "recovered: rolled forward 2 logs after checkpoint 3: 3 names, the attributes of ",
        " files, the content of 1 file\n",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_closed(&volume);
    assert_eq!(cat(&volume, "ls -lR IMAGE"), listed);
    assert_eq!(cat(&volume, "cat IMAGE directory/file"), "con");
}

#[test]
fn a_volume_that_was_closed_is_left_as_it_is() {
    let volume = common::volume();
    let before = fs::read(&volume.image).unwrap();
    assert_closed(&volume);
    assert_eq!(fs::read(&volume.image).unwrap(), before);
}

/// The bit says that there may be logs, not that there are.
#[test]
fn the_bit_without_logs_is_cleared_and_logs_without_the_bit_are_recovered() {
    let volume = common::volume();
    forge_superblocks(&volume.image, COMPAT_RO + 7, &[0x40]);
    assert!(info(&volume).contains("roll_forward"));
    let said = volume.nilfs("recover IMAGE").output();
    assert!(said.contains("recovered: nothing rolled forward after checkpoint"), "{said}");
    assert_closed(&volume);

    let volume = synced_volume();
    forge_superblocks(&volume.image, COMPAT_RO + 7, &[0]);
    assert!(!info(&volume).contains("roll_forward"));
    volume.nilfs("recover IMAGE").output();
    assert_closed(&volume);
    assert_eq!(cat(&volume, "cat IMAGE directory/file"), "con");
}

/// Changes records, given from their head on.
type Forgery = fn(&mut [u8]);

/// Changes of the second log, which then cannot be rolled forward: because of a newer version, of a log
/// that is missing before it, and of another file under the same number.
const FAULTS: [(&str, Forgery); 3] = [
    ("version is 2, expected 1; a newer program may read it", |head| head[VERSION] = 2),
    ("is number 3 of those after checkpoint", |head| head[NUMBER] = 3),
    ("it is another file", |head| {
        // The generation of the first record, which is one of an inode.
        head[32 + 8 + 8] ^= 1;
    }),
];

#[test]
fn what_cannot_be_rolled_forward_is_refused_with_the_way_out() {
    for (words, change) in FAULTS {
        let volume = synced_volume();
        forge_records(&volume.image, 1, change);
        let before = fs::read(&volume.image).unwrap();
        let directory = volume.beside("mnt");
        fs::create_dir(&directory).unwrap();
        let directory = directory.to_str().unwrap();
        for line in [
            &format!("mount IMAGE {directory}"),
            &format!("mount -o ro IMAGE {directory}"),
            "ls IMAGE",
        ] {
            let sentence = volume.nilfs(line).sentence(3);
            for words in [words, "-o ro,norecovery", "nilfs recover"] {
                assert!(sentence.contains(words), "{line}: {sentence}");
            }
        }
        let refused = volume.nilfs("recover IMAGE");
        assert_eq!(refused.code, Some(3), "{refused:?}");
        assert!(refused.stdout.contains("would be lost: the log of 2023"), "{refused:?}");
        assert!(refused.stderr.contains(words), "{refused:?}");
        assert!(
            refused.stderr.contains("nothing was written; nilfs fsck may repair"),
            "{refused:?}"
        );
        assert_eq!(fs::read(&volume.image).unwrap(), before, "{words}");
    }
}

#[test]
fn force_gives_up_what_cannot_be_rolled_forward_and_says_what() {
    for (words, change) in FAULTS {
        let volume = synced_volume();
        forge_records(&volume.image, 1, change);
        let said = volume.nilfs("recover --force IMAGE").output();
        assert!(
            said.contains("\nlost: the log of") || said.starts_with("lost: the log of"),
            "{said}"
        );
        assert!(
            said.contains("rolled forward 1 log after checkpoint 3: the content of 1 file\n"),
            "{words}: {said}"
        );
        assert_closed(&volume);
        assert_eq!(cat(&volume, "cat IMAGE directory/file"), "content\nappended\n", "{words}");
    }
}

/// No volume of ours becomes so full. But Linux, or damage, may have made it so.
#[test]
fn a_volume_without_room_for_a_recovery_is_shown_and_left_as_it_is() {
    let volume = synced_volume();
    let segments = info(&volume);
    let segments = segments.lines().find(|line| line.starts_with("segments")).expect(&segments);
    let count = segments.split_whitespace().find_map(|word| word.parse().ok()).expect(segments);
    forge_full_sufile(&volume.image, count);
    let before = fs::read(&volume.image).unwrap();
    let directory = volume.beside("mnt");
    fs::create_dir(&directory).unwrap();
    for line in [&format!("mount IMAGE {}", directory.display()), "recover IMAGE"] {
        let sentence = volume.nilfs(line).sentence(1);
        for words in ["no room to recover it", "nothing is lost", "-o ro"] {
            assert!(sentence.contains(words), "{line}: {sentence}");
        }
    }
    assert_eq!(cat(&volume, "cat IMAGE directory/file"), "con");
    assert!(fs::read(&volume.image).unwrap() == before, "nothing was written");
}
