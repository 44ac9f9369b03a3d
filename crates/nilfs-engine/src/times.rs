//! From times to checkpoints.
//!
//! A clock may have been put back, so times need not ascend with numbers, and a checkpoint cannot be
//! searched for by halves. But checkpoints do not change, and are not added among others. So of each run
//! of numbers that was looked at once, the earliest and the latest time are remembered, and runs in which
//! the one that is looked for cannot be are passed over.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use nilfs_ondisk::Cno;

use crate::files::newest_below;
use crate::host::{Mutex, Rank};
use crate::volume::CheckpointInfo;

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
}
