//! `nilfs fsck -n` on a volume that is mounted for writing: it judges one checkpoint, whatever is written,
//! cleaned and deleted meanwhile, and says what is damaged. The superuser and `/dev/fuse` are needed.

mod common;
#[path = "common/ours.rs"]
mod ours;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::tool::tool;
use common::{CommandOutput, nilfs};
use ours::Image;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

/// How often a volume is checked, at least, while somebody writes.
const ROUNDS: usize = 12;
/// How often it is checked at most, if nothing has been cleaned until then.
const MOST_ROUNDS: usize = 40 * ROUNDS;
/// Files that somebody writes, and the most that one has.
const FILES: u32 = 24;
const MOST_BYTES: usize = 512 << 10;

fn on(path: &Path, words: &[&str]) -> CommandOutput {
    nilfs(words.iter().map(OsStr::new).chain([path.as_os_str()]))
}

fn report(path: &Path, words: &[&str]) -> Value {
    let ended = on(path, words);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

fn segments_freed(root: &Path) -> u64 {
    report(root, &["status", "--json"])["cleaner"]["segments_freed"].as_u64().unwrap()
}

/// Writes, renames, deletes and syncs files, takes and deletes snapshots and cleans, until it is told to
/// end. What finds no room is left out: cleaning rests while somebody checks.
fn write_and_clean(root: &Path, random: &mut StdRng, end: &AtomicBool) {
    let name = |nth: u32| root.join(format!("file-{nth}"));
    let open = File::create(root.join("deleted")).unwrap();
    fs::remove_file(root.join("deleted")).unwrap();
    while !end.load(Ordering::Relaxed) {
        let (nth, other) = (random.random_range(0..FILES), random.random_range(0..FILES));
        let length = random.random_range(0..MOST_BYTES);
        match random.random_range(0..12) {
            0..6 => _ = fs::write(name(nth), vec![random.random::<u8>(); length]),
            6 => _ = fs::rename(name(nth), name(other)),
            7 => _ = fs::remove_file(name(nth)),
            8 => _ = File::open(name(nth)).and_then(|file| file.sync_all()),
            9 => _ = on(root, &["snapshot", "create"]),
            10 => _ = on(root, &["clean"]),
            _ => {
                let made = fs::create_dir(root.join("directory"));
                _ = made.and_then(|()| fs::remove_dir(root.join("directory")));
            }
        }
    }
    drop(open);
}

/// Tells a thread to end, however the test does.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_sound_volume_is_called_sound_while_it_is_written_and_cleaned() {
    let seed = std::env::var("NILFS_TEST_SEED")
        .map_or_else(|_| rand::random(), |seed| seed.parse().expect("NILFS_TEST_SEED is a number"));
    println!("NILFS_TEST_SEED={seed}");
    // With few blocks in a segment, much is freed and written again.
    for format in ["--size 48M -B 64 -b 1024", "--size 96M -B 128"] {
        let image = Image::ours(format);
        let mounted = image.mount("pp=0,cleaner-config=/dev/null");
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut random = StdRng::seed_from_u64(seed);
            let (root, to_end) = (mounted.root(), &end);
            scope.spawn(move || write_and_clean(root, &mut random, to_end));
            let _end = Ending(to_end);
            let mut checked = Vec::new();
            for round in 0..MOST_ROUNDS {
                if round >= ROUNDS && segments_freed(root) > 0 {
                    break;
                }
                let words: &[&str] = match round % 3 {
                    0 => &["check", "--scrub", "--json"],
                    1 => &["fsck", "-n", "--json"],
                    _ => &["check", "--json"],
                };
                // A check by the name of a directory takes another way to the device.
                let place = if round % 3 == 2 { root } else { &image.path() };
                let ended = on(place, words);
                assert_eq!(ended.code, Some(0), "{format}, {words:?}: {ended:?}");
                let found: Value = serde_json::from_str(&ended.stdout).unwrap();
                checked.push((found["newest_checkpoint"].as_u64(), found["findings"].clone()));
                // Somebody who checks keeps the cleaner from freeing anything.
                let cleaned = on(root, &["clean"]);
                assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
            }
            let alarms: Vec<_> =
                checked.iter().filter(|(_, it)| *it != Value::Array(vec![])).collect();
            assert!(alarms.is_empty(), "{format}: {alarms:?}");
            let first = checked.first().unwrap().0;
            assert!(checked.last().unwrap().0 > first, "{format}: nothing was written meanwhile");
        });
        let freed = segments_freed(mounted.root());
        assert!(freed > 0, "{format}: nothing was cleaned meanwhile");
        mounted.unmount();
        image.check();
    }
}

/// Changes bytes of an image before or after these, where they stand in it.
fn spoil(image: &Path, content: &[u8], by: isize) {
    let bytes = fs::read(image).unwrap();
    let at = bytes.windows(content.len()).position(|it| it == content);
    let at = at.expect("it is on the volume").checked_add_signed(by).unwrap();
    File::options().write(true).open(image).unwrap().write_all_at(&[0; 2], at as u64).unwrap();
}

#[test]
fn damage_of_what_was_written_before_is_found_and_left_for_later() {
    let image = Image::ours("--size 32M -B 64");
    let mounted = image.mount("nogc,cleaner-config=/dev/null");
    fs::write(mounted.join("a-name-of-a-file"), "precious".repeat(1000)).unwrap();
    mounted.checkpoint();
    fs::write(mounted.join("next"), "a log of its own").unwrap();
    mounted.checkpoint();
    on(&image.path(), &["check"]).output();
    spoil(&image.path(), b"precious", 100);
    on(&image.path(), &["check"]).output();
    let scrubbed = on(mounted.root(), &["check", "--scrub"]);
    assert_eq!(scrubbed.code, Some(3), "{scrubbed:?}");
    assert!(scrubbed.stdout.contains("ss_datasum"), "{scrubbed:?}");

    // The length of a record of a directory stands before its name.
    spoil(&image.path(), b"a-name-of-a-file", -4);
    let ended = on(&image.path(), &["fsck", "-n"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stdout.contains("error: /: checkpoint "), "{ended:?}");
    let hint = "; the volume is mounted; unmount it, and nilfs fsck tells what can be repaired\n";
    assert!(ended.stderr.ends_with(hint), "{ended:?}");
    let found = report(&image.path(), &["check", "--json"]);
    assert_eq!(
        (&found["consistent"], &found["repairs"]),
        (&false.into(), &Vec::<Value>::new().into())
    );
    assert!(found["obstacle"].as_str().is_some_and(|it| it.contains("unmount it")), "{found}");
    let code = |mode: &str| {
        tool("fsck.nilfs2", ["-f".as_ref(), mode.as_ref(), image.path().as_os_str()]).code
    };
    assert_eq!(code("-n"), Some(4));

    mounted.unmount();
    assert_eq!(
        code("-y"),
        Some(1 + 4),
        "the directory can be repaired now; the content stays damaged"
    );
}

#[test]
fn what_is_mounted_is_not_repaired() {
    let image = Image::ours("--size 32M -B 64");
    let mounted = image.mount("cleaner-config=/dev/null");
    for mode in ["-p", "-y", "-i"] {
        let said = on(&image.path(), &["fsck", mode]).sentence(5);
        assert!(
            said.contains("unmount it to repair it; nilfs fsck -n checks it as it is"),
            "{said}"
        );
        let ended = tool("fsck.nilfs2", ["-f".as_ref(), "-y".as_ref(), image.path().as_os_str()]);
        assert_eq!(ended.code, Some(8), "{ended:?}");
    }
    let code = tool("fsck.nilfs2", ["-n".as_ref(), image.path().as_os_str()]).code;
    assert_eq!(code, Some(0));
    mounted.unmount();
}
