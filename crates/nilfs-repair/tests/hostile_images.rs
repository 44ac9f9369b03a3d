//! Whatever a volume is made of, a plan ends, writes nothing, and says the truth: when it is applied, the
//! volume is as the plan says, not worse than before, and the next plan has nothing more to do.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use nilfs_check::{Checkpoints, Report};
use nilfs_repair::plan;
use rand::SeedableRng;
use rand::rngs::StdRng;
use support::{BLOCK_SIZES, Image, Patient, UUID, damage, number};

/// Damaged copies of each image; raise it with NILFS_REPAIR_ROUNDS to search for longer.
const ROUNDS: u64 = 25;

fn errors(report: &Report) -> usize {
    report.errors().count()
}

fn repair(image: Image) {
    let patient = Patient::new(image);
    let before = patient.bytes();
    let Ok(made) = plan(&patient.device, &nilfs_check::Options::default(), UUID) else { return };
    assert!(patient.bytes() == before, "a plan writes nothing");
    if !made.can_be_applied() {
        return;
    }
    made.apply(&*patient.device, &mut |_| {}).unwrap();
    let promised = made.after.as_ref().map(errors);
    let options = nilfs_check::Options {
        checkpoints: Checkpoints::All,
        findings_per_rule: 1 << 20,
        ..nilfs_check::Options::default()
    };
    let report = nilfs_check::check(&*patient.device, &options).unwrap();
    assert_eq!(promised, Some(errors(&report)), "{report}");
    if let Ok(found) = &made.before {
        assert!(errors(&report) <= errors(found), "{found}\nbecame\n{report}");
    }
}

#[test]
fn a_repair_does_what_its_plan_says_and_nothing_worse() {
    let first = number("NILFS_REPAIR_SEED", rand::random::<u32>().into());
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        for seed in first..first + number("NILFS_REPAIR_ROUNDS", ROUNDS) {
            let mut image = sound.clone();
            damage(&mut image, &mut StdRng::seed_from_u64(seed));
            let repaired = catch_unwind(AssertUnwindSafe(|| repair(image)));
            assert!(repaired.is_ok(), "block size {block_size}, NILFS_REPAIR_SEED={seed}");
        }
    }
}
