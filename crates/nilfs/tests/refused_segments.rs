//! A segment whose usage entry says that it is clean, with a live file in it: what people are told of it
//! as long as it is kept out of use, and the way out. The superuser and `/dev/fuse` are needed.

mod common {
    pub mod asking;
    pub mod ours;
}

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::asking::{json, nilfs, works};
use common::ours::Image;
use serde_json::Value;

const BLOCK: u64 = 4096;
const SUFILE: u64 = 5;
/// Bytes of an entry of the sufile. Before the first, two have the place of the header.
const ENTRY: u64 = 16;
/// Where an entry has the flags.
const FLAGS: u64 = 12;
/// Where the sufile has the segment that was taken last.
const LAST_ALLOC: u64 = 16;
const ROOM_FOR_OTHERS: usize = 4 << 20;

/// Lets the usage entry of a segment say that it is clean, in which the file with most blocks has some, and
/// the search for a segment begin there.
fn call_a_live_segment_clean(image: &Path) {
    let (file, victim, entries) = usage_of_files(image);
    file.write_all_at(&[0; ENTRY as usize], entries + (2 + victim) * ENTRY).unwrap();
    file.write_all_at(&(victim - 1).to_le_bytes(), entries + LAST_ALLOC).unwrap();
}

/// Returns the image, the segment in which files have most blocks, and where the sufile begins that counts.
fn usage_of_files(image: &Path) -> (File, u64, u64) {
    let segments = json(&["segments"], image);
    let segments = segments.as_array().unwrap().iter();
    // They were written one after the other.
    let segments: Vec<(u64, Value)> = segments
        .filter(|it| it["blocks"].as_u64() > Some(0))
        .map(|it| it["segment"].as_u64().unwrap())
        .map(|segment| (segment, dump(image, segment)))
        .collect();
    let blocks_of_all = segments.iter().flat_map(|(_, dump)| blocks(dump));
    let sufile = blocks_of_all.filter(|(inode, it)| *inode == SUFILE && it["kind"] == "data");
    let entries = sufile.last().unwrap().1["block"].as_u64().unwrap() * BLOCK;
    let of_files = |dump: &Value| blocks(dump).filter(|(inode, _)| *inode > SUFILE + 1).count();
    let (victim, _) = segments.iter().max_by_key(|(_, dump)| of_files(dump)).unwrap();
    (File::options().write(true).open(image).unwrap(), *victim, entries)
}

fn dump(image: &Path, segment: u64) -> Value {
    let printed = works(&["dump", "--json"], image, &[&segment.to_string()]);
    serde_json::from_str(&printed).unwrap()
}

/// The blocks of files in dumped segments, each with the inode.
fn blocks(dump: &Value) -> impl Iterator<Item = (u64, &Value)> {
    let logs = dump.as_array().unwrap().iter().flat_map(|it| it["logs"].as_array().unwrap());
    let files = logs.flat_map(|it| it["files"].as_array().unwrap());
    files.flat_map(|file| {
        let inode = file["inode"].as_u64().unwrap();
        file["blocks"].as_array().unwrap().iter().map(move |block| (inode, block))
    })
}

/// Such a segment was counted as clean and nowhere named.
#[test]
fn a_segment_that_is_kept_out_of_use_is_named_with_the_way_out() {
    let image = Image::ours("--size 32M -B 64");
    let live = "live".repeat(512 << 10);
    let mounted = image.mount("cleaner-config=/dev/null");
    fs::write(mounted.join("live"), &live).unwrap();
    mounted.unmount();
    call_a_live_segment_clean(&image.path());
    // Checksums would tell that the sufile has changed, but where Linux has written it, there are none.
    let mounted = image.mount("verify=none,cleaner-config=/dev/null");
    let df = json(&["df"], mounted.root());
    let part = |name: &str| df[name].as_u64().unwrap();
    let parts = ["live", "snapshot", "protected", "reclaimable", "refused", "free"];
    let sum: u64 = parts.iter().map(|it| part(&format!("{it}_bytes"))).sum();
    assert_eq!(sum, part("total_bytes"), "{df}");
    assert!(part("refused_bytes") > 0, "the summaries of its logs: {df}");
    fs::write(mounted.join("more"), vec![1; ROOM_FOR_OTHERS]).unwrap();
    mounted.checkpoint();
    let status = json(&["status"], mounted.root());
    assert_eq!(status["refused_segments"], 1, "{status}");
    let metrics = works(&["metrics"], mounted.root(), &[]);
    assert!(metrics.contains("\nnilfs_refused_segments 1\n"), "{metrics}");
    assert_eq!(json(&["df"], mounted.root())["refused_segments"], status["refused_segments"]);
    for command in ["status", "df"] {
        let said = works(&[command], mounted.root(), &[]);
        let line = said.lines().find(|line| line.starts_with("kept out of use"));
        let words = "1 segment counts as clean, but holds what is needed, or may: unmount, and run nilfs fsck";
        assert!(line.is_some_and(|line| line.ends_with(words)), "{said}");
    }
    let said = mounted.unmount_after_words();
    assert_eq!(said.matches("is not written").count(), 1, "it is reported once: {said}");
    let (code, printed, _) = nilfs(&["fsck", "-y"], &image.path(), &[]);
    assert_eq!(code, Some(0), "{printed}");
    let mounted = image.mount("cleaner-config=/dev/null");
    assert!(fs::read_to_string(mounted.join("live")).unwrap() == live);
    assert_eq!(fs::read(mounted.join("more")).unwrap().len(), ROOM_FOR_OTHERS);
    assert_eq!(json(&["df"], mounted.root())["refused_bytes"], 0);
    assert_eq!(json(&["status"], mounted.root())["refused_segments"], 0);
    mounted.unmount();
    image.check();
}

/// Their room was said to be what the cleaner can take.
#[test]
fn what_is_in_segments_with_an_error_is_not_reclaimable() {
    let image = Image::ours("--size 32M -B 64");
    let mounted = image.mount("cleaner-config=/dev/null");
    fs::write(mounted.join("dead"), vec![7; ROOM_FOR_OTHERS]).unwrap();
    mounted.checkpoint();
    fs::remove_file(mounted.join("dead")).unwrap();
    mounted.unmount();
    let (file, segment, entries) = usage_of_files(&image.path());
    let reclaimable = |df: &Value| df["reclaimable_bytes"].as_u64().unwrap();
    let before = reclaimable(&json(&["df"], &image.path()));
    let (dirty, error) = (2_u32, 4_u32);
    let flags = entries + (2 + segment) * ENTRY + FLAGS;
    file.write_all_at(&(dirty | error).to_le_bytes(), flags).unwrap();
    let mounted = image.mount("ro,verify=none,cleaner-config=/dev/null");
    let df = json(&["df"], mounted.root());
    let bad = df["bad_bytes"].as_u64().unwrap();
    assert!(bad > 0 && reclaimable(&df) + bad == before, "{before} before, and {df}");
    let said = works(&["df"], mounted.root(), &[]);
    assert!(said.lines().any(|line| line.starts_with("bad ")), "{said}");
    mounted.unmount();
}
