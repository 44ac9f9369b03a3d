//! Standard output and standard error that are closed or full. Commands ended in a panic with code
//! 101, and a mount in the foreground with its next message. The superuser and `/dev/fuse` are
//! needed for the mounts.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::{CommandOutput, VOLUME_SIZE, Volume, nilfs, volume};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

/// What prints something; a word in capitals stands for a path.
const LINES: &[&str] = &[
    "nilfs --help",
    "nilfs --version",
    "nilfs mount --help",
    "nilfs info IMAGE",
    "nilfs info --json IMAGE",
    "nilfs ls IMAGE",
    "nilfs ls --json IMAGE",
    "nilfs ls --long --recursive IMAGE",
    "nilfs cat IMAGE directory/file",
    "nilfs stat IMAGE directory sparse",
    "nilfs checkpoints IMAGE",
    "nilfs snapshot create IMAGE",
    "nilfs snapshot list IMAGE",
    "nilfs checkpoints delete IMAGE 2",
    "nilfs segments IMAGE",
    "nilfs dump IMAGE 0",
    "nilfs df IMAGE",
    "nilfs check IMAGE",
    "nilfs clean IMAGE",
    "nilfs trim IMAGE",
    "nilfs resize --verbose IMAGE",
    "nilfs mkfs --size 256M NEW",
    "lscp IMAGE",
    "lscp --help",
    "lscp --version",
    "lssu -l IMAGE",
    "mkcp -p IMAGE",
    "dumpseg IMAGE 0",
    "nilfs-tune -l IMAGE",
];

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// The end of a pipe that nobody reads.
fn closed() -> PipeWriter {
    pipe().unwrap().1
}

/// A pipe that takes no more; its other end must be kept.
fn clogged() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// The command of a line, under the name of the program that the line begins with.
fn command(volume: &Volume, line: &str) -> Command {
    let mut words = line.split(' ').map(|word| match word {
        "IMAGE" => volume.image.clone(),
        "NEW" => volume.beside("new.img"),
        word => PathBuf::from(word),
    });
    let name = words.next().unwrap();
    let program = volume.beside(name.to_str().unwrap());
    if !program.exists() {
        symlink(env!("CARGO_BIN_EXE_nilfs"), &program).unwrap();
    }
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    command
}

fn outcome(command: &mut Command) -> CommandOutput {
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    CommandOutput::of(&Output { status, stdout: Vec::new(), stderr })
}

#[test]
fn a_full_output_is_an_error_of_its_own() {
    for line in LINES {
        let volume = volume();
        let ended = outcome(command(&volume, line).stdout(full()));
        let name = line.split(' ').next().unwrap();
        let said = "cannot write to standard output: No space left on device\n";
        assert_eq!(ended.code, Some(1), "{line}");
        // What has been done all the same may be said in between.
        let (begins, ends) = (format!("{name}: "), ended.stderr.ends_with(said));
        assert!(ended.stderr.starts_with(&begins) && ends, "{line}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{line}: {}", ended.stderr);
    }
}

#[test]
fn a_reader_who_has_seen_enough_is_no_error() {
    for line in LINES {
        let volume = volume();
        let ended = outcome(command(&volume, line).stdout(closed()));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{line}");
    }
}

#[test]
fn what_was_asked_for_is_done_although_it_cannot_be_told() {
    for output in [Stdio::from(full()), closed().into()] {
        let volume = volume();
        outcome(command(&volume, "nilfs snapshot create IMAGE").stdout(output));
        let list = volume.nilfs("snapshot list --json IMAGE").output();
        assert!(list.contains("\"snapshot\": true"), "{list}");
    }
}

#[test]
fn damage_is_told_by_the_exit_code_although_the_report_is_not_read() {
    let volume = volume();
    let mut bytes = fs::read(&volume.image).unwrap();
    let content = bytes.windows(8).position(|bytes| bytes == b"content\n").unwrap();
    bytes[content] ^= 1;
    fs::write(&volume.image, bytes).unwrap();
    for output in [Stdio::from(full()), closed().into()] {
        let ended = outcome(command(&volume, "nilfs check --scrub IMAGE").stdout(output));
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    }
}

#[test]
fn a_failure_keeps_its_exit_code_when_nobody_can_be_told() {
    for (line, code) in
        [("nilfs info NEW", 4), ("nilfs check", 2), ("nilfs", 2), ("lscp --frob", 1)]
    {
        for output in [Stdio::from(full()), closed().into()] {
            let volume = volume();
            let ended = command(&volume, line).stderr(output).status().unwrap();
            assert_eq!(ended.code(), Some(code), "{line}");
        }
    }
}

/// The system's answer to a write beyond `ulimit -f` is a signal that kills.
#[test]
fn a_limit_of_the_size_of_files_is_an_error_too() {
    let volume = volume();
    command(&volume, "nilfs info IMAGE");
    let mut limited = Command::new("prlimit");
    limited.arg("--fsize=1000").arg(volume.beside("nilfs")).args(["cat", "IMAGE", "sparse"]);
    limited.current_dir(volume.directory.path());
    symlink(&volume.image, volume.beside("IMAGE")).unwrap();
    let ended = outcome(limited.stdout(File::create(volume.beside("output")).unwrap()));
    let said = "nilfs: cannot write to standard output: File too large\n";
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), said));
}

/// A mount in the foreground whose messages go to `stderr`, once it can be used.
fn serve(volume: &Volume, log: Option<&Path>, stderr: impl Into<Stdio>) -> (Child, PathBuf) {
    let dir = volume.beside("mnt");
    let mut mount = command(volume, "nilfs mount --foreground");
    mount.args(log.map(|log| ["--log".as_ref(), log.as_os_str()]).into_iter().flatten());
    let mut child =
        mount.args([&volume.image, &dir]).stdout(closed()).stderr(stderr).spawn().unwrap();
    while !dir.join("directory").exists() {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::yield_now();
    }
    (child, dir)
}

/// Lets the process say something, and makes sure that it serves the volume to a good end.
#[track_caller]
fn outlives_its_next_message(volume: &Volume, mut child: Child, dir: &Path) {
    let dir_word = dir.to_str().unwrap();
    outcome(&mut command(volume, &format!("nilfs-clean --reload {dir_word}"))).output();
    fs::write(dir.join("new"), "written\n").unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(nilfs([Path::new("cat"), &volume.image, Path::new("new")]).output(), "written\n");
}

fn mountable() -> Volume {
    let volume = volume();
    fs::create_dir(volume.beside("mnt")).unwrap();
    volume
}

#[test]
fn a_mount_outlives_the_reader_of_its_messages() {
    let volume = mountable();
    let (reader, writer) = pipe().unwrap();
    let (child, dir) = serve(&volume, None, writer);
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).unwrap();
    assert!(line.contains("is mounted on"), "{line}");
    outlives_its_next_message(&volume, child, &dir);
}

#[test]
fn a_mount_outlives_messages_that_find_no_room() {
    let volume = mountable();
    let (child, dir) = serve(&volume, None, full());
    outlives_its_next_message(&volume, child, &dir);
}

/// Its threads waited for a terminal that had been stopped, or a program that did not read.
#[test]
fn a_mount_does_not_wait_for_the_reader_of_its_messages() {
    let volume = mountable();
    let (_reader, writer) = clogged();
    let (child, dir) = serve(&volume, None, writer);
    outlives_its_next_message(&volume, child, &dir);
}

#[test]
fn a_mount_outlives_a_log_beyond_the_limit_of_the_size_of_files() {
    let volume = mountable();
    let log = volume.beside("log");
    let limit = 2 * VOLUME_SIZE;
    File::create(&log).unwrap().set_len(limit).unwrap();
    let (child, dir) = serve(&volume, Some(&log), Stdio::null());
    let limits = Rlimit { current: Some(limit), maximum: Some(limit) };
    prlimit(Some(Pid::from_child(&child)), Resource::Fsize, limits).unwrap();
    outlives_its_next_message(&volume, child, &dir);
}

/// Headers were bold for those who had asked for plain text.
#[test]
fn no_color_means_no_bold_either() {
    let volume = volume();
    let line = format!("{} checkpoints {}", env!("CARGO_BIN_EXE_nilfs"), volume.image.display());
    for (value, is_bold) in [("", true), ("1", false)] {
        // On a terminal.
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("NO_COLOR", value).stdin(Stdio::null());
        let output = script.output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && printed.contains("CHECKPOINT"), "{printed}");
        assert_eq!(printed.contains('\x1b'), is_bold, "{printed:?}");
    }
}
