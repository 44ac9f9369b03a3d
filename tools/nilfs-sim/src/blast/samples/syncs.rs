//! Changes that are made durable one by one, with what of them only their sync log has.

use std::collections::BTreeMap;

use nilfs_device::MemoryDevice;
use nilfs_engine::Error;
use nilfs_engine::scan::Scan;
use nilfs_ondisk::{BlockNr, Seq};

use super::super::blocks::Synced;
use super::super::cost::Cost;
use super::changes::Change;
use super::lived::Lived;
use super::look;
use super::writer::{SHORT, Writer};

/// Changes of which the last is made durable with an fsync, and a checkpoint then, or none.
#[derive(Debug, Clone)]
pub(super) struct Step {
    before: Vec<Change>,
    synced: Change,
    pub(super) is_checkpoint: bool,
}

impl From<Change> for Step {
    fn from(synced: Change) -> Self {
        Self { before: Vec::new(), synced, is_checkpoint: false }
    }
}

impl Step {
    /// A step with a change first that nothing is done for.
    pub(super) fn after(before: Change, synced: Change) -> Self {
        Self { before: vec![before], synced, is_checkpoint: false }
    }
}

/// A log, by its place and its number.
type LogId = (BlockNr, Seq);

impl Writer {
    /// Goes these steps until the power fails.
    pub(super) fn crash_after(mut self, steps: &[Step]) -> Result<Lived, String> {
        let synced = self.go(steps).map_err(|error| error.to_string())?;
        Ok(Lived { synced, ..self.lose_power() })
    }

    fn go(&mut self, steps: &[Step]) -> Result<BTreeMap<LogId, Synced>, Error> {
        let picture = |writer: &Self| look(&writer.device()).map_err(Error::Inconsistent);
        let mut costs = BTreeMap::new();
        let mut known = self.logs();
        let mut before = picture(self)?;
        for (nth, step) in steps.iter().enumerate() {
            self.apply_all(&step.before)?;
            let inode = self.apply(&step.synced)?;
            self.fs.sync_file(&inode)?;
            self.pass(SHORT);
            if step.is_checkpoint {
                self.fs.commit()?;
            }
            let (now, after) = (self.logs(), picture(self)?);
            if step.is_checkpoint {
                // It has all that was synced before.
                costs.clear();
            } else {
                let cost = Cost::between(&before, &after);
                let synced = Synced { cost, is_last: nth + 1 == steps.len() };
                let new = now.iter().filter(|log| !known.contains(log));
                costs.extend(new.map(|log| (*log, synced.clone())));
            }
            (known, before) = (now, after);
        }
        Ok(costs)
    }

    fn logs(&self) -> Vec<LogId> {
        let device = MemoryDevice::from(self.device());
        let scan = Scan::run(&device, &|_| {});
        let logs = scan.into_iter().flat_map(|scan| scan.logs);
        logs.map(|log| (log.start, log.header.seq)).collect()
    }
}
