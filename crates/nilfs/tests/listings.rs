//! What the commands that look into a volume print.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use common::{empty_volume, nilfs, synced_volume, volume};

#[test]
fn info_shows_the_volume_at_a_glance() {
    let expected = "\
label              lab
uuid               5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a
state              clean
features           block_count
size               2.0 MiB (2101248 bytes)
block size         1024 bytes
segments           32 of 64 KiB
clean segments     30 (8 kept back)
newest checkpoint  1
checkpoints        1 (0 of them snapshots)
created            2023-11-14 22:13:20
last mounted       never
last written       2023-11-14 22:13:20
mount count        0
checksum seed      0x12345678
";
    assert_eq!(empty_volume().nilfs("info IMAGE").output(), expected);
}

#[test]
fn segments_and_checkpoints_are_listed() {
    let volume = empty_volume();
    let checkpoints = "\
CHECKPOINT  CREATED              KIND        BLOCKS  INODES
         1  2023-11-14 22:13:20  checkpoint       5       1
";
    assert_eq!(volume.nilfs("checkpoints IMAGE").output(), checkpoints);
    let segments = "\
SEGMENT  WRITTEN              STATE           BLOCKS  FULL
      0  2023-11-14 22:13:20  active, in use      12   20%
      1  -                    active, in use       0    0%
";
    assert_eq!(volume.nilfs("segments IMAGE").output(), segments);
    assert_eq!(volume.nilfs("segments --all IMAGE").output().lines().count(), 1 + 32);
}

#[test]
fn a_dump_names_the_owner_of_every_block() {
    let expected = "\
segment 0
  log at block 4: 12 blocks, checkpoint 1, 2023-11-14 22:13:20, sequence 0, next segment 1, \
begin end super-root
    inode 2, checkpoint 1: 1 block
      5  data  offset 0  virtual 1
    inode 6, checkpoint 1: 4 blocks
      6  data  offset 0  virtual 2
      7  data  offset 1  virtual 3
      8  data  offset 2  virtual 4
      9  data  offset 3  virtual 5
    inode 4, checkpoint 1: 1 block
      10  data  offset 0  virtual 6
    inode 5, checkpoint 1: 1 block
      11  data  offset 0  virtual 7
    inode 3, checkpoint 1: 3 blocks
      12  data  offset 0
      13  data  offset 1
      14  data  offset 2
segment 9
";
    assert_eq!(empty_volume().nilfs("dump IMAGE 0 9").output(), expected);
}

#[test]
fn directories_are_listed_in_order_and_names_cannot_control_the_terminal() {
    let volume = volume();
    let expected = "bell\\u{7}\ndirectory\nlink\nsecond name\nsparse\n";
    assert_eq!(volume.nilfs("ls IMAGE").output(), expected);
    assert_eq!(volume.nilfs("ls IMAGE link").output(), "link\n");
    let long = "\
MODE        LINKS  OWNER  GROUP  SIZE  MODIFIED             NAME
-rw-r-----      2   1000    100   8 B  2023-11-14 22:13:20  file
";
    assert_eq!(volume.nilfs("ls -l IMAGE directory").output(), long);
    let recursive = volume.nilfs("ls -R IMAGE").output();
    assert!(recursive.contains("directory\ndirectory/file\n"), "{recursive}");
}

#[test]
fn a_dump_says_in_words_what_an_fsync_has_written() {
    let volume = synced_volume();
    let dump = volume.nilfs("dump IMAGE 0 1").output();
    let is_log = |line: &&str| line.starts_with("  log at");
    let of_log = |nth: usize| {
        let logs = dump.lines().skip_while(|line| !line.contains(&format!("number {nth} after")));
        logs.take_while(|line| !is_log(line)).collect::<Vec<_>>().join("\n")
    };
    let times = "modified 2023-11-14 22:13:20, changed 2023-11-14 22:13:20";
    let expected = [
        "    records, number 1 after checkpoint 3",
        &format!("      inode 13: content of 17 bytes, generation 1700000009, {times}"),
        "      inode 13: 9 bytes at 8",
    ];
    assert_eq!(of_log(1), expected.join("\n"));
    for words in [
        "records, number 2 after checkpoint 3",
        "  name \"bell\\u{7}\" in directory 2: removed",
        "  name \"sub\" in directory 12: inode 11, directory",
        "  inode 11: directory, mode 2755, 2 links, owner 1000:100, flags 0x0, generation ",
        ", in directory 12, modified 2023-11-14 22:13:20, changed 2023-11-14 22:13:20",
        ": block device, mode 0600, 1 link, ",
        ", device 8:300, ",
        "  inode 13: content of 3 bytes, ",
    ] {
        assert!(of_log(2).contains(words), "{words}: {}", of_log(2));
    }
    let json = volume.nilfs("dump --json IMAGE 0 1").output();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let logs = json.as_array().unwrap().iter().flat_map(|it| it["logs"].as_array().unwrap());
    let records = &logs.last().unwrap()["roll_forward"];
    assert_eq!((&records["base_checkpoint"], &records["number"]), (&3.into(), &2.into()));
    let records = records["records"].as_array().unwrap();
    let removed = records.iter().find(|it| it["name"] == "bell\u{7}").unwrap();
    assert_eq!((&removed["kind"], &removed["target"]), (&"name".into(), &().into()));
}

#[test]
fn info_says_when_linux_must_wait() {
    let says = |volume: &common::Volume| {
        let info = volume.nilfs("info IMAGE").output();
        let find = |name: &str| info.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        (find("features"), find("Linux"))
    };
    let volume = synced_volume();
    let (features, linux) = says(&volume);
    assert!(features.unwrap().ends_with("block_count roll_forward"));
    assert!(linux.unwrap().contains("until nilfs has unmounted or recovered it"));
    assert_eq!(says(&common::volume()).1, None);
}

#[test]
fn the_past_can_be_read() {
    let volume = volume();
    let at = volume.before_deletion;
    assert_eq!(volume.nilfs(&format!("ls --at {at} IMAGE")).output(), "gone\n");
    assert_eq!(volume.nilfs(&format!("cat --at {at} IMAGE gone")).output(), "it was here\n");
    let now = volume.nilfs("ls IMAGE").output();
    for moment in ["now", "2023-11-14", "2023-11-14T22:13Z", "yesterday", "1h ago"] {
        let outcome = nilfs(["ls", "--at", moment, volume.image.to_str().unwrap()]);
        assert_eq!(outcome.output(), now, "{moment}");
    }
    assert!(volume.nilfs("cat IMAGE gone").sentence(1).contains("no such file"));
}

#[test]
fn cat_follows_links_and_stat_does_not() {
    let volume = volume();
    assert_eq!(volume.nilfs("cat IMAGE link directory/file").output(), "content\ncontent\n");
    let stat = volume.nilfs("stat IMAGE link").output();
    for line in ["target      directory/file", "type        symbolic link"] {
        assert!(stat.lines().any(|found| found == line), "{stat}");
    }
}

/// Once nobody could tell whether there was a snapshot, or which.
#[test]
fn a_snapshot_whose_number_cannot_be_printed_is_named() {
    let volume = volume();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_nilfs"))
        .args(["snapshot", "create"])
        .arg(&volume.image)
        .stdout(fs::File::create("/dev/full").unwrap())
        .output()
        .unwrap();
    let list = volume.nilfs("snapshot list --json IMAGE").output();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let made = &list[0]["checkpoint"];
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with(&format!("nilfs: made snapshot {made}, but cannot print")), "{said}");
}

#[test]
fn json_is_complete_and_exact() {
    let volume = volume();
    let json = |line: &str| -> serde_json::Value {
        serde_json::from_str(&volume.nilfs(line).output()).unwrap()
    };
    let info = json("info --json IMAGE");
    assert_eq!(info["size_bytes"], common::VOLUME_SIZE);
    assert_eq!(info["state"], "clean");
    let files = json("ls -R --json IMAGE");
    let names: Vec<_> = files.as_array().unwrap().iter().map(|file| &file["path"]).collect();
    let expected = ["bell\u{7}", "directory", "directory/file", "link", "second name", "sparse"];
    assert_eq!(names, expected);
    let stat = &json("stat --json IMAGE directory/file")[0];
    assert_eq!(stat["modified"], "2023-11-14T22:13:20.000000007Z");
    assert_eq!((&stat["mode"], &stat["links"]), (&"0640".into(), &2.into()));
    let checkpoints = json("checkpoints --json IMAGE");
    assert_eq!(checkpoints[0]["checkpoint"], 1);
    let segments = json("segments --json IMAGE");
    assert!(segments.as_array().unwrap().iter().all(|segment| segment["dirty"] == true));
    let dump = json("dump --json IMAGE 0");
    assert_eq!(dump[0]["logs"][0]["files"][0]["inode"], 2);
}

#[test]
fn a_copy_has_contents_holes_links_and_attributes() {
    let volume = volume();
    let copy = volume.beside("copy");
    let words = ["cp", "-rp", volume.image.to_str().unwrap(), "/", copy.to_str().unwrap()];
    common::nilfs(words).output();
    assert_eq!(fs::read_to_string(copy.join("directory/file")).unwrap(), "content\n");
    assert_eq!(fs::read_link(copy.join("link")).unwrap().to_str(), Some("directory/file"));
    let metadata = |name: &str| fs::symlink_metadata(copy.join(name)).unwrap();
    assert_eq!(metadata("second name").ino(), metadata("directory/file").ino());
    let sparse = metadata("sparse");
    assert_eq!(sparse.len(), (1 << 20) + 3);
    assert!(sparse.blocks() * 512 < 1 << 19, "the hole is gone");
    assert_eq!(metadata("directory").permissions().mode() & 0o777, 0o750);
    assert_eq!(metadata("directory").mtime(), common::TIME);
}

/// A volume could lead a copy out of its destination through a symbolic link.
#[test]
fn a_copy_follows_no_link_at_its_destination() {
    let volume = volume();
    let outside = volume.beside("outside");
    let copy = volume.beside("copy");
    fs::create_dir(&outside).unwrap();
    fs::create_dir(&copy).unwrap();
    std::os::unix::fs::symlink(&outside, copy.join("directory")).unwrap();
    std::os::unix::fs::symlink(outside.join("file"), copy.join("sparse")).unwrap();
    let words = ["cp", "-r", volume.image.to_str().unwrap(), "/", copy.to_str().unwrap()];
    let outcome = common::nilfs(words);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.ends_with("files could not be copied\n"), "{}", outcome.stderr);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(copy.join("second name")).unwrap(), "content\n");
}
