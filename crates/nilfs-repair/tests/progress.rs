//! Whoever waits for a plan is told how far each step is, not only the first check.

mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use nilfs_check::Options;
use nilfs_repair::{Observer, Settings, Task, plan_observed};
use support::{Patient, UUID, damaged};

#[test]
fn checks_of_a_repair_scans_and_moves_tell_how_far_they_are() {
    for (name, image) in damaged() {
        let patient = Patient::new(image);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&seen);
        let observer = Observer::new(move |task, done, all| {
            assert!(done <= all, "{task:?}: {done} of {all}");
            note.lock().unwrap().push(task);
        });
        let settings = Settings { uuid: UUID, accept: false, in_view: false };
        let plan =
            plan_observed(&patient.device, &Options::default(), settings, &observer).expect(name);
        assert!(plan.can_be_applied(), "{name}");
        let seen = seen.lock().unwrap();
        let rounds: BTreeSet<u32> = seen
            .iter()
            .filter_map(|task| match task {
                Task::Check { round, .. } => Some(*round),
                _ => None,
            })
            .collect();
        assert!(rounds.iter().any(|round| *round > 0), "{name}: {rounds:?}");
        if ["maps", "names", "newest checkpoint"].contains(&name) {
            assert!(seen.contains(&Task::Move), "{name}");
        }
        if ["maps", "no superblocks", "cursor"].contains(&name) {
            assert!(seen.contains(&Task::Scan), "{name}");
        }
    }
}
