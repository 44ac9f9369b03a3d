//! Damage of what only checkpoints of the past have, on a volume that has deleted some of them and whose
//! cleaner has run. A block of the cpfile that was made anew brought deleted checkpoints back, and the DAT
//! was made to agree with them. A directory of the past that had lost its names took links from files of the
//! present.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_check::{Finding, Rule};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{MountOptions, Volume};
use nilfs_ondisk::Cno;
use nilfs_repair::Plan;
use nilfs_sim::blast::blocks::Holds;
use nilfs_sim::blast::damage::{Damage, Harm};
use nilfs_sim::blast::samples::{Left, Sample, Which};
use support::{Content, UUID, content_of, present};

/// Seed of volumes and noise.
const SEED: u64 = 1;

fn synced() -> Sample {
    Which { left: Left::Synced, block_bytes: 4096 }.make(SEED).unwrap()
}

/// The files of each checkpoint.
fn history(device: &Arc<dyn Device>) -> BTreeMap<Cno, Content> {
    let volume = Volume::open(Arc::clone(device)).unwrap();
    let all = volume.checkpoints(Cno(1), usize::MAX).unwrap();
    all.iter().map(|it| (it.cno, content_of(&volume, Some(it.cno)))).collect()
}

/// The files of a volume when it is mounted.
fn files(device: &Arc<dyn Device>) -> Content {
    let fs = nilfs_engine::Filesystem::mount(Arc::clone(device), MountOptions::default()).unwrap();
    let files = present(&*fs);
    fs.unmount().unwrap();
    files
}

/// Repairs a volume, and demands that a check finds nothing then, but for a checksum of the log where a block lies
/// that is not in use any more. `None` if the damage makes no difference.
#[track_caller]
fn repaired(sample: &Sample, damage: &Damage) -> Option<(Arc<dyn Device>, Plan)> {
    let device = damage.inflict(sample, SEED)?.dyn_device();
    let options = nilfs_check::Options::default();
    let plan = nilfs_repair::plan(&device, &options, UUID).expect("it can be repaired");
    assert!(plan.obstacle.is_none(), "{damage}: {:?}", plan.obstacle);
    plan.apply(&*device, &mut |_| {}).unwrap();
    let report = nilfs_check::check(&*device, &options).unwrap();
    let logs: BTreeSet<_> = damage.blocks(sample).map(|block| block.log).collect();
    let is_of_log = |it: &&Finding| it.rule == Rule::Log && logs.contains(&it.place.log);
    let wrong = report.errors().filter(|it| !is_of_log(it)).map(ToString::to_string);
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{damage}: {wrong:?} after {:?}", plan.repairs);
    Some((device, plan))
}

/// Damages all blocks of a kind in these ways, and has each volume repaired.
fn each(sample: &Sample, holds: Holds, judge: impl Fn(&Damage, &Arc<dyn Device>, &Plan)) {
    let mut count = 0;
    for block in sample.blocks.iter().filter(|block| block.holds == holds) {
        for harm in [Harm::Zeros, Harm::Garbage, Harm::Stale, Harm::Unreadable] {
            let damage = Damage::of_block(sample, block.number, harm);
            if let Some((device, plan)) = repaired(sample, &damage) {
                judge(&damage, &device, &plan);
                count += 1;
            }
        }
    }
    assert!(count > 8, "{holds}: {count} damaged volumes are too few to judge anything by");
}

#[test]
fn deleted_checkpoints_do_not_come_back_broken() {
    let sample = synced();
    let sound: Arc<dyn Device> = Arc::new(MemoryDevice::from(sample.content.clone()));
    let expected = history(&sound);
    each(&sample, Holds::Checkpoints, |damage, device, plan| {
        let found = history(device);
        for (cno, files) in &found {
            if let Some(expected) = expected.get(cno) {
                assert!(files == expected, "{damage}: checkpoint {cno} after {:?}", plan.repairs);
            }
        }
        let is_given_up = |cno: Cno| {
            let start = format!("give up checkpoint {cno}, ");
            plan.repairs.iter().any(|it| it.action.starts_with(&start))
        };
        let wrongly = expected.keys().find(|cno| is_given_up(**cno));
        assert_eq!(wrongly, None, "{damage}: {:?}", plan.repairs);
    });
}

#[test]
fn a_damaged_directory_of_the_past_costs_the_present_no_link() {
    let sample = synced();
    let expected = files(&(Arc::new(MemoryDevice::from(sample.content.clone())) as _));
    let of_past: Vec<u64> = sample
        .blocks
        .iter()
        .filter(|block| block.cost.is_nothing() && block.cost.names.is_empty())
        .map(|block| block.number)
        .collect();
    each(&sample, Holds::Directory, |damage, device, plan| {
        if of_past.contains(&(damage.bytes.start / sample.block_bytes())) {
            assert!(files(device) == expected, "{damage}: {:?}", plan.repairs);
        }
    });
}

/// Content of a file that was deleted was named by the path of the one that has its number now.
#[test]
fn damaged_content_of_the_past_is_not_said_of_the_present() {
    let sample = synced();
    let options = nilfs_check::Options { read_content: true, ..Default::default() };
    let of_past =
        sample.blocks.iter().filter(|it| it.holds == Holds::Content && it.cost.is_nothing());
    let mut count = 0;
    for block in of_past {
        let damage = Damage::of_block(&sample, block.number, Harm::Garbage);
        let device = damage.inflict(&sample, SEED).unwrap().dyn_device();
        let plan = nilfs_repair::plan(&device, &options, UUID).expect("it can be repaired");
        let faults = plan.doubtful.iter().map(|it| &it.fault);
        let of_present: Vec<_> = faults.filter(|it| !is_of_checkpoint(it)).collect();
        assert!(of_present.is_empty(), "{damage}: {of_present:?}");
        count += plan.doubtful.len();
    }
    assert!(count > 8, "{count} doubts are too few to judge anything by");
}

/// Whether a fault is that of an inode in a checkpoint of the past. There are directories with such names.
fn is_of_checkpoint(fault: &str) -> bool {
    let rest = fault.strip_prefix("checkpoint ");
    rest.is_some_and(|rest| {
        rest.trim_start_matches(|it: char| it.is_ascii_digit()).starts_with(", inode ")
    })
}
