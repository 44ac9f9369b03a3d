//! Every checkpoint is judged, although the checker goes from one to the next by what differs: it
//! comes to the same as looking at each of them alone.

mod support;

use std::collections::BTreeSet;

use nilfs_check::{Checkpoints, Options, Report, Rule, check};
use nilfs_device::MemoryDevice;
use nilfs_ondisk::{Cno, Ino};
use rand::SeedableRng;
use rand::rngs::StdRng;
use support::{BLOCK_SIZES, Image, read, vblock, write};

/// Damaged copies of each image.
const ROUNDS: u64 = 60;
/// A directory has a second name that is gone in the checkpoint before, where the first one was taken
/// for the one that went.
const SECOND_NAME: u64 = 6_013_211_606_378_223_977;

/// Of the oldest checkpoint the inode of the root directory lies in a block of the ifile that is another's.
const NO_ROOT: u64 = 5_124_964_110_294_599_309;

const DE_START: usize = 8;
const I_LINKS: usize = 50;

fn check_those(image: &Image, checkpoints: Checkpoints) -> Option<Report> {
    let options = Options { checkpoints, findings_per_rule: usize::MAX, ..Options::default() };
    check(&MemoryDevice::from(image.bytes.clone()), &options).ok()
}

type Faults = BTreeSet<(Rule, Option<Ino>)>;

/// Which rules are broken, and by which files.
fn faults(report: &Report) -> Faults {
    // A node in a place that is not its own is one of a broken map, or one that another place has, if
    // that is known already.
    let rule = |rule| if rule == Rule::SharedBlock { Rule::BlockMap } else { rule };
    report.errors().map(|finding| (rule(finding.rule), finding.place.ino)).collect()
}

/// Without the lives of blocks that are not the file's anyway, and without a root directory that is missing
/// in an ifile with such blocks: whether its inode is known depends on where one comes from.
fn but_what_follows(faults: Faults) -> Faults {
    let strangers = |ino| faults.contains(&(Rule::Owner, ino));
    let has_no_root = (Rule::Directory, Some(Ino::ROOT));
    let follows = |(rule, ino)| match rule {
        Rule::Lifetime => strangers(ino),
        _ => (rule, ino) == has_no_root && strangers(Some(Ino::IFILE)),
    };
    faults.iter().copied().filter(|fault| !follows(*fault)).collect()
}

#[test]
fn the_way_to_a_checkpoint_does_not_matter() {
    let first = rand::random::<u64>();
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        let newest = sound.newest();
        let seeds = (0..ROUNDS).map(|round| first.wrapping_add(round));
        for seed in seeds.chain([SECOND_NAME, NO_ROOT]) {
            let mut image = sound.clone();
            image.damage_sound_logs(&mut StdRng::seed_from_u64(seed));
            let Some(all) = check_those(&image, Checkpoints::All) else { continue };
            let mut alone = BTreeSet::new();
            // What the damaged volume says of its newest may be any number.
            for cno in 1..=newest.0 {
                let report = check_those(&image, Checkpoints::List(vec![Cno(cno)]));
                alone.extend(faults(&report.expect("a report, as before")));
            }
            let (found, alone) = (but_what_follows(faults(&all)), but_what_follows(alone));
            assert_eq!(found, alone, "block size {block_size}, seed {seed}\n{all}");
        }
    }
}

/// The first version of an inode that only old checkpoints have.
#[test]
fn damage_that_only_the_past_has_is_found() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let newest = image.newest();
        let old = image.blocks_of(Ino::IFILE).into_iter().find(|found| {
            let (dat, at) = image.dat_entry(vblock(*found));
            let end = read(&image.block(dat.block)[at..], DE_START + 8);
            let start = read(&image.block(dat.block)[at..], DE_START);
            // Entries of inodes, as the root directory's, which has a mode and links.
            let root = &image.block(found.block)[2 * 128..];
            start < end && end <= newest.0 && root[48..50] == [0xed, 0x41]
        });
        image.edit(old.expect("the root directory has changed"), |block| {
            block[2 * 128 + I_LINKS] += 1;
        });
        let report = image.check().unwrap();
        let seen = |rule| {
            report.findings.iter().any(|finding| {
                finding.rule == rule
                    && finding.place.ino == Some(Ino::ROOT)
                    && finding.place.checkpoint.is_some_and(|cno| cno < newest)
            })
        };
        assert!(seen(Rule::LinkCount), "block size {block_size}:\n{report}");
    }
}

/// A block that old checkpoints and the newest one share, and that claims to be younger than the old
/// ones: nothing changes in them, so it is noticed although nobody looks there.
#[test]
fn a_block_that_is_too_young_for_an_old_checkpoint_is_found() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let newest = image.newest();
        let shared = image.blocks_of(image.named("tree")).into_iter().map(vblock).find(|vblock| {
            let (dat, at) = image.dat_entry(*vblock);
            let entry = &image.block(dat.block)[at..];
            read(entry, DE_START) + 1 < newest.0 && read(entry, DE_START + 8) == Cno::MAX.0
        });
        image.edit_dat(shared.expect("it is in several"), |entry| {
            write(entry, DE_START, newest.0);
        });
        let report = image.check().unwrap();
        let seen = report.errors().any(|finding| {
            finding.rule == Rule::Lifetime && finding.place.checkpoint < Some(newest)
        });
        assert!(seen, "block size {block_size}:\n{report}");
    }
}
