//! `nilfs fsck`: it shows what is wrong and what it would do, does that only if told to, and takes it
//! back; and `fsck.nilfs2`, which ends as fsck(8) expects.

mod common;

use std::fs;
use std::io::Read;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use common::loops::Loop;
use common::tool::{tool, tool_with_input};
use common::{
    Volume, empty_volume, forge_records, forge_superblocks, synced_volume, volume,
    volume_with_a_file_of,
};
use nilfs_device::MemoryDevice;
use nilfs_engine::{Filesystem, MountOptions, NewInode};
use nilfs_ondisk::inode::{DeviceCode, S_IFREG};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Where the number of the newest log's block and the first byte of the UUID are in the superblock.
const LAST_PSEG: usize = 0x40;
const UUID: usize = 0x98;
/// A block in the middle of the first log.
const NO_LOG: u8 = 5;
const PRIMARY: usize = 1024;
/// Bytes at the end of a device in which the secondary superblock lies.
const BLOCK: usize = 4096;

/// What makes other file systems, and leaves the rest of the device as it is.
const EXT4: (&str, &[&str]) = (
    "mkfs.ext4",
    &["-qF", "-E", "nodiscard", "-N", "16", "-O", "^has_journal,^resize_inode", "-L", "other"],
);
const VFAT: (&str, &[&str]) = ("mkfs.vfat", &[]);
const BTRFS: (&str, &[&str]) = ("mkfs.btrfs", &["-q", "-f", "--mixed", "--nodiscard"]);

/// A volume whose superblocks lead nowhere.
fn astray() -> Volume {
    let volume = volume();
    forge_superblocks(&volume.image, LAST_PSEG, &[NO_LOG, 0, 0]);
    volume
}

/// A volume without superblocks.
fn without_superblocks() -> Volume {
    let volume = volume();
    let mut bytes = fs::read(&volume.image).unwrap();
    bytes[PRIMARY..PRIMARY + 1024].fill(0);
    let second = bytes.len() / 4096 * 4096 - 4096;
    bytes[second..second + 1024].fill(0);
    fs::write(&volume.image, bytes).unwrap();
    volume
}

/// Puts something else over a volume, but for its last block, with the secondary superblock.
fn given_to(volume: &Volume, program: &str, options: &[&str]) {
    let old = fs::read(&volume.image).unwrap();
    let made = Command::new(program).args(options).arg(&volume.image).output().unwrap();
    assert!(made.status.success(), "{program}: {made:?}");
    let mut bytes = fs::read(&volume.image).unwrap();
    let last = bytes.len() - BLOCK;
    bytes[last..].copy_from_slice(&old[last..]);
    fs::write(&volume.image, bytes).unwrap();
}

/// Copies a part of what a program makes of an empty image to the same place of a volume.
fn with_part_of(volume: &Volume, (program, options): (&str, &[&str]), part: Range<usize>) {
    let other = common::volume();
    given_to(&other, program, options);
    let mut bytes = fs::read(&volume.image).unwrap();
    bytes[part.clone()].copy_from_slice(&fs::read(&other.image).unwrap()[part]);
    fs::write(&volume.image, bytes).unwrap();
}

/// The names under which fsck(8) calls the checker.
const CHECKERS: [&str; 3] = ["fsck.nilfs2", "fsck.fuse.nilfs", "fsck.fuseblk.nilfs"];

fn fsck(volume: &Volume, options: &[&str], input: &str) -> common::CommandOutput {
    let mut words = options.to_vec();
    words.push(volume.image.to_str().unwrap());
    tool_with_input("fsck.nilfs2", words, input)
}

#[test]
fn nothing_is_written_unless_somebody_says_so() {
    let volume = astray();
    let before = fs::read(&volume.image).unwrap();
    for line in ["fsck IMAGE", "fsck -n IMAGE", "fsck --json IMAGE", "check IMAGE"] {
        let ended = volume.nilfs(line);
        assert_eq!(ended.code, Some(3), "{line}: {ended:?}");
        assert!(ended.stdout.contains("go on from checkpoint"), "{line}: {}", ended.stdout);
        assert!(ended.stderr.ends_with("; nilfs fsck -p repairs\n"), "{line}: {}", ended.stderr);
    }
    for (option, input) in [("-r", "n\n"), ("-r", ""), ("-n", "y\n")] {
        assert_eq!(fsck(&volume, &[option], input).code, Some(4));
    }
    assert!(fs::read(&volume.image).unwrap() == before);
}

#[test]
fn what_is_safe_is_repaired_and_taken_back() {
    let volume = astray();
    let before = fs::read(&volume.image).unwrap();
    let undo = volume.beside("undo");
    let words = ["fsck", "-p", "--undo", undo.to_str().unwrap(), volume.image.to_str().unwrap()];
    let ended = common::nilfs(words);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.ends_with(": repaired\n"), "{ended:?}");
    volume.nilfs("check IMAGE").output();
    assert!(volume.nilfs("fsck -y IMAGE").output().contains("checkpoint"), "nothing is left to do");

    let again = common::nilfs(words);
    assert!(again.sentence(6).ends_with("exists already; name a new file"));
    let words = ["fsck", "--apply-undo", undo.to_str().unwrap(), volume.image.to_str().unwrap()];
    common::nilfs(words).output();
    assert!(fs::read(&volume.image).unwrap() == before, "every byte is as it was");

    forge_superblocks(&volume.image, UUID, &[0x77]);
    let said = common::nilfs(words).sentence(1);
    assert!(said.ends_with("it was made for another volume than the one on this device"), "{said}");
}

/// A repair would write over it; and with the volume, it would be lost. The superuser and `/dev/fuse`
/// are needed.
#[test]
fn an_undo_file_on_the_volume_that_is_repaired_is_refused() {
    let volume = volume();
    let dir = volume.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let undo = dir.join("undo");
    let repair = |device: &Path, undo: &Path| {
        common::nilfs(["fsck".as_ref(), "-y".as_ref(), "--undo".as_ref(), undo, device])
    };
    let said = repair(&volume.image, &volume.image).sentence(6);
    assert!(said.ends_with("exists already; name a new file"), "{said}");

    let while_mounted = |device: &Path| {
        common::nilfs(["mount".as_ref(), device, &dir]).output();
        let refused = repair(device, &undo);
        let made = undo.exists();
        common::nilfs(["umount".as_ref(), dir.as_path()]).output();
        assert!(!made);
        refused
    };
    let said = while_mounted(&volume.image).sentence(5);
    assert!(said.contains("is mounted on"), "{said}");

    let Some(device) = Loop::attach(&volume.image) else {
        eprintln!("skipped: no loop device can be set up");
        return;
    };
    let said = while_mounted(&device.0).sentence(2);
    let words = "lies on the device that is to be repaired; name another";
    assert!(said.ends_with(words), "{said}");
}

#[test]
fn what_loses_something_is_repaired_only_with_yes() {
    let volume = without_superblocks();
    let ended = volume.nilfs("fsck -p IMAGE");
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.ends_with("; nilfs fsck -y repairs, with losses\n"), "{}", ended.stderr);
    let plan: Value = serde_json::from_str(&volume.nilfs("fsck -n --json IMAGE").stdout).unwrap();
    assert_eq!(plan["repairs"][0]["loses"], true, "{plan}");
    assert_eq!(plan["repaired"], false);
    assert_eq!(plan["errors_left"], 0);
    let said = volume.nilfs("fsck -y IMAGE");
    // What was given up was as good as whole: the exit code was 0.
    assert_eq!(said.code, Some(3), "{said:?}");
    let end = ": repaired, but for what was given up or guessed; see above\n";
    assert!(said.stderr.ends_with(end), "{}", said.stderr);
    assert!(said.stdout.contains("go on from checkpoint"), "{}", said.stdout);
    volume.nilfs("check IMAGE").output();
    let untouched = common::volume();
    let list = |volume: &Volume| volume.nilfs("ls -lR IMAGE").output();
    assert_eq!(list(&volume), list(&untouched));
}

#[test]
fn what_is_no_volume_is_left_alone() {
    let volume = volume();
    let size = fs::metadata(&volume.image).unwrap().len() as usize;
    fs::write(&volume.image, vec![0; size]).unwrap();
    let said = volume.nilfs("fsck -y IMAGE").sentence(3);
    let words = "not a NILFS2 volume: there is neither a superblock nor a log of one on it";
    assert!(said.contains(words), "{said}");
    let said = volume.nilfs("fsck --apply-undo IMAGE IMAGE").sentence(1);
    assert!(said.ends_with("it is not an undo file of nilfs fsck"), "{said}");
}

#[test]
fn a_device_that_was_given_to_something_else_is_left_to_it() {
    let known = [
        (EXT4, "ext4 data labelled other at byte 1080"),
        (VFAT, "vfat data at byte 0"),
        (BTRFS, "btrfs data at byte 65600"),
    ];
    for ((program, options), name) in known {
        for has_secondary in [true, false] {
            let volume = volume_with_a_file_of(16 << 20);
            given_to(&volume, program, options);
            let mut before = fs::read(&volume.image).unwrap();
            if !has_secondary {
                let last = before.len() - BLOCK;
                before[last..].fill(0);
                fs::write(&volume.image, &before).unwrap();
            }
            for line in ["fsck -n IMAGE", "fsck -p IMAGE", "fsck -y IMAGE", "fsck -i IMAGE"] {
                let ended = volume.nilfs(line);
                assert_eq!(ended.code, Some(3), "{line}: {ended:?}");
                assert!(ended.stderr.contains(name), "{line}: {ended:?}");
                assert!(ended.stderr.ends_with("nilfs fsck --force -y repairs\n"), "{ended:?}");
            }
            assert_eq!(fsck(&volume, &["-fy"], "").code, Some(4), "-f does not insist");
            assert_eq!(fsck(&volume, &["-r"], "y\n").code, Some(4));
            let found: Value =
                serde_json::from_str(&volume.nilfs("fsck -y --json IMAGE").stdout).unwrap();
            assert!(found["obstacle"].as_str().unwrap().contains(name), "{found}");
            let mut repairs = found["repairs"].as_array().unwrap().iter();
            assert!(repairs.any(|it| it["loses"] == true) && found["repaired"] == false, "{found}");
            assert!(fs::read(&volume.image).unwrap() == before, "{program}: nothing is written");
        }
    }
}

/// The secondary superblock still leads to a volume, which nobody may want any more.
#[test]
fn nobody_writes_to_a_volume_whose_place_something_else_has_taken() {
    let volume = volume();
    let list = volume.nilfs("ls -lR IMAGE").output();
    with_part_of(&volume, EXT4, PRIMARY..PRIMARY + 1024);
    let before = fs::read(&volume.image).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mount = format!("mount IMAGE {}", directory.path().display());
    let ways = [
        &mount[..],
        "recover IMAGE",
        "tune -L new IMAGE",
        "snapshot create IMAGE",
        "scrub --repair IMAGE",
    ];
    for line in ways {
        let said = volume.nilfs(line).sentence(3);
        assert!(said.contains("the device holds ext4 data labelled other at byte 1080"), "{said}");
        assert!(said.ends_with("nilfs fsck --force -y repairs"), "{line}: {said}");
    }
    assert_eq!(volume.nilfs("ls -lR IMAGE").output(), list, "it can be read");
    assert!(fs::read(&volume.image).unwrap() == before);
}

#[test]
fn a_device_is_taken_back_by_those_who_insist() {
    let volume = volume();
    with_part_of(&volume, EXT4, PRIMARY..PRIMARY + 1024);
    let refused = volume.nilfs("fsck -y IMAGE");
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let found = "error: volume: ext4 data labelled other at byte 1080, and no primary superblock";
    assert!(refused.stdout.contains(found), "{refused:?}");
    assert_eq!(volume.nilfs("fsck --force -p IMAGE").code, Some(2), "it is not without loss");
    let ended = volume.nilfs("fsck --force -y IMAGE");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!volume.nilfs("check IMAGE").output().contains("ext4"));
    let list = |volume: &Volume| volume.nilfs("ls -lR IMAGE").output();
    assert_eq!(list(&volume), list(&common::volume()));
}

#[test]
fn a_sound_volume_may_have_marks_of_what_was_there_before() {
    let volume = volume();
    with_part_of(&volume, VFAT, 0..512);
    let before = fs::read(&volume.image).unwrap();
    for line in ["fsck -n IMAGE", "fsck -p IMAGE", "fsck -y IMAGE", "check IMAGE"] {
        assert!(
            volume.nilfs(line).output().contains("note: volume: vfat data at byte 0"),
            "{line}"
        );
    }
    assert_eq!(fsck(&volume, &["-fy"], "").code, Some(0));
    assert!(fs::read(&volume.image).unwrap() == before);
}

/// Somebody who is asked may as well press Ctrl-C.
#[test]
fn an_interrupted_check_writes_nothing() {
    common::interrupts::hear();
    for (name, options, code) in [("nilfs", &["fsck", "-i"][..], 130), ("fsck.nilfs2", &["-r"], 32)]
    {
        let volume = astray();
        let before = fs::read(&volume.image).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_nilfs"))
            .arg0(name)
            .args(options)
            .arg(&volume.image)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Waiting would close it, which is an answer, too.
        let _open = child.stdin.take();
        let mut said = child.stderr.take().unwrap();
        let mut question = Vec::new();
        while !question.ends_with(b"[y/N] ") {
            let mut byte = [0];
            said.read_exact(&mut byte).expect("it asks");
            question.extend(byte);
        }
        let pid = Pid::from_child(&child);
        rustix::process::kill_process(pid, Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{name}");
        let mut last = String::new();
        said.read_to_string(&mut last).unwrap();
        assert!(last.ends_with("interrupted; nothing was written\n"), "{last}");
        assert!(last.contains(&format!("{name}: ")), "{last}");
        assert!(fs::read(&volume.image).unwrap() == before);
    }
}

/// A byte of a file has changed on the device. All metadata are as they should be, so only reading the
/// content notices.
#[test]
fn content_is_read_when_that_is_asked() {
    let volume = volume_with_a_file_of(1 << 20);
    let mut bytes = fs::read(&volume.image).unwrap();
    let content = bytes.windows(4096).position(|window| window == [0x5a; 4096]);
    bytes[content.expect("the file is full of these")] = 0;
    fs::write(&volume.image, bytes).unwrap();
    for line in ["fsck -n IMAGE", "check IMAGE"] {
        assert_eq!(volume.nilfs(line).code, Some(0));
        let scrubbed = volume.nilfs(&line.replace("IMAGE", "--scrub IMAGE"));
        assert_eq!(scrubbed.code, Some(3));
        assert!(scrubbed.stdout.contains("ss_datasum"), "{}", scrubbed.stdout);
    }
}

/// Only metadata had been looked at, and no word said so; and that something was to be lost was said without
/// what can be saved before.
#[test]
fn where_a_volume_is_damaged_the_other_commands_are_named_that_help() {
    let scrub = |volume: &Volume| format!("nilfs scrub {} tells", volume.image.display());
    let salvage = |volume: &Volume| format!("nilfs salvage {} --to DIR", volume.image.display());
    let says = |volume: &Volume, line: &str, expected: [bool; 2]| {
        let ended = volume.nilfs(line);
        let said = [scrub(volume), salvage(volume)].map(|it| ended.stdout.contains(&it));
        assert_eq!(said, expected, "{line}: {ended:?}");
    };
    let sound = volume();
    for line in ["check IMAGE", "fsck -n IMAGE", "fsck -p IMAGE", "fsck -y IMAGE"] {
        says(&sound, line, [false, false]);
    }
    let volume = synced_volume();
    forge_records(&volume.image, 1, |head| head[4] = 2);
    for line in ["check IMAGE", "fsck -n IMAGE", "fsck -p IMAGE", "fsck -i IMAGE"] {
        says(&volume, line, [true, true]);
    }
    says(&volume, "check --scrub IMAGE", [false, true]);
    says(&volume, "fsck -y IMAGE", [true, false]);
    says(&volume, "check IMAGE", [false, false]);
    let volume = without_superblocks();
    // Nor can it be scrubbed.
    says(&volume, "fsck -n IMAGE", [false, true]);
    says(&volume, "fsck -y IMAGE", [true, false]);
    volume.nilfs("scrub IMAGE").output();
}

/// The second of two sync logs is of a newer version.
#[test]
fn what_cannot_be_rolled_forward_is_listed_and_given_up_only_with_yes() {
    let volume = synced_volume();
    forge_records(&volume.image, 1, |head| head[4] = 2);
    let before = fs::read(&volume.image).unwrap();
    for line in ["fsck -n IMAGE", "fsck -p IMAGE", "fsck -i IMAGE"] {
        let ended = volume.nilfs(line);
        assert_eq!(ended.code, Some(3), "{line}: {ended:?}");
        let told = ended.stdout.contains("would be lost: the log of 2023-11-14 22:13:20 in block ");
        assert!(told, "{line}: {ended:?}");
        assert!(ended.stderr.ends_with("nilfs fsck -y repairs, with losses\n"), "{ended:?}");
    }
    let plan: Value = serde_json::from_str(&volume.nilfs("fsck --json IMAGE").stdout).unwrap();
    let forced: Value = serde_json::from_str(&volume.nilfs("recover --json IMAGE").stdout).unwrap();
    assert_eq!(plan["lost"], forced["lost"], "as nilfs recover --force would lose it");
    assert!(fs::read(&volume.image).unwrap() == before);
    let ended = volume.nilfs("fsck -y IMAGE");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stdout.contains("\nlost: the log of "), "{ended:?}");
    volume.nilfs("check IMAGE").output();
    volume.nilfs("recover IMAGE").output();
    let kept = volume.nilfs("cat IMAGE directory/file").output();
    assert_eq!(kept, "content\nappended\n", "the first fsync stays");
}

#[test]
fn nobody_is_asked_in_the_middle_of_json() {
    for (line, one, other) in [
        ("fsck -i --json IMAGE", "--interactive", "--json"),
        ("fsck --json -i IMAGE", "--json", "--interactive"),
    ] {
        let said = astray().nilfs(line).sentence(2);
        let words = format!("the argument '{one}' cannot be used with '{other}'");
        assert!(said.starts_with(&words), "{said}");
    }
}

#[test]
fn a_report_is_shown_also_where_there_is_nothing_to_ask() {
    for volume in [volume(), empty_volume()] {
        let said = volume.nilfs("fsck -i IMAGE").output();
        assert!(said.starts_with("checkpoint "), "{said}");
    }
}

#[test]
fn exit_codes_are_those_that_fsck_expects() {
    assert_eq!(fsck(&volume(), &["-n"], "").code, Some(0));
    assert_eq!(fsck(&volume(), &["-a"], "").code, Some(0));
    assert_eq!(fsck(&astray(), &["-a"], "").code, Some(1));
    assert_eq!(fsck(&astray(), &["-r"], "y\n").code, Some(1));
    let lost = without_superblocks();
    assert_eq!(fsck(&lost, &["-p"], "").code, Some(4));
    assert_eq!(fsck(&lost, &["-fvyC", "0"], "").code, Some(1 + 4), "something is lost");
    assert_eq!(fsck(&lost, &["-f", "-y"], "").code, Some(0));
    assert_eq!(tool("fsck.nilfs2", ["-n", "/nowhere"]).code, Some(8));
    for wrong in [&["-Z"][..], &[], &["-n", "-y", "x"], &["x", "y"], &["-C"], &["-C", "fd", "x"]] {
        let ended = tool("fsck.nilfs2", wrong);
        assert_eq!(ended.code, Some(16), "{wrong:?}");
        assert!(ended.stderr.starts_with("fsck.nilfs2: "), "{ended:?}");
    }
    for name in CHECKERS {
        assert!(tool(name, ["-h"]).output().starts_with(&format!("Usage: {name} ")));
    }
}

/// A line of the type that our mounts have was never checked, regardless of its pass number.
#[test]
fn fsck_8_checks_the_lines_of_fstab_with_a_pass_number_of_each_of_our_types() {
    for name in CHECKERS {
        let volume = astray();
        let programs = volume.beside("programs");
        fs::create_dir(&programs).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nilfs"), programs.join(name)).unwrap();
        let table = volume.beside("fstab");
        let (image, kind) = (volume.image.display(), name.strip_prefix("fsck.").unwrap());
        for (pass, code) in [(0, 0), (2, 1)] {
            fs::write(&table, format!("{image} /nowhere {kind} defaults 0 {pass}\n")).unwrap();
            let mut fsck = Command::new("fsck");
            fsck.args(["-A", "-a", "-T"]).env("FSTAB_FILE", &table);
            // The other checkers, on today's systems, are in /usr/sbin.
            let path = format!("{}:/usr/sbin:/sbin", programs.display());
            let ended = fsck.env("PATH", path).stdin(Stdio::null()).output().unwrap();
            assert_eq!(ended.status.code(), Some(code), "{name}, pass {pass}: {ended:?}");
        }
        volume.nilfs("check IMAGE").output();
    }
}

/// A command that keeps what a repair would write in this directory.
fn keeping_in(directory: &Path, name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    command.arg0(name).env("TMPDIR", directory);
    command
}

/// What a repair would write is kept in a file first. The superuser is needed.
#[test]
fn a_repair_for_which_there_is_no_room_says_where_and_writes_nothing() {
    let volume = astray();
    let before = fs::read(&volume.image).unwrap();
    let full = volume.beside("full");
    fs::create_dir(&full).unwrap();
    let flags = MountFlags::empty();
    rustix::mount::mount("none", &full, "tmpfs", flags, Some(c"size=4k")).unwrap();
    let mut ended = Vec::new();
    for directory in [&full, &volume.beside("missing")] {
        for (name, options, code) in
            [("nilfs", &["fsck", "-y"][..], 1), ("fsck.nilfs2", &["-fy"], 8)]
        {
            let output = keeping_in(directory, name).args(options).arg(&volume.image).output();
            let output = common::CommandOutput::of(&output.unwrap());
            ended.push((directory.clone(), code, output));
        }
    }
    rustix::mount::unmount(&full, UnmountFlags::empty()).unwrap();
    for (directory, code, ended) in ended {
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let said = format!("a scratch file in {} cannot be ", directory.display());
        assert!(ended.stderr.contains(&said), "{ended:?}");
        assert!(ended.stderr.ends_with("; TMPDIR may name another directory\n"), "{ended:?}");
    }
    assert!(fs::read(&volume.image).unwrap() == before);
    assert_eq!(volume.nilfs("fsck -y IMAGE").code, Some(0), "there is room elsewhere");
}

#[test]
fn what_a_check_has_found_is_shown_where_there_is_no_room_for_a_repair() {
    let volume = volume();
    let mut bytes = fs::read(&volume.image).unwrap();
    bytes[PRIMARY + UUID] ^= 1;
    fs::write(&volume.image, bytes).unwrap();
    let mut command = keeping_in(&volume.beside("missing"), "nilfs");
    let output = command.arg("check").arg(&volume.image).output().unwrap();
    let ended = common::CommandOutput::of(&output);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("the primary copy cannot be used"), "{ended:?}");
    assert!(ended.stderr.contains("TMPDIR"), "{ended:?}");
}

/// An owner whom no other file has, and the name of his file in the past.
const OWNER: u32 = 0x5a5a_1234;
const NAME_THEN: &str = "as-it-was-called-then";
/// Where the owner is in an inode, whose first field is its count of blocks.
const OWNER_IN_INODE: usize = 40;
/// Where the length of a record of a directory is before the name.
const LENGTH_BEFORE_NAME: usize = 4;

/// Where bytes are for the first time.
fn first(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|it| it == wanted).expect("it is on the volume")
}

#[test]
fn a_finding_has_the_path_that_the_file_had_in_its_checkpoint() {
    let volume = volume();
    let device = Arc::new(MemoryDevice::from(fs::read(&volume.image).unwrap()));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let root = fs.root().unwrap().inode;
    let directory = fs.lookup(&root, b"directory").unwrap().inode;
    let new = NewInode { mode: S_IFREG | 0o600, uid: OWNER, gid: 0, rdev: DeviceCode::default() };
    let file = fs.create(&directory, NAME_THEN.as_bytes(), &new).unwrap().inode;
    // Three blocks are six sectors: a count of which a single bit was wrong would be set right by that.
    fs.write(&file, 0, &[7; 3000]).unwrap();
    let then = fs.commit().unwrap().0;
    fs.link(&file, &root, b"now").unwrap();
    fs.unlink(&directory, NAME_THEN.as_bytes()).unwrap();
    let ino = file.ino().0;
    drop((file, directory, root));
    fs.unmount().unwrap();
    let mut bytes = device.snapshot();
    let inode = first(&bytes, &OWNER.to_le_bytes()) - OWNER_IN_INODE;
    bytes[inode..inode + 8].fill(0);
    fs::write(&volume.image, &bytes).unwrap();

    let ended = volume.nilfs("fsck -n IMAGE");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let line =
        format!("error: directory/{NAME_THEN}: checkpoint {then}, inode {ino}: i_blocks is 0");
    assert!(ended.stdout.contains(&line), "{line}: {}", ended.stdout);
    let found = |volume: &Volume| -> Value {
        let report: Value =
            serde_json::from_str(&volume.nilfs("check --json IMAGE").stdout).unwrap();
        let findings = report["findings"].as_array().unwrap().iter();
        findings.filter(|it| it["rule"] == "block counts of files").cloned().collect()
    };
    let finding = &found(&volume)[0];
    assert_eq!(finding["path"], format!("directory/{NAME_THEN}"), "{finding}");
    assert_eq!((&finding["inode"], &finding["checkpoint"]), (&ino.into(), &then.into()));
    let repair = format!("repair: checkpoint {then}, inode {ino}: ");
    assert!(ended.stdout.contains(&repair), "{repair}: {}", ended.stdout);

    let name = first(&bytes, NAME_THEN.as_bytes());
    bytes[name - LENGTH_BEFORE_NAME..name - LENGTH_BEFORE_NAME + 2].fill(0);
    fs::write(&volume.image, &bytes).unwrap();
    let finding = &found(&volume)[0];
    assert_eq!((&finding["inode"], &finding["path"]), (&ino.into(), &Value::Null), "{finding}");
}

/// What fsck(8) shows a bar with: the pass, how much of how much is done, and the device.
#[test]
fn fsck_is_told_how_far_it_is() {
    let volume = volume();
    let image = volume.image.to_str().unwrap();
    let said = fsck(&volume, &["-n", "-C", "1"], "").output();
    let told: Vec<(u32, u64, u64)> = said
        .lines()
        .filter_map(|line| {
            let words: Vec<_> = line.strip_suffix(image)?.split_whitespace().collect();
            let [pass, done, all] = words[..] else { return None };
            Some((pass.parse().ok()?, done.parse().ok()?, all.parse().ok()?))
        })
        .collect();
    let passes: Vec<u32> = told.iter().map(|(pass, ..)| *pass).collect();
    assert!(
        passes.is_sorted() && passes.first() == Some(&1) && passes.last() == Some(&4),
        "{said}"
    );
    assert!(told.iter().all(|(_, done, all)| done <= all), "{said}");
    let last = told.last().unwrap();
    assert_eq!(last.1, last.2, "{said}");
    for silent in ["0", "-1"] {
        assert_eq!(fsck(&volume, &["-n", "-C", silent], "").output().lines().count(), 1);
    }
}
