//! Makes the volumes that worlds live on, and has them judged by the checker.

use std::fmt;

use nilfs_check::{Counts, Options, Severity};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_ondisk::{BlockSize, Cno};

use crate::clock::EPOCH;

/// The size and form of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes in a block.
    pub block_size: u64,
    /// Blocks in a segment.
    pub blocks_per_segment: u32,
    /// Segments.
    pub segments: u64,
}

impl Shape {
    /// 4 MiB in segments of 64 KiB: quick to copy, and it takes a while to fill.
    pub const SMALL: Shape = Shape { block_size: 1024, blocks_per_segment: 64, segments: 64 };
    /// 16 MiB, for long lives.
    pub const ROOMY: Shape = Shape { block_size: 1024, blocks_per_segment: 128, segments: 128 };

    /// The bytes of the device: all segments and the second superblock.
    #[must_use]
    pub fn device_size(self) -> u64 {
        self.block_size * u64::from(self.blocks_per_segment) * self.segments + 4096
    }

    /// A new volume of this shape, the same each time.
    #[must_use]
    pub fn format(self) -> Vec<u8> {
        let device = MemoryDevice::new(self.device_size());
        let mut parameters =
            Parameters::new(*b"a simulated disk", 0x51_e6_0d, EPOCH.seconds as u64);
        parameters.block_size =
            BlockSize::from_bytes(self.block_size).expect("tests use possible block sizes");
        parameters.blocks_per_segment = self.blocks_per_segment;
        format(&device, &parameters).expect("tests use possible shapes");
        device.snapshot()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block_size, blocks_per_segment, segments } = self;
        write!(f, "{segments} segments of {blocks_per_segment} blocks of {block_size} bytes")
    }
}

/// Has a volume judged that is not being written.
///
/// # Errors
/// What the checker found, in words.
pub fn check(device: &dyn Device) -> Result<(), String> {
    judge(device, Cno::MAX).map(|_| ())
}

/// As [`check`]; returns what the checker counted, with the checkpoints from `protected_from` on
/// taken as protected.
///
/// # Errors
/// What the checker found, in words.
pub fn judge(device: &dyn Device, protected_from: Cno) -> Result<Counts, String> {
    let report = nilfs_check::check(device, &Options { protected_from, ..Options::default() })
        .map_err(|error| format!("the checker gives up: {error}"))?;
    let faults: Vec<String> = report
        .findings
        .iter()
        .filter(|finding| finding.severity >= Severity::Warning)
        .map(|finding| format!("\n  {finding}"))
        .collect();
    if faults.is_empty() {
        return Ok(report.counts);
    }
    Err(format!("the checker found{}", faults.concat()))
}
