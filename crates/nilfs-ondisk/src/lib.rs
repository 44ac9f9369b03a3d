//! The NILFS2 on-disk format: every structure as a type that is checked when it is read and
//! encoded exactly when it is written.
//!
//! One module per structure, named as the format names it. A module takes bytes and gives a
//! checked type, or an error that says which structure, which field, what was found and what was
//! expected. All integers on disk are little-endian (docs/format.md §1).
//!
//! This crate does no I/O and knows nothing of devices, caches or policy, so that the engine and
//! the checker can share it without sharing an opinion about anything else.

pub mod block_sums;
pub mod bmap;
pub mod checkpoint;
pub mod crc;
pub mod dat;
pub mod dirent;
mod error;
pub mod geometry;
pub mod inode;
pub mod lifetime;
pub mod notes;
pub mod palloc;
pub mod roll_forward;
pub mod segment_usage;
mod slots;
pub mod summary;
mod summary_copy;
pub mod super_root;
pub mod superblock;
mod types;
pub mod xattr_file;

pub use error::FormatError;
pub use geometry::Geometry;
pub use slots::Slot;
pub use summary_copy::SummaryCopy;
pub use types::{BlockNr, BlockSize, ByteCount, Cno, FileBlock, Ino, SegNum, Seq, VBlockNr};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
