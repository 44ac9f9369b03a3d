//! An image as a flash device of the lab, which takes the time that such a device takes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::command;

/// A loop device in front of a modelled device, until it is dropped. Nothing of it is in memory at first.
pub struct Card {
    served: Child,
    device: PathBuf,
}

impl Card {
    /// Shows an image as a device of the lab, which is the program `nilfs-lab`.
    pub fn new(lab: &Path, preset: &str, image: &Path) -> Result<Self> {
        let mebibytes = image.metadata().context("cannot look at an image")?.len() >> 20;
        let mut export = Command::new(lab);
        export.args(["export", "--device", preset, "--size"]).arg(mebibytes.to_string()).arg(image);
        let line = command::line_of(&export);
        export.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut served = export.spawn().with_context(|| format!("cannot run `{line}`"))?;
        let mut file = String::new();
        if let Some(printed) = served.stdout.take() {
            BufReader::new(printed).read_line(&mut file).context("cannot read from nilfs-lab")?;
        }
        if file.is_empty() {
            bail!("`{line}`: {}", served.wait()?);
        }
        let mut card = Self { served, device: PathBuf::new() };
        card.device = attach(Path::new(file.trim_end()))?;
        Ok(card)
    }

    /// The loop device.
    pub fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if !self.device.as_os_str().is_empty() {
            // The modelled device cannot end while the loop device is there.
            _ = command::run(Command::new("losetup").arg("--detach").arg(&self.device));
        }
        // The end of its input is the end of the program.
        drop(self.served.stdin.take());
        _ = self.served.wait();
    }
}

/// Makes a loop device that shows a file.
fn attach(file: &Path) -> Result<PathBuf> {
    let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
    let output = output.context("cannot run losetup")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()))
}
