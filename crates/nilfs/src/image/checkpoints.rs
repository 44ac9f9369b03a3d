//! The checkpoints of a volume, as the process tells them that serves it, or from the device.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use jiff::Zoned;
use nilfs_engine::{self as engine, CheckpointInfo, Cno, Note, Volume};
use nilfs_fuse::{Mounted, When};

use super::seen::{self, SeenChanges};
use super::{Door, door, open_volume};
use crate::administration::{Administration, Reason, Refusal, is_believable, mount_of};
use crate::control::Client;
use crate::output::{printable, say};
use crate::past::{self, Change, KnownParents, Name, Version};
use crate::reach::Reach;

/// The checkpoints of a volume.
pub enum Checkpoints {
    /// Of one that is mounted.
    Served {
        /// The process that serves it.
        client: Client,
        /// The newest one.
        newest: Cno,
        /// Its device.
        device: PathBuf,
        /// Whether the user was told that there is more than may be seen.
        has_said: Cell<bool>,
    },
    /// Of one that is not, or whose process cannot tell.
    OnDevice(Box<Volume>),
}

impl Checkpoints {
    /// Those of the volume on a device.
    ///
    /// # Errors
    /// The device cannot be opened, or there is no volume on it.
    pub fn of(device: &Path) -> anyhow::Result<Self> {
        let mounted = mount_of(device)?;
        Self::on(mounted.filter(|it| it.is_nilfs() && is_believable(it)).as_ref(), device)
    }

    /// Those of the volume on a device, which is served by a mount of ours that can be written, if there
    /// is one.
    ///
    /// # Errors
    /// As [`Checkpoints::of`].
    pub fn on(mounted: Option<&Mounted>, device: &Path) -> anyhow::Result<Self> {
        if let Some(mounted) = mounted {
            let client = Client::new(&mounted.dir);
            // One that shows the past alone does not know the newest one.
            if let Ok(status) = client.status()
                && !status.of_the_past
            {
                let device = device.to_owned();
                let has_said = Cell::new(false);
                return Ok(Self::Served { client, newest: status.cno, device, has_said });
            }
        }
        Ok(Self::OnDevice(Box::new(open_volume(device)?)))
    }

    /// The number of the newest one.
    pub fn newest(&self) -> Cno {
        match self {
            Self::Served { newest, .. } => *newest,
            Self::OnDevice(volume) => volume.last_log().cno,
        }
    }

    /// Those from `from` on, ascending, at most `limit`.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn list(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>, Refusal> {
        let client = match self {
            Self::OnDevice(volume) => return Ok(volume.checkpoints(from, limit)?),
            Self::Served { client, .. } => client,
        };
        let (mut from, mut all) = (from, Vec::new());
        while all.len() < limit {
            let some = client.checkpoints(from, limit - all.len())?;
            let Some(last) = some.last() else { break };
            from = Cno(last.cno.0.saturating_add(1));
            all.extend(some);
        }
        Ok(all)
    }

    /// How far back they go; `notes` are what is noted about snapshots. `None` if there are none.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn reach(&self, notes: &[Note]) -> Result<Option<Reach>, Refusal> {
        let totals = || match self {
            Self::OnDevice(volume) => volume.checkpoint_totals().ok(),
            Self::Served { client, .. } => client.checkpoint_totals().ok(),
        };
        Reach::find(&totals, &|from, limit| self.list(from, limit), notes)
    }

    /// What two of them differ in.
    ///
    /// # Errors
    /// One of them is not there, or they cannot be read.
    pub fn changes(&self, from: Cno, to: Cno) -> anyhow::Result<Vec<Change>> {
        let on_device =
            |volume: &Volume| Ok(past::changes(volume, &KnownParents::default(), from, to)?);
        let through_door = |device: &Path| self.seen_changes(device, from, to);
        self.ask(|client| client.changes(from, to), on_device, through_door)
    }

    /// What the user may see of that.
    fn seen_changes(
        &self,
        device: &Path,
        from: Cno,
        to: Cno,
    ) -> anyhow::Result<Option<Vec<Change>>> {
        let (before, after) = (Door::of(device, Some(from))?, Door::of(device, Some(to))?);
        let Some((before, after)) = before.zip(after) else { return Ok(None) };
        let SeenChanges { changes, hidden } = seen::changes(before, after)?;
        if let (Self::Served { has_said, .. }, Some(first)) = (self, hidden.first())
            && !has_said.replace(true)
        {
            let others = if hidden.len() > 1 { " and other directories" } else { "" };
            let first = printable(first);
            say!("nilfs: left out, because you may not look into it: {first}{others}");
        }
        Ok(Some(changes))
    }

    /// The versions of a file, as [`past::versions`] returns them.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn versions(
        &self,
        path: &OsStr,
        at: Option<Cno>,
        limit: usize,
    ) -> anyhow::Result<Vec<Version>> {
        let name = Name::from(path.as_bytes().to_vec());
        let on_device = |volume: &Volume| Ok(past::versions(volume, &name, at, limit)?);
        let through_door = |device: &Path| self.seen_versions(device, path, at, limit);
        self.ask(|client| client.versions(&name, at, limit), on_device, through_door)
    }

    /// When names changed below a directory, as [`past::changes_of_directories`] returns it; `None` if the
    /// process that serves the volume will not tell.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn changes_of_directories(
        &self,
        path: &OsStr,
        from: Cno,
        most: usize,
    ) -> anyhow::Result<Option<BTreeSet<Cno>>> {
        let name = Name::from(path.as_bytes().to_vec());
        let client = match self {
            Self::OnDevice(volume) => {
                return Ok(past::changes_of_directories(&**volume, &name, from, most)?);
            }
            Self::Served { client, .. } => client,
        };
        match client.changes_of_directories(&name, from, most) {
            Err(Refusal { reason: Reason::NotPermitted | Reason::Unsupported, .. }) => Ok(None),
            told => Ok(told?),
        }
    }

    /// Those that the user may see.
    fn seen_versions(
        &self,
        device: &Path,
        path: &OsStr,
        at: Option<Cno>,
        limit: usize,
    ) -> anyhow::Result<Option<Vec<Version>>> {
        let newest = self.newest();
        let door = Door::path_on(device)?;
        let is_open = |door: &PathBuf| door::look(door, newest, Path::new("")).is_ok();
        let Some(door) = door.filter(is_open) else { return Ok(None) };
        let end = Cno(at.unwrap_or(newest).0.saturating_add(1));
        let mut all = self.list(Cno::MIN, usize::MAX)?;
        all.retain(|it| it.cno < end && !it.minor);
        let look = |cno, path: &Path| door::look(&door, cno, path);
        seen::versions(path, all.into_iter().rev(), limit, look).map(Some)
    }

    /// Asks the process that serves the volume. If it will not tell this user, there is what the user
    /// may see through the door. If that is closed, or the process is too old to know, the device is
    /// opened, with the user's own permissions.
    fn ask<T>(
        &self,
        served: impl FnOnce(&Client) -> Result<T, Refusal>,
        on_device: impl FnOnce(&Volume) -> anyhow::Result<T>,
        through_door: impl FnOnce(&Path) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let (client, device) = match self {
            Self::OnDevice(volume) => return on_device(volume),
            Self::Served { client, device, .. } => (client, device),
        };
        match served(client) {
            Err(Refusal { reason: Reason::NotPermitted, .. }) => {
                if let Some(seen) = through_door(device)? {
                    return Ok(seen);
                }
                let volume = open_volume(device).context(
                    "only the superuser and the owner of the mount may look into its past, unless \
                     it is mounted with past=all",
                );
                on_device(&volume?)
            }
            Err(Refusal { reason: Reason::Unsupported, .. }) => on_device(&open_volume(device)?),
            told => Ok(told?),
        }
    }

    /// The one that is meant by a moment.
    ///
    /// # Errors
    /// There is none, with the nearest ones; or they cannot be read.
    pub fn find(&self, when: &When) -> anyhow::Result<CheckpointInfo> {
        let list = |from, limit| self.list(from, limit);
        let until = |second| match self {
            Self::OnDevice(volume) => {
                Ok(engine::Checkpoints::newest_made(&**volume, Cno::MAX, &(0..=second))?)
            }
            Self::Served { client, .. } => client.newest_until(second),
        };
        Ok(when.find(&Zoned::now, self.newest(), &list, &until, &|| self.notes())?)
    }

    /// What is noted about snapshots, by ascending number.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn notes(&self) -> Result<Vec<Note>, Refusal> {
        match self {
            Self::OnDevice(volume) => Ok(volume.notes()?),
            Self::Served { client, .. } => client.notes(),
        }
    }
}
