//! The past of a volume, as Linux and we show it: every checkpoint, file by file.

// Each test program takes of it what it needs.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs::{self, File};

use nilfs_real_kernels::{Fill, Manifest, Uml};

use super::ours::{Image, assert_same};

/// Bash functions for the guest.
///
/// `clean` lets the cleaner go over all segments that are not brand-new, whatever checkpoints it
/// costs, and returns when it has found something to do and has done it. Segments of the second of
/// the newest log are brand-new to it.
const FUNCTIONS: &str = r#"
# The tools use semaphores and message queues.
mkdir -p /dev/shm /dev/mqueue
mount -t tmpfs tmpfs /dev/shm
mount -t mqueue mqueue /dev/mqueue

in_use() { lssu "$DEV" | wc -l; }
newest() { lscp "$DEV" | awk 'END { print $1 }'; }
clean() {
    sleep 1.1
    date +%N >"$MNT/cleaned"; sync
    before=$(in_use)
    echo 'protection_period 0
          min_clean_segments 1
          clean_check_interval 1
          log_priority err' >/dev/shm/conf
    eval "$(nilfs_cleanerd -c /dev/shm/conf "$DEV" "$MNT")"
    until nilfs-clean -p 0 -m 1 -S 16/0.1 "$DEV"; do sleep 0.1; done
    while [ "$(in_use)" -ge "$before" ]; do sleep 0.1; done
    while [ "$(nilfs-clean -l "$DEV")" != idle ]; do sleep 0.1; done
    nilfs-clean -q "$DEV"
    while kill -0 "$NILFS_CLEANERD_PID" 2>/dev/null; do sleep 0.1; done
}
"#;

/// Runs a script on the mounted volume.
#[track_caller]
pub fn in_linux(image: &Image, script: &str) -> String {
    let script = format!("{FUNCTIONS}\nmount_nilfs\n{script}\numount_nilfs");
    Uml::new(image.path()).script(script).run().unwrap().without_complaint().unwrap().stdout
}

/// What Linux shows of the past.
pub struct Shown {
    pub listed: Vec<Listed>,
    /// The trees of all checkpoints that are not minor, by their numbers.
    pub trees: BTreeMap<u64, Manifest>,
}

/// Lets Linux show all checkpoints. It mounts only snapshots, so all become that, on a copy.
#[track_caller]
pub fn shown_by_linux(image: &Image) -> Shown {
    let script = r#"
        mkdir -p "$OUT" /dev/shm
        mount -t tmpfs tmpfs /dev/shm
        mount_nilfs
        lscp -a "$DEV"
        # The first one is that of mkfs, which has no tree.
        checkpoints=$(lscp "$DEV" | awk 'NR > 1 && $1 > 1 { print $1 }')
        chcp ss "$DEV" $checkpoints
        umount_nilfs
        for number in $checkpoints; do
            mount_nilfs ro,cp=$number
            manifest "$MNT/tree" >"$OUT/$number"
            umount_nilfs
        done
        sync "$OUT"/*
    "#;
    let image = image.copy();
    let out = image.beside("manifests");
    let uml = Uml::new(image.path()).env("OUT", &out).script(script);
    let list = uml.run().unwrap().without_complaint().unwrap().stdout;
    let trees = fs::read_dir(out).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let number = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        (number, fs::read_to_string(path).unwrap().parse().unwrap())
    });
    Shown { trees: trees.collect(), listed: list.lines().skip(1).map(parse_listed).collect() }
}

/// A checkpoint as a list shows it: number, snapshot or not, minor or not, blocks, inodes.
pub type Listed = (u64, bool, bool, u64, u64);

/// A line of lscp.
fn parse_listed(line: &str) -> Listed {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |nth: usize| words[nth].parse().expect(line);
    (number(0), words[3] == "ss", words[4] == "i", number(5), number(6))
}

/// We show the same, and write nothing.
#[track_caller]
pub fn assert_shown_by_us(what: &str, image: &Image, expected: &BTreeMap<u64, Manifest>) {
    let before = image.last_change();
    for (number, manifest) in expected {
        let mounted = image.mount(&format!("ro,cp={number}"));
        assert_same(&format!("{what}: checkpoint {number}"), manifest, &mounted.manifest("tree"));
        mounted.unmount();
    }
    let (newest, manifest) = expected.last_key_value().unwrap();
    let mounted = image.mount("ro");
    assert_same(&format!("{what}: the newest, {newest}"), manifest, &mounted.manifest("tree"));
    mounted.unmount();
    assert_eq!(image.last_change(), before, "{what}: a read-only mount has written");
}

/// What we list.
#[track_caller]
pub fn listed_by_us(image: &Image) -> Vec<Listed> {
    let list: Vec<serde_json::Value> =
        serde_json::from_str(&image.nilfs(&["checkpoints", "--json"])).unwrap();
    let listed = list.iter().map(|entry| {
        let number = |name: &str| entry[name].as_u64().expect(name);
        let flag = |name: &str| entry[name].as_bool().expect(name);
        let (blocks, inodes) = (number("blocks"), number("inodes"));
        (number("checkpoint"), flag("snapshot"), flag("minor"), blocks, inodes)
    });
    listed.collect()
}

/// Everybody agrees on all that is left of the past, and no snapshot has changed since `before`.
/// Returns what the checkpoints show.
#[track_caller]
pub fn agreed(
    what: &str,
    image: &Image,
    before: &BTreeMap<u64, Manifest>,
) -> BTreeMap<u64, Manifest> {
    println!("{what}");
    image.check();
    let Shown { listed, trees } = shown_by_linux(image);
    assert_eq!(listed, listed_by_us(image), "{what}");
    for (number, snapshot, ..) in listed {
        if let Some(tree) = before.get(&number).filter(|_| snapshot) {
            assert_same(&format!("{what}: snapshot {number}"), tree, &trees[&number]);
        }
    }
    assert_shown_by_us(what, image, &trees);
    trees
}

/// We work on a volume whose virtual block numbers have been used before: we take the directory
/// `old` away and make `new`.
pub fn work_of_ours(image: &Image, fill: Fill, old: &str, new: &str) {
    let mounted = image.mount("rw");
    let tree = mounted.join("tree");
    fs::remove_dir_all(tree.join(old)).unwrap();
    for round in 0..3 {
        let bytes: Vec<u8> = (0..5_000_000u32).map(|at| (at * 7 + round) as u8).collect();
        fs::write(mounted.join("churn"), bytes).unwrap();
        File::open(mounted.join("churn")).unwrap().sync_all().unwrap();
    }
    fs::create_dir(tree.join(new)).unwrap();
    fill.populate(&tree.join(new)).unwrap();
    File::open(&tree).unwrap().sync_all().unwrap();
    fill.modify(&tree.join(new)).unwrap();
    mounted.unmount();
}

/// How many of them are snapshots.
pub fn snapshots(listed: &[Listed]) -> usize {
    listed.iter().filter(|(_, snapshot, ..)| *snapshot).count()
}
