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

/// Unmounts a volume whose log has to say that a scrub has found damage.
#[track_caller]
fn unmount_damaged(mounted: ours::Mounted) {
    let said = mounted.unmount_after_words();
    let line = "ERROR scrub: 1 place damaged; see nilfs scrub --status";
    assert!(said.lines().all(|it| it == line) && !said.is_empty(), "{said}");
}

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
    assert_eq!(report["damage"][0]["fault"], "content");
    let ended = damage.nilfs("scrub IMAGE");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let line = format!("  damaged: gone: 1024 bytes at 0; checkpoint {past}\n");
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
    let line = "  damaged: file: 4096 bytes at 4096; since checkpoint ";
    assert!(ended.stdout.contains(line), "{ended:?}");
    unmount_damaged(mounted);
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

/// A damaged log looked like the end of all logs. A scrub of a mount has said "no damage", of an older
/// checkpoint, and one of a volume that had crashed was broken off.
#[test]
fn damage_after_the_checkpoint_that_a_superblock_names_is_no_end_of_the_log() {
    let image = Image::ours("--size 32M -B 64");
    // No superblock is written in between.
    let mounted = image.mount("cleaner-config=/dev/null");
    fs::write(mounted.join("file"), "content that will be spoiled, and more").unwrap();
    mounted.checkpoint();
    fs::write(mounted.join("other"), "other").unwrap();
    mounted.checkpoint();
    let crashed = image.copy();
    spoil(&image.path(), b"content that will be spoiled");
    let ended = nilfs(["scrub".as_ref(), mounted.root().as_os_str()]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stdout.contains("  damaged: file: 4096 bytes at 0; since"), "{ended:?}");
    unmount_damaged(mounted);

    let whole = nilfs(["scrub".as_ref(), crashed.path().as_os_str()]).output();
    assert!(whole.ends_with("no damage\n"), "{whole}");
    spoil(&crashed.path(), b"content that will be spoiled");
    let said = nilfs(["scrub".as_ref(), crashed.path().as_os_str()]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stdout.contains("  damaged: file: 4096 bytes at 0; since"), "{}", said.stdout);
}

/// A volume with a few MiB and damage at the beginning, mounted.
fn large() -> (Image, ours::Mounted) {
    let image = Image::ours("--size 64M -B 256");
    let mounted = image.mount("nogc,cleaner-config=/dev/null");
    let content = "precious".repeat(2000);
    fs::write(mounted.join("spoilt"), &content).unwrap();
    mounted.checkpoint();
    for nth in 0..8 {
        fs::write(mounted.join(&nth.to_string()), vec![nth; 3 << 20]).unwrap();
        mounted.checkpoint();
    }
    spoil(&image.path(), &content.as_bytes()[..4096]);
    (image, mounted)
}

fn status(path: &Path) -> Value {
    let words = ["scrub", "--status", "--json"];
    let words = words.iter().map(AsRef::as_ref).chain([path.as_os_str()]);
    serde_json::from_str(&nilfs(words).output()).unwrap()
}

#[test]
fn a_scrub_in_the_background_is_interrupted_goes_on_and_is_remembered() {
    let (image, mounted) = large();
    let scrub = |words: &[&str], path: &Path| {
        nilfs(["scrub"].iter().chain(words).map(AsRef::as_ref).chain([path.as_os_str()]))
    };
    assert!(scrub(&["--status"], mounted.root()).output().contains("no scrub is known of"));
    // At this rate it would take a day.
    assert_eq!(scrub(&["--background", "--rate", "1K"], mounted.root()).output(), "");
    let busy = scrub(&["--background"], mounted.root()).sentence(1);
    assert!(busy.contains("is under way"), "{busy}");
    assert_eq!(status(mounted.root())["running"], true);
    assert!(scrub(&["--status"], mounted.root()).output().starts_with("running: "));
    assert_eq!(scrub(&["--stop"], mounted.root()).output(), "");
    let stopped = status(mounted.root());
    assert_eq!((&stopped["running"], &stopped["interrupted"]), (&false.into(), &true.into()));

    // An unmount interrupts it, too, and the volume goes on being scrubbed where it lies then.
    assert_eq!(scrub(&["--background", "--rate", "4M"], mounted.root()).output(), "");
    while status(mounted.root())["done_bytes"].as_u64().unwrap() < 2 << 20 {
        std::thread::sleep(ours::GLANCE);
    }
    unmount_damaged(mounted);
    let before = status(&image.path());
    assert_eq!(before["interrupted"], true);
    let (read, began) = (before["read_bytes"].as_u64().unwrap(), &before["began"]);
    assert!(read >= 2 << 20, "{before}");
    let ended = scrub(&["--json"], &image.path());
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let whole: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&whole["began"], &whole["interrupted"]), (began, &false.into()));
    assert!(damaged(&whole).iter().any(|(path, ..)| *path == "spoilt"), "{whole}");
    let anew = scrub(&["--anew", "--json"], &image.path());
    let anew: Value = serde_json::from_str(&anew.stdout).unwrap();
    let bytes = |report: &Value| report["read_bytes"].as_u64().unwrap();
    let twice = bytes(&whole) - bytes(&anew);
    assert!(twice < bytes(&anew) / 2, "most of it was read once: {whole} {anew}");

    let mounted = image.mount("nogc,cleaner-config=/dev/null");
    let said = nilfs(["status".as_ref(), mounted.root().as_os_str()]).output();
    assert!(said.contains("damaged: spoilt: 4096 bytes at 4096"), "{said}");
    mounted.unmount();
}

#[test]
fn a_mount_scrubs_by_itself_when_a_scrub_is_due() {
    let (image, mounted) = large();
    mounted.unmount();
    let mounted = image.mount("nogc,cleaner-config=/dev/null,scrub=weekly,scrub-rate=1G");
    let last = loop {
        let now = status(mounted.root());
        if now["ended"].is_string() {
            break now;
        }
        std::thread::sleep(ours::GLANCE);
    };
    assert_eq!(last["interrupted"], false);
    assert!(damaged(&last).iter().any(|(path, ..)| *path == "spoilt"), "{last}");
    unmount_damaged(mounted);
    // The next one is due in a week.
    let mounted = image.mount("nogc,cleaner-config=/dev/null,scrub=weekly");
    assert_eq!(status(mounted.root()), last);
    mounted.unmount();
}

#[test]
fn damage_is_repaired_from_an_older_version_with_the_same_content() {
    let image = Image::ours("--size 32M -B 64");
    let mounted = image.mount("nogc,cleaner-config=/dev/null");
    let content = "precious".repeat(1000);
    for _ in 0..2 {
        fs::write(mounted.join("file"), &content).unwrap();
        mounted.checkpoint();
    }
    fs::write(mounted.join("next"), "a log of its own").unwrap();
    mounted.unmount();
    // The older version comes first.
    let bytes = fs::read(image.path()).unwrap();
    let mut places = bytes.windows(4096).enumerate().step_by(512);
    let whole = |bytes: &[u8]| bytes == &content.as_bytes()[..4096];
    let newer = places.rfind(|(_, bytes)| whole(bytes)).expect("it is there").0;
    let file = File::options().write(true).open(image.path()).unwrap();
    file.write_all_at(b"!", newer as u64 + 100).unwrap();
    let scrub = |words: &[&str], path: &Path| {
        nilfs(["scrub"].iter().chain(words).map(AsRef::as_ref).chain([path.as_os_str()]))
    };
    assert_eq!(scrub(&[], &image.path()).code, Some(3));
    let said = scrub(&["--repair"], &image.path()).output();
    assert!(said.contains("whole again: file: 4096 bytes at 0; since"), "{said}");
    assert!(said.ends_with(", 1 place repaired\n"), "{said}");
    assert!(scrub(&[], &image.path()).output().ends_with("no damage\n"));
    image.check();
    let mounted = image.mount("cleaner-config=/dev/null");
    assert!(fs::read_to_string(mounted.join("file")).unwrap() == content);
    assert!(scrub(&["--repair"], mounted.root()).output().ends_with("no damage\n"));
    mounted.unmount();
}
