//! Hostile images are data: whatever bytes a volume is made of, the checker ends with a report or
//! an error. It must not panic, and a test that does not end says that it loops.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use nilfs_check::{Options, check};
use nilfs_device::MemoryDevice;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{BLOCK_SIZES, Image, rounds, seed, value};

/// Damaged copies of each image.
const ROUNDS: usize = 150;

/// Checks what damage makes of the Linux-filled images.
fn check_damaged(damage: impl Fn(&mut Image, &mut StdRng)) {
    let first = seed();
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        for seed in (first..).take(rounds(ROUNDS)) {
            let mut image = sound.clone();
            damage(&mut image, &mut StdRng::seed_from_u64(seed));
            let device = MemoryDevice::from(image.bytes);
            let checked = catch_unwind(AssertUnwindSafe(|| {
                let _ = check(&device, &Options::default());
            }));
            assert!(checked.is_ok(), "block size {block_size}, NILFS_CHECK_SEED={seed}");
        }
    }
}

#[test]
fn damaged_blocks_in_sound_logs() {
    check_damaged(Image::damage_sound_logs);
}

#[test]
fn damaged_superblocks() {
    check_damaged(|image, random| {
        let copy = *image.superblock.raw();
        for _ in 0..100 {
            let mut raw = copy;
            let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut raw);
            let at = random.random_range(0..33) * 8;
            bytes[at..at + 8].copy_from_slice(&value(random).to_le_bytes());
            if image.set_superblocks(raw) {
                return;
            }
        }
    });
}

#[test]
fn noise() {
    check_damaged(|image, random| {
        for _ in 0..random.random_range(1..200) {
            let at = random.random_range(0..image.bytes.len());
            image.bytes[at] = random.random();
        }
    });
}

#[test]
fn truncated_images() {
    check_damaged(|image, random| {
        let length = random.random_range(0..image.bytes.len());
        image.bytes.truncate(length);
    });
}

/// A device far larger than memory, almost all of it a hole.
#[test]
fn a_huge_device_costs_what_is_written_on_it() {
    let mut image = Image::by_linux(4096);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), &image.bytes).expect("the image");
    let huge = 1 << 43;
    file.as_file().set_len(huge).expect("a sparse file");
    let segments = huge / image.geometry().segment_bytes() - 1;
    let mut raw = *image.superblock.raw();
    raw.s_nsegments.set(segments);
    let superblock = nilfs_ondisk::superblock::Superblock::from_raw(raw, huge).expect("valid");
    image.bytes[1024..2048].copy_from_slice(&superblock.encode());
    std::os::unix::fs::FileExt::write_all_at(file.as_file(), &image.bytes[1024..2048], 1024)
        .expect("the superblock");
    let access = nilfs_device::Access::Inspect;
    let device = nilfs_device::FileDevice::open(file.path(), access).expect("the device");
    let report = check(&device, &Options::default()).expect("a report");
    assert!(report.errors().all(|finding| finding.message.contains("sh_ncleansegs")), "{report}");
}
