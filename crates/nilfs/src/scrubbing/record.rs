//! A scrub as it is remembered until the next one of the same volume.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nilfs_device::Device;
use nilfs_engine::Volume;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Report;

/// Where systemd wants the state of a service.
const STATE_DIRECTORY: &str = "STATE_DIRECTORY";

/// Where it lies otherwise if the superuser scrubs.
const SYSTEM_DIRECTORY: &str = "/var/lib/nilfs";

/// A scrub that is completed, or was interrupted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// When it was completed, or interrupted, in seconds since 1970.
    pub ended: u64,
    /// The segment to go on with, if it was interrupted.
    pub resume_at: Option<u64>,
    /// What it has found.
    pub report: Report,
}

impl Record {
    /// One that is about to begin.
    pub(super) fn new() -> Self {
        let began = now();
        Self { began, ended: began, resume_at: None, report: Report::default() }
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or_default()
}

/// The file in which the last scrub of a volume is remembered. That is of use, but nothing depends on
/// it: what cannot be read is not there, and a file that cannot be written is only warned of.
#[derive(Debug, Clone)]
pub struct StateFile(Option<PathBuf>);

impl StateFile {
    /// That of the volume on a device, which is known by its UUID.
    pub fn of(device: &dyn Device) -> Self {
        let superblocks = Volume::superblocks(device).ok();
        let uuid = superblocks.map(|it| Uuid::from_bytes(it.best.raw().s_uuid));
        Self(directory().zip(uuid).map(|(dir, uuid)| dir.join(format!("{uuid}.scrub.json"))))
    }

    /// The scrub that is remembered, if there is one.
    pub fn load(&self) -> Option<Record> {
        let path = self.0.as_deref()?;
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            text => text.map_err(anyhow::Error::from),
        };
        let read = text.and_then(|text| Ok(serde_json::from_slice(&text)?));
        let warn = |error: &anyhow::Error| {
            tracing::warn!("{}: the last scrub is not known: {error}", path.display());
        };
        read.inspect_err(warn).ok()
    }

    /// Remembers a scrub.
    pub fn save(&self, record: &Record) {
        let Some(path) = self.0.as_deref() else { return };
        if let Err(error) = write(path, record) {
            tracing::warn!("{}: the scrub will not be remembered: {error}", path.display());
        }
    }
}

/// Replaces the file, so that it is whole at any time.
fn write(path: &Path, record: &Record) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.persist(path)?;
    Ok(())
}

/// Where the state of this user's programs lies.
fn directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    if let Some(directory) = variable(STATE_DIRECTORY) {
        return Some(directory);
    }
    if rustix::process::geteuid().is_root() {
        return Some(SYSTEM_DIRECTORY.into());
    }
    let home = || variable("HOME").map(|home| home.join(".local/state"));
    variable("XDG_STATE_HOME").or_else(home).map(|state| state.join("nilfs"))
}
