//! Files for what would not fit into memory. They have no names, so they are gone with the process.

use std::env;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};

/// Where such files are if nobody names another place: `/tmp` may be memory.
const DIRECTORY: &str = "/var/tmp";

/// Makes scratch files, and remembers that one has failed: where it lies under a device, that looks
/// like an error of the device.
pub struct Scratch {
    /// A directory that somebody has named.
    named: Option<PathBuf>,
    failure: Mutex<Option<String>>,
}

impl Default for Scratch {
    /// In the directory `$TMPDIR`, or in `/var/tmp`. Where that cannot be used, as early in a boot,
    /// and nobody has named another, in memory.
    fn default() -> Self {
        let named = env::var_os("TMPDIR").filter(|it| !it.is_empty()).map(PathBuf::from);
        Self { named, failure: Mutex::default() }
    }
}

impl Scratch {
    /// The first failure of a file, if there was one. It names the directory.
    #[must_use]
    pub fn failure(&self) -> Option<io::Error> {
        self.failure.lock().clone().map(io::Error::other)
    }

    /// An empty file.
    pub(crate) fn file(self: &Arc<Self>) -> io::Result<ScratchFile> {
        let file = match &self.named {
            Some(directory) => {
                tempfile::tempfile_in(directory).map_err(|error| self.failed("made", &error))?
            }
            None => tempfile::tempfile_in(DIRECTORY)
                .or_else(|_| memfd_create("nilfs", MemfdFlags::CLOEXEC).map(File::from))
                .map_err(|error| self.failed("made", &error.into()))?,
        };
        Ok(ScratchFile { scratch: Arc::clone(self), file, end: 0 })
    }

    fn failed(&self, what: impl fmt::Display, error: &io::Error) -> io::Error {
        let directory = self.named.clone().unwrap_or_else(|| DIRECTORY.into());
        let message = format!(
            "a scratch file in {} cannot be {what}: {error}; TMPDIR may name another directory",
            directory.display()
        );
        self.failure.lock().get_or_insert_with(|| message.clone());
        io::Error::other(message)
    }
}

/// Bytes in a file, one after the other.
pub(crate) struct ScratchFile {
    scratch: Arc<Scratch>,
    file: File,
    end: u64,
}

impl ScratchFile {
    /// Where the next byte goes.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all_at(bytes, self.end);
        written.map_err(|error| {
            self.scratch.failed(format_args!("made longer than {} KiB", self.end >> 10), &error)
        })?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        let read = self.file.read_exact_at(buffer, position);
        read.map_err(|error| self.scratch.failed("read", &error))
    }
}
