//! Running the programs that others wrote (mkfs, mount, tar, cp) with errors worth reading.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a program to its end. On failure the error holds the command line and what the program
/// wrote on its standard error.
pub fn run(command: &mut Command) -> Result<()> {
    run_with(command, Stdio::null())
}

/// As [`run`], with something to read.
pub fn run_with(command: &mut Command, input: impl Into<Stdio>) -> Result<()> {
    let line = line_of(command);
    let messages = Messages::new()?;
    let status = command
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(messages.sink()?)
        .status()
        .with_context(|| format!("cannot run `{line}`"))?;
    if !status.success() {
        bail!("`{line}`: {status}: {}", messages.end());
    }
    Ok(())
}

/// Where a program's standard error goes: a file rather than a pipe, for a program that leaves a
/// daemon behind may leave its standard error open, and the end of a pipe would never come.
pub struct Messages(File);

impl Messages {
    /// None yet.
    pub fn new() -> Result<Self> {
        tempfile::tempfile().map(Self).context("cannot make a file for a program's messages")
    }

    /// What to give to the program.
    pub fn sink(&self) -> Result<Stdio> {
        let file = self.0.try_clone();
        Ok(file.context("cannot share a file of messages")?.into())
    }

    /// The end of what the program said, on one line: that is where the reason stands.
    pub fn end(&self) -> String {
        const KEPT_LINES: usize = 3;
        let mut file = &self.0;
        let mut said = Vec::new();
        if let Err(error) = file.rewind().and_then(|()| file.read_to_end(&mut said)) {
            return format!("(its messages cannot be read: {error})");
        }
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().map(str::trim).collect();
        match said.trim() {
            "" => "it said nothing".to_owned(),
            _ => lines[lines.len().saturating_sub(KEPT_LINES)..].join("; "),
        }
    }
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
