//! The past as Linux keeps it: snapshots, deleted checkpoints, and what Linux's cleaner has moved.
//! Every checkpoint that is left shows the same in ours, whoever wrote, cleaned and wrote again.

mod common {
    pub mod ours;
}

use std::collections::BTreeMap;
use std::fs::{self, File};

use common::ours::{Image, assert_same, scale};
use nilfs_real_kernels::{Fill, LinuxImage, Manifest, NilfsUtils, Uml};

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
fn in_linux(image: &Image, script: &str) -> String {
    let script = format!("{FUNCTIONS}\nmount_nilfs\n{script}\numount_nilfs");
    Uml::new(image.path()).script(script).run().unwrap().without_complaint().unwrap().stdout
}

/// What Linux shows of each checkpoint. It mounts only snapshots, so they all become snapshots, on
/// a copy.
#[track_caller]
fn shown_by_linux(image: &Image) -> BTreeMap<u64, Manifest> {
    let image = image.copy();
    let script = r#"
        mkdir -p /dev/shm
        mount -t tmpfs tmpfs /dev/shm
        mount_nilfs
        mkdir "$OUT"
        # The first one is that of mkfs, which has no tree.
        checkpoints=$(lscp "$DEV" | awk 'NR > 1 && $1 > 1 { print $1 }')
        chcp ss "$DEV" $checkpoints
        umount_nilfs
        for number in $checkpoints; do
            mount_nilfs ro,cp=$number
            manifest "$MNT/tree" >"$OUT/$number"
            sync "$OUT/$number"
            umount_nilfs
        done
    "#;
    let out = image.beside("manifests");
    let uml = Uml::new(image.path()).env("OUT", &out).script(script);
    uml.run().unwrap().without_complaint().unwrap();
    let entries = fs::read_dir(out).unwrap().map(Result::unwrap);
    let shown = entries.map(|entry| {
        let manifest = fs::read_to_string(entry.path()).unwrap().parse().unwrap();
        (entry.file_name().to_str().unwrap().parse().unwrap(), manifest)
    });
    shown.collect()
}

/// We show the same, and write nothing.
#[track_caller]
fn assert_shown_by_us(what: &str, image: &Image, expected: &BTreeMap<u64, Manifest>) {
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

/// A checkpoint as a list shows it: number, snapshot or not, minor or not, blocks, inodes.
type Listed = (u64, bool, bool, u64, u64);

/// What lscp lists.
#[track_caller]
fn listed_by_linux(image: &Image) -> Vec<Listed> {
    let lines = NilfsUtils::read(&image.path()).unwrap().lscp.stdout;
    let listed = lines.lines().skip(1).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |nth: usize| words[nth].parse().expect(line);
        (number(0), words[3] == "ss", words[4] == "i", number(5), number(6))
    });
    listed.collect()
}

/// What we list.
#[track_caller]
fn listed_by_us(image: &Image) -> Vec<Listed> {
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

/// Everybody agrees on all that is left of the past, and no snapshot has changed. Gives what the
/// checkpoints show.
#[track_caller]
fn agreed(what: &str, image: &Image, before: &BTreeMap<u64, Manifest>) -> BTreeMap<u64, Manifest> {
    println!("{what}");
    image.check();
    let listed = listed_by_linux(image);
    assert_eq!(listed, listed_by_us(image), "{what}");
    let shown = shown_by_linux(image);
    for (number, snapshot, ..) in listed {
        if let Some(manifest) = before.get(&number).filter(|_| snapshot) {
            assert_same(&format!("{what}: snapshot {number}"), manifest, &shown[&number]);
        }
    }
    assert_shown_by_us(what, image, &shown);
    shown
}

/// We work on a volume whose virtual block numbers have been used before: we take the directory `old` away
/// and make `new`.
fn work_of_ours(image: &Image, fill: Fill, old: &str, new: &str) {
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

fn snapshots(listed: &[Listed]) -> usize {
    listed.iter().filter(|(_, snapshot, ..)| *snapshot).count()
}

fn history(block_size: u32) {
    let fill = |seed| Fill { seed: seed + u64::from(block_size), scale: scale() };
    let Fill { seed, scale } = fill(1);
    let made = LinuxImage::of_size(1 << 30).block_size(block_size).blocks_per_segment(256);
    let image = Image::of_linux(&made);

    let script = format!(
        "mkdir $MNT/tree; fill populate --seed {seed} --scale {scale} $MNT/tree; mkcp -s $DEV
         for time in 1 2 3; do head -c 5000000 /dev/urandom >$MNT/churn; sync; done
         fill modify --seed {seed} --scale {scale} $MNT/tree; mkcp -s $DEV
         rm -r $MNT/tree/sizes; mkcp $DEV; deleted=$(newest)
         for time in 1 2 3; do head -c 5000000 /dev/urandom >$MNT/churn; sync; done
         rmcp $DEV $deleted
         clean
         echo new >$MNT/tree/new; sync; rm -r $MNT/tree/wide"
    );
    in_linux(&image, &script);
    assert_eq!(snapshots(&listed_by_us(&image)), 2);
    let shown = agreed("Linux has cleaned", &image, &BTreeMap::new());

    work_of_ours(&image, fill(2), "large", "more");
    let shown = agreed("we have worked on it", &image, &shown);

    in_linux(&image, "clean");
    assert_eq!(snapshots(&listed_by_us(&image)), 2);
    let newest = shown.last_key_value().unwrap().1.clone();
    let shown = agreed("Linux has cleaned after us", &image, &shown);
    assert_same("the newest before and after", &newest, shown.last_key_value().unwrap().1);

    work_of_ours(&image, fill(3), "more", "again");
    agreed("we have worked on it again", &image, &shown);
}

#[test]
fn history_of_4_kib() {
    history(4096);
}

#[test]
fn history_of_2_kib() {
    history(2048);
}

#[test]
fn history_of_1_kib() {
    history(1024);
}
