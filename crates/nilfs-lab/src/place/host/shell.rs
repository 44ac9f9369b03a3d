//! Running a script on this machine.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::cleanup::{Undo, set_up};
use crate::command::PATH;
use crate::place::Output;

/// Runs a script with `sh -e`. Its output goes into files: a daemon that it leaves behind keeps
/// them open, and the end of a pipe would never come.
pub fn run(script: &Path) -> Result<Output> {
    let stdout = tempfile::tempfile().context("cannot make a file for a script's output")?;
    let stderr = tempfile::tempfile().context("cannot make a file for a script's messages")?;
    let share = |file: &File| file.try_clone().context("cannot share a file of output");
    let mut shell = Command::new("/bin/sh");
    shell
        .arg("-e")
        .arg(script)
        .env_clear()
        .envs([("PATH", PATH), ("HOME", "/root"), ("LC_ALL", "C")])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(share(&stdout)?)
        .stderr(share(&stderr)?)
        // A group of its own, which can be killed as a whole.
        .process_group(0);
    let start = Instant::now();
    let (mut child, pending) = set_up(|| {
        let child = shell.spawn().context("cannot run /bin/sh")?;
        let group = Pid::from_child(&child);
        Ok((child, Undo::KillGroup(group)))
    })?;
    let group = Pid::from_child(&child);
    // It stays a zombie until the step is cancelled, so that its number is nobody else's.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    rustix::io::retry_on_intr(|| waitid(WaitId::Pid(group), options))
        .context("cannot wait for a script")?;
    let elapsed = start.elapsed();
    pending.cancel();
    let status = child.wait().context("cannot wait for a script")?;
    Ok(Output {
        status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        stdout: content(stdout)?,
        stderr: content(stderr)?,
        elapsed,
    })
}

fn content(mut file: File) -> Result<String> {
    let mut content = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut content))
        .context("cannot read what a script printed")?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}
