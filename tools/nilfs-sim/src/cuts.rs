//! Cuts the power and looks what is left: nothing but what the [`Crash`] rules allow, on a volume
//! that is whole and goes on working, however often the power fails again while it recovers.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use nilfs_device::{Device, Event, MemoryDevice};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::clock::ThreadClock;
use crate::faults::repair;
use crate::generate::Profile;
use crate::history::History;
use crate::medium::{Medium, medium};
use crate::model::Model;
use crate::op::Op;
use crate::oracle::Crash;
use crate::past::Past;
use crate::power::{Disk, Sector, Survivors};
use crate::subject::{ReadOnlySubject, Subject};
use crate::tree::Tree;
use crate::world::{Failure, Settings, World};

/// How many times in a row the power fails again while the volume is being mounted.
const CUTS_OF_RECOVERY: usize = 2;

/// When the power fails in a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// At the end, so that each life is as long as it can be.
    End,
    /// At any time, also while the volume recovers at the beginning.
    Any,
}

/// How volumes are treated whose power is cut.
#[derive(Debug, Clone, Copy)]
pub struct Cuts {
    /// The laws of the world in which it happens.
    pub settings: Settings,
    /// How many operations a volume must bear afterwards.
    pub ops_afterwards: usize,
}

impl Cuts {
    /// Cuts the power at every event of `history` after the first `from`, in several ways each.
    /// Returns how many states of the device were judged.
    ///
    /// # Errors
    /// Where a cut was made and what was wrong afterwards.
    pub fn everywhere(&self, history: &History, from: usize, seed: u64) -> Result<u64, String> {
        self.between(history, from..=history.events.len(), seed)
    }

    /// Cuts the power at every event of `history` in a range, in several ways each. Returns how many
    /// states of the device were judged.
    ///
    /// # Errors
    /// As [`Cuts::everywhere`].
    pub fn between(
        &self,
        history: &History,
        events: RangeInclusive<usize>,
        seed: u64,
    ) -> Result<u64, String> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut disk = Disk::new(history.start.clone());
        history.events[..*events.start()].iter().for_each(|event| disk.play(event));
        let mut judged = 0;
        for at in events {
            let ways = Sector::ALL.map(|sector| Survivors::Random(sector, random.random()));
            // Where little waits to be flushed, different ways come to the same.
            let mut seen = BTreeSet::new();
            for survivors in Survivors::CORNERS.into_iter().chain(ways) {
                let content = disk.after_cut(survivors);
                if seen.insert(content.clone()) {
                    self.cut(history, at, survivors, content, random.random())?;
                    judged += 1;
                }
            }
            if let Some(event) = history.events.get(at) {
                disk.play(event);
            }
        }
        Ok(judged)
    }

    /// Cuts the power at `count` random events of `history`, in one random way each. Returns how many
    /// that were.
    ///
    /// # Errors
    /// As [`Cuts::everywhere`].
    pub fn somewhere(&self, history: &History, count: usize, seed: u64) -> Result<u64, String> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut places: Vec<usize> =
            (0..count).map(|_| random.random_range(0..=history.events.len())).collect();
        places.sort_unstable();
        let mut disk = Disk::new(history.start.clone());
        let mut played = 0;
        for at in places {
            history.events[played..at].iter().for_each(|event| disk.play(event));
            played = at;
            let corner = random.random_range(0..10);
            let chance = Survivors::by_chance(&mut random);
            let survivors = Survivors::CORNERS.get(corner).copied().unwrap_or(chance);
            self.cut(history, at, survivors, disk.after_cut(survivors), random.random())?;
        }
        Ok(count as u64)
    }

    /// Cuts the power of a volume with this history `times` times in a row: each time it recovers and
    /// lives on for a few operations. Returns that number.
    ///
    /// # Errors
    /// As [`Cuts::everywhere`].
    pub fn in_a_row(
        &self,
        history: &History,
        times: u64,
        moment: Moment,
        seed: u64,
    ) -> Result<u64, String> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut history = history.clone();
        for nth in 1..=times {
            let at = match moment {
                Moment::End => history.events.len(),
                Moment::Any => random.random_range(0..=history.events.len()),
            };
            let mut disk = Disk::new(std::mem::take(&mut history.start));
            history.events[..at].iter().for_each(|event| disk.play(event));
            let survivors = Survivors::by_chance(&mut random);
            let content = disk.after_cut(survivors);
            let ops: Vec<Op> = history.steps.iter().filter_map(|step| step.op.clone()).collect();
            let in_words = |what: String| {
                let what = format!("power cut number {nth}, at event {at}, {survivors:?}: {what}");
                if nth == 1 { what } else { Failure { ops: ops.clone(), what }.to_string() }
            };
            let judged = self.judge(&history, at, &content).map_err(in_words)?;
            let (_, state, past) = judged;
            let mut world = World::on(self.settings, content, (state, past)).map_err(in_words)?;
            world
                .live(random.random(), Profile::SYNCS, self.ops_afterwards)
                .map_err(|failure| in_words(failure.to_string()))?;
            history = world.history().clone();
        }
        Ok(times)
    }

    /// What is on the device after a cut at the end of `history`, what that shows, and its past.
    ///
    /// # Errors
    /// It must not show that.
    pub fn left(
        &self,
        history: &History,
        survivors: Survivors,
    ) -> Result<(Vec<u8>, Model, Past), String> {
        ThreadClock::set(ThreadClock::at_step(history.steps.len() as u64));
        let mut disk = Disk::new(history.start.clone());
        history.events.iter().for_each(|event| disk.play(event));
        let content = disk.after_cut(survivors);
        let (_, state, past) = self.judge(history, history.events.len(), &content)?;
        Ok((content, state, past))
    }

    /// Judges what is on a device that has failed, after a cut at the end of `history`, and goes on
    /// there, with one that does not: fsck finds no error but that there have been some.
    ///
    /// # Errors
    /// What was wrong.
    pub fn reopen(&self, history: &History, survivors: Survivors, seed: u64) -> Result<(), String> {
        let reopened = self.left(history, survivors).and_then(|(content, state, past)| {
            let report =
                nilfs_check::check(&MemoryDevice::from(content.clone()), &Default::default());
            match report {
                Ok(report) if report.is_consistent() => {}
                Ok(report) => return Err(format!("the checker found {report}")),
                Err(error) => return Err(format!("the checker gives up: {error}")),
            }
            ThreadClock::set(ThreadClock::at_step(past.next_step()));
            self.go_on(repair(recovered(self.settings, content)?)?, (state, past), seed)
        });
        reopened.map_err(|what| format!("reopened with {survivors:?}: {what}"))
    }

    /// What a read-only mount shows after a cut, if it may show that, and the state and the past that
    /// it is an image of.
    fn judge(
        &self,
        history: &History,
        at: usize,
        content: &[u8],
    ) -> Result<(Tree, Model, Past), String> {
        let order = self.settings.mounting.order;
        let crash = Crash { steps: &history.steps, at, order };
        let found = look_without_writing(content)?;
        let state = crash.state(&found)?;
        Ok((found, state, crash.past(content)?))
    }

    /// Judges what `survivors` of a cut when `at` events had happened have left.
    fn cut(
        &self,
        history: &History,
        at: usize,
        survivors: Survivors,
        content: Vec<u8>,
        seed: u64,
    ) -> Result<(), String> {
        self.survive(history, at, content, seed).map_err(|what| {
            format!("power cut at event {at} of {}, {survivors:?}: {what}", history.events.len())
        })
    }

    fn survive(
        &self,
        history: &History,
        at: usize,
        content: Vec<u8>,
        seed: u64,
    ) -> Result<(), String> {
        ThreadClock::set(ThreadClock::at_step(history.steps.len() as u64));
        let (found, state, past) = self.judge(history, at, &content)?;
        fail_again(self.settings, &content, &found, seed)?;
        self.go_on(content, (state, past), seed)
    }

    /// Mounts and goes on living, to the end.
    fn go_on(&self, content: Vec<u8>, state: (Model, Past), seed: u64) -> Result<(), String> {
        let mut world = World::on(self.settings, content, state)
            .map_err(|what| format!("when mounted to be written: {what}"))?;
        world
            .live(seed, Profile::SYNCS, self.ops_afterwards)
            .map_err(|failure| format!("afterwards, {failure}"))?;
        world.end().map_err(|what| format!("afterwards: {what}"))?;
        Ok(())
    }
}

/// What a read-only mount shows. It must not change the device.
fn look_without_writing(content: &[u8]) -> Result<Tree, String> {
    let device = Arc::new(MemoryDevice::from(content.to_vec()));
    let below: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&device);
    let tree = ReadOnlySubject::mount(below, None)?.tree()?;
    if device.snapshot() != content {
        return Err("a read-only mount has written".into());
    }
    Ok(tree)
}

/// Cuts the power again in the middle of the mount that recovers, and in that of the next one: each
/// mount must show the same.
fn fail_again(settings: Settings, content: &[u8], found: &Tree, seed: u64) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut content, (_, mut events)) = (content.to_vec(), recover(settings, content)?);
    for nth in 1..=CUTS_OF_RECOVERY {
        let (at, count) = (random.random_range(0..=events.len()), events.len());
        let survivors = Survivors::by_chance(&mut random);
        let mut disk = Disk::new(content);
        events[..at].iter().for_each(|event| disk.play(event));
        content = disk.after_cut(survivors);
        let shown = look_without_writing(&content).and_then(|shown| {
            same(found, &shown)?;
            recover(settings, &content)
        });
        let again = shown.and_then(|(shown, events)| same(found, &shown).map(|()| events));
        events = again.map_err(|what| {
            format!("cut {nth} of the mount, at event {at} of {count}, {survivors:?}: {what}")
        })?;
    }
    Ok(())
}

/// Mounts a volume and unmounts it.
fn recovered(settings: Settings, content: Vec<u8>) -> Result<Vec<u8>, String> {
    let device = Arc::new(MemoryDevice::from(content));
    let below: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&device);
    Subject::mount(below, settings.mounting)?.unmount()?;
    Ok(device.snapshot())
}

/// Mounts a volume to be written. Returns what it shows, and what that has done to the device.
fn recover(settings: Settings, content: &[u8]) -> Result<(Tree, Vec<Event>), String> {
    let device = Arc::new(medium(content.to_vec()));
    let below: Arc<dyn Device> = Arc::<Medium>::clone(&device);
    let subject = Subject::mount(below, settings.mounting)?;
    let (shown, events) = (subject.tree()?, device.below().take_events());
    subject.refuses_no_segment(true)?;
    Ok((shown, events))
}

fn same(expected: &Tree, found: &Tree) -> Result<(), String> {
    match expected.difference(found) {
        Some(what) => Err(what),
        None => Ok(()),
    }
}
