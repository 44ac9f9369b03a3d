//! Names and notes of snapshots, and who made them: a region of the xattr file
//! (docs/format.md §25).
//!
//! ```text
//! | head (32) | note | note | …                    notes by ascending checkpoint number
//! note: | cno u64 | created u64 | made by u8 | bytes of name u8 | bytes of text u16 | 0 u32 |
//!       | name | text | 0 …  to a multiple of 8
//! ```
//!
//! A note is about the checkpoint with its number *and* its time: after a crash, a number can come
//! to belong to another checkpoint. Nothing else of a volume depends on notes, so damage costs the
//! names and no data. What a note is about is not known here.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::crc::Crc;
use crate::{Cno, FormatError};

const STRUCTURE: &str = "notes of snapshots";

/// Marks the head: "NfNo".
const MAGIC: u32 = u32::from_le_bytes(*b"NfNo");

/// The version that this crate writes, and the only one that it reads.
pub const VERSION: u16 = 1;

/// Bytes of the head.
pub const HEAD_SIZE: usize = size_of::<RawHead>();

/// Bytes of all notes with their head, at most: enough for half a million that have no name.
pub const MOST_BYTES: usize = 16 << 20;

/// Bytes of a name, at most.
pub const NAME_MAX: usize = 64;

/// Bytes of a text, at most.
pub const TEXT_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    magic: U32,
    version: U16,
    pad: U16,
    /// With the head.
    bytes: U32,
    count: U32,
    /// Of all these bytes, with zero in this field, and with the volume's seed.
    crc: U32,
    reserved: [u8; 12],
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawNote {
    cno: U64,
    created: U64,
    made_by: u8,
    name_bytes: u8,
    text_bytes: U16,
    pad: U32,
}

const _: () = assert!(HEAD_SIZE == 32 && size_of::<RawNote>() == 24);
const CRC_AT: usize = std::mem::offset_of!(RawHead, crc);

/// Who made a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MadeBy {
    /// Somebody, who alone lets go of it.
    #[default]
    User,
    /// A rule about which checkpoints to keep, which lets go of it again.
    Retention,
}

/// The name of a snapshot: a letter, and then letters, digits, `-`, `_` and `.`, in at most
/// [`NAME_MAX`] bytes of UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotName(String);

/// This cannot be the name of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotAName {
    /// It is too long.
    #[error("the name of a snapshot has at most {NAME_MAX} bytes")]
    TooLong,
    /// It has characters that would mean something else where a name is used.
    #[error(
        "the name of a snapshot begins with a letter, and goes on with letters, digits, '-', '_' \
         and '.'"
    )]
    Characters,
}

impl FromStr for SnapshotName {
    type Err = NotAName;

    fn from_str(name: &str) -> Result<Self, NotAName> {
        let is_fit = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !name.starts_with(char::is_alphabetic) || !name.chars().all(is_fit) {
            return Err(NotAName::Characters);
        }
        if name.len() > NAME_MAX {
            return Err(NotAName::TooLong);
        }
        Ok(Self(name.to_owned()))
    }
}

impl TryFrom<String> for SnapshotName {
    type Error = NotAName;

    fn try_from(name: String) -> Result<Self, NotAName> {
        name.parse()
    }
}

impl From<SnapshotName> for String {
    fn from(name: SnapshotName) -> Self {
        name.0
    }
}

impl SnapshotName {
    /// The name as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What somebody wanted to remember about a snapshot: one line of UTF-8 without control characters,
/// at most [`TEXT_MAX`] bytes, and perhaps empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NoteText(String);

/// This cannot be the text of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a note is one line of at most {TEXT_MAX} bytes, without control characters")]
pub struct NotAText;

impl FromStr for NoteText {
    type Err = NotAText;

    fn from_str(text: &str) -> Result<Self, NotAText> {
        let is_fit = text.len() <= TEXT_MAX && !text.chars().any(char::is_control);
        if is_fit { Ok(Self(text.to_owned())) } else { Err(NotAText) }
    }
}

impl TryFrom<String> for NoteText {
    type Error = NotAText;

    fn try_from(text: String) -> Result<Self, NotAText> {
        text.parse()
    }
}

impl From<NoteText> for String {
    fn from(text: NoteText) -> Self {
        text.0
    }
}

impl NoteText {
    /// The text as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for NoteText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What is known of a snapshot besides its checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The checkpoint.
    pub cno: Cno,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Who made a snapshot of it.
    pub made_by: MadeBy,
    /// Its name, which no other snapshot has.
    pub name: Option<SnapshotName>,
    /// What there is to remember.
    pub text: NoteText,
}

impl Note {
    /// Whether it says nothing that is not true without it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.made_by == MadeBy::User && self.name.is_none() && self.text.is_empty()
    }
}

/// The bytes of the region that are in use, by the first [`HEAD_SIZE`] of them; 0 if there are no
/// notes.
///
/// # Errors
/// It is not the head of notes, or of a version that is not known.
pub fn bytes_in_use(head: &[u8]) -> Result<usize, FormatError> {
    Ok(read_head(head)?.map_or(0, |head| head.bytes.get() as usize))
}

/// The head, checked as far as it can be alone; `None` if there is a hole in its place.
fn read_head(bytes: &[u8]) -> Result<Option<RawHead>, FormatError> {
    if bytes.iter().take(HEAD_SIZE).all(|byte| *byte == 0) {
        return Ok(None);
    }
    let (head, _) = RawHead::read_from_prefix(bytes).map_err(|_| short(bytes, HEAD_SIZE))?;
    if head.magic.get() != MAGIC {
        let found = format!("{:#010x}", head.magic);
        return Err(FormatError::field(STRUCTURE, "magic", found, format!("{MAGIC:#010x}")));
    }
    if head.version.get() != VERSION {
        let found = head.version.get();
        return Err(FormatError::Version { structure: STRUCTURE, found, known: VERSION });
    }
    let in_use = head.bytes.get() as usize;
    if !(HEAD_SIZE..=MOST_BYTES).contains(&in_use) {
        let expected = format!("{HEAD_SIZE} to {MOST_BYTES}");
        return Err(FormatError::field(STRUCTURE, "bytes", in_use, expected));
    }
    Ok(Some(head))
}

/// Reads notes from the start of their region.
///
/// # Errors
/// They are of a version that is not known, or not what was written.
pub fn parse(bytes: &[u8], seed: u32) -> Result<Vec<Note>, FormatError> {
    let Some(head) = read_head(bytes)? else { return Ok(Vec::new()) };
    let in_use = head.bytes.get() as usize;
    let bytes = bytes.get(..in_use).ok_or_else(|| short(bytes, in_use))?;
    let (stored, computed) = (head.crc.get(), checksum(bytes, seed));
    if stored != computed {
        return Err(FormatError::Checksum { structure: STRUCTURE, field: "crc", stored, computed });
    }
    let (mut notes, mut rest) = (Vec::new(), &bytes[HEAD_SIZE..]);
    let mut names = HashSet::new();
    while !rest.is_empty() {
        let note = take_note(&mut rest)?;
        if notes.last().is_some_and(|before: &Note| before.cno >= note.cno) {
            return Err(FormatError::field(STRUCTURE, "cno", note.cno, "ascending numbers"));
        }
        if let Some(name) = &note.name
            && !names.insert(name.clone())
        {
            return Err(FormatError::field(STRUCTURE, "name", name, "a name of its own"));
        }
        notes.push(note);
    }
    if notes.len() as u64 != u64::from(head.count.get()) {
        return Err(FormatError::field(STRUCTURE, "count", head.count, notes.len()));
    }
    Ok(notes)
}

/// Reads the note at the start of `rest`, and takes it off.
fn take_note(rest: &mut &[u8]) -> Result<Note, FormatError> {
    let all = *rest;
    let (raw, after) =
        RawNote::read_from_prefix(all).map_err(|_| short(all, size_of::<RawNote>()))?;
    let (name_bytes, text_bytes) = (usize::from(raw.name_bytes), usize::from(raw.text_bytes.get()));
    let length = size_of::<RawNote>() + (name_bytes + text_bytes).next_multiple_of(8);
    *rest = all.get(length..).ok_or_else(|| short(all, length))?;
    let (name, after) = after.split_at(name_bytes);
    let (text, padding) = (&after[..text_bytes], &after[text_bytes..]);
    let padding = &padding[..padding.len() - rest.len()];
    if raw.pad.get() != 0 || padding.iter().any(|byte| *byte != 0) {
        return Err(FormatError::field(STRUCTURE, "padding", "something", 0));
    }
    let text_of = |field, bytes| {
        str::from_utf8(bytes).map_err(|_| FormatError::field(STRUCTURE, field, "bytes", "UTF-8"))
    };
    let name = match text_of("name", name)? {
        "" => None,
        name => Some(
            name.parse().map_err(|why| FormatError::field(STRUCTURE, "name", quoted(name), why))?,
        ),
    };
    let text = text_of("text", text)?;
    Ok(Note {
        cno: Cno(raw.cno.get()),
        created: raw.created.get(),
        made_by: match raw.made_by {
            0 => MadeBy::User,
            1 => MadeBy::Retention,
            other => return Err(FormatError::field(STRUCTURE, "made_by", other, "0 or 1")),
        },
        name,
        text: text
            .parse()
            .map_err(|why| FormatError::field(STRUCTURE, "text", quoted(text), why))?,
    })
}

/// Text of unknown content, so that it can be shown.
fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// The start of the region with these notes, which ascend by checkpoint number; `None` if they need
/// more than [`MOST_BYTES`].
///
/// # Panics
/// The notes are not in order.
#[must_use]
pub fn encode(notes: &[Note], seed: u32) -> Option<Vec<u8>> {
    assert!(notes.is_sorted_by(|a, b| a.cno < b.cno), "notes are not in order");
    let mut bytes = vec![0; HEAD_SIZE];
    for note in notes {
        let (name, text) = (note.name.as_ref().map_or("", SnapshotName::as_str), &note.text.0);
        let raw = RawNote {
            cno: U64::new(note.cno.0),
            created: U64::new(note.created),
            made_by: match note.made_by {
                MadeBy::User => 0,
                MadeBy::Retention => 1,
            },
            name_bytes: name.len() as u8,
            text_bytes: U16::new(text.len() as u16),
            pad: U32::ZERO,
        };
        bytes.extend_from_slice(raw.as_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    if bytes.len() > MOST_BYTES {
        return None;
    }
    let head = RawHead {
        magic: U32::new(MAGIC),
        version: U16::new(VERSION),
        pad: U16::ZERO,
        bytes: U32::new(bytes.len() as u32),
        count: U32::new(notes.len() as u32),
        crc: U32::ZERO,
        reserved: [0; 12],
    };
    bytes[..HEAD_SIZE].copy_from_slice(head.as_bytes());
    let crc = checksum(&bytes, seed);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    Some(bytes)
}

fn checksum(bytes: &[u8], seed: u32) -> u32 {
    let mut crc = Crc::new(seed);
    crc.update(&bytes[..CRC_AT]);
    crc.update(&[0; 4]);
    crc.update(&bytes[CRC_AT + 4..]);
    crc.value()
}

fn short(bytes: &[u8], need: usize) -> FormatError {
    FormatError::Short { structure: STRUCTURE, have: bytes.len() as u64, need: need as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u32 = 0x1234_5678;

    fn notes() -> Vec<Note> {
        let note = |cno, made_by, name: &str, text: &str| Note {
            cno: Cno(cno),
            created: 1_795_203_662,
            made_by,
            name: (!name.is_empty()).then(|| name.parse().unwrap()),
            text: text.parse().unwrap(),
        };
        vec![
            note(3, MadeBy::User, "before-upgrade", "the last one that boots"),
            note(4, MadeBy::Retention, "", ""),
            note(9, MadeBy::User, "änderung_2.0", ""),
        ]
    }

    #[test]
    fn what_was_noted_is_read_again() {
        for count in 0..=3 {
            let notes = &notes()[..count];
            let mut bytes = encode(notes, SEED).unwrap();
            assert_eq!(bytes_in_use(&bytes), Ok(bytes.len()));
            bytes.resize(4096, 0x5a);
            assert_eq!(parse(&bytes, SEED).unwrap(), notes);
        }
    }

    #[test]
    fn a_hole_has_no_notes() {
        assert_eq!(parse(&[0; 4096], SEED), Ok(Vec::new()));
        assert_eq!(parse(&[], SEED), Ok(Vec::new()));
        assert_eq!(bytes_in_use(&[0; 32]), Ok(0));
    }

    /// The bytes of docs/format.md §25.
    #[test]
    fn the_bytes_are_as_documented() {
        let bytes = encode(&notes()[..1], SEED).unwrap();
        assert_eq!(&bytes[..16], b"NfNo\x01\0\0\0\x60\0\0\0\x01\0\0\0");
        assert_eq!(bytes[32..40], 3_u64.to_le_bytes());
        assert_eq!(bytes[40..48], 1_795_203_662_u64.to_le_bytes());
        assert_eq!(&bytes[48..56], b"\0\x0e\x17\0\0\0\0\0");
        assert_eq!(&bytes[56..], b"before-upgradethe last one that boots\0\0\0");
    }

    #[test]
    fn damage_anywhere_is_noticed_and_does_no_harm() {
        let good = encode(&notes(), SEED).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(parse(&bytes, SEED).is_err(), "byte {at}");
            assert!(parse(&good[..at], SEED).is_err() || at == 0, "{at} bytes");
        }
        assert!(parse(&good, SEED + 1).is_err(), "of another volume");
    }

    /// An attacker who writes an image computes its checksum as well.
    #[test]
    fn what_contradicts_itself_is_refused_though_its_checksum_is_right() {
        let good = encode(&notes(), SEED).unwrap();
        let forged = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            let crc = checksum(&bytes, SEED);
            bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            parse(&bytes, SEED).unwrap_err().to_string()
        };
        let first = HEAD_SIZE;
        for (change, complaint) in [
            (&(|it: &mut Vec<u8>| it[first] = 7) as &dyn Fn(&mut Vec<u8>), "ascending"),
            (&|it| it[first + 16] = 2, "made_by"),
            (&|it| it[first + 17] = 255, "too few"),
            (&|it| it[first + 24] = b'/', "letter"),
            (&|it| it[first + 24] = 0xff, "UTF-8"),
            (&|it| it[first + 40] = b'\n', "one line"),
            (&|it| it[first + 20] = 1, "padding"),
            (&|it| it[12] = 7, "count"),
            (&|it| it[8] = 8, "bytes"),
        ] {
            let found = forged(change);
            assert!(found.contains(complaint), "{found}, expected {complaint}");
        }
    }

    #[test]
    fn a_later_version_is_told_from_damage() {
        let mut bytes = encode(&notes(), SEED).unwrap();
        bytes[4] = 2;
        let found = parse(&bytes, SEED);
        assert!(matches!(found, Err(FormatError::Version { found: 2, known: 1, .. })), "{found:?}");
    }

    #[test]
    fn a_name_is_a_word_that_means_nothing_else_in_a_path_or_a_shell() {
        for name in ["a", "before-upgrade", "v1.2_final", "über"] {
            assert!(name.parse::<SnapshotName>().is_ok(), "{name}");
        }
        for name in ["", "7up", "-a", ".a", "a b", "a/b", "a@b", "a+b", "a,b", "a\n", "a*"] {
            assert_eq!(name.parse::<SnapshotName>(), Err(NotAName::Characters), "{name:?}");
        }
        let long = "a".repeat(NAME_MAX);
        assert!(long.parse::<SnapshotName>().is_ok());
        assert_eq!((long + "a").parse::<SnapshotName>(), Err(NotAName::TooLong));
    }
}
