//! `nilfs cp` leaves a whole file or none: once, a copy that was interrupted was there under the
//! file's name, with a part of its content.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{interrupts, nilfs, volume, volume_with_a_file_of};
use nilfs_real_kernels::Manifest;
use rustix::process::{Pid, Signal, kill_process};

fn names_in(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_copy_that_fails_leaves_the_file_that_was_there() {
    let volume = volume();
    let copies = volume.beside("copies");
    fs::create_dir(&copies).unwrap();
    let copy = copies.join("sparse");
    fs::write(&copy, "as it was").unwrap();
    // No file may become larger than 32 KiB.
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", limited, "sh", env!("CARGO_BIN_EXE_nilfs"), "cp"])
        .args([volume.image.as_path(), Path::new("sparse"), &copy])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("File too large"), "{said}");
    assert_eq!(fs::read_to_string(&copy).unwrap(), "as it was");
    assert_eq!(names_in(&copies), ["sparse"]);
}

/// The error had the name under which the copy would have been made, which nobody knows.
#[test]
fn a_missing_directory_is_named_as_it_was_typed() {
    let volume = volume();
    let to = volume.beside("missing/copy");
    let outcome = volume.nilfs(&format!("cp IMAGE /directory/file {}", to.display()));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let first = format!("nilfs: {}: No such file or directory", to.display());
    assert_eq!(outcome.stderr.lines().next(), Some(first.as_str()));
}

/// A terminal that was closed left a part of the file.
#[test]
fn a_copy_that_is_interrupted_leaves_nothing() {
    interrupts::hear();
    [Signal::TERM, Signal::HUP].into_iter().for_each(interrupt_a_copy);
}

fn interrupt_a_copy(signal: Signal) {
    const BYTES: usize = 48 << 20;
    let volume = volume_with_a_file_of(BYTES);
    let copies = volume.beside("copies");
    fs::create_dir(&copies).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_nilfs"))
        .arg("cp")
        .args([&*volume.image, Path::new("large"), &copies])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while names_in(&copies).is_empty() && process.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    // It may be over by now.
    let _ = kill_process(Pid::from_child(&process), signal);
    match process.wait().unwrap().code() {
        Some(0) => assert_eq!(fs::metadata(copies.join("large")).unwrap().len(), BYTES as u64),
        code => {
            assert_eq!(code, Some(130), "{signal:?} has ended it by itself");
            assert_eq!(names_in(&copies), [] as [&str; 0]);
        }
    }
}

#[test]
fn a_file_takes_the_place_of_one_that_was_there() {
    let volume = volume();
    let copy = volume.beside("copy");
    fs::write(&copy, "much longer than what comes").unwrap();
    let words = ["cp", volume.image.to_str().unwrap(), "directory/file", copy.to_str().unwrap()];
    common::nilfs(words).output();
    assert_eq!(fs::read_to_string(&copy).unwrap(), "content\n");
}

/// The superuser copies to a directory in which another user has put a link where the volume has a file
/// or directory.
#[test]
fn no_link_at_the_destination_is_followed() {
    let volume = volume();
    let all = ["bell\x07", "directory", "directory/file", "link", "second name", "sparse"];
    let variants =
        |trap| [("-rp", true), ("-r", true), ("-rp", false), ("-r", false)].map(|it| (trap, it));
    for (nth, (trap, (options, to_directory))) in all.into_iter().flat_map(variants).enumerate() {
        let copies = volume.beside(&format!("copies {nth}"));
        let outside = volume.beside(&format!("outside {nth}"));
        fs::create_dir_all(copies.join(trap).parent().unwrap()).unwrap();
        fs::create_dir_all(outside.join("directory")).unwrap();
        fs::write(outside.join("directory/file"), "secret").unwrap();
        let target = if to_directory { "directory" } else { "directory/file" };
        symlink(outside.join(target), copies.join(trap)).unwrap();
        let before = Manifest::of(&outside).unwrap();
        let image = volume.image.to_str().unwrap();
        let outcome = nilfs(["cp", options, image, "/", copies.to_str().unwrap()]);
        let shown = copies.join(trap).display().to_string().replace('\x07', "\\u{7}");
        let in_the_way = "exists already and is a symbolic link; move it away first";
        let expected = format!("nilfs: {shown}: {in_the_way}\nnilfs: 1 file could not be copied\n");
        assert_eq!((outcome.code, outcome.stderr), (Some(1), expected));
        let after = Manifest::of(&outside).unwrap();
        assert_eq!(Manifest::diff(&before, &after), [""; 0], "{trap}");
        for path in all.into_iter().filter(|path| !path.starts_with(trap)) {
            assert!(fs::symlink_metadata(copies.join(path)).is_ok(), "{path} is copied");
        }
        assert!(!names_in(&copies).iter().any(|name| name.starts_with(".nilfs")), "{trap}");
    }
}

/// A FIFO in the place of a file would keep a program that opens it waiting.
#[test]
fn nothing_but_a_file_is_replaced_by_a_file() {
    let volume = volume();
    let copies = volume.beside("copies");
    fs::create_dir_all(copies.join("sparse")).unwrap();
    fs::create_dir(copies.join("directory")).unwrap();
    let pipe = copies.join("directory/file");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::write(copies.join("link"), "a file").unwrap();
    let words = ["cp", "-rp", volume.image.to_str().unwrap(), "/", copies.to_str().unwrap()];
    let outcome = nilfs(words);
    for (name, kind) in [
        ("directory/file", "a special file"),
        ("sparse", "a directory"),
        ("link", "a regular file"),
    ] {
        let line = format!("{name}: exists already and is {kind}; move it away first\n");
        assert!(outcome.stderr.contains(&line), "{outcome:?}");
    }
    assert!(outcome.stderr.ends_with("3 files could not be copied\n"), "{outcome:?}");
    assert_eq!(fs::read(copies.join("link")).unwrap(), b"a file");
}
