//! A file of a checkpoint: its inode (docs/format.md §6) with the map of its blocks.

use std::sync::Arc;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::inode::{DeviceCode, FileType, RawInode};
use nilfs_ondisk::{FileBlock, Ino, VBlockNr};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::content::Content;
use super::{MappedBlock, View};
use crate::error::{Error, Result};
use crate::host::Timestamp;
use crate::overlay::{InMemory, Lookup, Overlay, Place, Placed};
use crate::types::Attr;

/// A file as a checkpoint has it. It knows no block addresses, so it stays what it is wherever its
/// blocks are moved.
#[derive(Debug, Clone)]
pub struct File {
    ino: Ino,
    file_type: FileType,
    pub(crate) raw: RawInode,
    pub(crate) map: Root,
    /// What was synced after the checkpoint, if the tree shows that.
    pub(super) synced: Option<Arc<Overlay>>,
}

impl File {
    /// The file that an inode describes.
    pub(crate) fn new(ino: Ino, raw: RawInode) -> Result<Self> {
        let bad = |source| Error::bad_inode(ino, source);
        let file_type = raw.file_type().map_err(bad)?;
        let map = match file_type.has_blocks() {
            true => Root::parse(&raw.i_bmap).map_err(bad)?,
            false => Root::default(),
        };
        if raw.i_size.get() > i64::MAX as u64 {
            return Err(Error::Inconsistent(format!("the size of inode {ino} is out of range")));
        }
        Ok(Self { ino, file_type, raw, map, synced: None })
    }

    /// A file without content that is just being made, with what else its inode says.
    pub(crate) fn fresh(ino: Ino, file_type: FileType, raw: RawInode) -> Self {
        Self { ino, file_type, raw, map: Root::default(), synced: None }
    }

    /// The inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The file type.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.raw.i_size.get()
    }

    /// The map of its blocks. A map that has lost all of its entries would make zeros of them, so an empty one
    /// is believed only if the inode counts no blocks either, or counts those that were synced as well.
    pub(super) fn map(&self) -> Result<&Root> {
        let sectors = self.raw.i_blocks.get();
        if sectors > 0 && self.map.is_empty() && self.synced.is_none() {
            return Err(Error::Inconsistent(format!(
                "inode {} counts {sectors} sectors (i_blocks), but its block map is empty",
                self.ino
            )));
        }
        Ok(&self.map)
    }

    /// Whether this is the same file as one of another tree, at another moment.
    #[must_use]
    pub fn is_same_file(&self, other: &Self) -> bool {
        self.is_same_as(Some(other))
    }

    /// Whether this is the same file as one of another tree, at another moment, if that has it.
    pub(super) fn is_same_as(&self, other: Option<&Self>) -> bool {
        let identity = |file: &Self| (file.ino, file.raw.i_generation, file.file_type);
        other.is_some_and(|other| identity(self) == identity(other))
    }

    /// Whether all that the inode says is the same.
    #[must_use]
    pub fn has_same_inode(&self, other: &Self) -> bool {
        self.ino == other.ino && self.raw.as_bytes() == other.raw.as_bytes()
    }

    /// Whether this has the content that the same file has in another tree, as far as its
    /// attributes tell: the times of all changes and the size are the same.
    #[must_use]
    pub fn has_same_version(&self, other: &Self) -> bool {
        let version = |file: &Self| (file.modified(), file.changed(), file.size());
        version(self) == version(other)
    }

    /// Sets the time of the last change of the content.
    pub(crate) fn set_mtime(&mut self, time: Timestamp) {
        self.raw.i_mtime = U64::new(time.seconds as u64);
        self.raw.i_mtime_nsec = U32::new(time.nanoseconds);
    }

    /// Sets the time of the last change of anything.
    pub(crate) fn set_ctime(&mut self, time: Timestamp) {
        self.raw.i_ctime = U64::new(time.seconds as u64);
        self.raw.i_ctime_nsec = U32::new(time.nanoseconds);
    }

    /// The time of the last change of the content.
    pub(crate) fn modified(&self) -> Timestamp {
        let (seconds, nanoseconds) = (self.raw.i_mtime.get(), self.raw.i_mtime_nsec.get());
        Timestamp { seconds: seconds as i64, nanoseconds }
    }

    /// The time of the last change of anything.
    pub(crate) fn changed(&self) -> Timestamp {
        let (seconds, nanoseconds) = (self.raw.i_ctime.get(), self.raw.i_ctime_nsec.get());
        Timestamp { seconds: seconds as i64, nanoseconds }
    }

    /// The attributes.
    #[must_use]
    pub fn attr(&self) -> Attr {
        let raw = &self.raw;
        let mut slot = [0; 8];
        // A device number lies where a direct map has its first slot's header (docs/format.md §6).
        slot.copy_from_slice(&raw.i_bmap[..8]);
        let is_device = !self.file_type.has_blocks();
        let device = is_device.then(|| DeviceCode::decode(u64::from_le_bytes(slot)));
        Attr {
            ino: self.ino,
            file_type: self.file_type,
            mode: raw.i_mode.get() & 0o7777,
            nlink: raw.i_links_count.get().into(),
            uid: raw.i_uid.get(),
            gid: raw.i_gid.get(),
            rdev: device.unwrap_or_default(),
            size: self.size(),
            blocks: raw.i_blocks.get(),
            mtime: self.modified(),
            ctime: self.changed(),
            flags: raw.i_flags.get(),
            generation: raw.i_generation.get(),
        }
    }
}

impl File {
    /// Returns where a block lies on the device, also if memory has it as well.
    pub(super) fn on_device(&self, view: &View, key: FileBlock) -> Result<Option<MappedBlock>> {
        let (vblock, block) = match self.synced.as_ref().map(|synced| synced.lookup(key)) {
            Some(Lookup::Page(page)) => match page.placed {
                Some(Placed { vblocknr, block }) => (vblocknr, block),
                None => return Ok(None),
            },
            Some(Lookup::Cut) => return Ok(None),
            Some(Lookup::Below) | None => match view.source().lookup(self.map()?, key)? {
                Some(vblock) => (VBlockNr(vblock), view.source().locate(vblock)?),
                None => return Ok(None),
            },
        };
        Ok(Some(MappedBlock { key, vblock, block }))
    }
}

/// A checkpoint has all of a file on the device; only what was synced after it lies above its map.
impl Content for File {
    fn file(&self) -> &File {
        self
    }

    fn in_memory(&self, key: FileBlock) -> Option<Place<'_>> {
        match self.synced.as_ref()?.lookup(key) {
            Lookup::Page(page) => Some(page.place()),
            Lookup::Cut => Some(Place::Hole),
            Lookup::Below => None,
        }
    }

    fn all_in_memory(&self, from: FileBlock) -> InMemory {
        Overlay::all(self.synced.as_deref(), from)
    }
}
