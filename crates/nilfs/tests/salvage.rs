//! Files come out of volumes that are broken in ways in which volumes break, and the report says of
//! each file what has come out. What the report calls whole is compared with what was written.

#[path = "common/broken.rs"]
mod broken;
mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use broken::{BLOCK, Broken, FILES, LARGE, Salvaged, content, differs_within, find, new};
use common::nilfs;
use nilfs_device::MemoryDevice;
use nilfs_engine::{Cno, Filesystem, Ino, Log, MountOptions, SetAttr};
use nilfs_ondisk::inode::{INODE_SIZE, S_IFDIR, S_IFREG};
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Seq};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// All files and directories of the volume.
const ALL: usize = 2 * (FILES + 2);

#[test]
fn everything_comes_out_of_a_volume_that_is_not_broken() {
    let volume = Broken::new();
    let salvaged = volume.salvage(&[]);
    salvaged.is_whole(ALL);
    assert_eq!(salvaged.report["found_by"], "superblock");
    let copy = fs::metadata(salvaged.to.join("one/large")).unwrap();
    assert_eq!((copy.uid(), copy.gid(), copy.mode() & 0o7777), (1000, 100, 0o640));
    assert_eq!(fs::metadata(salvaged.to.join("two")).unwrap().mode() & 0o7777, 0o750);
}

#[test]
fn everything_comes_out_without_superblocks() {
    let mut volume = Broken::new();
    let nowhere = |volume: &Broken| {
        let mut copy = volume.superblock();
        let cursor = copy.last_log();
        copy.set_last_log(LogCursor { block: BlockNr(700), seq: Seq(900), ..cursor });
        copy.encode()
    };
    for copy in [nowhere(&volume), [0; 1024]] {
        volume.overwrite_superblocks(&copy);
        let salvaged = volume.salvage(&[]);
        salvaged.is_whole(ALL);
        assert_eq!(salvaged.report["found_by"], "scan");
    }
}

/// A summary follows from the super root of its log, and costs nothing. Without both, there is no such checkpoint.
#[test]
fn damage_of_the_newest_log_costs_only_what_is_in_it() {
    let mut volume = Broken::new();
    let newest = volume.superblock().last_log();
    let blocks = volume.logs().last().unwrap().header.nblocks;
    volume.damage(newest.block.0 as usize * BLOCK);
    let salvaged = volume.salvage(&[]);
    assert_eq!(salvaged.report["checkpoint"], newest.cno.0);
    salvaged.is_whole(ALL);
    volume.damage((newest.block.0 as usize + blocks as usize - 1) * BLOCK);
    let salvaged = volume.salvage(&[]);
    assert_eq!(salvaged.report["found_by"], "scan");
    assert_eq!(salvaged.report["newest_known_checkpoint"], newest.cno.0);
    assert_eq!(salvaged.report["checkpoint"], newest.cno.0 - 1);
    // Each file had another version in that log, and is as it was before.
    let states = salvaged.states();
    let is_file = |path: &str| volume.versions.contains_key(path);
    let expected = |path: &str| if is_file(path) { "older" } else { "whole" };
    assert_eq!(states, states.keys().map(|path| (*path, expected(path))).collect());
    assert_eq!((states.len(), salvaged.code), (ALL, Some(1)));
}

/// Content in a log that had lost its summary was called whole, because a view gives the log a checksum that is right for
/// what is there.
#[test]
fn content_that_has_lost_its_checksum_with_a_summary_is_unverified() {
    let mut volume = Broken::new();
    let path = "two/a file with number 20";
    let device = Arc::new(MemoryDevice::from(std::mem::take(&mut volume.bytes)));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let versions = volume.versions.get_mut(path).unwrap();
    let mut bytes = versions.last().unwrap().clone();
    bytes[..300].fill(0x77);
    fs.write(&find(&fs, path), 0, &[0x77; 300]).unwrap();
    versions.push(bytes);
    fs.unmount().unwrap();
    volume.bytes = device.snapshot();
    volume.damage(volume.superblock().last_log().block.0 as usize * BLOCK);
    let salvaged = volume.salvage(&[]);
    assert_eq!(salvaged.not_whole(), [(path, "unverified")]);
    assert_eq!(salvaged.code, Some(1));
}

/// Blocks of metadata, of which older versions are elsewhere.
#[test]
fn damaged_metadata_costs_at_most_the_newest_version() {
    let any = |_: &BlockInfo| true;
    for ino in [Ino::DAT, Ino::CPFILE, Ino::IFILE, Ino::SUFILE] {
        let mut volume = Broken::new();
        let newest = volume.newest(ino, any);
        volume.damage(newest);
        let salvaged = volume.salvage(&[]);
        let count = salvaged.states().len();
        assert!((ALL..=ALL + 1).contains(&count), "{ino}");
        assert!(!salvaged.states().values().any(|state| *state == "lost"), "{ino}");
        if ino == Ino::SUFILE {
            salvaged.is_whole(ALL);
        }
    }
}

/// Where the inodes of a block are read in an older version, fsck told a loss of the volume, and
/// salvage called each file whole whose owner, permissions or times were older.
#[test]
fn older_inodes_are_told_of_each_file_and_cost_no_content() {
    let mut volume = Broken::new();
    let device = Arc::new(MemoryDevice::from(std::mem::take(&mut volume.bytes)));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let changed = "two/a file with number 20";
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.set_attr(&find(&fs, changed), &mode).unwrap();
    fs.unmount().unwrap();
    volume.bytes = device.snapshot();
    volume.salvage(&[]).is_whole(ALL);
    volume.go_on();
    let inodes = volume.newest(Ino::IFILE, |info| matches!(info, BlockInfo::Data { .. }));
    let (end, all) = (inodes + BLOCK, volume.bytes.len());
    let map = volume.directory.path().join("map");
    let unreadable = format!(
        "# by hand\n0x0 + 1\n0x0 {inodes:#x} +\n{inodes:#x} {BLOCK:#x} -\n{end:#x} {:#x} +\n",
        all - end
    );
    fs::write(&map, unreadable).unwrap();
    volume.bytes[inodes..end].fill(0);
    for words in [&["--map", map.to_str().unwrap()][..], &[]] {
        let salvaged = volume.salvage(words);
        for (path, state) in salvaged.states() {
            let Some(versions) = volume.versions.get(path) else { continue };
            let is_newest = salvaged.file(path) == *versions.last().unwrap();
            assert!(is_newest, "{path}, {words:?}");
            let mode = fs::metadata(salvaged.to.join(path)).unwrap().mode() & 0o7777;
            let right = if path == changed { 0o600 } else { 0o640 };
            assert!(state != "whole" || mode == right, "{path}, {words:?}: mode {mode:o}");
        }
        let (not_whole, code) = (salvaged.not_whole(), salvaged.code);
        assert!(not_whole.contains(&(changed, "damaged")), "{not_whole:?}");
        assert!(not_whole.iter().all(|(_, state)| *state == "damaged"), "{not_whole:?}");
        assert_eq!((not_whole.len(), code), (BLOCK / INODE_SIZE, Some(1)), "{words:?}");
    }
}

/// Salvage had rules of its own, and lost what fsck makes anew of the logs.
#[test]
fn a_broken_map_costs_nothing_that_its_older_versions_tell() {
    let mut volume = Broken::new();
    let large = volume.inodes["one/large"];
    let nodes = volume.blocks(large, BlockInfo::is_node);
    volume.damage(*nodes.last().unwrap());
    volume.salvage(&[]).is_whole(ALL);
    // The summaries tell it also with the older versions of the map gone.
    for node in nodes {
        volume.damage(node);
    }
    volume.salvage(&[]).is_whole(ALL);
    assert_eq!(fs::read(volume.image()).unwrap(), volume.bytes, "nothing is written");
}

/// A file was whole if it could be read: 5 MiB of noise over content were "0 lost", exit 0.
#[test]
fn content_with_a_wrong_checksum_is_copied_and_named() {
    let mut volume = Broken::new();
    let large = volume.inodes["one/large"];
    let blocks = volume.blocks(large, |info| matches!(info, BlockInfo::Data { .. }));
    let newest = blocks[blocks.len() - LARGE - 1 + 7];
    volume.bytes[newest + 100..newest + 200].fill(0x5a);
    let salvaged = volume.try_to_salvage(&[]).1.unwrap();
    assert_eq!(salvaged.not_whole(), [("one/large", "damaged")]);
    assert_eq!(salvaged.parts("one/large", "doubtful"), [(7 * BLOCK, BLOCK)]);
    let expected = volume.versions["one/large"].last().unwrap();
    let found = salvaged.file("one/large");
    assert!(found[..7 * BLOCK] == expected[..7 * BLOCK]);
    assert_eq!(found[7 * BLOCK + 100..7 * BLOCK + 200], [0x5a; 100]);
    assert!(found[8 * BLOCK..] == expected[8 * BLOCK..]);
    assert_eq!(salvaged.code, Some(1));
}

/// One bit of content that the card has lost was "damaged", though the checksum tells which it is.
#[test]
fn a_bit_of_content_that_is_wrong_is_set_right() {
    let mut volume = Broken::new();
    let large = volume.inodes["one/large"];
    let blocks = volume.blocks(large, |info| matches!(info, BlockInfo::Data { .. }));
    let newest = blocks[blocks.len() - LARGE - 1 + 7];
    volume.bytes[newest + 100] ^= 0x10;
    volume.salvage(&[]).is_whole(ALL);
    let (mount, _) = volume.rescue("");
    let expected = volume.versions["one/large"].last().unwrap();
    assert!(fs::read(mount.0.join("one/large")).unwrap() == *expected);
}

/// The link with question marks for a target was "whole" after a repair. Before, it could not be copied: with
/// an older version, it was made twice.
#[test]
fn a_link_that_has_lost_its_target_is_named_before_a_repair_and_after() {
    let mut volume = Broken::new();
    let device = Arc::new(MemoryDevice::from(std::mem::take(&mut volume.bytes)));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let root = fs.root().unwrap().inode;
    fs.symlink(&root, b"link", b"one/large", 0, 0).unwrap();
    let link = fs.lookup(&root, b"link").unwrap().inode;
    fs.commit().unwrap();
    fs.link(&link, &root, b"second name").unwrap();
    let ino = link.ino();
    drop((root, link));
    fs.unmount().unwrap();
    volume.bytes = device.snapshot();
    volume.go_on();
    let target = volume.newest(ino, |info| matches!(info, BlockInfo::Data { .. }));
    volume.bytes[target..target + BLOCK].fill(0);
    for is_repaired in [false, true] {
        let salvaged = volume.salvage(&[]);
        let named: Vec<_> = salvaged.not_whole().into_iter().map(|(path, _)| path).collect();
        assert_eq!(named, ["link", "second name"], "repaired: {is_repaired}");
        assert_eq!(salvaged.code, Some(1));
        let fsck = nilfs(["fsck", "-y", volume.image().to_str().unwrap()]);
        // From then on it is known, and breaks no rule.
        assert_eq!(fsck.code, Some(if is_repaired { 0 } else { 3 }), "{fsck:?}");
        assert!(fsck.stdout.contains("link"), "{fsck:?}");
        volume.bytes = fs::read(volume.image()).unwrap();
    }
}

/// Of a summary that cannot be read, nothing was told of the blocks of its log, nor of any log after it in the
/// segment: all of their files were unverified.
#[test]
fn a_damaged_summary_costs_no_other_log_its_checksums() {
    let sound = Broken::new();
    let logs = sound.logs();
    let segment = |log: &Log| log.start.0 / 256;
    let content_logs =
        |all: &[Log]| all.iter().any(|log| log.files.iter().any(|it| it.ino.is_of_user()));
    let mut tried = 0;
    for (nth, log) in logs.iter().enumerate() {
        let after: Vec<Log> =
            logs[nth + 1..].iter().take_while(|it| segment(it) == segment(log)).cloned().collect();
        if !content_logs(&after) || !content_logs(std::slice::from_ref(log)) {
            continue;
        }
        tried += 1;
        let mut volume = clone(&sound);
        // A sequence number, which the checksum tells.
        volume.bytes[log.start.0 as usize * BLOCK + 20] ^= 1;
        volume.salvage(&[]).is_whole(ALL);
        volume.damage(log.start.0 as usize * BLOCK);
        let its_own: Vec<Ino> = log.files.iter().map(|it| it.ino).collect();
        let salvaged = volume.salvage(&[]);
        for (path, state) in salvaged.not_whole() {
            assert!(
                its_own.contains(&volume.inodes[path]),
                "{path} is {state}, by log {}",
                log.start
            );
        }
    }
    assert!(tried > 3, "{tried} logs");
}

/// Content that an fsync had written after the newest checkpoint was copied without a look at its checksums.
#[test]
fn content_of_an_fsync_with_a_wrong_checksum_is_named() {
    let mut volume = Broken::new();
    let device = Arc::new(MemoryDevice::from(std::mem::take(&mut volume.bytes)));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let large = find(&fs, "one/large");
    fs.write(&large, 7 * BLOCK as u64, &[b'7'; 2 * BLOCK]).unwrap();
    fs.sync_file(&large).unwrap();
    // Without a later log, it might not have been durable.
    fs.write(&large, 0, &[b'0'; BLOCK]).unwrap();
    fs.sync_file(&large).unwrap();
    volume.bytes = device.snapshot();
    let blocks = volume.blocks(large.ino(), |info| matches!(info, BlockInfo::Data { .. }));
    volume.damage(blocks[blocks.len() - 2]);
    let salvaged = volume.try_to_salvage(&[]).1.unwrap();
    assert_eq!(salvaged.not_whole(), [("one/large", "damaged")]);
    assert_eq!(salvaged.parts("one/large", "doubtful"), [(8 * BLOCK, BLOCK)]);
    assert_eq!(salvaged.code, Some(1));
    drop(large);
    fs.unmount().unwrap();
}

#[test]
fn names_come_from_an_older_directory_but_not_those_that_were_deleted() {
    let mut volume = Broken::new();
    let one = volume.inodes["one"];
    let device = Arc::new(MemoryDevice::from(volume.bytes.clone()));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let dir = fs.lookup(&fs.root().unwrap().inode, b"one").unwrap().inode;
    for nth in [3, 30] {
        fs.unlink(&dir, format!("a file with number {nth}").as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    volume.bytes = device.snapshot();
    let newest = volume.newest(one, |info| matches!(info, BlockInfo::Data { .. }));
    volume.damage(newest);
    let salvaged = volume.salvage(&[]);
    let not_whole = salvaged.not_whole();
    let is_below = |(path, _): &(&str, &str)| path.starts_with("one");
    assert!(!not_whole.is_empty() && not_whole.iter().all(is_below), "{not_whole:?}");
    let names = salvaged.states().keys().filter(|path| !path.starts_with("lost+found")).count();
    assert_eq!(names, ALL - 2);
    assert!(!salvaged.to.join("one/a file with number 3").exists());
}

#[test]
fn a_map_of_ddrescue_says_what_cannot_be_read() {
    let volume = Broken::new();
    let large = volume.inodes["two/large"];
    let bad: Vec<usize> = volume.blocks(large, |info| matches!(info, BlockInfo::Data { .. }));
    let third = |blocks: &[usize], nth: usize| blocks[blocks.len() - LARGE - 1 + nth];
    // The same block of all versions.
    let blocks =
        (0..3).map(|version| third(&bad[..bad.len() - version * (LARGE + 1)], 5)).collect();
    let salvaged = volume.salvage_without(blocks);
    assert_eq!(salvaged.not_whole(), [("two/large", "partial")]);
    assert_eq!(salvaged.missing("two/large"), [(5 * BLOCK, BLOCK)]);
}

/// Of a file of which one block could not be read, everything came from an older checkpoint, and what else had
/// been written since was lost.
#[test]
fn an_older_version_stands_in_only_for_what_cannot_be_read() {
    let mut volume = Broken::new();
    let large = volume.inodes["one/large"];
    let is_data = |info: &BlockInfo| matches!(info, BlockInfo::Data { .. });
    let blocks = volume.blocks(large, is_data);
    let salvaged = volume.salvage_without(vec![blocks[blocks.len() - LARGE - 1 + 5]]);
    assert_eq!(salvaged.not_whole(), [("one/large", "partial")]);
    assert_eq!(salvaged.missing("one/large"), [(5 * BLOCK, BLOCK)]);
    let newest = volume.versions["one/large"].last().unwrap();
    assert!(differs_within(newest, &salvaged.file("one/large"), &[(5 * BLOCK, BLOCK)]));
    let files = salvaged.report["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == "one/large").unwrap();
    let older = salvaged.report["checkpoint"].as_u64().unwrap() - 1;
    assert!(file["checkpoint"].as_u64().is_some_and(|cno| cno <= older), "{file}");

    // Where the block is all that has been written since, nothing else is lost with the older version.
    volume.change("one/large", 5);
    let salvaged = volume.salvage_without(vec![volume.newest(large, is_data)]);
    assert_eq!(salvaged.not_whole(), [("one/large", "older")]);
}

#[test]
fn an_image_that_was_cut_short_has_what_lies_before_the_cut() {
    let mut volume = Broken::new();
    let newest = volume.superblock().last_log().block.0 as usize * BLOCK;
    volume.bytes.truncate(newest + BLOCK);
    let salvaged = volume.salvage(&[]);
    assert_eq!(salvaged.report["found_by"], "scan");
    assert_eq!(salvaged.states().len(), ALL);
    assert!(!salvaged.states().values().any(|state| *state == "lost"));
}

/// How much longer the tests are to take than every day.
fn scale() -> u64 {
    std::env::var("NILFS_TEST_SCALE").map_or(1, |it| it.parse().expect("a number"))
}

/// Whatever is broken, the command ends, writes nothing to the volume, and what it calls whole is.
#[test]
fn no_damage_of_metadata_makes_it_lie() {
    let whole = Broken::new();
    let mut metadata = Vec::new();
    for ino in [Ino::DAT, Ino::CPFILE, Ino::IFILE, Ino::SUFILE, Ino::ROOT] {
        metadata.extend(whole.blocks(ino, |_| true));
    }
    for (path, ino) in &whole.inodes {
        let is_directory = !whole.versions.contains_key(path);
        metadata.extend(whole.blocks(*ino, |info| is_directory || info.is_node()));
    }
    for seed in 0..24 * scale() {
        let mut random = StdRng::seed_from_u64(seed);
        let mut volume = Broken { directory: tempfile::tempdir().unwrap(), ..clone(&whole) };
        for _ in 0..random.random_range(1..40) {
            let at = metadata[random.random_range(0..metadata.len())];
            match random.random_range(0..2 + seed % 2) {
                0 => volume.damage(at),
                1 => volume.bytes[at..at + BLOCK].fill(0),
                _ => {
                    let byte = at + random.random_range(0..BLOCK);
                    volume.bytes[byte] ^= 1 << random.random_range(0..8);
                }
            }
        }
        if seed % 3 == 0 {
            volume.overwrite_superblocks(&[0; 1024]);
        }
        let (output, salvaged) = volume.try_to_salvage(&[]);
        assert!(!output.stderr.contains("panicked"), "seed {seed}: {output:?}");
        match salvaged {
            Some(salvaged) => salvaged.compare(&volume.versions),
            None => assert_eq!(output.code, Some(3), "seed {seed}: {output:?}"),
        }
    }
}

/// A mount that goes away with the value.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

impl Broken {
    /// Mounts it by more words than `ro,rescue`. Returns with it what is said of losses. The superuser and
    /// `/dev/fuse` are needed.
    fn rescue(&self, words: &str) -> (Mount, String) {
        fs::write(self.image(), &self.bytes).unwrap();
        let dir = self.directory.path().join("mnt");
        fs::create_dir_all(&dir).unwrap();
        let options = format!("ro,rescue,nofuseblk{words}");
        let image = self.image();
        let line = ["mount".as_ref(), "-o".as_ref(), options.as_ref(), image.as_os_str()];
        let mounted = nilfs(line.into_iter().chain([dir.as_os_str()]));
        assert_eq!((mounted.code, &mounted.stdout[..]), (Some(0), ""), "{}", mounted.stderr);
        (Mount(dir), mounted.stderr)
    }
}

#[test]
fn a_rescue_mount_shows_what_is_not_damaged() {
    let mut volume = Broken::new();
    volume.go_on();
    let large = volume.inodes["one/large"];
    let node = volume.newest(large, BlockInfo::is_node);
    volume.damage(node);
    let names = volume.newest(volume.inodes["two"], |info| matches!(info, BlockInfo::Data { .. }));
    volume.damage(names);
    volume.overwrite_superblocks(&[0; 1024]);
    let (mount, said) = volume.rescue("");
    let mut unreadable = Vec::new();
    let mut found = 0;
    for (path, written) in &volume.versions {
        match fs::read(mount.0.join(path)) {
            Ok(bytes) => {
                assert!(bytes == *written.last().unwrap(), "{path}");
                found += 1;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                assert!(path.starts_with("two/"), "{path}");
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::UCLEAN.raw_os_error()), "{path}");
                unreadable.push(path.as_str());
            }
        }
    }
    assert!(unreadable.is_empty(), "{unreadable:?}");
    let listed: usize =
        ["one", "two"].map(|it| fs::read_dir(mount.0.join(it)).unwrap().count()).iter().sum();
    assert_eq!(listed, found);
    assert!((FILES + 1..=2 * (FILES + 1)).contains(&found), "{found} files");
    // It was silent about what it did not show.
    let (last, losses) =
        said.lines().collect::<Vec<_>>().split_last().map(|it| (*it.0, it.1.to_vec())).unwrap();
    assert!(losses.iter().all(|it| it.contains("broken.img: lost, or older: ")), "{said}");
    assert!(losses.iter().any(|it| it.contains(": two: ")), "{said}");
    assert!(last.contains(": not lost: no name leads to "), "{said}");
    drop(mount);
    let (mount, _) = volume.rescue(",cp=3");
    assert!(fs::read(mount.0.join("one/large")).unwrap() == volume.versions["one/large"][1]);
    drop(mount);
    assert_eq!(fs::read(volume.image()).unwrap(), volume.bytes, "nothing is written");
}

/// Each file that came into lost+found was a loss: ten of them were named, and a damaged file was not.
#[test]
fn a_rescue_mount_tells_what_is_lost_before_what_is_in_lost_and_found() {
    let mut volume = Broken::new();
    volume.go_on();
    let is_data = |info: &BlockInfo| matches!(info, BlockInfo::Data { .. });
    for block in volume.blocks(volume.inodes["two"], is_data) {
        volume.damage(block);
    }
    let not_lost = |said: &str| {
        let (_, count) = said.split_once(": not lost: no name leads to ").unwrap();
        count.split_once(" files or directories, which are in lost+found\n").unwrap().0.parse().ok()
    };
    let lines = |said: &str| said.lines().map(ToOwned::to_owned).collect::<Vec<_>>();
    let (mount, said) = volume.rescue("");
    let adopted = fs::read_dir(mount.0.join("lost+found")).unwrap().count();
    assert!(adopted > 10 && not_lost(&said) == Some(adopted), "{said}");
    let all = lines(&said);
    assert!(all[0].contains(": two: ") && all.len() < 10 && !said.contains('#'), "{said}");
    drop(mount);
    // Inodes of which nothing older is left, but for those of the directories.
    let is_later =
        |info: &BlockInfo| matches!(info, BlockInfo::Data { offset, .. } if offset.0 > 8);
    for block in volume.blocks(Ino::IFILE, is_later) {
        volume.damage(block);
    }
    let (_mount, said) = volume.rescue("");
    let all = lines(&said);
    assert!(all.len() == 12 && all[10].contains(" more losses of that kind; nilfs fsck"), "{said}");
    // They have lost their permissions as well.
    assert!(not_lost(&said).unwrap() < adopted, "{said}");
}

#[test]
fn files_without_names_are_in_lost_and_found() {
    let mut volume = Broken::new();
    for block in volume.blocks(Ino::ROOT, |_| true) {
        volume.damage(block);
    }
    let salvaged = volume.salvage(&[]);
    for (path, written) in &volume.versions {
        let (directory, name) = path.split_once('/').unwrap();
        let found = format!("lost+found/#{}/{name}", volume.inodes[directory]);
        assert!(salvaged.file(&found) == *written.last().unwrap(), "{found}");
    }
    let not_whole = salvaged.not_whole();
    assert!(not_whole.iter().all(|(path, state)| {
        *state == "damaged" && (path.is_empty() || path.starts_with("lost+found/#"))
    }));
    assert_eq!(not_whole.len(), 3, "{not_whole:?}");
}

fn clone(broken: &Broken) -> Broken {
    Broken {
        directory: tempfile::tempdir().unwrap(),
        bytes: broken.bytes.clone(),
        versions: broken.versions.clone(),
        inodes: broken.inodes.clone(),
    }
}

#[test]
fn what_cannot_be_salvaged_or_written_is_said() {
    let volume = Broken::new();
    fs::write(volume.image(), &volume.bytes).unwrap();
    let image = volume.image();
    let place = |name: &str| volume.directory.path().join(name);
    let salvage = |image: &Path, to: &Path| {
        nilfs(["salvage".as_ref(), image.as_os_str(), "--to".as_ref(), to.as_os_str()])
    };
    let full = salvage(&image, volume.directory.path()).sentence(6);
    assert!(full.ends_with("is not empty; name a new directory"), "{full}");
    let nowhere = salvage(&image, &place("not/there")).sentence(1);
    assert!(nowhere.ends_with("No such file or directory"), "{nowhere}");
    fs::write(place("zeros"), vec![0; 1 << 20]).unwrap();
    let nothing = salvage(&place("zeros"), &place("out")).sentence(3);
    assert!(nothing.contains("it begins with nothing but zeros"), "{nothing}");
    assert!(!place("out").exists());
    salvage(&place("missing"), &place("out")).sentence(4);
}

/// A volume with a snapshot, after which a file was changed and two were deleted.
fn with_a_past() -> (Broken, Cno) {
    let mut volume = Broken::new();
    let device = Arc::new(MemoryDevice::from(std::mem::take(&mut volume.bytes)));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let snapshot = fs.checkpoint_now().unwrap();
    fs.set_snapshot(snapshot, true).unwrap();
    let bytes = content("two/large", 3, LARGE);
    fs.write(&find(&fs, "two/large"), 0, &bytes).unwrap();
    volume.versions.get_mut("two/large").unwrap().push(bytes);
    for path in DELETED {
        let (directory, name) = path.split_once('/').unwrap();
        let directory = fs.lookup(&fs.root().unwrap().inode, directory.as_bytes()).unwrap().inode;
        fs.unlink(&directory, name.as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    volume.bytes = device.snapshot();
    (volume, snapshot)
}

const DELETED: [&str; 2] = ["one/a file with number 7", "one/large"];

impl Salvaged {
    /// The paths below a directory of which the name begins so, and that name.
    fn below(&self, begins: &str) -> (String, Vec<String>) {
        let paths: Vec<&str> =
            self.states().into_keys().filter(|path| path.starts_with(begins)).collect();
        let directory = paths.first().expect("something is there").split_once('/').unwrap().0;
        let inner = paths.iter().map(|path| path.split_once('/').unwrap());
        assert!(inner.clone().all(|(top, _)| top == directory), "{paths:?}");
        (directory.to_owned(), inner.map(|(_, path)| path.to_owned()).collect())
    }
}

#[test]
fn a_checkpoint_of_the_past_comes_out_as_it_was() {
    let (mut volume, snapshot) = with_a_past();
    let words = snapshot.to_string();
    let salvaged = volume.salvage(&["--cp", &words]);
    salvaged.is_whole(ALL);
    assert_eq!(salvaged.report["checkpoint"], snapshot.0);
    for path in [DELETED[0], DELETED[1], "two/large"] {
        assert!(salvaged.file(path) == volume.versions[path][2], "{path}");
    }
    // The list of checkpoints is not needed for that.
    let list = volume.newest(Ino::CPFILE, |_| true);
    volume.damage(list);
    let salvaged = volume.try_to_salvage(&["--cp", &words]).1.unwrap();
    assert!(salvaged.file(DELETED[1]) == volume.versions[DELETED[1]][2]);
    let (image, to) = (volume.image(), volume.directory.path().join("nothing"));
    let output =
        nilfs(["salvage", "--cp", "4711", image.to_str().unwrap(), "--to", to.to_str().unwrap()]);
    assert_eq!((output.code, to.exists()), (Some(1), false), "{output:?}");
    assert!(output.stderr.contains("there is no checkpoint 4711 that can be used"), "{output:?}");
}

#[test]
fn snapshots_come_out_beside_the_newest_checkpoint() {
    let (volume, snapshot) = with_a_past();
    let salvaged = volume.salvage(&["--snapshots"]);
    assert_eq!((salvaged.not_whole(), salvaged.code), (vec![], Some(0)));
    let (directory, paths) = salvaged.below("snapshot-");
    assert_eq!((directory, paths.len()), (format!("snapshot-{snapshot}"), ALL));
    for path in &paths {
        let Some(versions) = volume.versions.get(path) else { continue };
        assert!(salvaged.file(&format!("snapshot-{snapshot}/{path}")) == versions[2], "{path}");
    }
    assert_eq!(salvaged.states().len(), 2 * ALL - DELETED.len());
}

/// Files whose names are lost in a block that a snapshot shares came out of the present only.
#[test]
fn files_of_a_snapshot_that_have_lost_their_names_come_out_by_number() {
    let mut volume = Broken::new();
    let device = Arc::new(MemoryDevice::from(std::mem::take(&mut volume.bytes)));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let root = fs.root().unwrap().inode;
    let directory = fs.create(&root, b"three", &new(S_IFDIR | 0o755)).unwrap().inode;
    let name = |nth| format!("a file with a long name and the number {nth}");
    for nth in 0..FILES {
        let file = fs.create(&directory, name(nth).as_bytes(), &new(S_IFREG | 0o644)).unwrap();
        fs.write(&file.inode, 0, name(nth).as_bytes()).unwrap();
    }
    let snapshot = fs.checkpoint_now().unwrap();
    fs.set_snapshot(snapshot, true).unwrap();
    fs.create(&root, b"later", &new(S_IFREG | 0o644)).unwrap();
    let ino = directory.ino();
    drop((root, directory));
    fs.unmount().unwrap();
    volume.bytes = device.snapshot();
    let names =
        volume.newest(ino, |info| matches!(info, BlockInfo::Data { offset, .. } if offset.0 == 1));
    volume.damage(names);
    let salvaged = volume.salvage(&["--snapshots"]);
    let contents = |directory: &str| -> BTreeSet<Vec<u8>> {
        let paths = salvaged.states().into_keys().filter(|path| {
            let inner = path.strip_prefix(directory);
            inner.is_some_and(|it| it.starts_with("three/") || it.starts_with("lost+found/"))
        });
        paths.map(|path| salvaged.file(path)).collect()
    };
    let all: BTreeSet<_> = (0..FILES).map(|nth| name(nth).into_bytes()).collect();
    for directory in ["", &format!("snapshot-{snapshot}/")] {
        assert_eq!(contents(directory), all, "{directory}");
    }
}

#[test]
fn deleted_files_come_out_in_a_directory_of_their_last_checkpoint() {
    let (mut volume, _) = with_a_past();
    for is_damaged in [false, true] {
        if is_damaged {
            // Nor is the list of names that the present has needed for it.
            let names = volume.newest(volume.inodes["one"], |info| !info.is_node());
            volume.damage(names);
        }
        let salvaged = volume.try_to_salvage(&["--deleted"]).1.unwrap();
        let (directory, paths) = salvaged.below("deleted-");
        assert_eq!(paths, DELETED, "nothing else was deleted");
        for path in DELETED {
            let found = salvaged.file(&format!("{directory}/{path}"));
            assert!(found == volume.versions[path][2], "{path}");
            assert!(!salvaged.to.join(path).exists(), "{path} is not in the present");
        }
    }
}
