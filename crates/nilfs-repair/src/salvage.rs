//! Blocks of directories: what can still be read of them.

use std::collections::BTreeSet;
use std::fmt;

use nilfs_check::Part;
use nilfs_ondisk::dirent::{self, HEADER_SIZE, Record, record_at};
use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{BlockNr, Ino};

/// Records begin at multiples of this.
const ALIGNMENT: usize = 4;

/// Source of a name, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// An older version of the block.
    Older,
    /// The version that has taken its place.
    Newer,
    /// Content of the block, which is not what was written.
    Doubtful,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Older | Self::Doubtful => "had before",
            Self::Newer => "has had since",
        })
    }
}

/// A name that a directory may have had in a block that is damaged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LostName {
    pub(crate) block: BlockNr,
    pub(crate) source: Source,
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Ino,
    pub(crate) type_code: u8,
}

impl LostName {
    fn new(block: BlockNr, source: Source, record: &Record<'_>) -> Self {
        let name = record.name.to_vec();
        Self { block, source, name, ino: record.ino, type_code: record.type_code }
    }

    /// Puts the name into its block again. `None` if there is no room for it.
    pub(crate) fn give_back(&self, block: &mut [u8]) -> Option<()> {
        let file_type = FileType::from_dirent_code(self.type_code)?;
        dirent::insert(block, self.ino, &self.name, file_type).ok()?.map(|_| ())
    }
}

/// A block of a directory made anew.
pub(crate) struct Salvaged {
    pub(crate) bytes: Vec<u8>,
    /// How many names are in it, besides "." and "..".
    pub(crate) kept: usize,
    /// Names of an older version of the block, which may have been removed since, of a newer one, and of what is
    /// there if that is not what was written.
    pub(crate) lost: Vec<LostName>,
}

/// Sources of the names of a block of a directory.
#[derive(Default)]
pub(crate) struct Versions {
    /// Content of the block.
    pub(crate) found: Option<Vec<u8>>,
    /// Content of the block, if it is not what was written.
    pub(crate) doubtful: Option<Vec<u8>>,
    /// An older version of the block.
    pub(crate) older: Option<Vec<u8>>,
    /// The version that has taken its place, if it is of the past.
    pub(crate) newer: Option<Vec<u8>>,
}

/// Makes a block with the names that can be read of it. The first of a directory has "." and ".."; if
/// nothing says what the latter names, it is the root directory.
pub(crate) fn directory_block(
    (part, block): (&Part, BlockNr),
    versions: &Versions,
    size: usize,
) -> Salvaged {
    let mut bytes = vec![0; size];
    let found = versions.found.as_deref().map(names).unwrap_or_default();
    let older = versions.older.as_deref().map(names).unwrap_or_default();
    let mut newer = versions.newer.as_deref().map(names).unwrap_or_default();
    newer.retain(|it| !older.iter().any(|older| older.name == it.name));
    let mut doubtful = versions.doubtful.as_deref().map(names).unwrap_or_default();
    // It may be a block of another directory.
    let is_own = |it: &Record<'_>| match it.name {
        b"." => it.ino == part.ino,
        b".." => false,
        name => older.iter().any(|older| (older.name, older.ino) == (name, it.ino)),
    };
    if !doubtful.iter().any(is_own) {
        doubtful.clear();
    }
    if part.key == 0 {
        let mut all = found.iter().chain(&older).chain(&newer).chain(&doubtful);
        let parent = all.find(|record| record.name == b"..");
        dirent::format_first(&mut bytes, part.ino, parent.map_or(Ino::ROOT, |it| it.ino));
    } else {
        dirent::format_empty(&mut bytes);
    }
    let mut salvaged = Salvaged { bytes, kept: 0, lost: Vec::new() };
    let mut seen = BTreeSet::new();
    for record in found.iter().filter(|it| seen.insert(it.name) && !is_dot(it)) {
        let file_type = record.file_type().unwrap_or(FileType::Regular);
        let inserted = dirent::insert(&mut salvaged.bytes, record.ino, record.name, file_type);
        salvaged.kept += usize::from(matches!(inserted, Ok(Some(_))));
    }
    let others = [(Source::Older, older), (Source::Newer, newer), (Source::Doubtful, doubtful)];
    for (source, records) in others {
        let others = records.iter().filter(|it| !seen.contains(it.name) && !is_dot(it));
        salvaged.lost.extend(others.map(|record| LostName::new(block, source, record)));
    }
    salvaged
}

/// The record that a block of a directory has of a name, if there is one in use.
pub(crate) fn named<'b>(block: &'b [u8], name: &[u8]) -> Option<Record<'b>> {
    names(block).into_iter().find(|record| record.name == name)
}

/// Whether anything in a block looks like a record in use.
pub(crate) fn has_names(block: &[u8]) -> bool {
    names(block).iter().any(is_plausible)
}

fn is_dot(record: &Record<'_>) -> bool {
    matches!(record.name, b"." | b"..")
}

/// The records in use that a block has. Where one is damaged, the next is looked for.
fn names(block: &[u8]) -> Vec<Record<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    // After damage, anything may look like a record by chance.
    let mut strayed = false;
    while at + HEADER_SIZE < block.len() {
        match record_at(block, at) {
            Ok(record) if !strayed || is_plausible(&record) => {
                at += record.len;
                if record.is_used() {
                    found.push(record);
                }
                strayed = false;
            }
            _ => {
                at += ALIGNMENT;
                strayed = true;
            }
        }
    }
    found
}

/// Whether it is hardly by chance that there is a record.
fn is_plausible(record: &Record<'_>) -> bool {
    record.is_used() && record.file_type().is_some() && record.ino.0 < 1 << 40
}
