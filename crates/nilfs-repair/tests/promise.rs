//! What `fsck -y` promises: after it, a volume is sound, or the plan has said what is not and why. And
//! unless the plan has said that something is lost, all files are as they were which the damage itself
//! has not hit.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_check::Options;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{FileType, Files, Ino, Volume};
use nilfs_repair::{Plan, Risk};
use rand::SeedableRng;
use rand::rngs::StdRng;
use support::{
    BLOCK_SIZES, File, Image, Patient, UUID, checked, damage_visibly, lived, number, read_file,
};

/// Damaged copies of each volume.
const ROUNDS: u64 = 20;

/// The files of which some block, of data or of the map, is another one.
fn hit(before: &Image, damaged: &Image) -> BTreeSet<Ino> {
    let mut hit = BTreeSet::new();
    for log in before.logs() {
        let mut at = log.block.plus(log.header.summary_blocks(before.geometry().block_size));
        for file in &log.files {
            for _ in &file.blocks {
                if before.block(at) != damaged.block(at) {
                    hit.insert(file.ino);
                }
                at = at.plus(1);
            }
        }
    }
    hit
}

/// All files to which names lead that can be read, by number.
fn files_of(bytes: Vec<u8>) -> BTreeMap<Ino, File> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(bytes));
    let volume = Volume::open(device).expect("the volume can be opened");
    let tree = volume.tree(None).expect("it has a newest checkpoint");
    let tree: &dyn Files = &tree;
    let (mut found, mut waiting) = (BTreeMap::new(), vec![Ino::ROOT]);
    while let Some(directory) = waiting.pop() {
        let mut inos = Vec::new();
        // What cannot be read is missing then.
        let _ = tree.read_dir(directory, 0, &mut |entry| {
            inos.push(entry.ino);
            true
        });
        for ino in inos {
            let Some(file) = read_file(tree, ino).ok().filter(|_| !found.contains_key(&ino)) else {
                continue;
            };
            if file.0 == FileType::Directory {
                waiting.push(ino);
            }
            found.insert(ino, file);
        }
    }
    found
}

/// What the plan has not said of a volume that was repaired.
fn broken_promises(before: &Image, damaged: &Image, plan: &Plan, after: Vec<u8>) -> Vec<String> {
    let report = checked(&after).expect("what was repaired can be checked");
    let said: BTreeSet<&str> = plan.kept.iter().map(|kept| &kept.fault[..]).collect();
    let left = report.errors().map(nilfs_check::Finding::fault);
    let mut broken: Vec<String> = left.filter(|fault| !said.contains(&fault[..])).collect();
    let hit = hit(before, damaged);
    // A number in an inode can be a wrong one that is as good as any other.
    if plan.risk() == Risk::Loses || hit.contains(&Ino::IFILE) || !plan.can_be_applied() {
        return broken;
    }
    let now = files_of(after);
    let regular = |(_, file): &(Ino, File)| file.0 == FileType::Regular;
    for (ino, was) in files_of(before.bytes.clone()).into_iter().filter(regular) {
        let same =
            now.get(&ino).is_some_and(|now| (now.0, now.2, &now.3) == (was.0, was.2, &was.3));
        if !hit.contains(&ino) && !same {
            broken.push(format!("inode {ino} is not as it was, and nothing was said to be lost"));
        }
    }
    broken
}

#[test]
fn what_a_repair_leaves_or_loses_it_has_said() {
    let first = number("NILFS_REPAIR_SEED", rand::random::<u32>().into());
    println!("NILFS_REPAIR_SEED={first}");
    let (mut made, mut clean) = (0, 0);
    for block_size in BLOCK_SIZES {
        for (origin, before) in [("Linux", Image::by_linux(block_size)), ("us", lived(block_size))]
        {
            for seed in first..first + number("NILFS_REPAIR_ROUNDS", ROUNDS) {
                let mut image = before.clone();
                damage_visibly(&mut image, &mut StdRng::seed_from_u64(seed));
                let (patient, damaged) = (Patient::new(image.clone()), image);
                made += 1;
                // An error and an obstacle are an answer, too.
                let plan = nilfs_repair::plan(&patient.device, &Options::default(), UUID);
                let Some(plan) = plan.ok().filter(|plan| plan.obstacle.is_none()) else { continue };
                if plan.can_be_applied() {
                    plan.apply(&*patient.device, &mut |_| {}).unwrap();
                }
                let broken = broken_promises(&before, &damaged, &plan, patient.bytes());
                assert!(
                    broken.is_empty(),
                    "block size {block_size}, made by {origin}, NILFS_REPAIR_SEED={seed}: {broken:#?}, \
                     after {:?}",
                    plan.repairs
                );
                clean += u32::from(plan.kept.is_empty());
            }
        }
    }
    println!("{made} volumes were damaged, and {clean} are sound again");
    assert!(2 * clean > made, "most damage can be repaired: {clean} of {made}");
}
