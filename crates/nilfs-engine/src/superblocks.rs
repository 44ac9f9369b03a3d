//! The two copies of the superblock: choosing one at mount, rewriting them later
//! (docs/format.md §3 and §2).

use nilfs_device::{Device, IoSlice};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::lifetime::Lifetime;
use nilfs_ondisk::superblock::{SUPERBLOCK_SIZE, Superblock};
use nilfs_ondisk::{BlockNr, ByteCount, FormatError, Seq};
use zerocopy::little_endian::{U16, U64};

use crate::error::{Error, Result};
use crate::scan;

/// The valid copies. There is at least one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Superblocks {
    /// The one that names the newer log, or does not call the volume clean; the first if they are equal.
    pub best: Superblock,
    /// The other one, if it is valid.
    pub other: Option<Superblock>,
}

impl Superblocks {
    /// The totals over the life of the volume. Linux copies only what it knows from one copy to the
    /// other, so either may be the older one.
    pub(crate) fn lifetime(&self) -> Lifetime {
        let copies = std::iter::once(&self.best).chain(&self.other);
        let totals = copies.map(|copy| Lifetime::parse(copy.raw()));
        totals.max_by_key(|totals| totals.written_bytes).unwrap_or_default()
    }
}

/// Reads both copies.
///
/// # Errors
/// [`Error::NotAVolume`], [`Error::NoSuperblock`], [`Error::Truncated`] if the device is shorter than its
/// volume, or [`Error::Device`] if it cannot be told.
pub(crate) fn load(device: &dyn Device) -> Result<Superblocks> {
    let Some(offset) = secondary_superblock(device.size()) else {
        let size = ByteCount(device.size());
        return Err(Error::NotAVolume(format!("{size} is too small for one")));
    };
    // The system would go on from the first page, and read what a mount has no use for.
    device.without_read_ahead();
    let primary = read_copy(device, PRIMARY_SUPERBLOCK);
    let secondary = read_copy(device, offset);
    match (primary, secondary) {
        (Ok(primary), Ok(secondary)) => {
            // Where one of the two writes that call a volume "in use" was lost, it is in use all the same.
            let age = |copy: &Superblock| (copy.last_log().cno, !copy.is_clean());
            let newer = age(&secondary) > age(&primary);
            let (best, other) = if newer { (secondary, primary) } else { (primary, secondary) };
            Ok(Superblocks { best, other: Some(other) })
        }
        (Ok(best), Err(_)) | (Err(_), Ok(best)) => Ok(Superblocks { best, other: None }),
        (Err(Error::NotAVolume(why)), Err(_)) if scan::begins_with_logs(device) => {
            Err(Error::NoSuperblock(why))
        }
        (Err(why @ Error::Device { .. }), Err(_)) if scan::begins_with_logs(device) => {
            Err(Error::NoSuperblock(why.to_string()))
        }
        (Err(Error::NotAVolume(why)), Err(_)) => {
            Err(Error::NotAVolume(format!("no valid superblock ({why})")))
        }
        (Err(first), Err(_)) => Err(first),
    }
}

fn read_copy(device: &dyn Device, offset: u64) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let failed = |source| Error::Device { what: "read a superblock".into(), source };
    device.read_at(offset, &mut bytes).map_err(failed)?;
    let copy = Superblock::parse(&bytes, device.size()).map_err(|error| match error {
        FormatError::Truncated { .. } => Error::Truncated(error),
        error => Error::NotAVolume(error.to_string()),
    })?;
    match offset != PRIMARY_SUPERBLOCK && inside_segments(&copy, offset) {
        true => Err(Error::NotAVolume("it lies inside a segment".into())),
        false => Ok(copy),
    }
}

/// Writes a copy; it is durable when this returns.
fn write_copy(device: &dyn Device, offset: u64, copy: &Superblock) -> Result<()> {
    let failed = |source| Error::Device { what: "write a superblock".into(), source };
    device.write_at(offset, &[IoSlice::new(&copy.encode())]).map_err(failed)?;
    device.flush().map_err(failed)
}

/// Where copies belong on this device.
fn offsets(device: &dyn Device, volume: &Superblock) -> Vec<u64> {
    let secondary =
        secondary_superblock(device.size()).filter(|&offset| !inside_segments(volume, offset));
    std::iter::once(PRIMARY_SUPERBLOCK).chain(secondary).collect()
}

/// Changes fields of both copies of a volume that is not mounted. Each keeps the log that it
/// names; one that is damaged becomes a copy of the other. The copy that counts comes last, so
/// that the power may fail at any time.
pub(crate) fn change(device: &dyn Device, change: &mut dyn FnMut(&mut Superblock)) -> Result<()> {
    let best = load(device)?.best;
    let offsets = offsets(device, &best);
    let copy = |offset| (offset, read_copy(device, offset).unwrap_or(best));
    let mut copies: Vec<_> = offsets.into_iter().rev().map(copy).collect();
    copies.sort_by_key(|(_, copy)| copy.last_log().cno);
    copies.into_iter().try_for_each(|(offset, mut copy)| {
        change(&mut copy);
        write_copy(device, offset, &copy)
    })
}

/// A copy that a segment would overwrite is not one of this volume's.
fn inside_segments(copy: &Superblock, offset: u64) -> bool {
    let geometry = copy.geometry();
    geometry.has_segment(geometry.segment_of(BlockNr(offset / geometry.block_size.bytes64())))
}

/// Keeps both copies up to date on the device.
#[derive(Debug)]
pub(crate) struct SuperblockWriter {
    current: Superblock,
    offsets: Vec<u64>,
    /// Which copy is the older one, to be written next.
    next: usize,
    /// The segment, by sequence number, that each copy on the device names.
    named: Vec<Seq>,
}

impl SuperblockWriter {
    pub(crate) fn new(current: Superblock, device: &dyn Device) -> Self {
        let offsets = offsets(device, &current);
        // What the other copy names is not known; both are written before anything is freed.
        let named = vec![Seq(0); offsets.len()];
        Self { current, offsets, next: 0, named }
    }

    /// The oldest segment, by sequence number, that a copy on the device names.
    pub(crate) fn oldest_named(&self) -> Seq {
        self.named.iter().copied().min().unwrap_or(Seq(0))
    }

    pub(crate) fn current(&self) -> &Superblock {
        &self.current
    }

    pub(crate) fn current_mut(&mut self) -> &mut Superblock {
        &mut self.current
    }

    /// Sets or clears a bit of `s_state`.
    pub(crate) fn set_state(&mut self, bit: u16, set: bool) {
        let raw = self.current.raw_mut();
        let state = raw.s_state.get();
        raw.s_state = U16::new(if set { state | bit } else { state & !bit });
    }

    /// Sets or clears a bit of `s_feature_compat_ro`.
    pub(crate) fn set_feature(&mut self, bit: u64, set: bool) {
        let raw = self.current.raw_mut();
        let features = raw.s_feature_compat_ro.get();
        raw.s_feature_compat_ro = U64::new(if set { features | bit } else { features & !bit });
    }

    /// Whether a bit of `s_feature_compat_ro` is set.
    pub(crate) fn has_feature(&self, bit: u64) -> bool {
        self.current.raw().s_feature_compat_ro.get() & bit != 0
    }

    /// Takes over a new number of segments and a new size (bytes). The second copy, which moves, is
    /// the next to be written.
    pub(crate) fn resize(&mut self, nsegments: u64, bytes: u64) {
        self.current.set_size(nsegments, bytes);
        let secondary =
            secondary_superblock(bytes).filter(|&offset| !inside_segments(&self.current, offset));
        self.offsets = std::iter::once(PRIMARY_SUPERBLOCK).chain(secondary).collect();
        self.named = vec![Seq(0); self.offsets.len()];
        self.next = self.offsets.len() - 1;
    }

    /// Writes the older copy. What it points to must be durable already; the copy itself is when
    /// this returns.
    pub(crate) fn write_one(&mut self, device: &dyn Device) -> Result<()> {
        let nth = self.next % self.offsets.len();
        let offset = self.offsets[nth];
        self.next += 1;
        write_copy(device, offset, &self.current)?;
        self.named[nth] = self.current.last_log().seq;
        Ok(())
    }

    /// Writes both copies, one after the other, so that one of them is whole at any time.
    pub(crate) fn write_all(&mut self, device: &dyn Device) -> Result<()> {
        (0..self.offsets.len()).try_for_each(|_| self.write_one(device))
    }
}
