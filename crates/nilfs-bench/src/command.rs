//! Running the programs that others wrote (mkfs, mount, tar, cp) with errors worth reading.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a program to its end. On failure the error holds the command line and what the program
/// wrote on its standard error.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line_of(command);
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot run `{line}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}`: {}: {}", output.status, last_lines(&said));
    }
    Ok(())
}

/// The command as one would type it.
pub fn line_of(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// The end of what a program said, on one line: that is where the reason stands.
pub fn last_lines(said: &str) -> String {
    const KEPT_LINES: usize = 3;
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    match lines.len() {
        0 => "it said nothing".to_owned(),
        count => lines[count.saturating_sub(KEPT_LINES)..].join("; "),
    }
}
