//! Roll-forward records, and the sync logs that have them, in words, and as JSON.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};

use nilfs_engine::{Ino, Log};
use nilfs_ondisk::inode::{DeviceCode, FileType};
use nilfs_ondisk::roll_forward::{
    BytesRecord, ContentRecord, ExtentRecord, InodeRecord, NameRecord, Record, Time,
};
use nilfs_ondisk::summary::FileInfo;
use serde::{Serialize, Serializer};

use crate::exit;
use crate::output::{counted, exact_time, local_time, printable};

/// A record that is to be shown: in words on one line, or as JSON.
pub struct Shown(pub Record);

/// What JSON has of a record.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Fields {
    Inode {
        inode: u64,
        generation: u32,
        #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
        file_type: Option<&'static str>,
        mode: String,
        links: u16,
        uid: u32,
        gid: u32,
        flags: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        device: Option<(u32, u32)>,
        #[serde(skip_serializing_if = "Option::is_none")]
        modified: Option<String>,
        changed: String,
    },
    Name {
        directory: u64,
        name: String,
        target: Option<u64>,
        #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
        file_type: Option<&'static str>,
    },
    Content {
        inode: u64,
        generation: u32,
        size_bytes: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        cut_from: Option<u64>,
        modified: String,
        changed: String,
    },
    Bytes {
        inode: u64,
        start: u64,
        written_bytes: u64,
    },
    Extent {
        inode: u64,
        offset: u64,
        virtual_block: u64,
        block: u64,
        blocks: u32,
    },
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Fields::from(&self.0).serialize(serializer)
    }
}

impl From<&Record> for Fields {
    fn from(record: &Record) -> Self {
        let exact = |time: Time| exact_time(time.seconds as i64, time.nanoseconds);
        match record {
            Record::Inode(it) => Self::Inode {
                inode: it.ino.0,
                generation: it.generation,
                file_type: FileType::from_mode(it.mode).map(FileType::in_words),
                mode: permissions(it),
                links: it.links,
                uid: it.uid,
                gid: it.gid,
                flags: it.flags,
                parent: parent(it),
                device: device(it).map(|device| (device.major, device.minor)),
                modified: it.modified.map(exact),
                changed: exact(it.changed),
            },
            Record::Name(it) => Self::Name {
                directory: it.directory.0,
                name: String::from_utf8_lossy(&it.name).into_owned(),
                target: it.target.map(|(ino, _)| ino.0),
                file_type: it.target.map(|(_, file_type)| file_type.in_words()),
            },
            Record::Content(it) => Self::Content {
                inode: it.ino.0,
                generation: it.generation,
                size_bytes: it.size,
                cut_from: it.cut.map(|block| block.0),
                modified: exact(it.modified),
                changed: exact(it.changed),
            },
            Record::Bytes(it) => Self::Bytes {
                inode: it.ino.0,
                start: it.offset,
                written_bytes: it.bytes.len() as u64,
            },
            Record::Extent(it) => Self::Extent {
                inode: it.ino.0,
                offset: it.offset.0,
                virtual_block: it.vblocknr.0,
                block: it.block.0,
                blocks: it.count,
            },
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Record::Inode(it) => inode(f, it),
            Record::Name(NameRecord { directory, name, target }) => {
                write!(f, "name \"{}\" in directory {directory}", printable(name))?;
                match target {
                    Some((ino, file_type)) => write!(f, ": inode {ino}, {}", file_type.in_words()),
                    None => f.write_str(": removed"),
                }
            }
            Record::Content(it) => content(f, it),
            Record::Bytes(BytesRecord { ino, offset, bytes }) => {
                let bytes = counted(bytes.len() as u64, "byte");
                write!(f, "inode {ino}: {bytes} at {offset}")
            }
            Record::Extent(ExtentRecord { ino, offset, vblocknr, block, count }) => {
                let blocks = counted(u64::from(*count), "block");
                write!(
                    f,
                    "inode {ino}: {blocks} from block {block} on, offset {offset}, virtual {vblocknr}"
                )
            }
        }
    }
}

fn inode(f: &mut fmt::Formatter<'_>, it: &InodeRecord) -> fmt::Result {
    let kind = FileType::from_mode(it.mode).map_or("unknown type", FileType::in_words);
    let links = counted(u64::from(it.links), "link");
    let (mode, flags) = (permissions(it), it.flags);
    write!(f, "inode {}: {kind}, mode {mode}, {links}, owner {}:{}", it.ino, it.uid, it.gid)?;
    write!(f, ", flags {flags:#x}, generation {}", it.generation)?;
    if let Some(parent) = parent(it) {
        write!(f, ", in directory {parent}")?;
    }
    if let Some(DeviceCode { major, minor }) = device(it) {
        write!(f, ", device {major}:{minor}")?;
    }
    if let Some(modified) = it.modified {
        write!(f, ", modified {}", local_time(modified.seconds as i64))?;
    }
    write!(f, ", changed {}", local_time(it.changed.seconds as i64))
}

fn content(f: &mut fmt::Formatter<'_>, it: &ContentRecord) -> fmt::Result {
    write!(f, "inode {}: content of {}", it.ino, counted(it.size, "byte"))?;
    if let Some(cut) = it.cut {
        write!(f, ", cut off at block {cut} before")?;
    }
    write!(f, ", generation {}", it.generation)?;
    let [modified, changed] = [it.modified, it.changed].map(|it| local_time(it.seconds as i64));
    write!(f, ", modified {modified}, changed {changed}")
}

fn permissions(it: &InodeRecord) -> String {
    format!("{:04o}", it.mode & 0o7777)
}

/// The directory that a directory is in, unless it has been removed.
fn parent(it: &InodeRecord) -> Option<u64> {
    let is_directory = FileType::from_mode(it.mode) == Some(FileType::Directory);
    (is_directory && it.links > 0).then_some(it.device_or_parent)
}

fn device(it: &InodeRecord) -> Option<DeviceCode> {
    match FileType::from_mode(it.mode) {
        Some(FileType::CharDevice | FileType::BlockDevice) => {
            Some(DeviceCode::decode(it.device_or_parent))
        }
        _ => None,
    }
}

/// What an fsync has written.
#[derive(Serialize)]
pub struct SyncedLog {
    block: u64,
    #[serde(skip)]
    seconds: u64,
    created: String,
    files: Vec<SyncedFile>,
    /// In words.
    records: Vec<String>,
    #[serde(skip)]
    sum: Sum,
    /// Why the records are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct SyncedFile {
    inode: u64,
    blocks: u64,
}

impl SyncedLog {
    /// What a log has.
    pub fn new(log: &Log) -> Self {
        let (records, error) = match log.records() {
            Ok(records) => (records.map_or_else(Vec::new, |it| it.records), None),
            Err(error) => (Vec::new(), Some(exit::sentence(&error.into()))),
        };
        let contents = log.files.iter().map(|file| file.ino).collect();
        let mut sum = Sum { contents, ..Sum::default() };
        records.iter().for_each(|record| sum.add(record));
        let file =
            |file: &FileInfo| SyncedFile { inode: file.ino.0, blocks: file.blocks.len() as u64 };
        Self {
            block: log.start.0,
            seconds: log.header.create,
            created: exact_time(log.header.create as i64, 0),
            files: log.files.iter().map(file).collect(),
            records: records.into_iter().map(|record| Shown(record).to_string()).collect(),
            sum,
            error,
        }
    }

    /// Says what becomes of it, and lists what it has.
    pub fn print(&self, out: &mut impl Write, verb: &str) -> io::Result<()> {
        let Self { block, seconds, files, records, error, .. } = self;
        writeln!(out, "{verb}: the log of {} in block {block}", local_time(*seconds as i64))?;
        for SyncedFile { inode, blocks } in files {
            writeln!(out, "  inode {inode}: {}", counted(*blocks, "block"))?;
        }
        records.iter().try_for_each(|record| writeln!(out, "  {record}"))?;
        error.iter().try_for_each(|error| writeln!(out, "  {error}"))
    }
}

/// What logs are about.
#[derive(Default)]
pub struct Sum {
    names: BTreeSet<(Ino, Vec<u8>)>,
    attributes: BTreeSet<Ino>,
    contents: BTreeSet<Ino>,
}

impl Sum {
    /// All of them together.
    pub fn of(logs: &[SyncedLog]) -> Self {
        let mut all = Self::default();
        for Self { names, attributes, contents } in logs.iter().map(|log| &log.sum) {
            all.names.extend(names.iter().cloned());
            all.attributes.extend(attributes);
            all.contents.extend(contents);
        }
        all
    }

    fn add(&mut self, record: &Record) {
        match record {
            Record::Name(it) => {
                self.names.insert((it.directory, it.name.clone()));
            }
            Record::Inode(it) => {
                self.attributes.insert(it.ino);
            }
            other => {
                self.contents.insert(other.ino());
            }
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("", self.names.len(), "name"),
            ("the attributes of ", self.attributes.len(), "file"),
            ("the content of ", self.contents.len(), "file"),
        ];
        let parts = parts.iter().filter(|(_, count, _)| *count > 0);
        let parts: Vec<String> = parts
            .map(|(of, count, thing)| format!("{of}{}", counted(*count as u64, thing)))
            .collect();
        f.write_str(&parts.join(", "))
    }
}
