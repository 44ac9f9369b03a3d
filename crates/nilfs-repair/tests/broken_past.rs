//! A checkpoint of the past that nothing puts right. A thousand lines said that each of its errors stays,
//! though all of them ended when the checkpoint was deleted: it is given up as a whole, and the plan says
//! so. A snapshot is not, and nothing else is other than it was.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::Volume;
use nilfs_ondisk::Cno;
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Content, Image, Patient, content_of};

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
