//! Roll-forward records: what has changed since the newest checkpoint besides the content of blocks, so
//! that an fsync needs no checkpoint (docs/format.md §19).
//!
//! The format has no place for them, so they lie where its readers do not look: in the summary of a
//! log, after its items, within `ss_sumbytes`.
//!
//! ```text
//! | head (32) | record | record | … | 0 …  to the end of the last summary block
//! ```
//!
//! They are logical: names, the attributes of inodes, sizes and bytes, never images of blocks. Those of
//! one log are true together, at one moment; a log is applied as a whole or not at all.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::inode::FileType;
use crate::{BlockNr, Cno, FileBlock, FormatError, Ino, VBlockNr, dirent};

const STRUCTURE: &str = "roll-forward records";

/// Marks the head: "NfRf".
const MAGIC: u32 = 0x6652_664e;

/// The version of the records that this crate writes, and the only one that it reads.
pub const VERSION: u16 = 1;

/// Bytes of the head.
pub const HEAD_SIZE: usize = size_of::<RawHead>();

/// Bytes of a record besides its body.
const RECORD_HEAD_SIZE: usize = size_of::<RawRecordHead>();

const INODE: u16 = 1;
const NAME: u16 = 2;
const CONTENT: u16 = 3;
const BYTES: u16 = 4;
const EXTENT: u16 = 5;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    magic: U32,
    version: U16,
    /// One more than the number; 0: it is not known.
    unflushed: U16,
    /// With the head, without the zeros at the end.
    bytes: U32,
    count: U32,
    base: U64,
    number: U64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRecordHead {
    kind: U16,
    pad: U16,
    /// With this head; a multiple of 8.
    bytes: U32,
}

/// A time in the form of an inode's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: u64,
    /// Nanoseconds of the next second.
    pub nanoseconds: u32,
}

/// An inode's attributes, all but what belongs to its content. It may be a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeRecord {
    /// Its number.
    pub ino: Ino,
    /// Tells it from others that have had this number.
    pub generation: u32,
    /// `i_mode`, type and permissions.
    pub mode: u16,
    /// `i_links_count`; 0 if it has lost its last name.
    pub links: u16,
    /// `i_uid`.
    pub uid: u32,
    /// `i_gid`.
    pub gid: u32,
    /// `i_flags`.
    pub flags: u32,
    /// The device number as the inode has it; of a directory, the inode of its parent.
    pub device_or_parent: u64,
    /// When anything last changed.
    pub changed: Time,
    /// When its content was last modified, if that was set explicitly; of a directory always.
    pub modified: Option<Time>,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawInodeRecord {
    ino: U64,
    generation: U32,
    mode: U16,
    links: U16,
    uid: U32,
    gid: U32,
    flags: U32,
    has_modified: U32,
    device_or_parent: U64,
    changed: U64,
    modified: U64,
    changed_nsec: U32,
    modified_nsec: U32,
}

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRecord {
    /// The directory.
    pub directory: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// The file and its type; `None`: the name is not there.
    pub target: Option<(Ino, FileType)>,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawNameRecord {
    directory: U64,
    /// 0: none.
    target: U64,
    type_code: u8,
    length: u8,
    pad: [u8; 6],
}

/// The content of a file is complete with the blocks of its log, and with the bytes and extents of the
/// records of this log for the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentRecord {
    /// The file.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// Its size in bytes.
    pub size: u64,
    /// Everything from here on was cut off before what this log has was written.
    pub cut: Option<FileBlock>,
    /// `i_mtime`.
    pub modified: Time,
    /// `i_ctime`.
    pub changed: Time,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawContentRecord {
    ino: U64,
    generation: U32,
    has_cut: U32,
    size: U64,
    cut: U64,
    modified: U64,
    changed: U64,
    modified_nsec: U32,
    changed_nsec: U32,
}

/// Bytes of a file, within one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BytesRecord {
    /// The file.
    pub ino: Ino,
    /// Where they are in the file, in bytes.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawBytesRecord {
    ino: U64,
    offset: U64,
    length: U32,
    pad: U32,
}

/// Blocks of a file that lie in earlier logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentRecord {
    /// The file.
    pub ino: Ino,
    /// The first block's place in the file.
    pub offset: FileBlock,
    /// Its number; those of the others follow.
    pub vblocknr: VBlockNr,
    /// Its address; those of the others follow.
    pub block: BlockNr,
    /// How many blocks.
    pub count: u32,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawExtentRecord {
    ino: U64,
    offset: U64,
    vblocknr: U64,
    block: U64,
    count: U32,
    pad: U32,
}

/// One thing that has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// An inode's attributes.
    Inode(InodeRecord),
    /// A name.
    Name(NameRecord),
    /// A file's size and times.
    Content(ContentRecord),
    /// Bytes of a file.
    Bytes(BytesRecord),
    /// Blocks of a file.
    Extent(ExtentRecord),
}

/// The records of one log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Records {
    /// The checkpoint on which they are based.
    pub base: Cno,
    /// The how manieth log with records it is since then, from 1.
    pub number: u64,
    /// How many logs right before this one may not have been durable when it was written; `None` if
    /// that is not known. All logs before these were.
    pub unflushed: Option<u16>,
    /// What has changed.
    pub records: Vec<Record>,
}

impl InodeRecord {
    fn raw(&self) -> RawInodeRecord {
        let modified = self.modified.unwrap_or_default();
        RawInodeRecord {
            ino: U64::new(self.ino.0),
            generation: U32::new(self.generation),
            mode: U16::new(self.mode),
            links: U16::new(self.links),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            flags: U32::new(self.flags),
            has_modified: U32::new(self.modified.is_some().into()),
            device_or_parent: U64::new(self.device_or_parent),
            changed: U64::new(self.changed.seconds),
            modified: U64::new(modified.seconds),
            changed_nsec: U32::new(self.changed.nanoseconds),
            modified_nsec: U32::new(modified.nanoseconds),
        }
    }

    fn parse(raw: &RawInodeRecord) -> Result<Self, FormatError> {
        let modified = time(raw.modified, raw.modified_nsec);
        let record = Self {
            ino: user_inode(raw.ino)?,
            generation: raw.generation.get(),
            mode: raw.mode.get(),
            links: raw.links.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            flags: raw.flags.get(),
            device_or_parent: raw.device_or_parent.get(),
            changed: time(raw.changed, raw.changed_nsec),
            modified: (raw.has_modified.get() != 0).then_some(modified),
        };
        match FileType::from_mode(record.mode) {
            Some(FileType::Directory) if record.links > 0 => {
                user_inode(raw.device_or_parent).map(|_| record)
            }
            Some(_) => Ok(record),
            None => Err(FormatError::field(STRUCTURE, "mode", record.mode, "a file type")),
        }
    }
}

impl NameRecord {
    fn raw(&self) -> RawNameRecord {
        let (target, type_code) = match self.target {
            Some((ino, file_type)) => (ino.0, file_type.dirent_code()),
            None => (0, 0),
        };
        RawNameRecord {
            directory: U64::new(self.directory.0),
            target: U64::new(target),
            type_code,
            length: self.name.len() as u8,
            pad: [0; 6],
        }
    }

    fn parse(raw: &RawNameRecord, rest: &[u8]) -> Result<Self, FormatError> {
        let name = rest.get(..raw.length.into()).filter(|name| is_name(name));
        let name = name.ok_or_else(|| FormatError::field(STRUCTURE, "name", "none", "a name"))?;
        let target = match raw.target.get() {
            0 => None,
            _ => Some((user_inode(raw.target)?, raw.type_code)),
        };
        let file_type = |(ino, code)| match FileType::from_dirent_code(code) {
            Some(file_type) => Ok((ino, file_type)),
            None => Err(FormatError::field(STRUCTURE, "type", code, "a file type")),
        };
        Ok(Self {
            directory: user_inode(raw.directory)?,
            name: name.to_vec(),
            target: target.map(file_type).transpose()?,
        })
    }
}

fn is_name(name: &[u8]) -> bool {
    let special = name == b"." || name == b"..";
    (1..=dirent::NAME_MAX).contains(&name.len())
        && !special
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

impl ContentRecord {
    fn raw(&self) -> RawContentRecord {
        RawContentRecord {
            ino: U64::new(self.ino.0),
            generation: U32::new(self.generation),
            has_cut: U32::new(self.cut.is_some().into()),
            size: U64::new(self.size),
            cut: U64::new(self.cut.unwrap_or_default().0),
            modified: U64::new(self.modified.seconds),
            changed: U64::new(self.changed.seconds),
            modified_nsec: U32::new(self.modified.nanoseconds),
            changed_nsec: U32::new(self.changed.nanoseconds),
        }
    }

    fn parse(raw: &RawContentRecord) -> Result<Self, FormatError> {
        let size = raw.size.get();
        if size > i64::MAX as u64 {
            return Err(FormatError::field(STRUCTURE, "size", size, "at most 2^63 - 1"));
        }
        Ok(Self {
            ino: user_inode(raw.ino)?,
            generation: raw.generation.get(),
            size,
            cut: (raw.has_cut.get() != 0).then_some(FileBlock(raw.cut.get())),
            modified: time(raw.modified, raw.modified_nsec),
            changed: time(raw.changed, raw.changed_nsec),
        })
    }
}

impl BytesRecord {
    /// The size, in bytes, of a record that holds `bytes` bytes of a file.
    #[must_use]
    pub fn size(bytes: usize) -> usize {
        RECORD_HEAD_SIZE + (size_of::<RawBytesRecord>() + bytes).next_multiple_of(8)
    }

    fn raw(&self) -> RawBytesRecord {
        RawBytesRecord {
            ino: U64::new(self.ino.0),
            offset: U64::new(self.offset),
            length: U32::new(self.bytes.len() as u32),
            pad: U32::ZERO,
        }
    }

    fn parse(raw: &RawBytesRecord, rest: &[u8]) -> Result<Self, FormatError> {
        let (offset, length) = (raw.offset.get(), raw.length.get());
        let bytes = rest.get(..length as usize).filter(|bytes| !bytes.is_empty());
        let end = offset.checked_add(length.into()).filter(|end| *end <= i64::MAX as u64);
        match (bytes, end) {
            (Some(bytes), Some(_)) => {
                Ok(Self { ino: user_inode(raw.ino)?, offset, bytes: bytes.to_vec() })
            }
            _ => Err(FormatError::field(STRUCTURE, "bytes", length, "bytes within the record")),
        }
    }
}

impl ExtentRecord {
    fn raw(&self) -> RawExtentRecord {
        RawExtentRecord {
            ino: U64::new(self.ino.0),
            offset: U64::new(self.offset.0),
            vblocknr: U64::new(self.vblocknr.0),
            block: U64::new(self.block.0),
            count: U32::new(self.count),
            pad: U32::ZERO,
        }
    }

    fn parse(raw: &RawExtentRecord) -> Result<Self, FormatError> {
        let count = raw.count.get();
        let fits = [raw.offset, raw.vblocknr, raw.block]
            .iter()
            .all(|first| first.get().checked_add(count.into()).is_some());
        if count == 0 || !fits {
            return Err(FormatError::field(STRUCTURE, "count", count, "a number of blocks"));
        }
        Ok(Self {
            ino: user_inode(raw.ino)?,
            offset: FileBlock(raw.offset.get()),
            vblocknr: VBlockNr(raw.vblocknr.get()),
            block: BlockNr(raw.block.get()),
            count,
        })
    }
}

impl Record {
    /// The inode that the record is about; that of a name is its directory.
    #[must_use]
    pub fn ino(&self) -> Ino {
        match self {
            Self::Inode(record) => record.ino,
            Self::Name(record) => record.directory,
            Self::Content(record) => record.ino,
            Self::Bytes(record) => record.ino,
            Self::Extent(record) => record.ino,
        }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn size(&self) -> usize {
        let body = match self {
            Self::Inode(_) => size_of::<RawInodeRecord>(),
            Self::Name(record) => size_of::<RawNameRecord>() + record.name.len(),
            Self::Content(_) => size_of::<RawContentRecord>(),
            Self::Bytes(record) => size_of::<RawBytesRecord>() + record.bytes.len(),
            Self::Extent(_) => size_of::<RawExtentRecord>(),
        };
        RECORD_HEAD_SIZE + body.next_multiple_of(8)
    }

    fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        let kind = match self {
            Self::Inode(_) => INODE,
            Self::Name(_) => NAME,
            Self::Content(_) => CONTENT,
            Self::Bytes(_) => BYTES,
            Self::Extent(_) => EXTENT,
        };
        let bytes = U32::new(self.size() as u32);
        let head = RawRecordHead { kind: U16::new(kind), pad: U16::ZERO, bytes };
        to.extend_from_slice(head.as_bytes());
        match self {
            Self::Inode(record) => to.extend_from_slice(record.raw().as_bytes()),
            Self::Name(record) => {
                to.extend_from_slice(record.raw().as_bytes());
                to.extend_from_slice(&record.name);
            }
            Self::Content(record) => to.extend_from_slice(record.raw().as_bytes()),
            Self::Bytes(record) => {
                to.extend_from_slice(record.raw().as_bytes());
                to.extend_from_slice(&record.bytes);
            }
            Self::Extent(record) => to.extend_from_slice(record.raw().as_bytes()),
        }
        to.resize(start + self.size(), 0);
    }

    fn parse(kind: u16, body: &[u8]) -> Result<Self, FormatError> {
        Ok(match kind {
            INODE => Self::Inode(InodeRecord::parse(&raw(body)?.0)?),
            NAME => {
                let (raw, rest) = raw(body)?;
                Self::Name(NameRecord::parse(&raw, rest)?)
            }
            CONTENT => Self::Content(ContentRecord::parse(&raw(body)?.0)?),
            BYTES => {
                let (raw, rest) = raw(body)?;
                Self::Bytes(BytesRecord::parse(&raw, rest)?)
            }
            EXTENT => Self::Extent(ExtentRecord::parse(&raw(body)?.0)?),
            unknown => {
                let expected = "a kind that this version knows; a newer one may";
                return Err(FormatError::field(STRUCTURE, "kind", unknown, expected));
            }
        })
    }
}

impl Records {
    /// Bytes that they take.
    #[must_use]
    pub fn size(&self) -> usize {
        HEAD_SIZE + self.records.iter().map(Record::size).sum::<usize>()
    }

    /// Their bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = RawHead {
            magic: U32::new(MAGIC),
            version: U16::new(VERSION),
            unflushed: U16::new(self.unflushed.map_or(0, |logs| logs.wrapping_add(1))),
            bytes: U32::new(self.size() as u32),
            count: U32::new(self.records.len() as u32),
            base: U64::new(self.base.0),
            number: U64::new(self.number),
        };
        let mut bytes = head.as_bytes().to_vec();
        self.records.iter().for_each(|record| record.encode(&mut bytes));
        bytes
    }

    /// Reads the records of a log, given its summary from the end of its items on; `None` if there
    /// are none.
    ///
    /// # Errors
    /// A version, or a kind of record, that is not known; a field that is out of range.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, FormatError> {
        let Ok((head, _)) = RawHead::read_from_prefix(bytes) else { return Ok(None) };
        if head.magic.get() != MAGIC {
            return Ok(None);
        }
        if head.version.get() != VERSION {
            let expected = format!("{VERSION}; a newer program may read it");
            return Err(FormatError::field(STRUCTURE, "version", head.version.get(), expected));
        }
        let end = head.bytes.get() as usize;
        let mut rest = bytes.get(HEAD_SIZE..end).ok_or_else(|| short(bytes.len(), end))?;
        let mut records = Vec::new();
        while !rest.is_empty() {
            let (head, _) = raw::<RawRecordHead>(rest)?;
            let size = head.bytes.get() as usize;
            let sound = size.is_multiple_of(8) && size >= RECORD_HEAD_SIZE;
            let body = rest.get(RECORD_HEAD_SIZE..size).filter(|_| sound);
            let body = body.ok_or_else(|| short(rest.len(), size.max(RECORD_HEAD_SIZE)))?;
            records.push(Record::parse(head.kind.get(), body)?);
            rest = &rest[size..];
        }
        if records.len() as u64 != u64::from(head.count.get()) {
            return Err(FormatError::field(STRUCTURE, "count", head.count.get(), records.len()));
        }
        Ok(Some(Self {
            base: Cno(head.base.get()),
            number: head.number.get(),
            unflushed: head.unflushed.get().checked_sub(1),
            records,
        }))
    }
}

/// Returns how many bytes the records of a log take, given its summary from the end of its items on.
pub(crate) fn bytes(rest: &[u8]) -> Option<usize> {
    let (head, _) = RawHead::read_from_prefix(rest).ok()?;
    (head.magic.get() == MAGIC).then_some(head.bytes.get() as usize)
}

fn raw<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<(T, &[u8]), FormatError> {
    T::read_from_prefix(bytes).map_err(|_| short(bytes.len(), size_of::<T>()))
}

fn short(have: usize, need: usize) -> FormatError {
    FormatError::Short { structure: STRUCTURE, have: have as u64, need: need as u64 }
}

/// An inode that can have names: the root, or one of a user.
fn user_inode(ino: U64) -> Result<Ino, FormatError> {
    let ino = Ino(ino.get());
    match ino.is_of_user() {
        true => Ok(ino),
        false => Err(FormatError::field(STRUCTURE, "ino", ino, "the inode of a user's file")),
    }
}

/// A time. An inode of a damaged volume can have more nanoseconds than a second has.
fn time(seconds: U64, nanoseconds: U32) -> Time {
    Time { seconds: seconds.get(), nanoseconds: nanoseconds.get().min(999_999_999) }
}

#[cfg(test)]
mod tests;
