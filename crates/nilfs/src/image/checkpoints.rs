//! The checkpoints of a volume, as the process tells them that serves it, or from the device.

use std::path::Path;

use jiff::Zoned;
use nilfs_engine::{CheckpointInfo, Cno, Volume};
use nilfs_fuse::When;

use super::open_volume;
use crate::administration::{Administration, Refusal, is_believable, mount_of};
use crate::control::Client;

/// The checkpoints of a volume.
pub enum Checkpoints {
    /// Of one that is mounted.
    Served {
        /// The process that serves it.
        client: Client,
        /// The newest one.
        newest: Cno,
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
        let mounted = mounted.filter(|it| it.is_nilfs() && is_believable(it));
        if let Some(mounted) = mounted {
            let client = Client::new(&mounted.dir);
            // One that shows the past alone does not know the newest one, and one that is older than
            // this command may know none.
            if let Ok(status) = client.status()
                && !status.of_the_past
                && client.checkpoints(Cno::MIN, 1).is_ok()
            {
                return Ok(Self::Served { client, newest: status.cno });
            }
        }
        Ok(Self::OnDevice(Box::new(open_volume(device)?)))
    }

    /// The number of the newest one.
    fn newest(&self) -> Cno {
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

    /// The one that is meant by a moment.
    ///
    /// # Errors
    /// There is none, with the nearest ones; or they cannot be read.
    pub fn find(&self, when: &When) -> anyhow::Result<CheckpointInfo> {
        let list = |from, limit| self.list(from, limit);
        Ok(when.find(&Zoned::now(), self.newest(), &list)?)
    }
}
