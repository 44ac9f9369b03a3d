//! What is found does not depend on how many threads look: not which findings, not their order, not
//! their words and corrections, not what is counted.

mod support;

use nilfs_check::{Options, check};
use nilfs_device::MemoryDevice;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{BLOCK_SIZES, Image, rounds, seed};

/// Everything that a check says.
fn said(image: &Image, threads: usize, findings_per_rule: usize) -> String {
    let options = Options { threads, findings_per_rule, ..Options::default() };
    match check(&MemoryDevice::from(image.bytes.clone()), &options) {
        Ok(report) => format!("{report}\n{report:#?}"),
        Err(error) => error.to_string(),
    }
}

/// Compares what is said of damaged volumes.
fn compare(rounds: usize, damage: impl Fn(&mut Image, &mut StdRng)) {
    let first = seed();
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        for seed in (first..).take(rounds) {
            let mut image = sound.clone();
            damage(&mut image, &mut StdRng::seed_from_u64(seed));
            for findings_per_rule in [1, usize::MAX] {
                let by_one = said(&image, 1, findings_per_rule);
                for threads in [2, 8] {
                    let by_several = said(&image, threads, findings_per_rule);
                    let seed = format!("block size {block_size}, NILFS_CHECK_SEED={seed}");
                    assert_eq!(by_one, by_several, "{threads} threads, {seed}");
                }
            }
        }
    }
}

#[test]
fn the_report_of_a_damaged_volume_is_the_same_with_any_number_of_threads() {
    compare(rounds(40), Image::damage_sound_logs);
}

/// Each of the inodes is sound by itself: no log says any more whose the blocks are.
#[test]
fn so_is_that_of_files_that_have_the_same_blocks() {
    compare(rounds(20), |image, random| {
        let inos = image.names_in_root();
        let [from, to] = std::array::from_fn(|_| inos[random.random_range(0..inos.len())]);
        let mut copy = Vec::new();
        image.edit_inode(from, |inode| copy.extend_from_slice(inode));
        image.edit_inode(to, |inode| inode.copy_from_slice(&copy));
        if let Some(found) = image.blocks_of(from).last() {
            let start = found.log.0 as usize * image.block_size();
            image.bytes[start + 4] ^= 1;
        }
    });
}
