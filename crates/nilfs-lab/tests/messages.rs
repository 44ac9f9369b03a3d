//! Errors are told in one sentence, to people, and by an exit code.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const NOBODY: u32 = 65534;

/// Exit code of a command that must fail, and the sentence that the command says.
#[track_caller]
fn failure(command: &mut Command) -> (i32, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let sentence =
        said.strip_prefix("nilfs-lab: ").unwrap_or_else(|| panic!("{command:?}: {said}"));
    assert_eq!(said.lines().count(), 1, "{command:?}: {said}");
    for raw in ["os error", "error:", "invalid digit", "Invalid argument"] {
        assert!(!said.contains(raw), "{command:?}: {said}");
    }
    (output.status.code().unwrap(), sentence.trim_end().to_owned())
}

fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_nilfs-lab"))
}

/// They were clap's and the system's own words, several lines or twice the same path, and most of
/// them ended with the code of a wrong command line.
#[test]
fn every_failure_is_one_sentence_with_the_code_of_its_kind() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("file"), "text").unwrap();
    std::fs::write(at("wrong.toml"), "name = 1").unwrap();
    let (file, missing, toml) = (at("file"), at("missing"), at("missing.toml"));
    let (below, image, wrong) = (at("file/below"), at("missing/image"), at("wrong.toml"));
    let here = directory.path().display().to_string();
    let nilfs = format!("--nilfs={file}");
    for (code, words, expected) in [
        (2, &["rum"][..], "did you mean run? see nilfs-lab --help"),
        (2, &["run", "--suit", "quick"], "did you mean --suite? see nilfs-lab run --help"),
        (2, &["run", "--runs", "x"], "expected a whole number; see nilfs-lab run --help"),
        (2, &["run", "--scale", "3"], "is not a scale: 1, or a part of it"),
        (2, &["run", "--where", "moon"], "[possible values: auto, host, vm]"),
        (2, &["probe"], "<DEVICE>; see nilfs-lab probe --help"),
        (2, &["run", "--suite", "quik"], "did you mean \"quick\"?"),
        (2, &["run", "--fs", "ext5"], "did you mean \"ext4\"?"),
        (2, &["run", "--fs", "ext4:fast"], "no option of ext4 \"fast\""),
        (2, &["run", "--workload", "iozon"], "did you mean \"iozone\"?"),
        (2, &["run", "--device", "emc"], "did you mean \"emmc\"?"),
        (2, &["run", &nilfs, "--out", &file], "is a file; name a directory with --out"),
        (2, &["run", &nilfs, "--out", &below], "is a file; name a directory with --out"),
        (1, &["run", "--nilfs", &missing], "say where it is with --nilfs"),
        (1, &["run", "--device", &wrong], "wrong.toml: "),
        (1, &["run", &nilfs, "--out", "/proc/x"], "/proc has 0 MB free, but scale 1/64 may need"),
        (4, &["run", "--device", &toml], "missing.toml: No such file or directory"),
        (4, &["compare", &missing, &here], "cannot read"),
        (4, &["compare", &here, &here], "name the --out of a run, or its results.json"),
        (1, &["compare", &file, &here], "is not the results.json of a run"),
        (4, &["probe", &format!("{missing}/x.img.toml")], "No such file or directory"),
        (4, &["probe", &here], "not a block device or an image file"),
        (4, &["probe", "/dev/null"], "not a block device or an image file"),
        (1, &["probe", &file], "too small to be probed"),
        (4, &["replay", &missing], "missing: No such file or directory"),
        (1, &["draw", &file], "is not a trace"),
        (4, &["export", &image, "--device", "emmc"], "cannot open"),
        (4, &["export", &here, "--device", "emmc"], "cannot open"),
    ] {
        let (ended, said) = failure(lab().args(words));
        assert_eq!(ended, code, "{words:?}: {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
        let path = words.iter().find(|word| word.starts_with(&here));
        let times = path.map_or(0, |path| said.matches(path).count());
        assert!(times <= 1, "{words:?} is named twice: {said}");
    }
}

#[test]
fn somebody_who_is_not_root_is_told_what_to_do() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(directory.path(), all).unwrap();
    // Where a stranger can run it.
    let lab = directory.path().join("nilfs-lab");
    // By another process: a program that another thread starts meanwhile would have the copy open for
    // writing, and it could not be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_nilfs-lab")).arg(&lab).status();
    assert!(copied.unwrap().success());
    let run = |out: &Path| {
        let mut command = Command::new(&lab);
        command.args(["run", "--scale", "1/4096", "--workload", "dd-sync", "--fs", "ext4"]);
        command.args(["--where", "host"]).arg("--out").arg(out);
        failure(command.uid(NOBODY).gid(NOBODY))
    };
    let (code, said) = run(&directory.path().join("own"));
    assert_eq!(code, 1);
    assert!(said.contains("only root") && said.contains("--where vm"), "{said}");
    let (code, said) = run(Path::new("/usr/results"));
    assert_eq!(code, 1);
    assert!(said.contains("/usr/results; name a directory of yours with --out"), "{said}");
    assert!(said.ends_with("Permission denied"), "{said}");
}
