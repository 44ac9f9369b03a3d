//! A volume is found again by its logs, whatever became of its superblocks.

mod common;

use std::sync::Arc;

use common::{LINUX_IMAGES, linux_image, make, mount, parameters, pattern, volume};
use nilfs_device::{Device, IoSlice, MaskedDevice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::scan::Scan;
use nilfs_engine::{Cno, Error, Volume};
use nilfs_ondisk::Geometry;
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::superblock::Superblock;
use zerocopy::little_endian::{U32, U64};

fn scan(device: &dyn Device) -> Result<Scan, Error> {
    Scan::run(device, &|_| {})
}

fn superblock(device: &MemoryDevice) -> Superblock {
    Volume::superblocks(device).unwrap().best
}

/// Puts the same bytes in the place of both superblocks.
fn overwrite_superblocks(device: &MemoryDevice, bytes: &[u8]) {
    for offset in [PRIMARY_SUPERBLOCK, secondary_superblock(device.size()).unwrap()] {
        device.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
    }
}

/// Ours, with several checkpoints in several segments, and Linux's.
fn volumes() -> Vec<(String, Arc<MemoryDevice>)> {
    let linux = LINUX_IMAGES.map(|name| (name.to_owned(), linux_image(name)));
    let ours = [1024, 4096].map(|block_size| {
        let device = volume(block_size, 32);
        let fs = mount(&device);
        let root = fs.root().unwrap().inode;
        for nth in 0..20 {
            let file = make(&fs, &root, &format!("file {nth}"));
            fs.write(&file, 0, &pattern(nth, 100_000)).unwrap();
            fs.commit().unwrap();
        }
        fs.unmount().unwrap();
        (format!("ours, blocks of {block_size}"), device)
    });
    ours.into_iter().chain(linux).collect()
}

#[test]
fn both_superblocks_can_be_made_again_from_the_logs() {
    for (name, device) in volumes() {
        let before = superblock(&device);
        overwrite_superblocks(&device, &[0; 1024]);
        // Whether there are logs is looked for at the beginning alone.
        let refused = Volume::open(Arc::clone(&device) as _).err();
        assert!(matches!(refused, Some(Error::NoSuperblock(_) | Error::NotAVolume(_))), "{name}");
        let found = scan(&*device).unwrap();
        // How many segments are kept back is written nowhere else.
        let percent = before.geometry().reserved_percent;
        assert_eq!(
            Geometry { reserved_percent: percent, ..found.geometry },
            before.geometry(),
            "{name}"
        );
        assert_eq!(found.crc_seed, before.crc_seed(), "{name}");
        let newest = &found.super_roots[0];
        assert_eq!(newest.cursor, before.last_log(), "{name}");
        assert!(found.is_whole(&*device, newest), "{name}");
        let made = found.superblock_for(newest).unwrap();
        overwrite_superblocks(&device, &made.encode());
        mount(&device).unmount().unwrap();
    }
}

#[test]
fn a_superblock_of_nonsense_is_not_believed() {
    for (name, device) in volumes() {
        let before = superblock(&device);
        let nonsense = |change: &dyn Fn(&mut Superblock)| {
            let mut copy = before;
            change(&mut copy);
            overwrite_superblocks(&device, &copy.encode());
            let found = scan(&*device).unwrap();
            assert_eq!(found.super_roots[0].cursor, before.last_log(), "{name}");
            assert_eq!(found.crc_seed, before.crc_seed(), "{name}");
            found.geometry.blocks_per_segment
        };
        let segment = before.geometry().blocks_per_segment;
        let odd = |copy: &mut Superblock| copy.raw_mut().s_blocks_per_segment = U32::new(1000);
        assert_eq!(nonsense(&odd), segment, "{name}");
        let other_seed = |copy: &mut Superblock| copy.raw_mut().s_crc_seed = U32::new(5);
        assert_eq!(nonsense(&other_seed), segment, "{name}");
        let nowhere = |copy: &mut Superblock| copy.raw_mut().s_last_pseg = U64::new(77);
        assert_eq!(nonsense(&nowhere), segment, "{name}");
    }
}

#[test]
fn what_cannot_be_read_hides_only_its_own_logs() {
    for (name, device) in volumes() {
        let all = scan(&*device).unwrap();
        let newest = all.super_roots[0].cursor;
        let block = all.geometry.block_size.bytes64();
        let start = newest.block.0 * block;
        let masked =
            MaskedDevice::new(Arc::clone(&device) as _, std::iter::once(start..start + 512));
        let found = scan(&masked).unwrap();
        assert_eq!(found.super_roots[0].cursor, all.super_roots[1].cursor, "{name}");
        assert_eq!(found.super_roots.len() + 1, all.super_roots.len(), "{name}");
        let cut = MemoryDevice::from(device.snapshot()[..start as usize].to_vec());
        let found = scan(&cut).unwrap();
        assert!(found.super_roots.iter().all(|it| it.cursor.block < newest.block), "{name}");
        assert!(found.logs.len() < all.logs.len(), "{name}");
    }
}

#[test]
fn what_was_written_later_is_told_from_what_a_checkpoint_can_need() {
    let (_, device) = volumes().swap_remove(0);
    let found = scan(&*device).unwrap();
    let gaps = found.not_written_by(Cno(5));
    let block = found.geometry.block_size.bytes64();
    for log in &found.logs {
        let bytes = log.start.0 * block..log.end().0 * block;
        let touches = gaps.iter().any(|gap| gap.start < bytes.end && bytes.start < gap.end);
        assert_eq!(touches, log.header.cno > Cno(5), "{log:?}");
    }
}

#[test]
fn what_is_no_volume_is_said_to_be_none() {
    for bytes in [vec![0; 1 << 20], pattern(3, 1 << 20), Vec::new(), vec![1; 1500]] {
        assert!(matches!(scan(&MemoryDevice::from(bytes)), Err(Error::NotAVolume(_))));
    }
}

/// Writes a file on a volume, and commits.
fn fill(device: &Arc<MemoryDevice>, name: &str, bytes: &[u8]) {
    let fs = mount(device);
    let file = make(&fs, &fs.root().unwrap().inode, name);
    fs.write(&file, 0, bytes).unwrap();
    drop(file);
    fs.unmount().unwrap();
}

/// Its logs come first on the device, once the head of the log is damaged in which the file lies.
#[test]
fn the_image_of_a_volume_in_a_file_is_not_taken_for_the_volume() {
    let mut other = parameters(1024);
    other.crc_seed = 99;
    let image = Arc::new(MemoryDevice::new(8 << 20));
    format(&*image, &other).unwrap();
    fill(&image, "inner", &pattern(1, 100_000));
    let device = volume(1024, 32);
    let mkfs = superblock(&device).last_log().block;
    fill(&device, "image", &image.snapshot());
    let before = superblock(&device);
    let image_log = scan(&*device).unwrap().logs.iter().map(|log| log.start).find(|at| *at > mkfs);
    overwrite_superblocks(&device, &[0; 1024]);
    for log in [mkfs, image_log.unwrap()] {
        device.write_at(log.0 * 1024, &[IoSlice::new(&[0; 1024])]).unwrap();
    }
    let found = scan(&*device).unwrap();
    assert_eq!(found.crc_seed, before.crc_seed());
    assert_eq!(found.super_roots[0].cursor, before.last_log());
}

/// There are more logs of the volume that was there before.
#[test]
fn a_device_that_was_formatted_anew_has_its_newest_volume() {
    let device = volume(1024, 32);
    for nth in 0..20 {
        fill(&device, &format!("file {nth}"), &pattern(nth, 300_000));
    }
    let mut parameters = parameters(1024);
    parameters.crc_seed = 99;
    format(&*device, &parameters).unwrap();
    fill(&device, "file", &pattern(1, 1000));
    let before = superblock(&device);
    overwrite_superblocks(&device, &[0; 1024]);
    let found = scan(&*device).unwrap();
    assert_eq!(found.crc_seed, 99);
    assert_eq!(found.super_roots[0].cursor, before.last_log());
}

/// A volume of one log says where one segment begins, but not that none begins before.
#[test]
fn layouts_that_few_logs_leave_open_are_all_named() {
    let device = volume(1024, 32);
    overwrite_superblocks(&device, &[0; 1024]);
    let found = scan(&*device).unwrap();
    assert_eq!(found.geometry.blocks_per_segment, 256);
    let smaller: Vec<_> = found.alternatives.iter().map(|it| it.blocks_per_segment).collect();
    assert_eq!(smaller, [128, 64, 32, 16]);
    let device = volume(1024, 32);
    fill(&device, "file", &pattern(1, 300_000));
    overwrite_superblocks(&device, &[0; 1024]);
    assert!(scan(&*device).unwrap().alternatives.is_empty(), "a full segment tells its size");
}
