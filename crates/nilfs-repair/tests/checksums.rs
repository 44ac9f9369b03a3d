//! What a repair does to logs that have checksums of their blocks.

mod support;

use nilfs_engine::scrub::{Fault, Selection, scrub};
use nilfs_ondisk::crc::crc32_le;
use nilfs_ondisk::{BlockNr, Ino};
use support::{BLOCK_SIZES, Image, Patient};

const FILE_TYPE: usize = 11;

/// A volume with a fault that is corrected in a directory, and a block of a file in the same log, which has
/// checksums.
fn directory_and_file(block_size: u64) -> (Image, BlockNr, BlockNr) {
    let mut image = Image::by_linux(block_size);
    let log = image.data(Ino::ROOT, 0).log;
    image.give_sums(log);
    image.edit_record(Ino::ROOT, "direct", |record| record[FILE_TYPE] = 2);
    let files = image.names_in_root().into_iter();
    let of_file = |ino| image.blocks_of(ino).into_iter().rfind(|it| it.log == log);
    let block = files.filter_map(of_file).map(|it| it.block).next();
    (image, log, block.expect("the log has a file"))
}

/// Damage of the volume, as a scrub sees it.
fn damage(patient: &Patient) -> Vec<(Fault, u64)> {
    let device = std::sync::Arc::clone(&patient.device);
    let found = scrub(&device, &Selection::default(), &mut |_| std::ops::ControlFlow::Continue(()));
    let found = found.unwrap().damage.into_iter();
    found.map(|it| (it.fault, it.blocks.end.0 - it.blocks.start.0)).collect()
}

/// A block was corrected, and the log got a checksum that was right also over what had been damaged beside
/// it: from then on nothing told of that.
#[test]
fn what_is_damaged_beside_a_correction_stays_known() {
    for block_size in BLOCK_SIZES {
        let (mut image, _, file) = directory_and_file(block_size);
        let at = file.0 as usize * image.block_size();
        // A single bit would be set right.
        image.bytes[at] ^= 3;
        let patient = Patient::new(image);
        assert_eq!(damage(&patient), [(Fault::Content, 1)]);
        let plan = patient.plan();
        assert!(!plan.repairs.is_empty() && plan.obstacle.is_none(), "{:?}", plan.obstacle);
        plan.apply(&*patient.device, &mut |_| {}).unwrap();
        assert_eq!(damage(&patient), [(Fault::Content, 1)]);
    }
}

/// Older versions correct blocks and the checksum of their log, and know of no others.
#[test]
fn a_log_that_is_right_is_believed_against_the_checksums_of_its_blocks() {
    for block_size in BLOCK_SIZES {
        let (mut image, log, file) = directory_and_file(block_size);
        let size = image.block_size();
        let start = log.0 as usize * size;
        image.bytes[file.0 as usize * size] ^= 1;
        let blocks = image.logs().iter().find(|it| it.block == log).unwrap().header.nblocks;
        let bytes = &mut image.bytes[start..start + blocks as usize * size];
        let sum = crc32_le(image.superblock.crc_seed(), &bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        let patient = Patient::new(image);
        assert_eq!(damage(&patient), []);
        patient.heal();
        assert_eq!(damage(&patient), []);
    }
}
