//! A scrub of a mounted volume: as of any other, but from where the log is known to be.

use super::Filesystem;
use crate::error::Result;
use crate::scrub::moment::Moment;
use crate::scrub::{self, Observe, Scrubbed, Selection};

impl Filesystem {
    /// Reads the logs of the volume; see [`crate::scrub`]. Nobody has to wait for it.
    ///
    /// # Errors
    /// It cannot be told which segments are in use.
    pub fn scrub(&self, selection: &Selection, observe: Observe<'_>) -> Result<Scrubbed> {
        scrub::read(self.moment()?, &|| self.moment(), selection, observe)
    }

    fn moment(&self) -> Result<Moment> {
        let log = self.log.lock();
        Moment::of_base(log.base(), log.view())
    }
}
