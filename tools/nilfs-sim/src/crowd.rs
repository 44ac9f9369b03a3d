//! Several threads at once: each in a directory of its own with a model of its own, or all in the
//! same tree, while the engine's background work takes checkpoints at any time.
//!
//! Which events a checkpoint catches is then a matter of chance, so that a seed stands for the same
//! operations but not for the same history, unless it decides how threads interleave as well
//! (`interleaving.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nilfs_device::{Device, Event, MemoryDevice};
use nilfs_ondisk::Cno;
use nilfs_ondisk::inode::{DeviceCode, FileType};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::clock::ThreadClock;
use crate::generate::{Generator, Profile};
use crate::history::{Promise, Root, Step};
use crate::medium::{Medium, medium};
use crate::model::Model;
use crate::name::{Name, Path};
use crate::op::{Op, Target};
use crate::oracle::Crash;
use crate::outcome::{Outcome, Refusal, difference};
use crate::past::Past;
use crate::power::{Disk, Survivors};
use crate::subject::{ReadOnlySubject, Subject};
use crate::threads::thread;
use crate::volume::check;
use crate::world::Settings;

/// Rounds of cleaning from one snapshot to the next.
const SNAPSHOT_EVERY: usize = 4;
/// How many snapshots are kept.
const SNAPSHOTS: usize = 5;

/// Bytes that are written at a time to fill a volume.
const FILLING: u64 = 20_000;

/// After as many operations a thread goes back to some checkpoint.
const ROLL_BACK_EVERY: u64 = 7;

/// The device's record, gathered by all threads.
struct Tape {
    device: Arc<Medium>,
    events: Mutex<Vec<Event>>,
}

impl Tape {
    /// How many events there have been.
    fn now(&self) -> usize {
        let mut events = self.events.lock();
        events.extend(self.device.below().take_events());
        events.len()
    }
}

/// A thread's directory and what happened in it.
struct Life {
    name: Name,
    subject: Subject,
    model: Model,
    steps: Vec<Step>,
    /// The last step was refused, because the volume cannot be written any more.
    refused: bool,
}

/// Lets `threads` threads live `count` operations each, compares, cuts the power `cuts` times in
/// retrospect, and compares again. Returns what was done to the device.
///
/// # Errors
/// What was wrong.
pub fn crowd(
    settings: Settings,
    seed: u64,
    threads: u16,
    count: usize,
    cuts: usize,
) -> Result<Vec<Event>, String> {
    let start = settings.shape.format();
    let device = Arc::new(medium(start.clone()));
    let tape = Tape { device: Arc::clone(&device), events: Mutex::default() };
    let how = settings.mounting;
    let below: Arc<dyn Device> = Arc::<Medium>::clone(&device);
    let mut root = Subject::mount(Arc::clone(&below), how)?;
    let background = root.start_background();
    let mut lives = Vec::new();
    for nth in 0..threads {
        lives.push(born(settings, &mut root, Name(nth), &tape)?);
    }
    let (lives, snapshots) =
        beside_cleaning(&root, || live_together(settings, lives, seed, count, &tape))?;
    for life in &lives {
        if life.refused {
            return Err(format!("in {}: the volume has become read-only", life.name));
        }
        life.look(&life.subject)?;
    }
    tape.now();
    drop(background);
    let steps: Vec<(Name, Vec<Step>, Model)> =
        lives.into_iter().map(|life| (life.name, life.steps, life.model)).collect();
    root.unmount()?;
    check(&*device)?;
    for cno in snapshots {
        let past = ReadOnlySubject::mount(Arc::clone(&below), Some(cno))?;
        for (name, steps, _) in &steps {
            let found = past.below(*name)?.tree()?;
            if !steps.iter().any(|step| step.state.tree().difference(&found).is_none()) {
                return Err(format!("snapshot {cno} shows what was never in {name}"));
            }
        }
    }
    let again = Subject::mount(below, how)?;
    for (name, _, model) in &steps {
        let mut expected = model.clone();
        expected.close_all();
        let found = again.below(*name)?.tree()?;
        if let Some(what) = expected.tree().difference(&found) {
            return Err(format!("after remounting, in {name}: {what}"));
        }
    }
    let events = tape.events.into_inner();
    cut_in_retrospect(settings, start, &events, &steps, seed, cuts)?;
    Ok(events)
}

/// Unmounts the volume at a moment that `seed` chooses, while `threads` threads live `count`
/// operations each. What they did before must be there, and nothing may be written afterwards.
///
/// # Errors
/// What was wrong.
pub fn farewell(settings: Settings, seed: u64, threads: u16, count: usize) -> Result<(), String> {
    let device = Arc::new(medium(settings.shape.format()));
    let tape = Tape { device: Arc::clone(&device), events: Mutex::default() };
    let below: Arc<dyn Device> = Arc::<Medium>::clone(&device);
    let mut root = Subject::mount(Arc::clone(&below), settings.mounting)?;
    let background = root.start_background();
    let mut lives = Vec::new();
    for nth in 0..threads {
        lives.push(born(settings, &mut root, Name(nth), &tape)?);
    }
    let moment = tape.now() + StdRng::seed_from_u64(seed).random_range(0..count);
    let lives: Vec<Life> = thread::scope(|scope| {
        let tape = &tape;
        let running: Vec<_> = lives
            .into_iter()
            .map(|life| scope.spawn(move || life.live(settings, seed, count, tape)))
            .collect();
        while tape.now() < moment && !running.iter().all(|life| life.is_finished()) {
            thread::yield_now();
        }
        root.unmount()?;
        let written = tape.now();
        let lives: Result<_, String> = running.into_iter().map(joined).collect();
        drop(background);
        match tape.now() - written {
            0 => lives,
            _ => Err(format!(
                "after unmounting, this was done to the device: {}",
                describe(&tape.events.lock()[written..])
            )),
        }
    })?;
    check(&*device)?;
    let end = tape.now();
    let again = Subject::mount(below, settings.mounting)?;
    for Life { name, mut steps, refused, .. } in lives {
        // What was refused may have been done a moment before the end.
        let last = steps.len() - 1 - usize::from(refused);
        steps[last].promise = Promise::Everything;
        let found = again.below(name)?.tree()?;
        let crash = Crash { steps: &steps, at: end, order: settings.mounting.order };
        crash.state(&found).map_err(|what| format!("in {name}: {what}"))?;
    }
    Ok(())
}

/// Lets `threads` threads do `count` random operations of a profile each, all in the same tree, which
/// fills the volume at the start if it may; with `rollbacks`, each goes back to some checkpoint now and
/// then. Nobody can say what each of them should answer, but
/// nothing may break, and in the end the tree must be consistent and must be the same after a remount.
///
/// # Errors
/// What was wrong.
pub fn riot(
    settings: Settings,
    profile: Profile,
    seed: u64,
    threads: u64,
    count: usize,
    rollbacks: bool,
) -> Result<(), String> {
    let device = Arc::new(MemoryDevice::from(settings.shape.format()));
    let below: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&device);
    let mut root = Subject::mount(Arc::clone(&below), settings.mounting)?;
    let background = root.start_background();
    let Outcome::Facts(facts) = root.apply(&Op::Stat(Target::Path(Path::root()))) else {
        return Err("the root of a new volume cannot be read".into());
    };
    let model = Model::new(settings.shape.block_size, &facts);
    if settings.may_fill {
        fill(&mut root)?;
    }
    beside_cleaning(&root, || {
        thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|nth| {
                    let (subject, model) = (root.another(), model.clone());
                    let seed = seed ^ nth << 32;
                    scope.spawn(move || rage(subject, model, profile, seed, count, rollbacks))
                })
                .collect();
            running.into_iter().try_for_each(joined)
        })
    })?;
    let before = root.another().tree()?;
    drop(background);
    root.unmount()?;
    check(&*device)?;
    let after = Subject::mount(below, settings.mounting)?.tree()?;
    match before.difference(&after) {
        Some(what) => Err(format!("after remounting: {what}")),
        None => Ok(()),
    }
}

/// Leaves no room for anything that grows.
fn fill(root: &mut Subject) -> Result<(), String> {
    let path = Path::root().join(Name(0));
    let (kind, rdev) = (FileType::Regular, DeviceCode::default());
    root.apply(&Op::Create { path: path.clone(), kind, mode: 0o644, rdev });
    for nth in 0.. {
        let (target, offset) = (Target::Path(path.clone()), nth * FILLING);
        let written = root.apply(&Op::Write { target, offset, length: FILLING, fill: 1 });
        match written {
            Outcome::Done => {}
            Outcome::Refused(Refusal::NoSpace) => break,
            other => return Err(format!("filling the volume: {other}")),
        }
    }
    Ok(())
}

fn rage(
    mut subject: Subject,
    mut model: Model,
    profile: Profile,
    seed: u64,
    count: usize,
    rollbacks: bool,
) -> Result<(), String> {
    let profile = Profile { remounts: 0, administration: 0, ..profile };
    let mut generator = Generator::new(seed, profile);
    for nth in 1..=count {
        let now = ThreadClock::at_step(nth as u64);
        ThreadClock::set(now);
        // The model knows nothing of the other threads; it only proposes what to do.
        let op = generator.next_op(&model);
        model.apply(&op, now);
        if let Outcome::Refused(Refusal::Broken(what)) = subject.apply(&op) {
            return Err(format!("step {nth}, {op}: {what}"));
        }
        if rollbacks && (nth as u64 + seed).is_multiple_of(ROLL_BACK_EVERY) {
            let to = Cno(1 + seed % subject.newest().0);
            if let (Outcome::Refused(Refusal::Broken(what)), _) = subject.roll_back(to) {
                return Err(format!("step {nth}, roll back to checkpoint {to}: {what}"));
            }
        }
    }
    Ok(())
}

/// Two threads clean the volume all the time while `work` is done, and make a snapshot now and then,
/// some of which they give up again. Returns the snapshots that are left.
fn beside_cleaning<T>(
    root: &Subject,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<(T, Vec<Cno>), String> {
    let done = AtomicBool::new(false);
    let clean = || {
        let mut snapshots = Vec::new();
        for round in 0_usize.. {
            if done.load(Ordering::Relaxed) {
                break;
            }
            thread::yield_now();
            root.clean()?;
            if round % SNAPSHOT_EVERY == 0 {
                snapshots.extend(root.take_snapshot()?);
            }
            if snapshots.len() > SNAPSHOTS {
                root.give_up_snapshot(snapshots.remove(round % SNAPSHOTS))?;
            }
        }
        Ok(snapshots)
    };
    thread::scope(|scope| {
        let cleaning = [scope.spawn(clean), scope.spawn(clean)];
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let mut snapshots = Vec::new();
        for cleaning in cleaning {
            snapshots.extend(joined(cleaning)?);
        }
        Ok((worked?, snapshots))
    })
}

/// The kinds of events, with where they are.
fn describe(events: &[Event]) -> String {
    let described = events.iter().map(|event| match event {
        Event::Write { offset, bytes } => format!("{} bytes written at {offset}", bytes.len()),
        Event::Flush => "a flush".into(),
        Event::Discard { offset, bytes } => format!("{bytes} bytes discarded at {offset}"),
        Event::Resize { bytes } => format!("resized to {bytes} bytes"),
    });
    described.collect::<Vec<_>>().join(", ")
}

fn joined<T>(running: thread::ScopedJoinHandle<'_, Result<T, String>>) -> Result<T, String> {
    running.join().unwrap_or_else(|_| Err("a thread panicked".into()))
}

fn born(settings: Settings, root: &mut Subject, name: Name, tape: &Tape) -> Result<Life, String> {
    ThreadClock::set(ThreadClock::at_step(0));
    let path = Path::root().join(name);
    let made = root.apply(&Op::Create {
        path,
        kind: FileType::Directory,
        mode: 0o755,
        rdev: DeviceCode::default(),
    });
    let Outcome::Facts(facts) = made else {
        return Err(format!("making the directory {name}: {made}"));
    };
    let synced = root.apply(&Op::Sync);
    if synced != Outcome::Done {
        return Err(format!("syncing the directory {name}: {synced}"));
    }
    let model = Model::new(settings.shape.block_size, &facts);
    let now = tape.now();
    let step = Step {
        began: 0,
        ended: now,
        promise: Promise::Everything,
        state: model.clone(),
        past: Past::default(),
        op: None,
    };
    Ok(Life { name, subject: root.below(name)?, model, steps: vec![step], refused: false })
}

fn live_together(
    settings: Settings,
    lives: Vec<Life>,
    seed: u64,
    count: usize,
    tape: &Tape,
) -> Result<Vec<Life>, String> {
    thread::scope(|scope| {
        let running: Vec<_> = lives
            .into_iter()
            .map(|life| scope.spawn(move || life.live(settings, seed, count, tape)))
            .collect();
        running.into_iter().map(joined).collect()
    })
}

impl Life {
    fn live(
        mut self,
        settings: Settings,
        seed: u64,
        count: usize,
        tape: &Tape,
    ) -> Result<Self, String> {
        let profile = Profile { remounts: 0, administration: 0, ..Profile::SYNCS };
        let mut generator = Generator::new(seed ^ u64::from(self.name.0) << 32, profile);
        for nth in 1..=count {
            let op = generator.next_op(&self.model);
            let now = ThreadClock::at_step(nth as u64);
            ThreadClock::set(now);
            let began = tape.now();
            let found = self.subject.apply(&op);
            let ended = tape.now();
            let expected = self.model.apply(&op, now);
            self.refused = found == Outcome::Refused(Refusal::ReadOnly);
            if !self.refused
                && let Some(what) = difference(&expected, &found)
            {
                return Err(format!("in {}, step {nth}, {op}: {what}", self.name));
            }
            let order = settings.mounting.order;
            let step = Step {
                began,
                ended,
                promise: Promise::of(&op, &found, &self.model, order, Root::Directory),
                state: self.model.clone(),
                past: Past::default(),
                op: Some(op),
            };
            self.steps.push(step);
            if self.refused {
                break;
            }
        }
        Ok(self)
    }

    fn look(&self, subject: &Subject) -> Result<(), String> {
        match self.model.tree().difference(&subject.tree()?) {
            Some(what) => Err(format!("in {}: {what}", self.name)),
            None => Ok(()),
        }
    }
}

fn cut_in_retrospect(
    settings: Settings,
    start: Vec<u8>,
    events: &[Event],
    lives: &[(Name, Vec<Step>, Model)],
    seed: u64,
    cuts: usize,
) -> Result<(), String> {
    let born = lives.iter().map(|(_, steps, _)| steps[0].ended).max().unwrap_or(0);
    let mut random = StdRng::seed_from_u64(seed);
    let mut places: Vec<usize> =
        (0..cuts).map(|_| random.random_range(born..=events.len())).collect();
    places.sort_unstable();
    let mut disk = Disk::new(start);
    let mut played = 0;
    for at in places {
        events[played..at].iter().for_each(|event| disk.play(event));
        played = at;
        let survivors = Survivors::by_chance(&mut random);
        let content = disk.after_cut(survivors);
        let device = Arc::new(MemoryDevice::from(content));
        let how = settings.mounting;
        let below: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&device);
        let root = Subject::mount(below, how)?;
        for (name, steps, _) in lives {
            let found = root.below(*name)?.tree()?;
            let crash = Crash { steps, at, order: how.order };
            crash.state(&found).map_err(|what| {
                let of = events.len();
                format!("power cut at event {at} of {of}, {survivors:?}, in {name}: {what}")
            })?;
        }
        root.unmount()?;
        check(&*device)
            .map_err(|what| format!("power cut at event {at}, {survivors:?}: {what}"))?;
    }
    Ok(())
}
