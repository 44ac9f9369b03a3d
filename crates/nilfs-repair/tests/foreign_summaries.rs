//! A summary that is whole and stands where another one belongs: a device has written a block in a wrong place, or
//! has lost a write and shows what was there before. What it says of the blocks after it is not so.

mod support;

use std::sync::Arc;

use nilfs_check::{Options, Rule};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Filesystem, MountOptions, NewInode};
use nilfs_ondisk::BlockSize;
use nilfs_ondisk::inode::S_IFREG;
use support::{BLOCK_SIZES, Image, Patient, content};

/// Files of different lengths, some of which were fsynced, and checkpoints between them.
fn written(block_size: u64) -> Image {
    let device = Arc::new(MemoryDevice::new(8 << 20));
    let parameters = Parameters {
        block_size: BlockSize::from_bytes(block_size).unwrap(),
        blocks_per_segment: 32,
        ..Parameters::new([7; 16], 0x1234_5678, 1_700_000_000)
    };
    format(&*device, &parameters).unwrap();
    let fs = Filesystem::mount(Arc::clone(&device) as Arc<dyn Device>, MountOptions::default());
    let fs = fs.unwrap();
    let root = fs.root().unwrap().inode;
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    for nth in 1..=12_u8 {
        let name = format!("file {nth}");
        let file = fs.create(&root, name.as_bytes(), &new).unwrap().inode;
        fs.write(&file, 0, &vec![nth; (1 + nth as usize % 4) * block_size as usize + 9]).unwrap();
        match nth % 4 {
            0 => drop(fs.commit().unwrap()),
            _ => fs.sync_file(&file).unwrap(),
        }
    }
    drop(root);
    fs.unmount().unwrap();
    Image::from(device.snapshot())
}

/// Holes were made of good blocks, which the DAT and the block maps knew, because one summary said otherwise.
#[test]
fn what_a_summary_says_of_the_blocks_of_another_log_is_not_believed() {
    for block_size in BLOCK_SIZES {
        let image = written(block_size);
        let expected = content(&image.bytes);
        let (size, newest) = (image.geometry().block_size, image.superblock.last_log());
        // Of a log after the newest nothing is needed.
        let logs: Vec<_> =
            image.logs().into_iter().filter(|log| log.header.seq <= newest.seq).collect();
        let mut copied = 0;
        for (from, to) in logs.iter().flat_map(|from| logs.iter().map(move |to| (from, to))) {
            let [summary, room] = [from, to].map(|log| log.header.summary_blocks(size));
            if from.block == to.block || to.block == newest.block || summary > room {
                continue;
            }
            let what = format!("the summary in block {} in block {}", from.block, to.block);
            let mut image = image.clone();
            let [from, to] = [from, to].map(|log| log.block.0 as usize * size.bytes());
            image.bytes.copy_within(from..from + summary as usize * size.bytes(), to);
            let patient = Patient::new(image);
            let plan = patient.plan();
            assert!(plan.obstacle.is_none(), "{what}: {:?}", plan.obstacle);
            plan.apply(&*patient.device, &mut |_| {}).unwrap();
            let report = nilfs_check::check(&*patient.device, &Options::default()).unwrap();
            assert!(report.is_consistent(), "{what}: {report}");
            assert!(content(&patient.bytes()) == expected, "{what}: {:?}", plan.repairs);
            let found = plan.before.as_ref().unwrap();
            let is_of_logs = |rule| matches!(rule, Rule::Log | Rule::LogChain);
            assert!(found.errors().all(|it| is_of_logs(it.rule)), "{what}: {found}");
            copied += 1;
        }
        assert!(copied > 50, "{copied} summaries");
    }
}
