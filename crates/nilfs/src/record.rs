//! A file of a volume as `ls` and `stat` show it.

use nilfs_engine::{Attr, Timestamp};
use nilfs_ondisk::inode::FileType;
use serde::Serialize;

use crate::image::Entry;
use crate::output::exact_time;

/// What is known of a file, for JSON.
#[derive(Debug, Serialize)]
pub struct FileRecord {
    path: String,
    inode: u64,
    #[serde(rename = "type")]
    file_type: &'static str,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size_bytes: u64,
    /// What is allocated: holes take nothing.
    stored_bytes: u64,
    modified: String,
    changed: String,
    flags: u32,
    generation: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
}

impl FileRecord {
    /// Gathers it. `path` is the name by which the file was asked for.
    pub fn new(path: &[u8], entry: &Entry) -> anyhow::Result<Self> {
        let attr = &entry.attr;
        let target = match attr.file_type {
            FileType::Symlink => Some(entry.read_link()?),
            _ => None,
        };
        let exact = |time: Timestamp| exact_time(time.seconds, time.nanoseconds);
        Ok(Self {
            path: String::from_utf8_lossy(path).into_owned(),
            inode: attr.ino.0,
            file_type: attr.file_type.in_words(),
            mode: format!("{:04o}", attr.mode),
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size_bytes: attr.size,
            stored_bytes: attr.blocks.saturating_mul(512),
            modified: exact(attr.mtime),
            changed: exact(attr.ctime),
            flags: attr.flags,
            generation: attr.generation,
            target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
            device: device_of(attr),
        })
    }
}

/// Major and minor number of a device node.
pub fn device_of(attr: &Attr) -> Option<(u32, u32)> {
    matches!(attr.file_type, FileType::CharDevice | FileType::BlockDevice)
        .then_some((attr.rdev.major, attr.rdev.minor))
}

/// Type and permissions as `ls -l` writes them: `drwxr-xr-x`.
pub fn mode_string(attr: &Attr) -> String {
    let kind = match attr.file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Symlink => 'l',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attr.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}
