//! Volumes as they are before anything is written here: just made, or filled by Linux.

use std::path::Path;
use std::process::Command;

use nilfs_device::MemoryDevice;
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_ondisk::BlockSize;

use super::{Left, Which};
use crate::clock::EPOCH;

/// Bytes of a volume, and of a segment.
#[derive(Debug, Clone, Copy)]
struct Shape {
    segment: u64,
    volume: u64,
}

impl Shape {
    fn of(left: Left) -> Self {
        match left {
            // Many sync logs are in one segment and the next.
            Left::Synced => Self { segment: 512 << 10, volume: 12 << 20 },
            Left::LivedIn | Left::LivedInCrashed | Left::Full => {
                Self { segment: 128 << 10, volume: 8 << 20 }
            }
            _ => Self { segment: 128 << 10, volume: 5 << 20 },
        }
    }
}

/// A volume that was just made.
pub(super) fn formatted(which: Which) -> Vec<u8> {
    let shape = Shape::of(which.left);
    let device = MemoryDevice::new(shape.volume + 4096);
    let mut parameters = Parameters::new(*b"a damaged volume", 0x0b_1a_57, EPOCH.seconds as u64);
    parameters.block_size =
        BlockSize::from_bytes(which.block_bytes.into()).expect("the sizes of blocks are possible");
    parameters.blocks_per_segment = shape.segment as u32 / which.block_bytes;
    format(&device, &parameters).expect("the shape of the volume is possible");
    device.snapshot()
}

/// A volume that Linux has filled.
///
/// # Errors
/// It cannot be unpacked.
pub(super) fn filled_by_linux(block_bytes: u32) -> Result<Vec<u8>, String> {
    let images =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/nilfs-check/tests/images");
    let path = images.join(format!("linux-{block_bytes}.img.gz"));
    let output = Command::new("gzip").arg("-dc").arg(&path).output();
    let output = output.map_err(|error| format!("gzip: {error}"))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("gzip cannot read {}", path.display())),
    }
}
