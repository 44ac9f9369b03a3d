//! Ways from times to checkpoints, and from checkpoints to their age, however wrong the clock was.
//!
//! A clock may have been put back, so times need not ascend with numbers, and a checkpoint cannot be
//! searched for by halves. But checkpoints do not change, and are not added among others. So of each run
//! of numbers that was looked at once, the earliest and the latest time are remembered, and runs in which
//! the one that is looked for cannot be are passed over.
//!
//! How old a checkpoint is does not follow from its own time alone: a board without a clock makes some in
//! a year that is still to come. But the order is known, so a checkpoint is no younger than any later one,
//! and none is younger than the present. Its [effective time](EffectiveTimes) is the earliest of its own
//! time, those of all later checkpoints, and now. Protection goes by that alone.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use nilfs_ondisk::Cno;

use crate::checkpoints::CheckpointInfo;
use crate::checkpoints::newest_below;
use crate::host::{Mutex, Rank};

/// Numbers in a run.
const RUN: u64 = 256;

/// The times at which checkpoints were made, as far as somebody has had to find out.
#[derive(Debug)]
pub struct Times {
    /// By the first number of each run: the earliest and the latest, in seconds since 1970.
    of_runs: Mutex<BTreeMap<u64, RangeInclusive<u64>>>,
}

impl Default for Times {
    fn default() -> Self {
        Self { of_runs: Mutex::new(Rank::Times, BTreeMap::new()) }
    }
}

impl Times {
    /// The newest checkpoint below a number that was made in one of these seconds since 1970. `newest` is
    /// the number of the newest of all, and `list` returns checkpoints as
    /// [`Checkpoints::checkpoints`](crate::Checkpoints::checkpoints) does. Only runs that were not looked
    /// at before are listed, and one more.
    ///
    /// # Errors
    /// Those of `list`.
    pub fn newest_made<E>(
        &self,
        newest: Cno,
        below: Cno,
        seconds: &RangeInclusive<u64>,
        list: &dyn Fn(Cno, usize) -> Result<Vec<CheckpointInfo>, E>,
    ) -> Result<Option<CheckpointInfo>, E> {
        let mut end = below.0.min(newest.0.saturating_add(1));
        while end > Cno::MIN.0 {
            let first = (end - 1) / RUN * RUN;
            let next = first.saturating_add(RUN);
            let known = self.of_runs.lock().get(&first).cloned();
            if known.is_some_and(|it| it.start() > seconds.end() || it.end() < seconds.start()) {
                end = first;
                continue;
            }
            let mut found = list(Cno(first.max(Cno::MIN.0)), RUN as usize)?;
            found.retain(|it| it.cno.0 < next);
            let times = || found.iter().map(|it| it.created);
            match times().min().zip(times().max()) {
                // Nothing will be added to a run that is full.
                Some((earliest, latest)) if next <= newest.0 => {
                    self.of_runs.lock().insert(first, earliest..=latest);
                }
                Some(_) => {}
                None => {
                    let Some(older) = newest_below(Cno(first), list, &|_| true)? else { break };
                    end = older.cno.0 + 1;
                    continue;
                }
            }
            let fits = |it: &CheckpointInfo| it.cno.0 < end && seconds.contains(&it.created);
            if let Some(found) = found.into_iter().rfind(fits) {
                return Ok(Some(found));
            }
            end = first;
        }
        Ok(None)
    }
}

/// The times by which checkpoints age, in seconds since 1970: ascending with the numbers of checkpoints,
/// regardless of their own times.
#[derive(Debug, Clone, Default)]
pub struct EffectiveTimes {
    /// The checkpoints that there are, ascending.
    checkpoints: Vec<Cno>,
    /// Runs of checkpoints with one effective time: the last checkpoint of each, and the time. Both ascend.
    runs: Vec<(Cno, u64)>,
}

impl EffectiveTimes {
    /// Adds a checkpoint that is newer than all others and was made at a time (s since 1970).
    pub fn add(&mut self, cno: Cno, created: u64) {
        while self.runs.last().is_some_and(|(_, time)| *time >= created) {
            self.runs.pop();
        }
        self.runs.push((cno, created));
        self.checkpoints.push(cno);
    }

    /// Takes note that only these checkpoints are left. What the others have said of time still counts.
    pub(crate) fn retain(&mut self, is_left: impl Fn(Cno) -> bool) {
        self.checkpoints.retain(|cno| is_left(*cno));
    }

    /// The checkpoints that there are, ascending.
    pub(crate) fn checkpoints(&self) -> &[Cno] {
        &self.checkpoints
    }

    /// The effective time (s since 1970) of a checkpoint when it is `now`, or of the next one if there is
    /// none of this number. `None`: all are older.
    pub(crate) fn of(&self, cno: Cno, now: u64) -> Option<u64> {
        let nth = self.runs.partition_point(|(last, _)| *last < cno);
        self.runs.get(nth).map(|(_, time)| now.min(*time))
    }

    /// The oldest checkpoint that was not made before `time` (s since 1970, no later than now), if there
    /// is any.
    #[must_use]
    pub fn first_since(&self, time: u64) -> Option<Cno> {
        let older = self.runs.partition_point(|(_, other)| *other < time);
        let last_older = older.checked_sub(1).map(|nth| self.runs[nth].0);
        let nth = self.checkpoints.partition_point(|cno| Some(*cno) <= last_older);
        self.checkpoints.get(nth).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use super::*;

    fn checkpoint(cno: u64, created: u64) -> CheckpointInfo {
        CheckpointInfo { cno: Cno(cno), created, ..CheckpointInfo::default() }
    }

    /// Looks at each of them.
    fn plainly(
        all: &[CheckpointInfo],
        below: Cno,
        seconds: &RangeInclusive<u64>,
    ) -> Option<CheckpointInfo> {
        all.iter().rfind(|it| it.cno < below && seconds.contains(&it.created)).copied()
    }

    /// Those of `all` that are listed by a search, and what it finds.
    fn search(
        times: &Times,
        all: &[CheckpointInfo],
        below: Cno,
        seconds: &RangeInclusive<u64>,
    ) -> (usize, Option<CheckpointInfo>) {
        let listed = Cell::new(0);
        let list = |from, limit| {
            let begin = all.partition_point(|it| it.cno < from);
            let found: Vec<_> = all[begin..].iter().take(limit).copied().collect();
            listed.set(listed.get() + found.len());
            Ok::<_, Infallible>(found)
        };
        let newest = all.last().map_or(Cno(0), |it| it.cno);
        let Ok(found) = times.newest_made(newest, below, seconds, &list);
        (listed.get(), found)
    }

    /// A clock that was put back twice, holes, and checkpoints that go and come between two searches.
    #[test]
    fn the_newest_one_is_found_whatever_the_clock_was() {
        let mut all: Vec<_> = (1..5000)
            .filter(|cno| !(700..2000).contains(cno) && cno % 7 != 3)
            .map(|cno| checkpoint(cno, 10_000 + 5 * cno - cno / 1300 * 4000))
            .collect();
        let times = Times::default();
        for round in 0..3_u64 {
            for (nth, length) in (0..400).map(|nth| (nth, [0, 40, 20_000][nth as usize % 3])) {
                let first = 9000 + nth * 50;
                let below = Cno(if nth % 5 == 0 { nth * 12 } else { u64::MAX });
                let seconds = first..=first + length;
                let (_, found) = search(&times, &all, below, &seconds);
                assert_eq!(found, plainly(&all, below, &seconds), "{seconds:?} below {below}");
            }
            all.retain(|it| it.cno.0 % 11 != round && !(3000..3600).contains(&it.cno.0));
            let newest = all.last().unwrap().cno.0;
            all.extend((1..300).map(|nth| checkpoint(newest + nth, 12_000 + round * 900 + nth)));
        }
    }

    #[test]
    fn what_was_looked_at_once_is_not_listed_again() {
        let all: Vec<_> = (1..=100_000).map(|cno| checkpoint(cno, 10 * cno)).collect();
        let times = Times::default();
        let (listed, found) = search(&times, &all, Cno::MAX, &(0..=999_900));
        assert_eq!(found.unwrap().cno, Cno(99_990));
        assert!(listed < 1000, "{listed} are listed for one of the newest");
        let (_, found) = search(&times, &all, Cno::MAX, &(0..=15));
        assert_eq!(found.unwrap().cno, Cno(1));
        for second in [20, 4711, 500_000, 900_001] {
            let (listed, found) = search(&times, &all, Cno::MAX, &(0..=second));
            assert_eq!(found.unwrap().cno, Cno(second / 10));
            assert!(listed <= 2 * RUN as usize, "{listed} are listed");
        }
        let (listed, found) = search(&times, &all, Cno::MAX, &(4711..=4711));
        assert!(found.is_none() && listed <= 2 * RUN as usize, "{listed} are listed");
    }

    /// Clocks that were put forward and back at random, once to 1970, and checkpoints that go.
    #[test]
    fn a_checkpoint_is_no_younger_than_any_later_one() {
        const NOW: u64 = 1_795_000_000;
        let clocks = [20, NOW, NOW - 5000, NOW + 3000, 32_503_680_000];
        for seed in 0..50_u64 {
            let step = |nth: u64| (nth + seed) * 7919 % 101;
            let time = |nth: u64| clocks[(step(nth / 10) % 5) as usize] + nth;
            let mut all: Vec<(Cno, u64)> = Vec::new();
            let mut times = EffectiveTimes::default();
            for cno in 1..200 {
                all.push((Cno(cno), time(cno)));
                times.add(Cno(cno), time(cno));
            }
            let effective: Vec<u64> = (0..all.len())
                .map(|nth| all[nth..].iter().map(|(_, time)| *time).min().unwrap())
                .collect();
            let is_left = |cno: Cno| step(cno.0) % 3 > 0;
            times.retain(is_left);
            for (&(cno, _), &time) in all.iter().zip(&effective) {
                assert_eq!(times.of(cno, NOW), Some(time.min(NOW)), "seed {seed}, {cno}");
            }
            for limit in [0, 21, 100, NOW - 5000, NOW - 100, NOW] {
                let first = all.iter().zip(&effective);
                let first = first.filter(|((cno, _), time)| is_left(*cno) && **time >= limit);
                let first = first.map(|((cno, _), _)| *cno).next();
                assert_eq!(times.first_since(limit), first, "seed {seed}, since {limit}");
            }
        }
    }
}
