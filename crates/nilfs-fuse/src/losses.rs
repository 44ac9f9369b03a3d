//! Writes of which no program may hear that they have failed. What a program changes in a mapping
//! of a file is in the kernel's cache, and reaches us when the kernel writes its cache back; likewise all
//! small writes with [`Settings::writeback`](crate::Settings::writeback). If that fails, the kernel drops
//! the bytes, and tells only the program that calls msync(2) or fsync(2) next. So the log of the mount
//! says how many bytes of which file that were.
//!
//! A file may lose thousands of pieces at once, so they are added up for a moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nilfs_ondisk::Ino;
use parking_lot::Mutex;
use rustix::io::Errno;

/// How long losses are added up.
const MOMENT: Duration = Duration::from_secs(1);

/// Files of which one message tells, at most.
const NAMED: usize = 20;

/// Bytes that were lost and of which the log does not know yet.
#[derive(Default)]
pub(crate) struct Losses {
    untold: Mutex<Untold>,
    /// Held while the log is told of some.
    telling: Mutex<()>,
}

#[derive(Default)]
struct Untold {
    files: BTreeMap<Ino, Loss>,
    /// Whether a thread is about to tell of these losses.
    is_told_soon: bool,
}

struct Loss {
    bytes: u64,
    /// Why the last of them were lost.
    reason: Errno,
}

impl Losses {
    /// Notes that bytes of a file are lost. The log hears of it in a moment.
    pub fn add(self: &Arc<Self>, ino: Ino, bytes: u64, reason: Errno) {
        let mut untold = self.untold.lock();
        let loss = untold.files.entry(ino).or_insert(Loss { bytes: 0, reason });
        *loss = Loss { bytes: loss.bytes + bytes, reason };
        if std::mem::replace(&mut untold.is_told_soon, true) {
            return;
        }
        drop(untold);
        let losses = Arc::clone(self);
        let tell_soon = move || {
            thread::sleep(MOMENT);
            losses.tell();
        };
        let started = thread::Builder::new().name("losses".to_owned()).spawn(tell_soon);
        if started.is_err() {
            self.tell();
        }
    }

    /// Tells the log of what it does not know yet. It also waits for another thread that does so.
    pub fn tell(&self) {
        let _telling = self.telling.lock();
        self.take().iter().for_each(|message| tracing::error!("{message}"));
    }

    fn take(&self) -> Vec<String> {
        let Untold { files, .. } = std::mem::take(&mut *self.untold.lock());
        let more = files.len().saturating_sub(NAMED);
        let of_files = files.into_iter().take(NAMED).map(|(ino, Loss { bytes, reason })| {
            format!(
                "{bytes} bytes of the file with inode number {ino} are lost, which programs had written \
                 into a mapping or the kernel's cache: {reason}; find -inum {ino} says its name"
            )
        });
        let of_others = (more > 0).then(|| format!("{more} more files have lost bytes like that"));
        of_files.chain(of_others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 160 requests were 160 lines.
    #[test]
    fn the_pieces_that_a_file_loses_are_one_message() {
        let losses = Arc::new(Losses::default());
        for nth in 0..160 {
            losses.add(Ino(12), 128 << 10, Errno::NOSPC);
            losses.add(Ino(13 + nth), 1, Errno::ROFS);
        }
        let told = losses.take();
        assert_eq!(told.len(), NAMED + 1);
        assert!(
            told[0].starts_with("20971520 bytes of the file with inode number 12 are lost"),
            "{told:?}"
        );
        assert!(told[NAMED].starts_with("141 more files"), "{told:?}");
        assert!(losses.take().is_empty());
    }
}
