//! Asking the command for something on a path, and what it says.

// Each test program takes of it what it needs.
#![allow(dead_code)]

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs the command: its exit code, what it printed, and what it complained of.
pub fn nilfs(words: &[&str], path: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    command.env("STATE_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    let output = command.args(words).arg(path).args(more).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// What it printed; it must have had nothing to complain of.
#[track_caller]
pub fn works(words: &[&str], path: &Path, more: &[&str]) -> String {
    let (code, printed, said) = nilfs(words, path, more);
    assert_eq!((code, said.as_str()), (Some(0), ""), "{words:?}");
    printed
}

/// What it complained of; it must have failed and printed nothing.
#[track_caller]
pub fn refused(words: &[&str], path: &Path, more: &[&str]) -> String {
    let (code, printed, said) = nilfs(words, path, more);
    assert_eq!((code, printed.as_str()), (Some(1), ""), "{words:?}: {said}");
    said
}

/// What it printed as JSON.
#[track_caller]
pub fn json(words: &[&str], path: &Path) -> Value {
    serde_json::from_str(&works(&[words, &["--json"]].concat(), path, &[])).unwrap()
}
