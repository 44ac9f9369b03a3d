//! Engine errors as the kernel gets them: one errno each, and the serious ones to the log.

use std::collections::HashSet;
use std::sync::Arc;

use nilfs_engine::{Error, Filesystem};
use nilfs_ondisk::Ino;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::damage::Damage;
use crate::serve::WOULD_WAIT;

/// The errno that says best what happened.
fn errno(error: &Error) -> Errno {
    match error {
        Error::NotFound => Errno::NOENT,
        Error::Exists => Errno::EXIST,
        Error::NotDirectory => Errno::NOTDIR,
        Error::IsDirectory => Errno::ISDIR,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::NoSpace => Errno::NOSPC,
        Error::ReadOnly { .. } => Errno::ROFS,
        Error::TooManyLinks => Errno::MLINK,
        Error::NameTooLong => Errno::NAMETOOLONG,
        Error::Invalid(_) => Errno::INVAL,
        Error::Unsupported(_) => Errno::OPNOTSUPP,
        Error::FileTooLarge => Errno::FBIG,
        Error::NotPermitted(_) => Errno::PERM,
        Error::NoData => Errno::NXIO,
        Error::Stale => Errno::STALE,
        Error::WouldWait => WOULD_WAIT,
        // "Structure needs cleaning"
        Error::Corrupt { .. } | Error::Inconsistent(_) => Errno::UCLEAN,
        _ => Errno::IO,
    }
}

/// Messages remembered, so that a damaged block that is read a thousand times is one line.
const REMEMBERED: usize = 1024;

/// Turns errors into errnos, and tells the log of damage and failing devices, once each.
pub(crate) struct Faults {
    told: Mutex<HashSet<String>>,
    damage: Arc<Damage>,
}

impl Faults {
    /// Returns that of which nothing has been told yet.
    pub fn new(damage: Arc<Damage>) -> Self {
        Self { told: Mutex::default(), damage }
    }

    /// The errno for the kernel, of an error in what was asked of a file, if it was one of the present.
    pub fn answer(&self, writer: Option<&Filesystem>, file: Option<Ino>, error: &Error) -> Errno {
        if error.is_fault() {
            let message = error.to_string();
            let mut told = self.told.lock();
            if told.len() < REMEMBERED && !told.contains(&message) {
                // The error that ended all writing is in the log already.
                let ended_by = writer.and_then(|writer| writer.status().stopped);
                let is_known = ended_by.is_some_and(|loss| loss.reason == message);
                told.insert(message.clone());
                drop(told);
                match (file, error) {
                    _ if is_known => {}
                    (Some(ino), Error::Damaged { .. }) => self.damage.tell(ino, message),
                    _ => tracing::error!("{message}"),
                }
            }
        }
        errno(error)
    }
}
