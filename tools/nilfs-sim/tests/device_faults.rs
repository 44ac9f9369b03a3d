//! When the device fails, the file system says so, writes nothing more, and goes on reading; what
//! was synced before is there when the device is well again.

use std::sync::Arc;

use nilfs_device::{Action, Device, Faults, FaultyDevice, MemoryDevice};
use nilfs_engine::Order;
use nilfs_sim::clock::ThreadClock;
use nilfs_sim::generate::{Generator, Profile};
use nilfs_sim::history::{Promise, Root, Step};
use nilfs_sim::model::Model;
use nilfs_sim::name::Path;
use nilfs_sim::op::{Op, Target};
use nilfs_sim::oracle::Crash;
use nilfs_sim::outcome::{Outcome, Refusal, difference};
use nilfs_sim::past::Past;
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::subject::{Mounting, Subject};
use nilfs_sim::volume::Shape;

/// A life without remounts, whose failures are the test's.
struct Life {
    device: Arc<FaultyDevice<MemoryDevice>>,
    faults: Arc<Faults>,
    subject: Subject,
    model: Model,
    generator: Generator,
    steps: Vec<Step>,
}

impl Life {
    fn new(seed: u64) -> Self {
        let content = Shape::SMALL.format();
        let (device, faults) = FaultyDevice::new(MemoryDevice::from(content));
        let device = Arc::new(device);
        let mut subject = mount(&device);
        let Outcome::Facts(root) = subject.apply(&Op::Stat(Target::Path(Path::root()))) else {
            panic!("the root of a new volume cannot be read");
        };
        let profile = Profile { remounts: 0, administration: 0, ..Profile::SYNCS };
        let mut life = Self {
            device,
            faults,
            subject,
            model: Model::new(Shape::SMALL.block_size, &root),
            generator: Generator::new(seed, profile),
            steps: Vec::new(),
        };
        life.record(Promise::Everything, None, true);
        life
    }

    /// Takes note of an operation, at the time 0. One that failed has not ended: what it wanted
    /// may have happened.
    fn record(&mut self, promise: Promise, op: Option<&Op>, done: bool) {
        let ended = if done { 0 } else { usize::MAX };
        let (state, past) = (self.model.clone(), Past::default());
        self.steps.push(Step { began: 0, ended, promise, state, past, op: op.cloned() });
    }

    /// Does a random operation; what the engine answered, and what it should have.
    fn step(&mut self) -> (Op, Outcome, Option<String>) {
        let op = self.generator.next_op(&self.model);
        let (found, wrong) = self.apply(&op);
        (op, found, wrong)
    }

    /// Does an operation. The model follows unless the device is to blame.
    fn apply(&mut self, op: &Op) -> (Outcome, Option<String>) {
        let now = ThreadClock::at_step(self.steps.len() as u64);
        ThreadClock::set(now);
        let found = self.subject.apply(op);
        if matches!(found, Outcome::Refused(Refusal::Device(_) | Refusal::ReadOnly)) {
            let wanted = self.promise_of(op, &Outcome::Done);
            self.record(wanted, Some(op), false);
            return (found, None);
        }
        let expected = self.model.apply(op, now);
        let wrong = difference(&expected, &found).map(|what| format!("{op}: {what}"));
        let promise = self.promise_of(op, &found);
        self.record(promise, Some(op), true);
        (found, wrong)
    }

    fn promise_of(&self, op: &Op, outcome: &Outcome) -> Promise {
        Promise::of(op, outcome, &self.model, Order::Relaxed, Root::Volume)
    }

    fn healthy(&mut self, count: usize) {
        for _ in 0..count {
            let (op, found, wrong) = self.step();
            assert_eq!(wrong, None);
            let failed = matches!(found, Outcome::Refused(Refusal::Device(_)));
            assert!(!failed, "{op}: {found}");
        }
    }

    fn look(&self) {
        let found = self.subject.tree().unwrap_or_else(|what| panic!("{what}"));
        assert_eq!(self.model.tree().difference(&found), None);
    }
}

fn mount(device: &Arc<FaultyDevice<MemoryDevice>>) -> Subject {
    let device: Arc<dyn Device> = Arc::<FaultyDevice<MemoryDevice>>::clone(device);
    Subject::mount(device, Mounting::READ_WRITE).unwrap_or_else(|what| panic!("{what}"))
}

#[test]
fn a_device_that_cannot_write_makes_the_volume_read_only() {
    for_each_seed("a_device_that_cannot_write_makes_the_volume_read_only", 40, |seed| {
        let mut life = Life::new(seed);
        life.healthy(80);
        life.faults.fail([Action::Write, Action::Flush][seed as usize % 2]);
        for _ in 0..60 {
            let (_, _, wrong) = life.step();
            assert_eq!(wrong, None);
        }
        // Always possible, so that there is something to write.
        life.apply(&Op::SetFlags { target: Target::Path(Path::root()), flags: 0 });
        let (synced, _) = life.apply(&Op::Sync);
        let refused = matches!(synced, Outcome::Refused(Refusal::Device(_) | Refusal::ReadOnly));
        assert!(refused, "a sync that cannot write answered {synced}");
        assert!(life.subject.is_read_only());
        life.look();
        let Life { device, faults, subject, steps, .. } = life;
        // It cannot succeed, but must end.
        let _ = subject.unmount();
        faults.clear();
        let again = mount(&device);
        let found = again.tree().unwrap_or_else(|what| panic!("{what}"));
        let crash = Crash { steps: &steps, at: 1, order: Order::Relaxed };
        crash.state(&found).unwrap_or_else(|what| panic!("{what}"));
        again.unmount().unwrap_or_else(|what| panic!("{what}"));
        // The superblock remembers that there were errors; all else must be in order.
        let report = nilfs_check::check(&*device, &nilfs_check::Options::default());
        let report = report.unwrap_or_else(|error| panic!("{error}"));
        assert!(report.is_consistent(), "{report}");
    });
}

#[test]
fn an_operation_that_cannot_read_changes_no_names() {
    for_each_seed("an_operation_that_cannot_read_changes_no_names", 40, |seed| {
        let mut life = Life::new(seed);
        life.healthy(120);
        for round in 0..60 {
            if round % 10 == 0 {
                // With nothing in memory, every operation has to read.
                life.model.close_all();
                let Life { device, subject, .. } = life;
                subject.unmount().unwrap_or_else(|what| panic!("{what}"));
                life = Life { subject: mount(&device), device, ..life };
            }
            life.faults.fail(Action::Read);
            let op = life.generator.next_op(&life.model);
            let commits = matches!(op, Op::Sync | Op::Commit | Op::Fsync(_) | Op::Fdatasync(_));
            let (found, wrong) = if commits { (Outcome::Done, None) } else { life.apply(&op) };
            life.faults.clear();
            assert_eq!(wrong, None);
            // Data may have been changed in part: doing it again makes that whole.
            let failed = matches!(found, Outcome::Refused(Refusal::Device(_)));
            let wrong = match op {
                Op::Write { .. } | Op::SetAttr { .. } if failed => life.apply(&op).1,
                _ => None,
            };
            assert_eq!(wrong, None);
            life.look();
        }
    });
}
