//! Directory blocks: variable records that cover the block exactly (docs/format.md §13).
//!
//! ```text
//! 0       8         10         11          12
//! | inode | rec_len | name_len | file_type | name … padding to a multiple of 8 |
//! ```
//!
//! A record with inode 0 is unused; the space after the name of a used record, up to its
//! `rec_len`, is slack that a later insert may split off.

use crate::inode::FileType;
use crate::{FormatError, Ino};

/// Bytes before the name.
pub const HEADER_SIZE: usize = 12;
/// Longest name in bytes.
pub const NAME_MAX: usize = 255;

const STRUCTURE: &str = "directory entry";

/// Bytes that a name needs.
#[must_use]
pub const fn needed(name_len: usize) -> usize {
    (name_len + HEADER_SIZE + 7) & !7
}

/// A record of a directory block, used or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Byte offset in the block.
    pub offset: usize,
    /// Bytes up to the next record.
    pub len: usize,
    /// The inode; 0 = unused.
    pub ino: Ino,
    /// The name; of no meaning in an unused record.
    pub name: &'a [u8],
    /// The advisory type code.
    pub type_code: u8,
}

impl Record<'_> {
    /// Whether the record names a file.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.ino.0 != 0
    }

    /// Bytes of the record that an insert could take.
    #[must_use]
    pub fn slack(&self) -> usize {
        if self.is_used() { self.len - needed(self.name.len()) } else { self.len }
    }

    /// The type that the entry claims its file to have.
    #[must_use]
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_dirent_code(self.type_code)
    }
}

/// The records of a block in order; each is checked as it is read, and the first bad one ends the
/// iteration with an error.
pub fn records(block: &[u8]) -> impl Iterator<Item = Result<Record<'_>, FormatError>> {
    let mut offset = 0;
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed || offset >= block.len() {
            return None;
        }
        let record = record_at(block, offset);
        match &record {
            Ok(record) => offset += record.len,
            Err(_) => failed = true,
        }
        Some(record)
    })
}

/// What says where a record is and where there is room in it. Whoever adds or removes a name looks at
/// all of a block, and need not look at their names.
struct Extent {
    offset: usize,
    len: usize,
    ino: Ino,
    name_len: usize,
}

impl Extent {
    /// The extent of the record at a byte offset; `None` unless it lies in the block and has room for
    /// its name.
    #[inline]
    fn at(block: &[u8], offset: usize) -> Option<Self> {
        let extent = Self::stored(block, offset)?;
        let least = if extent.ino.0 != 0 { extent.used() } else { HEADER_SIZE + extent.name_len };
        let room = block.len() - offset;
        let fits = extent.len >= least.max(16) && extent.len <= room && extent.len % 4 == 0;
        fits.then_some(extent)
    }

    /// What the block says about a record at a byte offset, if that leaves room for a header.
    #[inline]
    fn stored(block: &[u8], offset: usize) -> Option<Self> {
        let header: &[u8; HEADER_SIZE] = block.get(offset..)?.first_chunk()?;
        let (ino, rest) = header.split_first_chunk()?;
        let stored = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
        // A single record that fills a block of 64 KiB does not fit into 16 bits.
        let len = if stored == 65535 { 65536 } else { stored };
        Some(Self { offset, len, ino: Ino(u64::from_le_bytes(*ino)), name_len: rest[2].into() })
    }

    /// Why there is no record at a byte offset.
    #[cold]
    fn fault(block: &[u8], offset: usize) -> FormatError {
        let Some(Self { len, name_len, .. }) = Self::stored(block, offset) else {
            return FormatError::field(STRUCTURE, "offset", offset, "a record inside the block");
        };
        let room = block.len() - offset;
        let expected = format!("a multiple of 4 from {} to {room}", needed(name_len));
        FormatError::field(STRUCTURE, "rec_len", len, expected)
    }

    /// Calls `visit` with the extents of all records of a block.
    fn each(block: &[u8], mut visit: impl FnMut(Self)) -> Result<(), FormatError> {
        let mut offset = 0;
        while offset < block.len() {
            let extent = Self::at(block, offset).ok_or_else(|| Self::fault(block, offset))?;
            offset += extent.len;
            visit(extent);
        }
        Ok(())
    }

    /// Bytes that the record needs for its name; none if it is unused.
    fn used(&self) -> usize {
        if self.ino.0 != 0 { needed(self.name_len) } else { 0 }
    }

    /// Bytes that an insert could take.
    fn slack(&self) -> usize {
        self.len - self.used()
    }
}

/// The record at a byte offset.
///
/// # Errors
/// A record that crosses the block, is too short for its name, misaligned, or names an inode that
/// no entry may name.
pub fn record_at(block: &[u8], offset: usize) -> Result<Record<'_>, FormatError> {
    let extent = Extent::at(block, offset).ok_or_else(|| Extent::fault(block, offset))?;
    let Extent { offset, len, ino, name_len } = extent;
    let name = &block[offset + HEADER_SIZE..][..name_len];
    if ino.0 != 0 {
        if !ino.is_nameable() {
            return Err(FormatError::field(STRUCTURE, "inode", ino, "2, 10, or 11 and more"));
        }
        if name_len == 0 {
            return Err(FormatError::field(STRUCTURE, "name_len", 0, "1 to 255"));
        }
        if name.iter().any(|&byte| byte == 0 || byte == b'/') {
            return Err(FormatError::field(STRUCTURE, "name", "a NUL or a slash", "neither"));
        }
    }
    Ok(Record { offset, len, ino, name, type_code: block[offset + 11] })
}

/// Writes a record of `len` bytes at `offset`.
pub fn write_record(
    block: &mut [u8],
    offset: usize,
    len: usize,
    ino: Ino,
    name: &[u8],
    file_type: Option<FileType>,
) {
    let record = &mut block[offset..offset + len];
    record[..8].copy_from_slice(&ino.0.to_le_bytes());
    record[8..10].copy_from_slice(&encode_len(len));
    record[10] = name.len() as u8;
    record[11] = file_type.map_or(0, FileType::dirent_code);
    record[HEADER_SIZE..HEADER_SIZE + name.len()].copy_from_slice(name);
    let padding = HEADER_SIZE + name.len()..needed(name.len()).min(len);
    record[padding].fill(0);
}

/// Lets the record at `offset` name another file, in place.
pub fn set_target(block: &mut [u8], offset: usize, ino: Ino, file_type: FileType) {
    set_ino(block, offset, ino);
    block[offset + 11] = file_type.dirent_code();
}

/// Lets the record at `offset` name another file of the same type, in place.
pub fn set_ino(block: &mut [u8], offset: usize, ino: Ino) {
    block[offset..offset + 8].copy_from_slice(&ino.0.to_le_bytes());
}

/// Changes the length of the record at `offset`.
pub fn set_len(block: &mut [u8], offset: usize, len: usize) {
    block[offset + 8..offset + 10].copy_from_slice(&encode_len(len));
}

fn encode_len(len: usize) -> [u8; 2] {
    (len.min(65535) as u16).to_le_bytes()
}

/// A name that was put into a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inserted {
    /// The byte offset of its record.
    pub offset: usize,
    /// The greatest [slack](Record::slack) of the block now.
    pub slack: usize,
}

/// Room for a name in a block, as long as that stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The record that has it, and how much of that it needs itself.
    offset: usize,
    kept: usize,
    len: usize,
    /// The greatest slack of the block afterwards.
    slack: usize,
}

impl Room {
    /// Room for a name of `name_len` bytes: an unused record or the slack of a used one, the first that
    /// fits. `None` if nothing fits.
    ///
    /// # Errors
    /// A record of the block crosses another one or the block.
    pub fn find(block: &[u8], name_len: usize) -> Result<Option<Self>, FormatError> {
        let need = needed(name_len).max(16);
        let mut found = None;
        let mut slack = 0;
        Extent::each(block, |extent| {
            if found.is_none() && extent.slack() >= need {
                found = Some(extent);
            } else {
                slack = slack.max(extent.slack());
            }
        })?;
        Ok(found.map(|found| {
            let (kept, len) = (found.used(), found.slack());
            Self { offset: found.offset, kept, len, slack: slack.max(len - need) }
        }))
    }

    /// Puts a name of that length there.
    pub fn fill(self, block: &mut [u8], ino: Ino, name: &[u8], file_type: FileType) -> Inserted {
        if self.kept > 0 {
            set_len(block, self.offset, self.kept);
        }
        let offset = self.offset + self.kept;
        write_record(block, offset, self.len, ino, name, Some(file_type));
        Inserted { offset, slack: self.slack }
    }
}

/// Puts a name into a block that has [room](Room) for it. Returns `None` if nothing fits.
///
/// # Errors
/// A record of the block crosses another one or the block.
pub fn insert(
    block: &mut [u8],
    ino: Ino,
    name: &[u8],
    file_type: FileType,
) -> Result<Option<Inserted>, FormatError> {
    let room = Room::find(block, name.len())?;
    Ok(room.map(|room| room.fill(block, ino, name, file_type)))
}

/// How a record can be taken out of a block, as long as that stays as it is: the preceding record of the
/// block swallows it; the first record of a block only becomes unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    offset: usize,
    /// The record that swallows it, and how long that is then.
    swallowed: Option<(usize, usize)>,
    /// The greatest slack of the block afterwards.
    slack: usize,
}

impl Removal {
    /// The removal of the record at `offset`.
    ///
    /// # Errors
    /// A record of the block crosses another one or the block, or none starts at `offset`.
    pub fn of(block: &[u8], offset: usize) -> Result<Self, FormatError> {
        // Where the record before it is, as this is noted for each record.
        let mut before = 0;
        let mut found = None;
        let mut slack = 0;
        Extent::each(block, |extent| {
            if extent.offset == offset {
                found = Some(extent.len);
                return;
            }
            slack = slack.max(extent.slack());
            if extent.offset < offset {
                before = extent.offset;
            }
        })?;
        let len = found.ok_or_else(|| {
            FormatError::field(STRUCTURE, "offset", offset, "the start of a record")
        })?;
        let before = Extent::at(block, before).filter(|before| before.offset < offset);
        let gained = before.as_ref().map_or(0, Extent::slack) + len;
        let swallowed = before.map(|before| (before.offset, before.len + len));
        Ok(Self { offset, swallowed, slack: slack.max(gained) })
    }

    /// Takes the record out. Returns the greatest [slack](Record::slack) of the block then.
    pub fn apply(self, block: &mut [u8]) -> usize {
        match self.swallowed {
            Some((before, len)) => set_len(block, before, len),
            None => set_ino(block, self.offset, Ino(0)),
        }
        self.slack
    }
}

/// Fills a block with one unused record.
pub fn format_empty(block: &mut [u8]) {
    block[..HEADER_SIZE].fill(0);
    let len = block.len();
    set_len(block, 0, len);
}

/// Fills the first block of a directory with "." and "..".
pub fn format_first(block: &mut [u8], own: Ino, parent: Ino) {
    let len = block.len();
    write_record(block, 0, 16, own, b".", Some(FileType::Directory));
    write_record(block, 16, len - 16, parent, b"..", Some(FileType::Directory));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(block: &[u8]) -> Vec<String> {
        records(block)
            .map(Result::unwrap)
            .filter(Record::is_used)
            .map(|r| String::from_utf8_lossy(r.name).into_owned())
            .collect()
    }

    #[test]
    fn names_come_and_go_and_records_still_cover_the_block() {
        let mut block = vec![0xee; 1024];
        format_first(&mut block, Ino(2), Ino(2));
        let mut at = Vec::new();
        for name in ["a", "some name", "b"] {
            at.push(
                insert(&mut block, Ino(11), name.as_bytes(), FileType::Regular)
                    .unwrap()
                    .unwrap()
                    .offset,
            );
        }
        assert_eq!(names(&block), [".", "..", "a", "some name", "b"]);
        Removal::of(&block, at[1]).unwrap().apply(&mut block);
        assert_eq!(names(&block), [".", "..", "a", "b"]);
        let again = insert(&mut block, Ino(12), b"other", FileType::Symlink).unwrap().unwrap();
        assert_eq!(again.offset, at[1], "the freed space is found again");
        assert_eq!(records(&block).map(|r| r.unwrap().len).sum::<usize>(), 1024);
    }

    #[test]
    fn a_full_block_takes_no_more_and_a_first_record_is_reused() {
        let mut block = vec![0; 1024];
        format_empty(&mut block);
        let mut count = 0;
        while insert(&mut block, Ino(11), &[b'x'; 200], FileType::Regular).unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 1024 / needed(200));
        Removal::of(&block, 0).unwrap().apply(&mut block);
        assert_eq!(names(&block).len(), count - 1);
        let inserted = insert(&mut block, Ino(11), b"y", FileType::Regular).unwrap().unwrap();
        assert_eq!(inserted.offset, 0);
    }

    /// Whoever changes a block relies on what it is told to be able to add later.
    #[test]
    fn the_greatest_slack_is_known_after_each_change() {
        let slack_of = |block: &[u8]| records(block).map(|r| r.unwrap().slack()).max().unwrap();
        let mut random = 7_u64;
        let mut below = |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % limit
        };
        let mut block = vec![0; 1024];
        format_empty(&mut block);
        for _ in 0..2000 {
            let used: Vec<usize> = records(&block)
                .map(Result::unwrap)
                .filter(Record::is_used)
                .map(|record| record.offset)
                .collect();
            if below(2) == 0 && !used.is_empty() {
                let removal = Removal::of(&block, used[below(used.len())]).unwrap();
                let slack = removal.apply(&mut block);
                assert_eq!(slack, slack_of(&block));
            } else {
                let name = vec![b'n'; 1 + below(60)];
                let before = slack_of(&block);
                match insert(&mut block, Ino(11), &name, FileType::Regular).unwrap() {
                    Some(inserted) => assert_eq!(inserted.slack, slack_of(&block)),
                    None => assert!(before < needed(name.len())),
                }
            }
        }
    }

    #[test]
    fn a_whole_block_of_64_kib_is_one_record() {
        let mut block = vec![0; 65536];
        format_empty(&mut block);
        assert_eq!(records(&block).map(|r| r.unwrap().len).collect::<Vec<_>>(), [65536]);
    }

    #[test]
    fn malformed_records_are_refused() {
        let mut block = vec![0; 1024];
        format_first(&mut block, Ino(2), Ino(2));
        for (at, value) in [(8, 0), (8, 13), (9, 0xff), (0, 3), (10, 0), (12, b'/'), (10, 200)] {
            let mut broken = block.clone();
            broken[at] = value;
            assert!(records(&broken).any(|r| r.is_err()), "byte {at} = {value}");
        }
    }
}
