//! How far back the past of a volume goes: from when on every checkpoint is there, and which single
//! ones before.

use std::fmt;

use nilfs_engine::{CheckpointInfo, CheckpointTotals, Cno, Note};
use serde::Serialize;

use crate::administration::{Administration, Refusal};
use crate::output::{counted, exact_time, local_time};

/// Single checkpoints that a sentence names; of more, it gives the number.
const NAMED: usize = 8;

/// Checkpoints that are listed first; then twice as many, and so on.
const FIRST_LISTED: usize = 32;

/// Lists checkpoints as [`Administration::checkpoints`] does.
pub type List<'a> = &'a dyn Fn(Cno, usize) -> Result<Vec<CheckpointInfo>, Refusal>;

/// How far back the past of a volume goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// The first checkpoint from which on none is missing.
    since: Cno,
    /// Time when that checkpoint was made (s since 1970), however wrong the clock was.
    time: u64,
    /// Those before it, ascending, with their names.
    single: Vec<(CheckpointInfo, Option<String>)>,
}

impl Reach {
    /// That of a volume; `None` if it has no checkpoints.
    ///
    /// # Errors
    /// The checkpoints cannot be read.
    pub fn of(volume: &dyn Administration) -> Result<Option<Self>, Refusal> {
        // If the names are damaged, there are none.
        let notes = volume.notes().unwrap_or_default();
        let list = |from, limit| volume.checkpoints(from, limit);
        Self::find(&|| volume.checkpoint_totals().ok(), &list, &notes)
    }

    /// Finds it where `list` lists checkpoints; `notes` are about snapshots, in ascending order. As many
    /// are listed as there are single ones, if `totals` tells how many there are in all, which a process
    /// of an older version does not; otherwise all.
    ///
    /// # Errors
    /// Those of `list`.
    pub fn find(
        totals: &dyn Fn() -> Option<CheckpointTotals>,
        list: List<'_>,
        notes: &[Note],
    ) -> Result<Option<Self>, Refusal> {
        let missing = || totals().map(|it| it.newest.0.saturating_sub(it.checkpoints));
        let at_first = missing();
        let mut found = unbroken(at_first, list)?;
        if at_first != missing() {
            // Some were deleted while the list was read.
            found = unbroken(None, list)?;
        }
        let name_of = |it: &CheckpointInfo| {
            let nth = notes.binary_search_by_key(&it.cno, |note| note.cno).ok()?;
            notes[nth].name.as_ref().map(ToString::to_string)
        };
        let Some((single, run)) = found else { return Ok(None) };
        let Some(&CheckpointInfo { cno: since, .. }) = run.first() else { return Ok(None) };
        let newest = match totals() {
            Some(totals) => list(totals.newest, 1)?.last().copied(),
            None => run.last().copied(),
        };
        let time = time_of_first(run, newest, list)?;
        let single = single.into_iter().map(|it| (it, name_of(&it))).collect();
        Ok(Some(Self { since, time, single }))
    }
}

/// When the first of a run of checkpoints was made (s since 1970), of which `list` lists the rest. One
/// that was made under a clock that was ahead, as now or the newest one shows, is as old as the next one
/// that was not.
fn time_of_first(
    mut run: Vec<CheckpointInfo>,
    newest: Option<CheckpointInfo>,
    list: List<'_>,
) -> Result<u64, Refusal> {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    let latest = newest.map_or(now, |it| it.created.min(now));
    while let Some(last) = run.last() {
        if let Some(found) = run.iter().find(|it| it.created <= latest) {
            return Ok(found.created);
        }
        run = list(last.cno.plus(1), run.len().saturating_mul(2))?;
    }
    Ok(latest)
}

/// Checkpoints before the first from which on none is missing, and those from there on that were listed.
type Unbroken = (Vec<CheckpointInfo>, Vec<CheckpointInfo>);

/// Finds from which checkpoint on none is missing; `None`: there are no checkpoints. Numbers begin with 1, so going up from there, the rest is whole as soon as all numbers have been passed
/// that are `missing`.
fn unbroken(missing: Option<u64>, list: List<'_>) -> Result<Option<Unbroken>, Refusal> {
    let (mut single, mut run) = (Vec::new(), Vec::new());
    let (mut next, mut passed, mut limit) = (Cno::MIN, 0, FIRST_LISTED);
    'all: loop {
        let some = list(next, limit)?;
        if some.is_empty() {
            break;
        }
        for checkpoint in some {
            if checkpoint.cno != next {
                passed += checkpoint.cno.0.saturating_sub(next.0);
                single.append(&mut run);
            }
            run.push(checkpoint);
            next = checkpoint.cno.plus(1);
            if missing.is_some_and(|missing| passed >= missing) {
                break 'all;
            }
        }
        limit = limit.saturating_mul(2);
    }
    Ok((!run.is_empty()).then_some((single, run)))
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = local_time(self.time as i64);
        write!(f, "every checkpoint since {since} ({})", self.since)?;
        if self.single.is_empty() {
            return Ok(());
        }
        let shown = self.single.iter().rev().take(NAMED);
        let shown = shown.map(|(checkpoint, name)| match name {
            Some(name) => format!("{} {name}", checkpoint.cno),
            None => checkpoint.cno.to_string(),
        });
        let more = if self.single.len() > NAMED { ", …" } else { "" };
        let count = counted(self.single.len() as u64, "single one");
        write!(f, ", and {count} before: {}{more}", shown.collect::<Vec<_>>().join(", "))
    }
}

/// The same in JSON.
#[derive(Debug, Serialize)]
pub struct HistoryRecord {
    since: String,
    since_checkpoint: u64,
    single_checkpoints: Vec<u64>,
}

impl From<&Reach> for HistoryRecord {
    fn from(reach: &Reach) -> Self {
        Self {
            since: exact_time(reach.time as i64, 0),
            since_checkpoint: reach.since.0,
            single_checkpoints: reach.single.iter().map(|(it, _)| it.cno.0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use nilfs_engine::MadeBy;

    use super::*;

    fn checkpoints(numbers: &[u64]) -> Vec<CheckpointInfo> {
        let checkpoint = |cno: &u64| {
            let mut checkpoint = CheckpointInfo::default();
            (checkpoint.cno, checkpoint.created) = (Cno(*cno), *cno);
            checkpoint
        };
        numbers.iter().map(checkpoint).collect()
    }

    /// Finds the reach, and how many checkpoints are listed for that.
    fn find(numbers: &[u64], knows_totals: bool, notes: &[Note]) -> (Option<Reach>, usize) {
        let all = checkpoints(numbers);
        let totals = || {
            let mut totals = CheckpointTotals::default();
            totals.newest = all.last().map_or(Cno(0), |it| it.cno);
            totals.checkpoints = all.len() as u64;
            knows_totals.then_some(totals)
        };
        let listed = Cell::new(0);
        let list = |from: Cno, limit| {
            let found: Vec<_> =
                all.iter().filter(|it| it.cno >= from).take(limit).copied().collect();
            listed.set(listed.get() + found.len());
            Ok(found)
        };
        (Reach::find(&totals, &list, notes).unwrap(), listed.get())
    }

    fn reach(numbers: &[u64]) -> Option<(u64, Vec<u64>)> {
        let [known, unknown] = [true, false].map(|knows| find(numbers, knows, &[]).0);
        assert_eq!(known, unknown);
        let reach = known?;
        let single = reach.single.iter().map(|(it, _)| it.cno.0).collect();
        Some((reach.since.0, single))
    }

    /// A volume may have a hundred thousand, and this is found each time that somebody asks how it is.
    #[test]
    fn as_many_are_listed_as_are_named() {
        let numbers: Vec<u64> = [3, 7, 8].into_iter().chain(1000..20_000).collect();
        let (reach, listed) = find(&numbers, true, &[]);
        let reach = reach.unwrap();
        assert_eq!((reach.since, reach.single.len()), (Cno(1000), 3));
        assert_eq!(listed, FIRST_LISTED + 1, "and the newest");
    }

    /// `nilfs df` said that all was there since the year 3000.
    #[test]
    fn a_past_that_begins_under_a_clock_that_is_ahead_begins_when_that_is_right() {
        const FUTURE: u64 = 32_503_680_000;
        let since = |times: &dyn Fn(u64) -> u64, knows_totals: bool| {
            let mut all = checkpoints(&(1..200).collect::<Vec<_>>());
            all.iter_mut().for_each(|it| it.created = times(it.cno.0));
            let totals = || {
                let mut totals = CheckpointTotals::default();
                (totals.newest, totals.checkpoints) = (Cno(199), 199);
                knows_totals.then_some(totals)
            };
            let list = |from: Cno, limit| {
                Ok(all.iter().filter(|it| it.cno >= from).take(limit).copied().collect())
            };
            let reach = Reach::find(&totals, &list, &[]).unwrap().unwrap();
            assert_eq!(reach.since, Cno(1));
            reach.time
        };
        for knows_totals in [false, true] {
            let is_right_at = |first: u64| move |nth| if nth < first { FUTURE } else { nth };
            for first in [1, 2, 60, 199] {
                assert_eq!(since(&is_right_at(first), knows_totals), first);
            }
            // None of them says what time it was, and it is not the future yet.
            assert!(since(&|_| FUTURE, knows_totals) < FUTURE);
            let ahead_by_a_day = |nth| if nth < 50 { 86_400 + nth } else { nth };
            assert_eq!(since(&ahead_by_a_day, knows_totals), 50);
            let in_1970_for_a_while = |nth| if nth / 10 == 3 { nth } else { 1_700_000_000 + nth };
            assert_eq!(since(&in_1970_for_a_while, knows_totals), 1_700_000_001);
        }
    }

    #[test]
    fn what_is_deleted_meanwhile_is_not_counted_in() {
        let all = checkpoints(&[1, 2, 4, 5, 6]);
        let asked = Cell::new(0);
        let totals = || {
            let mut totals = CheckpointTotals::default();
            // 2 and 4 are there at first.
            let deleted = asked.replace(2);
            (totals.newest, totals.checkpoints) = (Cno(6), 5 - deleted);
            Some(totals)
        };
        let list = |from, _| {
            let there = |it: &&CheckpointInfo| it.cno >= from && ![2, 4].contains(&it.cno.0);
            Ok(all.iter().filter(there).copied().collect())
        };
        let reach = Reach::find(&totals, &list, &[]).unwrap().unwrap();
        assert_eq!((reach.since, reach.single.len()), (Cno(5), 1));
    }

    #[test]
    fn the_past_is_whole_from_after_its_last_gap() {
        assert_eq!(reach(&[]), None);
        assert_eq!(reach(&[5]), Some((5, vec![])));
        assert_eq!(reach(&[1, 2, 3]), Some((1, vec![])));
        assert_eq!(reach(&[1, 2, 4, 7, 8]), Some((7, vec![1, 2, 4])));
    }

    #[test]
    fn a_sentence_names_the_last_single_ones() {
        let all: Vec<u64> = (0..12).map(|nth| 1 + 2 * nth).collect();
        let name = "first".parse().ok();
        let note = Note {
            cno: Cno(21),
            created: 21,
            made_by: MadeBy::User,
            name,
            text: Default::default(),
        };
        let said = find(&all, true, &[note]).0.unwrap().to_string();
        assert!(said.starts_with("every checkpoint since "), "{said}");
        assert!(said.contains("(23), and 11 single ones before: 21 first, 19, 17"), "{said}");
        assert!(said.ends_with("7, …"), "{said}");
    }
}
