//! `nilfs scrub`: what the user is told of a volume whose files are not what was written, mounted or
//! not.

mod common;
#[path = "common/ours.rs"]
mod ours;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Volume, nilfs, volume};
use ours::Image;
use serde_json::Value;

/// Changes the byte after these, where they stand in an image.
fn spoil(image: &Path, content: &[u8]) {
    let bytes = fs::read(image).unwrap();
    let at =
        bytes.windows(content.len()).position(|it| it == content).expect("it is on the volume");
    let file = File::options().write(true).open(image).unwrap();
    file.write_all_at(b"!", (at + content.len()) as u64).unwrap();
}

fn json(volume: &Volume) -> Value {
    serde_json::from_str(&volume.nilfs("scrub --json IMAGE").stdout).unwrap()
}

/// The files that need damage: path, first and last checkpoint, and whether it is needed now.
fn damaged(report: &Value) -> Vec<(&str, u64, u64, bool)> {
    let needs = report["damage"].as_array().unwrap();
    let needs = needs.iter().flat_map(|damage| damage["needs"].as_array().unwrap());
    let number = |need: &Value, field: &str| need[field].as_u64().unwrap();
    let file = |need| -> Option<_> {
        let need: &Value = need;
        let moments = (number(need, "first_checkpoint"), number(need, "last_checkpoint"));
        let is_current = need["current"].as_bool().unwrap();
        (number(need, "inode") > 2).then_some(())?;
        Some((need["path"].as_str()?, moments.0, moments.1, is_current))
    };
    needs.filter_map(file).collect()
}

#[test]
fn a_sound_volume_is_called_sound_and_nothing_is_written() {
    let volume = volume();
    let before = fs::read(&volume.image).unwrap();
    let said = volume.nilfs("scrub --rate 100M IMAGE").output();
    assert!(said.ends_with(" sound, no damage\n") && said.lines().count() == 1, "{said}");
    let report = json(&volume);
    assert_eq!(
        (&report["damage"], &report["interrupted"]),
        (&Vec::<Value>::new().into(), &false.into())
    );
    assert!(fs::read(&volume.image).unwrap() == before);
}

#[test]
fn content_that_has_changed_is_shown_with_the_file_and_the_checkpoints_that_need_it() {
    let damage = volume();
    spoil(&damage.image, b"it was here");
    let report = json(&damage);
    let past = damage.before_deletion.0;
    assert_eq!(damaged(&report), [("gone", past, past, false)]);
    assert_eq!(report["damage"][0]["fault"], "checksum");
    let ended = damage.nilfs("scrub IMAGE");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let line = format!("may be damaged: gone: 1024 bytes at 0; checkpoint {past}\n");
    assert!(ended.stdout.contains(&line), "{}", ended.stdout);
    assert!(ended.stderr.ends_with(": damaged in 1 place\n"), "{}", ended.stderr);
}

#[test]
fn a_mounted_volume_is_scrubbed_while_it_is_written_and_cleaned() {
    let image = Image::ours("--size 32M -B 64");
    let mounted = image.mount("pp=0,cleaner-config=/dev/null");
    let scrub = |root: &Path| nilfs(["scrub".as_ref(), root.as_os_str()]);
    for round in 0..20 {
        fs::write(mounted.join("busy"), vec![round; 3 << 20]).unwrap();
        let said = scrub(mounted.root()).output();
        assert!(said.ends_with("no damage\n"), "{said}");
    }
    mounted.unmount();
    // The cleaner would move what is spoilt.
    let mounted = image.mount("nogc,cleaner-config=/dev/null");
    let content = "precious".repeat(1000);
    fs::write(mounted.join("file"), &content).unwrap();
    mounted.checkpoint();
    fs::write(mounted.join("next"), "a log of its own").unwrap();
    mounted.checkpoint();
    mounted.unmount();
    spoil(&image.path(), &content.as_bytes()[..4096]);
    let mounted = image.mount("nogc,cleaner-config=/dev/null");
    let ended = scrub(mounted.root());
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let line = "may be damaged: file: 8192 bytes at 0; since checkpoint ";
    assert!(ended.stdout.contains(line), "{ended:?}");
    mounted.unmount();
}

#[test]
fn what_cannot_be_scrubbed_is_refused() {
    let volume = volume();
    assert!(volume.nilfs("scrub --rate 0 IMAGE").sentence(2).contains("nothing can be read"));
    assert!(volume.nilfs("scrub --rate fast IMAGE").sentence(2).contains("expected a size"));
    volume.nilfs("scrub /nowhere").sentence(4);
    fs::write(&volume.image, vec![0; 1 << 20]).unwrap();
    volume.nilfs("scrub IMAGE").sentence(3);
}

/// A damaged log looks like the end of all logs. A scrub of a mount has said "no damage", of an older
/// checkpoint.
#[test]
fn damage_after_the_checkpoint_that_a_superblock_names_is_no_end_of_the_log() {
    let image = Image::ours("--size 32M -B 64");
    // No superblock is written in between.
    let mounted = image.mount("cleaner-config=/dev/null");
    fs::write(mounted.join("file"), "content that will be spoiled, and more").unwrap();
    mounted.checkpoint();
    fs::write(mounted.join("other"), "other").unwrap();
    mounted.checkpoint();
    spoil(&image.path(), b"content that will be spoiled");
    let ended = nilfs(["scrub".as_ref(), mounted.root().as_os_str()]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("nothing after it was read"), "{}", ended.stderr);
    mounted.unmount();
    let said = nilfs(["scrub".as_ref(), image.path().as_os_str()]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stdout.contains("may be damaged: file:"), "{}", said.stdout);
}
