//! How far back the past of a volume goes: from when on every checkpoint is there, and which single
//! ones before.

use std::fmt;

use nilfs_engine::{CheckpointInfo, Note};
use serde::Serialize;

use crate::administration::{Administration, Refusal, all_checkpoints};
use crate::output::{counted, exact_time, local_time};

/// Single checkpoints that a sentence names; of more, it gives the number.
const NAMED: usize = 8;

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
        Ok(Self::new(&all_checkpoints(volume)?, &volume.notes().unwrap_or_default()))
    }

    /// Of all checkpoints, in ascending order, and what is noted about snapshots, in
    /// the same order.
    pub fn new(all: &[CheckpointInfo], notes: &[Note]) -> Option<Self> {
        let follows = |pair: &[CheckpointInfo]| pair[0].cno.plus(1) == pair[1].cno;
        let gap = all.windows(2).rposition(|pair| !follows(pair));
        let (single, unbroken) = all.split_at(gap.map_or(0, |at| at + 1));
        let name_of = |it: &CheckpointInfo| {
            let nth = notes.binary_search_by_key(&it.cno, |note| note.cno).ok()?;
            notes[nth].name.as_ref().map(ToString::to_string)
        };
        Some(Self {
            since: *unbroken.first()?,
            single: single.iter().map(|it| (*it, name_of(it))).collect(),
        })
    }
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
    use nilfs_engine::{Cno, MadeBy};

    use super::*;

    fn checkpoints(numbers: &[u64]) -> Vec<CheckpointInfo> {
        let checkpoint = |cno: &u64| {
            let mut checkpoint = CheckpointInfo::default();
            (checkpoint.cno, checkpoint.created) = (Cno(*cno), *cno);
            checkpoint
        };
        numbers.iter().map(checkpoint).collect()
    }

    fn reach(numbers: &[u64]) -> Option<(u64, Vec<u64>)> {
        let reach = Reach::new(&checkpoints(numbers), &[])?;
        let single = reach.single.iter().map(|(it, _)| it.cno.0).collect();
        Some((reach.since.cno.0, single))
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
        let said = Reach::new(&checkpoints(&all), &[note]).unwrap().to_string();
        assert!(said.starts_with("every checkpoint since "), "{said}");
        assert!(said.contains("(23), and 11 single ones before: 21 first, 19, 17"), "{said}");
        assert!(said.ends_with("7, …"), "{said}");
    }
}
