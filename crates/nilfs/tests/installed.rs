//! What is installed beside the command: man pages, completions, the name for mount(8); and the
//! page that documents its exit codes.

mod common;

use std::fs;
use std::process::Command;

use common::nilfs;

const SUBCOMMANDS: [&str; 17] = [
    "mkfs",
    "mount",
    "umount",
    "info",
    "ls",
    "cat",
    "stat",
    "cp",
    "status",
    "df",
    "clean",
    "checkpoints",
    "snapshot",
    "trim",
    "metrics",
    "segments",
    "dump",
];

#[test]
fn every_subcommand_has_a_man_page_and_completions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for what in ["man", "completions"] {
        nilfs(["generate", what, path.to_str().unwrap()]).output();
    }
    let read = |name: &str| fs::read_to_string(path.join(name)).expect(name);
    let main = read("nilfs.1");
    assert!(main.contains("Exit codes"), "{main}");
    for subcommand in SUBCOMMANDS {
        assert!(read(&format!("nilfs-{subcommand}.1")).contains(".SH OPTIONS"), "{subcommand}");
        for completions in ["nilfs.bash", "nilfs.fish", "_nilfs"] {
            assert!(read(completions).contains(subcommand), "{subcommand} in {completions}");
        }
    }
}

#[test]
fn the_documented_exit_codes_are_those_of_the_help() {
    let page = include_str!("../../../docs/exit-codes.md");
    let help = nilfs(["--help"]).output();
    let (_, codes) = help.split_once("Exit codes:\n").expect(&help);
    let number = |text: &str| text.trim().split_once(' ').and_then(|(n, _)| n.parse::<u8>().ok());
    let in_help: Vec<u8> = codes.lines().filter_map(number).collect();
    let rows = page.lines().filter_map(|line| line.strip_prefix('|'));
    let in_page: Vec<u8> = rows.filter_map(number).collect();
    assert_eq!((&in_help[..], in_help.len()), (&in_page[..], 8));
}

/// mount(8) runs its helper under a name of its own, with arguments in its own order.
#[test]
fn as_mount_helper_it_mounts() {
    let directory = tempfile::tempdir().unwrap();
    let helper = directory.path().join("mount.fuse.nilfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nilfs"), &helper).unwrap();
    let output = Command::new(&helper)
        .args(["/nowhere/disk.img", "/", "-n", "-o", "ro,nonempty", "-t", "fuse.nilfs"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(32), "as mount(8) says that it failed: {output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/nowhere/disk.img not accessible"), "{said}");
}
