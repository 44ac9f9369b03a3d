//! A check of a volume may take hours, so a sound one is checked once.

mod support;

use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice, RecordingDevice};
use nilfs_ondisk::superblock::SUPERBLOCK_SIZE;
use support::{BLOCK_SIZES, Image, UUID};

/// Superblocks that a plan looks at besides: it has to know whether they are as they should be.
const SUPERBLOCKS: u64 = 40;

/// The volume was checked three times: for the report, for a way to go on, and for corrections.
#[test]
fn a_plan_for_a_sound_volume_reads_it_no_more_than_a_check() {
    for block_size in BLOCK_SIZES {
        let image = Image::by_linux(block_size);
        let recording = Arc::new(RecordingDevice::new(MemoryDevice::from(image.bytes)));
        nilfs_check::check(&*recording, &nilfs_check::Options::default()).unwrap();
        let by_check = recording.take_bytes_read();
        let device = Arc::clone(&recording) as Arc<dyn Device>;
        let plan = nilfs_repair::plan(&device, &nilfs_check::Options::default(), UUID).unwrap();
        assert!(plan.repairs.is_empty(), "{:?}", plan.repairs);
        let by_plan = recording.take_bytes_read();
        let most = by_check + SUPERBLOCKS * SUPERBLOCK_SIZE as u64;
        assert!(by_plan <= most, "{by_plan} bytes were read, and {by_check} by a check");
    }
}
