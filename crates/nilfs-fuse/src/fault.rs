//! Engine errors as the kernel gets them: one errno each, and the serious ones to the log.

use std::collections::HashSet;

use nilfs_engine::{Error, Filesystem};
use parking_lot::Mutex;
use rustix::io::Errno;

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
#[derive(Default)]
pub(crate) struct Faults {
    told: Mutex<HashSet<String>>,
}

impl Faults {
    /// The errno for the kernel.
    pub fn answer(&self, writer: Option<&Filesystem>, error: &Error) -> Errno {
        if error.is_fault() {
            let message = error.to_string();
            let mut told = self.told.lock();
            if told.len() < REMEMBERED && !told.contains(&message) {
                // The error that ended all writing is in the log already.
                let ended_by = writer.and_then(|writer| writer.status().stopped);
                if ended_by.is_none_or(|loss| loss.reason != message) {
                    tracing::error!("{message}");
                }
                told.insert(message);
            }
        }
        errno(error)
    }
}
