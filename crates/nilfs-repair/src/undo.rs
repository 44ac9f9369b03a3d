//! The undo file: what was on the device before a repair, so that all of it can be taken back.
//!
//! ```text
//! header (64) │ record │ record │ …        record: head (32) │ what was there │
//!
//! header  0 magic "NfsckUnd"   8 size of the device   16 UUID of the volume   32 … 0
//!         56 checksum of the bytes before, 60 0
//! head    0 magic "NfUr", 4 length in bytes, 8 offset on the device, 16 number, from 1
//!         24 checksum of the bytes before and of what was there, 28 0
//! ```
//!
//! All integers are little-endian; checksums are those of the format (docs/format.md §1.1) with the
//! seed 0. A record is durable before the range that it is about is written for the first time. So
//! the file has at any moment what it takes to restore the device; a record that is torn is about a
//! range that was not written. Of what could not be read the file has zeros.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use nilfs_device::{Device, IoSlice};
use nilfs_ondisk::crc::Crc;
use nilfs_ondisk::geometry::PRIMARY_SUPERBLOCK;
use parking_lot::Mutex;
use thiserror::Error;

use crate::superblocks;

const MAGIC: [u8; 8] = *b"NfsckUnd";
const RECORD: [u8; 4] = *b"NfUr";
const HEADER: usize = 64;
const HEAD: usize = 32;
/// What is saved at a time: ranges are widened to pieces of this size, so that none is saved twice.
const PIECE: u64 = 4096;
/// Bytes that a device reads or not, at least.
const SECTOR: usize = 512;
/// Bytes that a record has at most.
const LONGEST: u32 = 1 << 26;

/// Why nothing could be undone.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UndoError {
    /// The file or the device failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is another file.
    #[error("it is not an undo file of nilfs fsck")]
    NotAnUndoFile,
    /// It is about another device.
    #[error("it was made for a device of {made_for} bytes, and this one has {found}")]
    OtherSize {
        /// The size for which it was made.
        made_for: u64,
        /// The size of the device.
        found: u64,
    },
    /// It is about another volume.
    #[error("it was made for another volume than the one on this device")]
    OtherVolume,
    /// It is damaged.
    #[error("record {0} of it is damaged; nothing was written")]
    Damaged(u64),
}

/// A device that saves what was there before it is written over.
pub struct UndoDevice<D> {
    below: D,
    saved: Mutex<Saved>,
}

struct Saved {
    file: File,
    /// Pieces of the device that are saved.
    pieces: BTreeSet<u64>,
    records: u64,
}

impl<D: Device> UndoDevice<D> {
    /// Saves to `file`, which must be empty, what will be overwritten on `below`; `uuid` is the
    /// identity that the volume has after the repair.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(below: D, mut file: File, uuid: [u8; 16]) -> io::Result<Self> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&below.size().to_le_bytes());
        header[16..32].copy_from_slice(&uuid);
        let sum = checksum([&header[..56]]);
        header[56..60].copy_from_slice(&sum.to_le_bytes());
        file.write_all(&header)?;
        file.sync_all()?;
        let saved = Saved { file, pieces: BTreeSet::new(), records: 0 };
        Ok(Self { below, saved: Mutex::new(saved) })
    }

    /// The device below.
    pub fn into_below(self) -> D {
        self.below
    }

    /// Saves the pieces of a range that are not saved yet.
    fn save(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut saved = self.saved.lock();
        let size = self.below.size();
        let mut at = offset / PIECE;
        let end = (offset + length).div_ceil(PIECE);
        let mut grown = false;
        while at < end {
            if saved.pieces.contains(&at) {
                at += 1;
                continue;
            }
            let first = at;
            let most = u64::from(LONGEST) / PIECE;
            while at < end && at - first < most && !saved.pieces.contains(&at) {
                at += 1;
            }
            let start = first * PIECE;
            let mut bytes = vec![0; (size.min(at * PIECE) - start) as usize];
            if self.below.read_at(start, &mut bytes).is_err() {
                self.read_sectors(start, &mut bytes);
            }
            saved.append(start, &bytes)?;
            saved.pieces.extend(first..at);
            grown = true;
        }
        if grown {
            saved.file.sync_data()?;
        }
        Ok(())
    }

    /// Reads what can be read. Sectors that cannot be, are taken for zeros: they have nothing that could be
    /// restored, and they must not keep the repair from writing them.
    fn read_sectors(&self, start: u64, bytes: &mut [u8]) {
        for (nth, sector) in bytes.chunks_mut(SECTOR).enumerate() {
            if self.below.read_at(start + (nth * SECTOR) as u64, sector).is_err() {
                sector.fill(0);
            }
        }
    }
}

impl Saved {
    fn append(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.records += 1;
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&RECORD);
        head[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        head[8..16].copy_from_slice(&offset.to_le_bytes());
        head[16..24].copy_from_slice(&self.records.to_le_bytes());
        let sum = checksum([&head[..24], bytes]);
        head[24..28].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all(&head)?;
        self.file.write_all(bytes)
    }
}

impl<D: Device> Device for UndoDevice<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let length = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.save(offset, length)?;
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn checksum<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut crc = Crc::new(0);
    pieces.into_iter().for_each(|piece| crc.update(piece));
    crc.value()
}

/// A range of the device that is saved.
struct Record {
    offset: u64,
    length: u32,
    /// Where in the file its bytes are.
    position: u64,
}

impl Record {
    /// Whether it has the primary superblock, which is put back last: as long as it is there, the
    /// device is known for the one that was repaired.
    fn comes_last(&self) -> bool {
        self.offset <= PRIMARY_SUPERBLOCK
    }
}

/// Puts everything back that an undo file has saved. All of the file is checked before anything is
/// written. If this is interrupted, it can be begun again. Returns the number of bytes.
///
/// # Errors
/// See [`UndoError`].
pub fn apply_undo(mut file: File, device: &dyn Device) -> Result<u64, UndoError> {
    let mut records = read_records(&mut file, device)?;
    records.sort_by_key(Record::comes_last);
    let mut total = 0;
    for record in &records {
        if record.comes_last() {
            device.flush()?;
        }
        file.seek(SeekFrom::Start(record.position))?;
        let mut bytes = vec![0; record.length as usize];
        file.read_exact(&mut bytes)?;
        device.write_at(record.offset, &[IoSlice::new(&bytes)])?;
        total += u64::from(record.length);
    }
    device.flush()?;
    Ok(total)
}

/// Fails unless the file was made for this device.
fn check_header(header: &[u8], device: &dyn Device) -> Result<(), UndoError> {
    if header[..8] != MAGIC || number(&header[56..60]) != u64::from(checksum([&header[..56]])) {
        return Err(UndoError::NotAnUndoFile);
    }
    let made_for = number(&header[8..16]);
    if made_for != device.size() {
        return Err(UndoError::OtherSize { made_for, found: device.size() });
    }
    // A repair that was cut off may have left no superblock at all.
    match superblocks::best(device) {
        Ok(superblock) if superblock.raw().s_uuid != header[16..32] => Err(UndoError::OtherVolume),
        _ => Ok(()),
    }
}

/// The ranges that an undo file has, all of them checked.
fn read_records(file: &mut File, device: &dyn Device) -> Result<Vec<Record>, UndoError> {
    let mut header = [0; HEADER];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut header).map_err(|_| UndoError::NotAnUndoFile)?;
    check_header(&header, device)?;
    let end = file.metadata()?.len();
    let mut position = HEADER as u64;
    let mut records = Vec::new();
    // The last record may be torn: its range was not written.
    while end - position >= HEAD as u64 {
        let nth = records.len() as u64 + 1;
        let mut head = [0; HEAD];
        file.read_exact(&mut head)?;
        position += HEAD as u64;
        let (length, offset) = (number(&head[4..8]) as u32, number(&head[8..16]));
        if head[..4] != RECORD || length > LONGEST || number(&head[16..24]) != nth {
            return Err(UndoError::Damaged(nth));
        }
        if end - position < u64::from(length) {
            break;
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact(&mut bytes)?;
        let fits = offset.checked_add(length.into()).is_some_and(|end| end <= device.size());
        if !fits || number(&head[24..28]) != u64::from(checksum([&head[..24], &bytes])) {
            return Err(UndoError::Damaged(nth));
        }
        records.push(Record { offset, length, position });
        position += u64::from(length);
    }
    Ok(records)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
