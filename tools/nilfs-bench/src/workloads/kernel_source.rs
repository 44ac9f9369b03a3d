//! The source of Linux, unpacked: the classical many-files workload. Nothing is synced while the clock
//! runs, as nothing is when people do this.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};

use super::Skip;
use crate::command;
use crate::fixtures::warm;
use crate::stage::{Sample, Stage, settle};

/// Where Debian's linux-source package puts it.
const INSTALL_DIR: &str = "/usr/src";
const INSTALL_PREFIX: &str = "linux-source-";
const INSTALL_SUFFIX: &str = ".tar.xz";

/// Unpacks an archive that is decompressed already.
pub fn unpack(stage: &mut Stage<'_>) -> Result<Sample> {
    let tar = archive(stage)?;
    let root = stage.mount_fresh()?;
    let entries = entries(&tar)?;
    stage.timed(entries, || extract(&tar, &root))
}

/// Removes what was unpacked.
pub fn remove(stage: &mut Stage<'_>) -> Result<Sample> {
    let tar = archive(stage)?;
    let root = stage.mount_fresh()?;
    let unpacked = root.join("unpacked");
    std::fs::create_dir(&unpacked)
        .with_context(|| format!("cannot create {}", unpacked.display()))?;
    let entries = entries(&tar)?;
    extract(&tar, &unpacked)?;
    settle(&root)?;
    stage.timed(entries, || command::run(Command::new("rm").arg("-r").arg(&unpacked)))
}

fn extract(tar: &Path, to: &Path) -> Result<()> {
    command::run(Command::new("tar").arg("-xf").arg(tar).arg("-C").arg(to))
}

/// How many files and directories are in an archive, which is in memory then.
fn entries(tar: &Path) -> Result<u64> {
    warm(tar)?;
    let listed = Command::new("tar").arg("-tf").arg(tar).output().context("cannot run `tar`")?;
    ensure!(listed.status.success(), "`tar -tf {}`: {}", tar.display(), listed.status);
    Ok(listed.stdout.iter().filter(|byte| **byte == b'\n').count() as u64)
}

fn archive(stage: &Stage<'_>) -> Result<PathBuf> {
    let compressed = match stage.kernel_source {
        Some(path) => path.to_owned(),
        None => installed().ok_or_else(|| {
            anyhow!(Skip(format!(
                "{INSTALL_DIR}/{INSTALL_PREFIX}*{INSTALL_SUFFIX} is not there: install Debian's \
                 linux-source package, or name an archive with --kernel-source"
            )))
        })?,
    };
    stage.fixtures.get("kernel.tar", |tar| match stage.sizes.kernel_members {
        None => decompress(&compressed, tar),
        Some(members) => extract_part(&compressed, members, tar),
    })
}

/// The newest by name, if any is installed.
fn installed() -> Option<PathBuf> {
    let entries = Path::new(INSTALL_DIR).read_dir().ok()?;
    let matches = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(INSTALL_PREFIX) && name.ends_with(INSTALL_SUFFIX)
    };
    entries.flatten().map(|entry| entry.path()).filter(matches).max()
}

fn decompress(compressed: &Path, tar: &Path) -> Result<()> {
    let output = File::create(tar).with_context(|| format!("cannot create {}", tar.display()))?;
    let status = Command::new("xz")
        .arg("-dc")
        .arg(compressed)
        .stdin(Stdio::null())
        .stdout(output)
        .status()
        .context("cannot run `xz`")?;
    ensure!(status.success(), "`xz -dc {}`: {status}", compressed.display());
    Ok(())
}

/// An archive of those members only.
fn extract_part(compressed: &Path, members: &str, tar: &Path) -> Result<()> {
    let scratch = tempfile::tempdir_in(tar.parent().unwrap_or(Path::new(".")))
        .context("cannot make a directory")?;
    let mut extract = Command::new("tar");
    extract.arg("-xJf").arg(compressed).arg("-C").arg(scratch.path());
    command::run(extract.args(["--wildcards", members]))?;
    command::run(Command::new("tar").arg("-cf").arg(tar).arg("-C").arg(scratch.path()).arg("."))
}
