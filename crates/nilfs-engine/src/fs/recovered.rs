//! The recovery of a volume that was not closed cleanly, for those who only look: the files that it would show, and
//! the logs that it would roll forward.

use super::Filesystem;
use super::replay::{SyncedContent, replayed_files, synced_content, without_contradictions};
use crate::error::Result;
use crate::recovery::{self, RecoveryPlan, RollForward};
use crate::tree::{Recovered, Tree};
use crate::volume::Volume;

impl Volume {
    /// The files of the newest checkpoint with what sync logs have made durable since, if the
    /// volume was not closed cleanly: what a writable mount would recover.
    ///
    /// # Errors
    /// [`Error::RollForward`](crate::Error::RollForward), damage, a device error.
    pub fn recovered_tree(&self) -> Result<Tree> {
        let tree = self.tree(None)?;
        let found = recovery::roll_forward(&self.store, &self.found)?.whole()?;
        let (geometry, newest) = (self.geometry(), self.found.newest.segment);
        let stays = |block| geometry.segment_of(block) == newest;
        let files = replayed_files(tree.view(), &found.logs, self.names_limit)?;
        let recovered = Recovered::new(&self.store, files, stays)?;
        Ok(tree.with(recovered))
    }

    /// Returns the logs that a recovery of the volume would roll forward, and those that it could not.
    ///
    /// # Errors
    /// Damage of the newest checkpoint, a device error.
    pub fn recovery_plan(&self) -> Result<RecoveryPlan> {
        let recovered = self.recoverable()?;
        recovery::plan(&self.store, &self.found, recovered)
    }

    /// Returns what a recovery of the volume would take over of the content of files, as far as the logs of
    /// fsyncs contradict nothing.
    ///
    /// # Errors
    /// Damage of the newest checkpoint, a device error.
    pub fn synced_content(&self) -> Result<SyncedContent> {
        let found = recovery::roll_forward(&self.store, &self.found)?;
        if found.logs.is_empty() {
            return Ok(SyncedContent::default());
        }
        let found = without_contradictions(self.view(self.found.cno)?, found)?;
        synced_content(self.view(self.found.cno)?, &found.logs)
    }

    /// Logs that can be put on top of the newest checkpoint and made another one: without those from the
    /// first on that contradicts something, or with which no checkpoint can be made.
    pub(crate) fn recoverable(&self) -> Result<RollForward> {
        let found = recovery::roll_forward(&self.store, &self.found)?;
        let found = without_contradictions(self.view(self.found.cno)?, found)?;
        if found.logs.is_empty() {
            return Ok(found);
        }
        let trial = |logs| Filesystem::trial(self.store.shared_device(), self.store.verify(), logs);
        let Some(mut damage) = trial(found.logs.len())? else { return Ok(found) };
        // Without any log, it would be in vain to give them up.
        if let Some(damage) = trial(0)? {
            return Err(damage);
        }
        let (mut possible, mut impossible) = (0, found.logs.len());
        while possible + 1 < impossible {
            let middle = possible.midpoint(impossible);
            match trial(middle)? {
                None => possible = middle,
                Some(found) => (impossible, damage) = (middle, found),
            }
        }
        found.before(possible, damage)
    }
}
