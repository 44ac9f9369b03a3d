//! Running the programs that others wrote (losetup, cpio, modprobe) with errors worth reading.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Where the programs of an administrator are, which not every user's path names.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a program to its end and returns what it printed. On failure the error holds the command
/// line and what the program wrote on its standard error.
pub fn run(command: &mut Command) -> Result<Vec<u8>> {
    let line = line_of(command);
    let output = command
        .stdin(Stdio::null())
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("cannot run `{line}`"))?;
    check(&line, output)
}

/// What a program printed, if it succeeded.
pub fn check(line: &str, output: Output) -> Result<Vec<u8>> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}`: {}: {}", output.status, last_lines(&said, 3));
    }
    Ok(output.stdout)
}

/// Where a program is.
pub fn find(program: &str) -> Option<PathBuf> {
    let paths = std::env::split_paths(PATH).map(|directory| directory.join(program));
    paths.into_iter().find(|path| path.is_file())
}

/// The end of what was said, on one line: that is where the reason stands.
pub fn last_lines(said: &str, kept: usize) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.as_slice() {
        [] => "it said nothing".to_owned(),
        lines => lines[lines.len().saturating_sub(kept)..].join("; "),
    }
}

/// The command as one would type it.
fn line_of(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
