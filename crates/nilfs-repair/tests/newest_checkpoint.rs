//! A newest checkpoint that cannot be used costs what was written since the one before it, and nothing
//! else. The plan says so.

mod support;

use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::Volume;
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, Patient, content_of};

/// Damages the volumes that Linux has filled, and demands that each shows its last checkpoint but one.
#[track_caller]
fn goes_back(damage: impl Fn(&mut Image)) {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(image.bytes.clone()));
        let before = Volume::open(device).unwrap();
        let newest = image.newest();
        let all = before.checkpoints(nilfs_engine::Cno(1), usize::MAX).unwrap();
        let last_but_one = all.iter().rev().find(|it| it.cno < newest).unwrap().cno;
        let expected = content_of(&before, Some(last_but_one));
        damage(&mut image);
        let patient = Patient::new(image);
        let plan = patient.heal();
        assert_eq!(plan.risk(), Risk::Loses, "{:?}", plan.repairs);
        let action = plan.repairs[0].action_by_path();
        let of_which = format!("go on from checkpoint {last_but_one} of 2");
        assert!(action.starts_with(&of_which) && action.contains("and give up"), "{action}");
        // The other one has not been there before.
        assert!(action.ends_with(" 2 files and directories: many and 1 more"), "{action}");
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(patient.bytes()));
        let found = content_of(&Volume::open(device).unwrap(), None);
        assert!(found == expected, "the files are those of checkpoint {last_but_one}");
    }
}

#[test]
fn a_super_root_that_is_damaged() {
    goes_back(|image| {
        let root = image.super_root().block.0 as usize * image.block_size();
        // One bit would be set right.
        image.bytes[root + 40] ^= 3;
    });
}
