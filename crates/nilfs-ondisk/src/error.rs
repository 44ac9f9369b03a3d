//! The one error of this crate: a structure whose bytes are not what the format allows.

use thiserror::Error;

use crate::ByteCount;

/// Bytes that are not a valid instance of the structure they should be.
///
/// The error does not say *where* the bytes came from: that is known to the caller, who adds the
/// block or the file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A field has a value that the format does not allow.
    #[error("{structure}: {field} is {found}, expected {expected}")]
    Field {
        /// The structure, in words.
        structure: &'static str,
        /// The field, by its name in the format.
        field: &'static str,
        /// The value found.
        found: String,
        /// What would have been right.
        expected: String,
    },
    /// A stored checksum does not match the bytes that it covers.
    #[error("{structure}: checksum {field} is {stored:#010x}, but the bytes give {computed:#010x}")]
    Checksum {
        /// The structure, in words.
        structure: &'static str,
        /// The checksum field.
        field: &'static str,
        /// The value in the structure.
        stored: u32,
        /// The value of the bytes.
        computed: u32,
    },
    /// There are fewer bytes than the structure needs.
    #[error("{structure}: {have} bytes are too few, {need} are needed")]
    Short {
        /// The structure, in words.
        structure: &'static str,
        /// Bytes there are.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// A structure of ours is of a version that this program does not know.
    #[error("{structure}: version {found} is not known here, only {known}")]
    Version {
        /// The structure, in words.
        structure: &'static str,
        /// The version found.
        found: u16,
        /// The version that is known.
        known: u16,
    },
    /// The device ends before the volume does.
    #[error(
        "the device or image is {} shorter than the volume on it ({}); make it as large as it was, \
         or copy it again if a copy broke off",
        ByteCount(volume.saturating_sub(*device)),
        ByteCount(*volume)
    )]
    Truncated {
        /// Bytes of the device.
        device: u64,
        /// Bytes of the volume, more than those.
        volume: u64,
    },
    /// The volume uses a format feature that this program does not know.
    #[error("the volume uses unknown {class} features {bits:#x}")]
    UnknownFeature {
        /// `incompat` or `compat_ro`.
        class: &'static str,
        /// The unknown bits.
        bits: u64,
    },
}

impl FormatError {
    /// A [`FormatError::Field`] in one line at the place where the check is made.
    pub(crate) fn field(
        structure: &'static str,
        field: &'static str,
        found: impl ToString,
        expected: impl ToString,
    ) -> Self {
        FormatError::Field {
            structure,
            field,
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }
}
