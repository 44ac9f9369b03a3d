//! The superblock: 1024 bytes in two copies, with the way to a recent log (docs/format.md §3).
//!
//! A superblock is a *lower bound*: newer logs usually follow the one that it names, unless the
//! volume was closed cleanly.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::crc::Crc;
use crate::{BlockNr, BlockSize, Cno, FormatError, Geometry, Ino, Seq};

/// Bytes of one copy.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0x3434;
/// The bytes that `s_sum` covers in a superblock written today.
pub const CHECKED_BYTES: u16 = 280;
/// `s_state`: cleanly unmounted.
pub const STATE_VALID: u16 = 1;
/// `s_state`: an error of the metadata was seen.
pub const STATE_ERROR: u16 = 2;
/// `s_state`: a resize is under way.
pub const STATE_RESIZE: u16 = 4;
/// `s_feature_compat_ro`: the block and inode counters of checkpoints can be trusted.
pub const FEATURE_BLOCK_COUNT: u64 = 1;
/// `s_feature_compat_ro`: there may be logs with [roll-forward records](crate::roll_forward). A bit of
/// our own, far from those that Linux takes: it refuses to write such a volume, and to recover it.
pub const FEATURE_ROLL_FORWARD: u64 = 1 << 62;
/// The bits of `s_feature_compat_ro` that this program knows.
const KNOWN_COMPAT_RO: u64 = FEATURE_BLOCK_COUNT | FEATURE_ROLL_FORWARD;

/// The superblock as it lies on the device.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields have the names and the meaning of docs/format.md §3")]
pub struct RawSuperblock {
    pub s_rev_level: U32,
    pub s_minor_rev_level: U16,
    pub s_magic: U16,
    pub s_bytes: U16,
    pub s_flags: U16,
    pub s_crc_seed: U32,
    pub s_sum: U32,
    pub s_log_block_size: U32,
    pub s_nsegments: U64,
    pub s_dev_size: U64,
    pub s_first_data_block: U64,
    pub s_blocks_per_segment: U32,
    pub s_r_segments_percentage: U32,
    pub s_last_cno: U64,
    pub s_last_pseg: U64,
    pub s_last_seq: U64,
    pub s_free_blocks_count: U64,
    pub s_ctime: U64,
    pub s_mtime: U64,
    pub s_wtime: U64,
    pub s_mnt_count: U16,
    pub s_max_mnt_count: U16,
    pub s_state: U16,
    pub s_errors: U16,
    pub s_lastcheck: U64,
    pub s_checkinterval: U32,
    pub s_creator_os: U32,
    pub s_def_resuid: U16,
    pub s_def_resgid: U16,
    pub s_first_ino: U32,
    pub s_inode_size: U16,
    pub s_dat_entry_size: U16,
    pub s_checkpoint_size: U16,
    pub s_segment_usage_size: U16,
    pub s_uuid: [u8; 16],
    pub s_volume_name: [u8; 80],
    pub s_c_interval: U32,
    pub s_c_block_max: U32,
    pub s_feature_compat: U64,
    pub s_feature_compat_ro: U64,
    pub s_feature_incompat: U64,
    pub s_reserved: [u8; 744],
}

const _: () = assert!(size_of::<RawSuperblock>() == SUPERBLOCK_SIZE);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, s_sum) == 0x10);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, s_uuid) == 0x98);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, s_reserved) == CHECKED_BYTES as usize);

impl RawSuperblock {
    /// What follows from the layout of a volume and from its seed, and what every mkfs writes. The
    /// volume has no identity and no times and is in use, and the log that is named is none.
    #[must_use]
    pub fn of(geometry: &Geometry, crc_seed: u32) -> Self {
        let bytes = geometry.nsegments.saturating_mul(geometry.segment_bytes());
        Self {
            s_rev_level: U32::new(2),
            s_magic: U16::new(MAGIC),
            s_bytes: U16::new(CHECKED_BYTES),
            s_crc_seed: U32::new(crc_seed),
            s_log_block_size: U32::new(geometry.block_size.exponent()),
            s_nsegments: U64::new(geometry.nsegments),
            s_dev_size: U64::new(bytes),
            s_first_data_block: U64::new(geometry.first_data_block.0),
            s_blocks_per_segment: U32::new(geometry.blocks_per_segment),
            s_r_segments_percentage: U32::new(geometry.reserved_percent),
            s_last_pseg: U64::new(geometry.first_data_block.0),
            s_max_mnt_count: U16::new(50),
            s_errors: U16::new(1),
            s_first_ino: U32::new(Ino::FIRST_USER.0 as u32),
            s_inode_size: U16::new(geometry.inode_size as u16),
            s_dat_entry_size: U16::new(geometry.dat_entry_size as u16),
            s_checkpoint_size: U16::new(geometry.checkpoint_size as u16),
            s_segment_usage_size: U16::new(geometry.segment_usage_size as u16),
            ..Self::new_zeroed()
        }
    }
}

/// A valid copy of the superblock: magic, checksum and the ranges of its fields are right.
#[derive(Debug, Clone, Copy)]
pub struct Superblock {
    raw: RawSuperblock,
    geometry: Geometry,
}

impl Superblock {
    /// Reads a copy from its 1024 bytes; `device_size` (bytes) bounds the geometry.
    ///
    /// Unknown feature bits are not refused here, because a tool that only prints them must be
    /// able to open the volume: see [`Superblock::refuse_unknown_features`].
    ///
    /// # Errors
    /// Names the field or the checksum that is wrong, or what is missing of the device.
    pub fn parse(bytes: &[u8], device_size: u64) -> Result<Self, FormatError> {
        let (raw, _) = RawSuperblock::read_from_prefix(bytes).map_err(|_| FormatError::Short {
            structure: "superblock",
            have: bytes.len() as u64,
            need: SUPERBLOCK_SIZE as u64,
        })?;
        if raw.s_magic.get() != MAGIC {
            let found = format!("{:#06x}", raw.s_magic.get());
            return Err(FormatError::field("superblock", "s_magic", found, "0x3434"));
        }
        let covered = usize::from(raw.s_bytes.get());
        if !(20..=SUPERBLOCK_SIZE).contains(&covered) {
            return Err(FormatError::field("superblock", "s_bytes", covered, "20 to 1024"));
        }
        let computed = checksum(&raw);
        if raw.s_sum.get() != computed {
            return Err(FormatError::Checksum {
                structure: "superblock",
                field: "s_sum",
                stored: raw.s_sum.get(),
                computed,
            });
        }
        if raw.s_rev_level.get() < 2 {
            let found = raw.s_rev_level.get();
            return Err(FormatError::field("superblock", "s_rev_level", found, "2 or more"));
        }
        if raw.s_first_ino.get() < 11 {
            let found = raw.s_first_ino.get();
            return Err(FormatError::field("superblock", "s_first_ino", found, "11 or more"));
        }
        let geometry = Geometry {
            block_size: BlockSize::from_exponent(raw.s_log_block_size.get())?,
            blocks_per_segment: raw.s_blocks_per_segment.get(),
            nsegments: raw.s_nsegments.get(),
            first_data_block: BlockNr(raw.s_first_data_block.get()),
            reserved_percent: raw.s_r_segments_percentage.get(),
            inode_size: raw.s_inode_size.get().into(),
            dat_entry_size: raw.s_dat_entry_size.get().into(),
            checkpoint_size: raw.s_checkpoint_size.get().into(),
            segment_usage_size: raw.s_segment_usage_size.get().into(),
        };
        geometry.validate()?;
        let segments = geometry.nsegments.saturating_mul(geometry.segment_bytes());
        if segments > device_size {
            let volume = segments.max(raw.s_dev_size.get());
            return Err(FormatError::Truncated { device: device_size, volume });
        }
        let last = BlockNr(raw.s_last_pseg.get());
        if !geometry.has_block(last) {
            return Err(FormatError::field(
                "superblock",
                "s_last_pseg",
                last,
                "a block in a segment",
            ));
        }
        Ok(Self { raw, geometry })
    }

    /// A superblock made of fields that the caller answers for (mkfs).
    ///
    /// # Errors
    /// As [`Superblock::parse`] on the encoded bytes.
    pub fn from_raw(raw: RawSuperblock, device_size: u64) -> Result<Self, FormatError> {
        let mut raw = raw;
        raw.s_sum = U32::new(checksum(&raw));
        Self::parse(raw.as_bytes(), device_size)
    }

    /// The 1024 bytes with a fresh checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        let mut raw = self.raw;
        raw.s_sum = U32::new(checksum(&raw));
        zerocopy::transmute!(raw)
    }

    /// All fields.
    #[must_use]
    pub fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// All fields, to be changed. The geometry stays as it was read.
    pub fn raw_mut(&mut self) -> &mut RawSuperblock {
        &mut self.raw
    }

    /// The layout of the volume.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Gives the volume another number of segments and another size (bytes). The caller answers for
    /// their fitting the device.
    pub fn set_size(&mut self, nsegments: u64, bytes: u64) {
        self.raw.s_nsegments = U64::new(nsegments);
        self.raw.s_dev_size = U64::new(bytes);
        self.geometry.nsegments = nsegments;
    }

    /// The seed of every checksum on the volume.
    #[must_use]
    pub fn crc_seed(&self) -> u32 {
        self.raw.s_crc_seed.get()
    }

    /// Whether the volume was closed cleanly.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.raw.s_state.get() & STATE_VALID != 0
    }

    /// The log that this copy names: one that contains a super root.
    #[must_use]
    pub fn last_log(&self) -> LogCursor {
        LogCursor {
            block: BlockNr(self.raw.s_last_pseg.get()),
            seq: Seq(self.raw.s_last_seq.get()),
            cno: Cno(self.raw.s_last_cno.get()),
        }
    }

    /// Lets this copy name another log.
    pub fn set_last_log(&mut self, cursor: LogCursor) {
        self.raw.s_last_pseg = U64::new(cursor.block.0);
        self.raw.s_last_seq = U64::new(cursor.seq.0);
        self.raw.s_last_cno = U64::new(cursor.cno.0);
    }

    /// Refuses a volume whose format this program does not know well enough.
    ///
    /// # Errors
    /// [`FormatError::UnknownFeature`] for any unknown incompat bit, and for any unknown
    /// compat_ro bit if the volume is to be written.
    pub fn refuse_unknown_features(&self, for_writing: bool) -> Result<(), FormatError> {
        let incompat = self.raw.s_feature_incompat.get();
        if incompat != 0 {
            return Err(FormatError::UnknownFeature { class: "incompat", bits: incompat });
        }
        let compat_ro = self.raw.s_feature_compat_ro.get() & !KNOWN_COMPAT_RO;
        if for_writing && compat_ro != 0 {
            return Err(FormatError::UnknownFeature { class: "compat_ro", bits: compat_ro });
        }
        Ok(())
    }
}

/// The position of a log with a super root, as superblocks name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCursor {
    /// First block of the log.
    pub block: BlockNr,
    /// Sequence number of its segment.
    pub seq: Seq,
    /// Its checkpoint.
    pub cno: Cno,
}

/// CRC of the first `s_bytes` bytes with `s_sum` taken as zero.
fn checksum(raw: &RawSuperblock) -> u32 {
    let bytes = raw.as_bytes();
    let covered = usize::from(raw.s_bytes.get()).clamp(20, SUPERBLOCK_SIZE);
    let mut crc = Crc::new(raw.s_crc_seed.get());
    crc.update(&bytes[..16]);
    crc.update(&[0; 4]);
    crc.update(&bytes[20..covered]);
    crc.value()
}
