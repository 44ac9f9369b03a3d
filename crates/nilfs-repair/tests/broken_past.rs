//! A checkpoint of the past that nothing puts right. A thousand lines said that each of its errors stays,
//! though all of them ended when the checkpoint was deleted: it is given up as a whole, and the plan says
//! so. A snapshot is not, and nothing else is other than it was.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{Filesystem, MountOptions, Volume};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{Cno, Ino};
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Content, Image, Patient, checked, content_of};

/// The inode of the ifile, in the entry of a checkpoint.
const IFILE_INODE: std::ops::Range<usize> = 64..192;

fn volume(bytes: &[u8]) -> Volume {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(bytes.to_vec()));
    Volume::open(device).unwrap()
}

/// The files of each checkpoint.
fn history(bytes: &[u8]) -> BTreeMap<Cno, Content> {
    let volume = volume(bytes);
    let all = volume.checkpoints(Cno(1), usize::MAX).unwrap();
    all.iter().map(|it| (it.cno, content_of(&volume, Some(it.cno)))).collect()
}

/// A volume in which a checkpoint has got the files of the newest, of which it cannot have all.
fn with_files_of_the_newest(sound: &Image, cno: Cno) -> Image {
    let mut image = sound.clone();
    let mut newest = Vec::new();
    image.edit_checkpoint(image.newest(), |entry| newest.extend(&entry[IFILE_INODE]));
    image.edit_checkpoint(cno, |entry| entry[IFILE_INODE].copy_from_slice(&newest));
    image
}

/// The checkpoints of the past that are no snapshots, and those that are.
fn past(image: &Image) -> (Vec<Cno>, Vec<Cno>) {
    let snapshots = image.snapshots();
    let all = volume(&image.bytes).checkpoints(Cno(1), usize::MAX).unwrap();
    let past = all.iter().map(|it| it.cno).filter(|cno| *cno < image.newest());
    (past.filter(|cno| !snapshots.contains(cno)).collect(), snapshots)
}

fn is_given_up(action: &str, cno: Cno) -> bool {
    action.starts_with(&format!("give up checkpoint {cno}, as nilfs checkpoints delete does: "))
}

/// Repairs volumes with these checkpoints broken, and demands that each is as it was or is given up, and that
/// all others are as they were. Returns how many were given up.
fn given_up(sound: &Image, broken: &[Cno]) -> usize {
    let expected = history(&sound.bytes);
    let image =
        broken.iter().fold(sound.clone(), |image, cno| with_files_of_the_newest(&image, *cno));
    let patient = Patient::new(image);
    let plan = patient.heal();
    let found = history(&patient.bytes());
    let mut losing = plan.repairs.iter().filter(|it| it.risk == Risk::Loses);
    let gone: Vec<_> = expected.keys().filter(|cno| !found.contains_key(cno)).collect();
    assert!(gone.iter().all(|cno| broken.contains(cno)), "{gone:?}");
    for cno in &gone {
        assert!(plan.repairs.iter().any(|it| is_given_up(&it.action, **cno)), "{:?}", plan.repairs);
    }
    assert!(losing.all(|it| gone.iter().any(|cno| is_given_up(&it.action, **cno))), "and no more");
    for (cno, files) in expected.iter().filter(|(cno, _)| found.contains_key(cno)) {
        assert!(found[cno] == *files, "checkpoint {cno}: {:?}", plan.repairs);
    }
    gone.len()
}

#[test]
fn what_nothing_puts_right_is_given_up_and_nothing_else() {
    let (mut one_by_one, mut together) = (0, 0);
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        let (past, _) = past(&sound);
        one_by_one += past.iter().map(|cno| given_up(&sound, &[*cno])).sum::<usize>();
        together += past.windows(2).map(|two| given_up(&sound, two)).sum::<usize>();
    }
    println!("{one_by_one} were given up one by one, {together} in pairs");
    assert!(one_by_one > 0 && together > 1);
}

#[test]
fn a_snapshot_stays_and_the_plan_says_how_to_give_it_up() {
    let mut kept = 0;
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        for cno in past(&sound).1 {
            let image = with_files_of_the_newest(&sound, cno);
            let plan = Patient::new(image).plan();
            assert!(!plan.repairs.iter().any(|it| is_given_up(&it.action, cno)), "{cno}");
            let advice = format!(
                "by nilfs snapshot delete DEVICE {cno} and nilfs checkpoints delete DEVICE {cno}"
            );
            kept += usize::from(plan.kept.iter().any(|it| it.why.ends_with(&advice)));
        }
    }
    assert!(kept > 0, "there is a snapshot with errors that stay");
}

/// How many errors a check finds in each checkpoint of the past.
fn errors_of_past(image: &Image) -> BTreeMap<Cno, usize> {
    let report = checked(&image.bytes).expect("it can be checked");
    let mut errors = BTreeMap::new();
    let past = report.errors().filter_map(|it| it.place.checkpoint);
    past.filter(|cno| *cno < report.newest).for_each(|cno| *errors.entry(cno).or_default() += 1);
    errors
}

/// The checkpoints of the past.
fn past_of(image: &Image) -> BTreeSet<Cno> {
    let (checkpoints, snapshots) = past(image);
    checkpoints.into_iter().chain(snapshots).collect()
}

/// A repair of checkpoints of the past.
struct Repaired {
    given_up: BTreeSet<Cno>,
    /// Checkpoints of which errors are left.
    left: BTreeSet<Cno>,
}

/// Repairs a volume, and demands that no checkpoint has got errors by that.
fn repaired(image: Image) -> Repaired {
    let (before, past) = (errors_of_past(&image), past_of(&image));
    let snapshots = image.snapshots();
    let patient = Patient::new(image);
    let plan = patient.plan();
    plan.apply(&*patient.device, &mut |_| {}).unwrap();
    let healed = Image::from(patient.bytes());
    let after = errors_of_past(&healed);
    for (cno, errors) in &after {
        let had = before.get(cno).copied().unwrap_or_default();
        assert!(
            *errors <= had,
            "checkpoint {cno}: {had} errors, then {errors}: {:?}",
            plan.repairs
        );
    }
    let left = past_of(&healed);
    assert!(snapshots.iter().all(|cno| left.contains(cno)), "{:?}", plan.repairs);
    let given_up = past.difference(&left).copied().collect();
    Repaired { given_up, left: after.into_keys().collect() }
}

/// The errors of a checkpoint would be found in a snapshot next to it, which has the same blocks. A plan by
/// which it went would be worse for the snapshot, and nothing else would be repaired either.
#[test]
fn a_checkpoint_whose_errors_stay_with_a_snapshot_is_kept_and_another_goes() {
    let mut kept = 0;
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        let (past, snapshots) = past(&sound);
        let (last, others) = past.split_last().expect("there is a past");
        for (cno, snapshot) in
            others.iter().flat_map(|cno| snapshots.iter().map(move |it| (cno, it)))
        {
            let broken = [*cno, *snapshot, *last];
            let broken = broken
                .iter()
                .fold(sound.clone(), |image, cno| with_files_of_the_newest(&image, *cno));
            let Repaired { given_up, left } = repaired(broken);
            assert!(given_up.contains(last), "{cno}, {snapshot} and {last}: {given_up:?}");
            kept += usize::from(left.contains(cno) && left.contains(snapshot));
        }
    }
    assert!(kept > 2, "{kept} were kept");
}

/// A volume on which more checkpoints are snapshots.
fn with_snapshots(sound: &Image, more: &[Cno]) -> Image {
    let device = Arc::new(MemoryDevice::from(sound.bytes.clone()));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    more.iter().for_each(|cno| fs.set_snapshot(*cno, true).unwrap());
    fs.unmount().unwrap();
    Image::from(device.snapshot())
}

/// Only so many checkpoints are tried, from the newest on, and no snapshot is one of them.
#[test]
fn broken_snapshots_keep_no_older_checkpoint_from_being_given_up() {
    let sound = Image::by_linux(1024);
    let (past, _) = past(&sound);
    let (older, snapshots) = past.split_at(past.len() - 8);
    let sound = with_snapshots(&sound, snapshots);
    let broken = [&older[1..2], snapshots].concat();
    let image = broken.iter().fold(sound, |image, cno| with_files_of_the_newest(&image, *cno));
    let Repaired { given_up, left } = repaired(image);
    assert_eq!(given_up, BTreeSet::from([older[1]]));
    assert!(snapshots.iter().all(|cno| left.contains(cno)), "{left:?}");
}

#[test]
fn a_damaged_file_costs_no_checkpoint() {
    let mut left = 0;
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        let inodes = Palloc::new(sound.geometry().block_size, 128);
        for ino in sound.names_in_root() {
            let slot = inodes.entry(ino.0);
            let place = slot.offset..slot.offset + 128;
            let mut versions = sound.blocks_of(Ino::IFILE);
            versions.retain(
                |it| matches!(it.info, BlockInfo::Data { offset, .. } if offset.0 == slot.block.0),
            );
            let newest = versions.pop().expect("the file has an inode");
            let inode = sound.block(newest.block)[place.clone()].to_vec();
            for version in versions {
                let mut image = sound.clone();
                image.edit(version, |block| block[place.clone()].copy_from_slice(&inode));
                if errors_of_past(&image).is_empty() {
                    continue;
                }
                let repaired = repaired(image);
                assert!(repaired.given_up.is_empty(), "inode {ino}: {:?}", repaired.given_up);
                left += usize::from(!repaired.left.is_empty());
            }
        }
    }
    assert!(left > 10, "errors were left {left} times");
}
