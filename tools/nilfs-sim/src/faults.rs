//! Requests to the device that fail, one after the other: what a small workload survives at each of
//! them.
//!
//! A workload is lived once without faults, which counts its requests, and then once for each fault.
//! An operation that fails has not ended: what it wanted may be found afterwards, or not. Everything
//! else is judged as after a power cut, with all that was written and with only what was flushed.
//!
//! A read that succeeds with other bytes than were written is another matter: blocks have no checksums
//! that a reader could compare, so what was read wrongly may be shown, and written back. All that
//! is promised then is that nobody panics or goes on for ever: neither the file system, nor the checker
//! and fsck afterwards, nor the next mount.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nilfs_check::Options;
use nilfs_device::{Action, Device, Fault, MemoryDevice, Request};
use nilfs_repair::plan;

use crate::clock::ThreadClock;
use crate::cuts::Cuts;
use crate::generate::Profile;
use crate::history::History;
use crate::medium::{content, medium};
use crate::model::Model;
use crate::op::Op;
use crate::outcome::{Outcome, Refusal};
use crate::past::Past;
use crate::power::Survivors;
use crate::subject::Subject;
use crate::volume::check;
use crate::world::{Exposure, Failure, Settings, World};

/// The actions that can fail; a discard is only advice.
pub const ACTIONS: [Action; 3] = [Action::Read, Action::Write, Action::Flush];

/// The identity that a volume gets if its own is lost.
const UUID: [u8; 16] = *b"a repaired disk.";

/// Operations of a workload by chance, before its device fails and while it does.
const OPS_BEFORE: usize = 60;
const OPS: usize = 25;

/// How a device misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misbehaviour {
    /// What it does wrong with which kind of request…
    pub action: Action,
    /// …the first of them having this number, counted from 0…
    pub nth: u64,
    /// …and how.
    pub fault: Fault,
    /// Whether it is gone from then on, so that every request fails.
    pub gone: bool,
}

impl Misbehaviour {
    /// The rule of a device that does so; `has_begun` becomes true at the first fault.
    pub fn rule(
        self,
        has_begun: Arc<AtomicBool>,
    ) -> impl FnMut(&Request) -> Option<Fault> + Send + 'static {
        let mut seen = 0;
        move |request| {
            if has_begun.load(Ordering::Relaxed) {
                return self.gone.then_some(Fault::Error);
            }
            seen += u64::from(request.action == self.action);
            if seen <= self.nth {
                return None;
            }
            has_begun.store(true, Ordering::Relaxed);
            Some(self.fault)
        }
    }
}

/// What is done to a volume, from mounting to unmounting it.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The laws of its world.
    pub settings: Settings,
    /// What has happened before.
    pub before: Vec<Op>,
    /// Whether the power was cut then, so that a mount has to recover.
    pub crashed: bool,
    /// What is done while the device fails.
    pub ops: Vec<Op>,
}

/// A [`Workload`] that was lived without faults.
pub struct Rehearsed {
    settings: Settings,
    ops: Vec<Op>,
    /// What the device held before, what that shows, and its past.
    start: (Vec<u8>, Model, Past),
    healthy: Arc<History>,
    /// The requests of each of [`ACTIONS`].
    requests: [u64; ACTIONS.len()],
}

impl Workload {
    /// Some operations of all kinds, after others, as chance wills.
    ///
    /// # Errors
    /// What went wrong, although nothing failed.
    pub fn by_chance(settings: Settings, seed: u64) -> Result<Self, String> {
        let in_words = |failure: Failure| failure.to_string();
        let profile = Profile { remounts: 0, ..Profile::TURMOIL };
        let mut world = World::new(settings)?;
        world.live(seed, profile, OPS_BEFORE).map_err(in_words)?;
        let before = world.ops().to_vec();
        world.live(!seed, profile, OPS).map_err(in_words)?;
        let ops = world.ops()[before.len()..].to_vec();
        Ok(Self { settings, before, crashed: seed.is_multiple_of(2), ops })
    }

    /// Lives it without faults.
    ///
    /// # Errors
    /// What went wrong nevertheless.
    pub fn rehearse(&self) -> Result<Rehearsed, String> {
        let world = World::replay(self.settings, &self.before)?;
        let history = if self.crashed { world.history().clone() } else { world.end()? };
        Rehearsed::new(self.settings, &history, self.ops.clone())
    }
}

impl Rehearsed {
    /// Does `ops` on a volume with this history, without faults.
    ///
    /// # Errors
    /// What went wrong nevertheless.
    pub fn new(settings: Settings, before: &History, ops: Vec<Op>) -> Result<Self, String> {
        let start = Cuts { settings, ops_afterwards: 0 }.left(before, Survivors::All)?;
        let mut rehearsed =
            Self { settings, ops, start, healthy: Arc::default(), requests: [0; ACTIONS.len()] };
        let counts: [Arc<AtomicU64>; ACTIONS.len()] = Default::default();
        let seen = counts.clone();
        let count = move |request: &Request| {
            let nth = ACTIONS.iter().position(|action| *action == request.action)?;
            seen[nth].fetch_add(1, Ordering::Relaxed);
            None
        };
        let (failed, history) = rehearsed.live(Box::new(count))?;
        if let Some(what) = failed {
            return Err(format!("without faults: {what}"));
        }
        rehearsed.healthy = Arc::new(history);
        rehearsed.requests = counts.map(|count| count.load(Ordering::Relaxed));
        Ok(rehearsed)
    }

    /// The number of its requests, for each of [`ACTIONS`].
    #[must_use]
    pub fn requests(&self) -> [u64; ACTIONS.len()] {
        self.requests
    }

    /// Every request fails: once, halfway, or the device is gone from then on.
    #[must_use]
    pub fn failures(&self) -> Vec<Misbehaviour> {
        let mut all = Vec::new();
        for (action, count) in ACTIONS.into_iter().zip(self.requests) {
            for nth in 0..count {
                let once = Misbehaviour { action, nth, fault: Fault::Error, gone: false };
                all.extend([once, Misbehaviour { gone: true, ..once }]);
                if action == Action::Write {
                    all.push(Misbehaviour { fault: Fault::Partial, ..once });
                }
            }
        }
        all
    }

    /// Every read returns garbage: zeros, and what follows from `seed`.
    #[must_use]
    pub fn lies(&self, seed: u64) -> Vec<Misbehaviour> {
        let lie = |nth, seed| {
            let (action, fault) = (Action::Read, Fault::Garbage(seed));
            Misbehaviour { action, nth, fault, gone: false }
        };
        (0..self.requests[0]).flat_map(|nth| [lie(nth, 0), lie(nth, seed | 1)]).collect()
    }

    /// Lives it on a device that fails, and looks at what is left. Returns how many states of the
    /// device were judged.
    ///
    /// # Errors
    /// What was wrong.
    pub fn fail(&self, how: Misbehaviour) -> Result<u64, String> {
        self.try_to_fail(how).map_err(|what| format!("{how:?}: {what}"))
    }

    fn try_to_fail(&self, how: Misbehaviour) -> Result<u64, String> {
        let has_begun = Arc::new(AtomicBool::new(false));
        let (failed, history) = self.live(Box::new(how.rule(Arc::clone(&has_begun))))?;
        let has_begun = has_begun.load(Ordering::Relaxed);
        match failed {
            Some(what) if !has_begun => return Err(format!("nothing has failed, but {what}")),
            // What cannot be read may not have been needed: there are two superblocks, for instance.
            None if has_begun && how.action != Action::Read => return Err("nobody was told".into()),
            _ => {}
        }
        let cuts = Cuts { settings: self.settings, ops_afterwards: 2 };
        let ways = [Survivors::All, Survivors::None];
        for survivors in ways {
            cuts.reopen(&history, survivors, how.nth)?;
        }
        Ok(ways.len() as u64)
    }

    /// Lives it on a device with faults. Returns what failed first, and what has happened.
    fn live(&self, rule: Exposure) -> Result<(Option<String>, History), String> {
        let (content, model, past) = self.start.clone();
        let state = (model, past);
        let mut world =
            World::exposed(self.settings, content, state, rule, Arc::clone(&self.healthy))?;
        for op in &self.ops {
            if world.is_mounted() {
                world.step(op)?;
            }
        }
        world.leave()
    }

    /// Lives it on a device that lies, and has what is left repaired. Returns what fsck made of it.
    ///
    /// # Errors
    /// Somebody panicked.
    pub fn lie(&self, how: Misbehaviour) -> Result<Left, String> {
        self.try_to_lie(how).map_err(|what| format!("{how:?}: {what}"))
    }

    fn try_to_lie(&self, how: Misbehaviour) -> Result<Left, String> {
        let device = Arc::new(medium(self.start.0.clone()));
        let first = self.start.2.next_step();
        device.faults().set(how.rule(Arc::default()));
        ThreadClock::set(ThreadClock::at_step(first));
        let below: Arc<dyn Device> = device.clone();
        match Subject::mount(below, self.settings.mounting) {
            Err(what) => no_panic(&what)?,
            Ok(mut subject) => {
                for (nth, op) in self.ops.iter().enumerate() {
                    ThreadClock::set(ThreadClock::at_step(first + 1 + nth as u64));
                    no_panic(&format!("{op}: {}", misled(&mut subject, op)))?;
                }
                no_panic(&subject.unmount().err().unwrap_or_default())?;
            }
        }
        let content = content(&device);
        let repaired = guarded(|| repair(content.clone()));
        let left = match &repaired {
            Ok(repaired) if *repaired == content => Left::Sound,
            Ok(_) => Left::Repaired,
            Err(what) => {
                no_panic(what)?;
                Left::Damaged
            }
        };
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(repaired.unwrap_or(content)));
        match (Subject::mount(device, self.settings.mounting), left) {
            (Ok(subject), _) => {
                no_panic(&subject.tree().err().unwrap_or_default())?;
                no_panic(&subject.unmount().err().unwrap_or_default())?;
            }
            (Err(what), Left::Damaged) => no_panic(&what)?,
            (Err(what), _) => return Err(format!("after fsck: {what}")),
        }
        Ok(left)
    }
}

/// What fsck makes of a volume on a device that has lied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// There is nothing wrong.
    Sound,
    /// There is nothing wrong any more.
    Repaired,
    /// It says what is wrong, and cannot change all of it.
    Damaged,
}

/// Makes words of a panic.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("fsck panicked".into()))
}

/// Does an operation that may see anything.
fn misled(subject: &mut Subject, op: &Op) -> Outcome {
    match op {
        Op::RollBack { nth } => match subject.checkpoints() {
            Ok(listed) => {
                let nth = usize::from(*nth) % listed.len().max(1);
                listed.get(nth).map_or(Outcome::Done, |it| subject.roll_back(it.cno).0)
            }
            Err(what) => Outcome::Refused(Refusal::Broken(what)),
        },
        op => subject.apply(op),
    }
}

fn no_panic(what: &str) -> Result<(), String> {
    if what.contains("panicked") { Err(what.into()) } else { Ok(()) }
}

/// Has fsck make a sound volume of what is on a device, if it is none.
///
/// # Errors
/// It cannot.
pub fn repair(content: Vec<u8>) -> Result<Vec<u8>, String> {
    let memory = Arc::new(MemoryDevice::from(content));
    let device: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&memory);
    let plan =
        plan(&device, &Options::default(), UUID).map_err(|error| format!("fsck: {error}"))?;
    if let Some(obstacle) = &plan.obstacle {
        return Err(format!("fsck: {obstacle}; {:?}", plan.repairs));
    }
    plan.apply(&*device, &mut |_| {}).map_err(|error| format!("fsck: {error}"))?;
    check(&*device).map_err(|what| format!("after fsck, {what}"))?;
    Ok(memory.snapshot())
}
