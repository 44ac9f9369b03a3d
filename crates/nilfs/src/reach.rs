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
    since: CheckpointInfo,
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
        Ok(found.map(|(single, since)| Self {
            since,
            single: single.into_iter().map(|it| (it, name_of(&it))).collect(),
        }))
    }
}

/// The first checkpoint from which on none is missing, and those before it. Numbers begin with 1, so
/// going up from there, the rest is whole as soon as all numbers have been passed that are `missing`.
fn unbroken(
    missing: Option<u64>,
    list: List<'_>,
) -> Result<Option<(Vec<CheckpointInfo>, CheckpointInfo)>, Refusal> {
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
    Ok(run.first().map(|since| (single, *since)))
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = local_time(self.since.created as i64);
        write!(f, "every checkpoint since {since} ({})", self.since.cno)?;
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
            since: exact_time(reach.since.created as i64, 0),
            since_checkpoint: reach.since.cno.0,
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
        Some((reach.since.cno.0, single))
    }

    /// A volume may have a hundred thousand, and this is found each time that somebody asks how it is.
    #[test]
    fn as_many_are_listed_as_are_named() {
        let numbers: Vec<u64> = [3, 7, 8].into_iter().chain(1000..20_000).collect();
        let (reach, listed) = find(&numbers, true, &[]);
        let reach = reach.unwrap();
        assert_eq!((reach.since.cno, reach.single.len()), (Cno(1000), 3));
        assert_eq!(listed, FIRST_LISTED);
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
        assert_eq!((reach.since.cno, reach.single.len()), (Cno(5), 1));
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
