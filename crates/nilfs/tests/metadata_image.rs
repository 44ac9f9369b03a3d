//! The image of a volume's metadata is a volume with the same names, attributes and damage, and without
//! a byte of content.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{CommandOutput, Volume, nilfs};
use nilfs_ondisk::geometry::secondary_superblock;
use serde_json::Value;

/// Volumes of Linux, with files of all kinds, snapshots, and a deleted past.
const OF_LINUX: [&str; 4] = ["linux-1024", "linux-2048", "linux-4096", "last-group-1024"];

/// A volume that Linux has made, in the place of a small one of ours.
fn of_linux(name: &str) -> Volume {
    let volume = common::empty_volume();
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nilfs-check/tests/images");
    let packed = images.join(format!("{name}.img.gz"));
    let output = Command::new("gzip").arg("-dc").arg(&packed).output().unwrap();
    assert!(output.status.success(), "gzip cannot read {}", packed.display());
    fs::write(&volume.image, output.stdout).unwrap();
    volume
}

/// Makes the image of a volume, and puts it in its place. Returns what was in it before.
#[track_caller]
fn replace_by_image(volume: &Volume) -> Vec<u8> {
    replace_by_image_with(volume, &[])
}

#[track_caller]
fn replace_by_image_with(volume: &Volume, options: &[&str]) -> Vec<u8> {
    let before = fs::read(&volume.image).unwrap();
    let image = volume.beside("metadata.img");
    let options = options.iter().map(AsRef::as_ref);
    let words = ["image".as_ref()].into_iter().chain(options);
    nilfs(words.chain([volume.image.as_os_str(), image.as_os_str()])).output();
    assert_eq!(fs::read(&volume.image).unwrap(), before, "nothing is written to the volume");
    fs::rename(&image, &volume.image).unwrap();
    before
}

/// What is seen of a volume without the content of files.
fn seen(volume: &Volume) -> Vec<CommandOutput> {
    let lines =
        ["checkpoints IMAGE", "ls -lR IMAGE", "info IMAGE", "segments -a IMAGE", "df IMAGE"];
    lines.map(|line| volume.nilfs(line)).into()
}

fn has(bytes: &[u8], wanted: &str) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted.as_bytes())
}

#[test]
fn everything_but_content_is_in_it() {
    let linux = OF_LINUX.map(of_linux);
    for volume in linux.into_iter().chain([common::volume()]) {
        let before = seen(&volume).into_iter().map(CommandOutput::output).collect::<Vec<_>>();
        replace_by_image(&volume);
        let after = seen(&volume).into_iter().map(CommandOutput::output).collect::<Vec<_>>();
        assert_eq!(after, before);
        volume.nilfs("check IMAGE").output();
        let to = volume.beside("out");
        fs::create_dir(&to).unwrap();
        nilfs([
            "cp".as_ref(),
            "-r".as_ref(),
            volume.image.as_os_str(),
            "/".as_ref(),
            to.as_os_str(),
        ])
        .output();
        assert!(all_zeros(&to), "files have no content");
    }
}

fn all_zeros(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().all(|entry| {
        let entry = entry.unwrap();
        let file_type = entry.file_type().unwrap();
        match file_type.is_dir() {
            true => all_zeros(&entry.path()),
            false if file_type.is_file() => {
                fs::read(entry.path()).unwrap().iter().all(|byte| *byte == 0)
            }
            false => true,
        }
    })
}

/// Of files that are there, that were deleted, and that an fsync has written, also into a record.
#[test]
fn no_content_is_in_it() {
    let volume = common::synced_volume();
    let before = replace_by_image(&volume);
    let after = fs::read(&volume.image).unwrap();
    assert_eq!(after.len(), before.len());
    for content in ["it was here\n", "content\n", "appended\n"] {
        assert!(has(&before, content) && !has(&after, content), "{content}");
    }
    for name in ["second name", "directory/file", "sparse"] {
        assert!(has(&after, name), "{name}");
    }
    volume.nilfs("check IMAGE").output();
    volume.nilfs("recover IMAGE").output();
}

/// What the checker says, by rule and place: what it has found there instead differs.
fn findings(volume: &Volume) -> Vec<[String; 3]> {
    let checked = volume.nilfs("check --json IMAGE");
    assert_eq!(checked.code, Some(3), "{checked:?}");
    let report: Value = serde_json::from_str(&checked.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let fields = ["severity", "rule", "place"];
    let findings = report["findings"].as_array().unwrap().iter();
    findings.map(|finding| fields.map(|field| text(&finding[field]))).collect()
}

#[test]
fn it_has_the_damage_of_the_volume() {
    for name in OF_LINUX {
        let volume = of_linux(name);
        // A byte of every 10th block.
        let mut bytes = fs::read(&volume.image).unwrap();
        let end = bytes.len() - 8192;
        for block in bytes[8192..end].chunks_mut(4096).step_by(10) {
            block[1000] ^= 0x40;
        }
        fs::write(&volume.image, bytes).unwrap();
        let before = findings(&volume);
        replace_by_image(&volume);
        assert_eq!(findings(&volume), before, "{name}");
    }
}

#[test]
fn it_is_made_without_superblocks_and_replaces_nothing() {
    let volume = common::volume();
    let mut bytes = fs::read(&volume.image).unwrap();
    let second = secondary_superblock(bytes.len() as u64).unwrap() as usize;
    for at in [1024, second] {
        bytes[at..at + 1024].fill(0);
    }
    fs::write(&volume.image, bytes).unwrap();
    replace_by_image(&volume);
    let to = volume.beside("out");
    let words = ["salvage".as_ref(), volume.image.as_os_str(), "--to".as_ref(), to.as_os_str()];
    let salvaged = nilfs(words).output();
    assert!(salvaged.contains("0 partial, 0 damaged, 0 unverified, 0 lost"), "{salvaged}");
    let refused = volume.nilfs("image IMAGE IMAGE").sentence(6);
    assert!(refused.ends_with("is there already; name a new file"), "{refused}");
    volume.nilfs("image /dev/zero nowhere/new").sentence(4);
}

/// All files: depth, type, links, size and number, but no name. And names and targets.
fn files(volume: &Volume) -> (Vec<String>, Vec<String>) {
    let all: Value = serde_json::from_str(&volume.nilfs("ls -R --json IMAGE").output()).unwrap();
    let (mut shapes, mut names) = (Vec::new(), Vec::new());
    for file in all.as_array().unwrap() {
        let path = file["path"].as_str().unwrap();
        let fields = ["inode", "type", "mode", "links", "size_bytes", "stored_bytes", "modified"];
        let fields = fields.map(|field| file[field].to_string());
        shapes.push(format!("{} {}", path.matches('/').count(), fields.join(" ")));
        names.extend(path.split('/').map(str::to_owned));
        names.extend(file["target"].as_str().unwrap_or_default().split('/').map(str::to_owned));
    }
    shapes.sort();
    (shapes, names)
}

#[test]
fn scrambled_names_are_gone_and_everything_else_is_as_it_was() {
    let linux = OF_LINUX.map(of_linux);
    for volume in linux.into_iter().chain([common::volume()]) {
        let before = files(&volume);
        let bytes = replace_by_image_with(&volume, &["--scramble"]);
        let after = files(&volume);
        assert_eq!(after.0, before.0);
        volume.nilfs("check IMAGE").output();
        let scrambled = fs::read(&volume.image).unwrap();
        assert_eq!(scrambled.len(), bytes.len());
        // A short one may be anywhere by chance.
        let said =
            |name: &&String| name.len() > 6 && name.bytes().all(|it| it.is_ascii_lowercase());
        for name in before.1.iter().filter(said) {
            assert!(has(&bytes, name) && !has(&scrambled, name), "{name}");
        }
    }
}

/// In the past, as a note, in what is left of a record, and in the superblocks.
#[test]
fn names_are_nowhere_in_a_scrambled_image() {
    let volume = common::volume();
    volume.nilfs("tune -L aspeakinglabel IMAGE").output();
    volume.nilfs("snapshot create -m aspeakingname --note aspeakingnote IMAGE").output();
    let before = replace_by_image_with(&volume, &["--scramble"]);
    let after = fs::read(&volume.image).unwrap();
    for name in ["aspeakinglabel", "aspeakingname", "aspeakingnote", "second name", "gone"] {
        assert!(has(&before, name) && !has(&after, name), "{name}");
    }
    volume.nilfs("check IMAGE").output();
    assert_eq!(volume.nilfs("snapshot list IMAGE").output().lines().count(), 2);
}
