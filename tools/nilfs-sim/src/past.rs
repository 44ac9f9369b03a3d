//! The past as a world knows it: which checkpoints there must be, which there may be, and what each
//! of them shows. Whatever is cleaned, nobody may ever see anything else.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_ondisk::Cno;

use crate::clock::EPOCH;
use crate::model::Model;
use crate::op::{Listed, Op, is_of_rule};
use crate::outcome::Outcome;
use crate::subject::{ReadOnlySubject, list};

/// The checkpoints of a volume.
#[derive(Debug, Clone, Default)]
pub struct Past {
    newest: Cno,
    checkpoints: BTreeMap<Cno, Checkpoint>,
    /// Until when something has happened, in seconds: logs of fsyncs, too, have the times at which they
    /// were written.
    lived: u64,
}

/// What is known of a checkpoint.
#[derive(Debug, Clone)]
struct Checkpoint {
    /// It shows one of these: the state before an operation or that after it.
    states: Arc<Vec<Model>>,
    /// When it was made, in seconds.
    time: u64,
    snapshot: bool,
    /// The cleaner was free to give it up.
    given_up: bool,
}

impl Checkpoint {
    /// Whether it has to be there.
    fn must_exist(&self) -> bool {
        self.snapshot || !self.given_up
    }
}

/// How many of the checkpoints are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thoroughness {
    /// All.
    All,
    /// The snapshots, and some of the others, at equal distances.
    Some {
        /// Where to start.
        from: usize,
        /// How many to go on by.
        step: usize,
    },
}

impl Past {
    /// The past of a volume of which nothing is known but that all its checkpoints show `state`.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn of(content: Vec<u8>, state: &Model, time: u64) -> Result<Self, String> {
        let mut past = Self::default();
        let listed = list(&(Arc::new(MemoryDevice::from(content)) as Arc<dyn Device>))?;
        let newest = listed.last().map_or(Cno(0), |it| it.cno);
        past.add(newest, &[state], time, false);
        Ok(past)
    }

    /// The newest checkpoint that is known.
    #[must_use]
    pub fn newest(&self) -> Cno {
        self.newest
    }

    /// When the last checkpoint was made, in seconds.
    #[must_use]
    pub fn last_time(&self) -> u64 {
        self.checkpoints.values().map(|known| known.time).max().unwrap_or(0)
    }

    /// Something happens now, in seconds.
    pub fn live(&mut self, now: u64) {
        self.lived = now;
    }

    /// When the life goes on that has this past, as a number of [`crate::clock::ThreadClock::at_step`].
    #[must_use]
    pub fn next_step(&self) -> u64 {
        self.last_time().max(self.lived).saturating_sub(EPOCH.seconds as u64) + 1
    }

    /// How many snapshots there are.
    #[must_use]
    pub fn snapshots(&self) -> usize {
        self.checkpoints.values().filter(|known| known.snapshot).count()
    }

    /// There are new checkpoints, up to `newest`. Each shows one of `states`, or what the one before
    /// shows: the cleaner's own checkpoints need not have what is not yet committed. `exact`: the
    /// newest shows the last of the states.
    pub fn add(&mut self, newest: Cno, states: &[&Model], time: u64, exact: bool) {
        let possible = self.states_of_next(states);
        for cno in self.newest.0 + 1..=newest.0 {
            let mut states = Arc::clone(&possible);
            if exact && cno == newest.0 {
                states = Arc::new(possible.last().cloned().into_iter().collect());
            }
            let known = Checkpoint { states, time, snapshot: false, given_up: false };
            self.checkpoints.insert(Cno(cno), known);
        }
        self.newest = newest;
    }

    /// What the next checkpoint may show, when the volume has one of `states`.
    fn states_of_next(&self, states: &[&Model]) -> Arc<Vec<Model>> {
        let last = self.checkpoints.last_key_value().map(|(_, known)| known);
        let mut possible: Vec<Model> = last.map_or(Vec::new(), |known| known.states.to_vec());
        possible.extend(states.iter().copied().cloned());
        Arc::new(possible)
    }

    /// A recovery has made the checkpoints of `listed` that are new, and they show `state`. Their time
    /// may be that of what was recovered.
    ///
    /// # Errors
    /// One of them has a time outside of the life before.
    pub fn recovered(&mut self, listed: &[Listed], state: &Model, now: u64) -> Result<(), String> {
        let before = self.newest;
        for it in listed.iter().filter(|it| it.cno > before) {
            let last = self.last_time();
            if !(last..=now).contains(&it.time) {
                return Err(format!(
                    "checkpoint {}, of a recovery, is of {} s, expected {last} to {now}",
                    it.cno, it.time
                ));
            }
            self.add(it.cno, &[state], it.time, true);
        }
        Ok(())
    }

    /// The cleaner may have been at work, protecting what is younger than `protection` seconds.
    pub fn cleaned(&mut self, now: u64, protection: u64) {
        let limit = now.saturating_sub(protection);
        for (cno, known) in &mut self.checkpoints {
            known.given_up |= *cno < self.newest && (protection == 0 || known.time < limit);
        }
    }

    /// Takes out the checkpoints that the cleaner has given up, because they are not `listed` any more.
    /// Returns the newest of those that are younger than `protection` seconds.
    pub fn take_given_up(&mut self, listed: &[Listed], now: u64, protection: u64) -> Option<Cno> {
        let limit = now.saturating_sub(protection);
        let is_listed = |cno: &Cno| listed.binary_search_by_key(cno, |it| it.cno).is_ok();
        let mut newest = None;
        self.checkpoints.retain(|cno, known| {
            let gone = known.given_up && !known.snapshot && !is_listed(cno);
            if gone && known.time >= limit {
                newest = Some(*cno);
            }
            !gone
        });
        newest
    }

    /// Where the checkpoints begin that are younger than `protection` seconds: the first number
    /// that can be theirs, and the first that is. Between them checkpoints may have been deleted.
    #[must_use]
    pub fn protected_from(&self, now: u64, protection: u64) -> (Cno, Cno) {
        if protection == 0 {
            return (Cno::MAX, Cno::MAX);
        }
        let limit = now.saturating_sub(protection);
        let mut old = self.checkpoints.iter().filter(|(_, known)| known.time < limit);
        let mut young = self.checkpoints.iter().filter(|(_, known)| known.time >= limit);
        let first = old.next_back().map_or(Cno(0), |(cno, _)| cno.plus(1));
        (first, young.next().map_or(Cno::MAX, |(cno, _)| *cno))
    }

    /// Does what an administrator has asked for, about the checkpoints from `first` to `last`.
    pub fn apply(&mut self, op: &Op, (first, last): (Cno, Cno), outcome: &Outcome) {
        match op {
            Op::SetSnapshot { snapshot, .. } if *outcome == Outcome::Done => {
                if let Some(known) = self.checkpoints.get_mut(&first) {
                    known.snapshot = *snapshot;
                }
            }
            Op::FollowRule if *outcome == Outcome::Done => {
                for (cno, known) in self.checkpoints.iter_mut().filter(|(cno, _)| is_of_rule(**cno))
                {
                    known.snapshot = *cno == first;
                }
            }
            Op::DeleteCheckpoints { .. } if *outcome == Outcome::Done => {
                let doomed =
                    |cno: &Cno, known: &Checkpoint| (first..=last).contains(cno) && !known.snapshot;
                self.checkpoints.retain(|cno, known| !doomed(cno, known));
            }
            _ => {}
        }
    }

    /// The checkpoints of which it is known what they show, with that, ascending.
    pub fn known(&self) -> impl Iterator<Item = (Cno, &Model)> {
        self.checkpoints.iter().filter_map(|(cno, known)| match &known.states[..] {
            [state] => Some((*cno, state)),
            _ => None,
        })
    }

    /// A rollback has made a snapshot of the state before it.
    pub fn kept(&mut self, cno: Cno, state: &Model) {
        if let Some(known) = self.checkpoints.get_mut(&cno) {
            known.snapshot = true;
            known.states = Arc::new(vec![state.clone()]);
        }
    }

    /// Compares with the volume on `device`, which may be mounted.
    ///
    /// # Errors
    /// A checkpoint that is missing, should not be there, or shows something else.
    pub fn look(
        &mut self,
        device: &Arc<dyn Device>,
        thoroughness: Thoroughness,
    ) -> Result<(), String> {
        let listed = list(device)?;
        self.compare_list(&listed)?;
        let is_listed = |cno: &Cno| listed.binary_search_by_key(cno, |it| it.cno).is_ok();
        self.checkpoints.retain(|cno, _| is_listed(cno));
        for (nth, it) in listed.iter().enumerate() {
            let wanted = match thoroughness {
                Thoroughness::All => true,
                Thoroughness::Some { from, step } => it.snapshot || (nth + from) % step == 0,
            };
            if wanted {
                self.look_at(device, it.cno)?;
            }
        }
        Ok(())
    }

    fn compare_list(&self, listed: &[Listed]) -> Result<(), String> {
        for it in listed {
            let Some(known) = self.checkpoints.get(&it.cno) else {
                return Err(format!("checkpoint {} is there, but should not be", it.cno));
            };
            if known.snapshot != it.snapshot {
                return Err(format!("checkpoint {} is a snapshot: {}", it.cno, it.snapshot));
            }
        }
        let is_listed = |cno: &Cno| listed.binary_search_by_key(cno, |it| it.cno).is_ok();
        let missing =
            self.checkpoints.iter().find(|(cno, known)| known.must_exist() && !is_listed(cno));
        match missing {
            Some((cno, known)) if known.snapshot => Err(format!("snapshot {cno} is gone")),
            Some((cno, _)) => Err(format!("checkpoint {cno} is gone, but was protected")),
            None => Ok(()),
        }
    }

    fn look_at(&self, device: &Arc<dyn Device>, cno: Cno) -> Result<(), String> {
        let past = ReadOnlySubject::mount(Arc::clone(device), Some(cno));
        let shown = past.and_then(|past| past.tree());
        let shown = shown.map_err(|what| format!("checkpoint {cno}: {what}"))?;
        let states = self.checkpoints.get(&cno).map_or(&[][..], |known| &known.states);
        let difference = |state: &Model| state.tree().difference(&shown);
        // There may be hundreds; most checkpoints show the first of them or one of the last.
        let mut likely = states.first().into_iter().chain(states.iter().rev());
        if likely.any(|state| difference(state).is_none()) {
            return Ok(());
        }
        let told = states.iter().filter_map(difference).map(|what| format!("\n  or {what}"));
        Err(format!("checkpoint {cno} shows something else: {}", told.collect::<String>()))
    }

    /// The past that a power cut has left on a volume with `content`, which came between `before`,
    /// the past that was promised, and `after`, what was under way; then it had one of `states`.
    ///
    /// # Errors
    /// A checkpoint that is missing, should not be there, or shows something else.
    pub fn after_cut(
        before: &Self,
        after: &Self,
        states: [&Model; 2],
        content: &[u8],
    ) -> Result<Self, String> {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(content.to_vec()));
        let listed = list(&device)?;
        let newest = listed.last().map_or(Cno(0), |it| it.cno);
        let mut left = Self { newest, checkpoints: BTreeMap::new(), lived: after.lived };
        let between = before.newest.plus(1)..after.newest;
        for it in &listed {
            let known = [after, before].map(|past| past.checkpoints.get(&it.cno).cloned());
            // What was under way may have made it and then given it up again.
            let passing = between.contains(&it.cno).then(|| Checkpoint {
                states: before.states_of_next(&states),
                time: it.time,
                snapshot: false,
                given_up: true,
            });
            let fits = |known: &Checkpoint| known.snapshot == it.snapshot;
            let Some(known) = known.into_iter().chain([passing]).flatten().find(fits) else {
                let Listed { cno, snapshot, .. } = it;
                return Err(format!(
                    "checkpoint {cno} (a snapshot: {snapshot}) should not be there"
                ));
            };
            left.checkpoints.insert(it.cno, known);
        }
        // A change of several snapshots is one: a rule of retention is followed, or it is not.
        let has_snapshots_of = |past: &Self| {
            let known = |it: &Listed| past.checkpoints.get(&it.cno);
            listed.iter().all(|it| known(it).is_none_or(|known| known.snapshot == it.snapshot))
        };
        if !has_snapshots_of(before) && !has_snapshots_of(after) {
            return Err("the snapshots are neither those of before nor those of after".into());
        }
        let is_gone = |cno: &Cno| *cno <= newest && !left.checkpoints.contains_key(cno);
        let wanted = |(cno, known): &(&Cno, &Checkpoint)| {
            let still = after.checkpoints.get(cno).is_some_and(Checkpoint::must_exist);
            known.must_exist() && still && is_gone(cno)
        };
        if let Some((cno, known)) = before.checkpoints.iter().find(wanted) {
            return Err(format!("checkpoint {cno} (a snapshot: {}) is gone", known.snapshot));
        }
        let lost = |(cno, known): &(&Cno, &Checkpoint)| known.snapshot && **cno > newest;
        if let Some((cno, _)) = before.checkpoints.iter().find(lost) {
            return Err(format!("snapshot {cno} is newer than the newest checkpoint {newest}"));
        }
        for it in listed.iter().filter(|it| it.snapshot || it.cno.0 % 8 == newest.0 % 8) {
            left.look_at(&device, it.cno)?;
        }
        Ok(left)
    }
}
