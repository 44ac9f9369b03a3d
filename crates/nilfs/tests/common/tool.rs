//! Calls the command by its other names.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::CommandOutput;

/// Runs a drop-in with arguments, nobody to ask, and times in UTC.
pub fn tool<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> CommandOutput {
    tool_with_input(name, arguments, "")
}

/// The same, with somebody who answers.
pub fn tool_with_input<S: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = S>,
    input: &str,
) -> CommandOutput {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nilfs"))
        .arg0(name)
        .args(arguments)
        .env("TZ", "UTC")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end without having asked.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    CommandOutput::of(&child.wait_with_output().unwrap())
}
