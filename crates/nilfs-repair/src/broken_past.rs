//! Checkpoints of the past that cannot be used at all, and that nothing puts right: each is given up as a
//! whole, if that ends its errors and brings none to another. Where several have the same damaged blocks, they go
//! together: an error is found in the last of them, and would pass to the one before.
//!
//! A damaged file of a checkpoint is no reason: the others in it are whole. Nor is a snapshot ever given up,
//! because it was made to stay. And of a view nothing is given up: what can be read of it is to be seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_check::{Correction, Finding, PastCheckpoint, Position, Report, Rule};
use nilfs_device::{Device, IoSlice, Writes};
use nilfs_ondisk::checkpoint::INVALID;
use nilfs_ondisk::{Cno, Ino};

use crate::concerned::Concerned;
use crate::draft::Draft;
use crate::{Repair, RepairError, Risk, rewrite, superblocks};

/// Checkpoints that are tried at most: each takes a check of the volume.
const MOST_TRIED: usize = 8;

/// Checkpoints that are given up together at most.
const LONGEST_RUN: usize = 32;

/// Checkpoints that may be given up: of the past, no snapshots, and with errors before anything was
/// corrected. A correction that another checkpoint would pay for is none.
#[derive(Default)]
pub(crate) struct Doomed {
    untried: BTreeSet<Cno>,
    tried: usize,
}

impl Doomed {
    pub(crate) fn of(report: &Report) -> Self {
        let past = report.faulty_past.iter().filter(|(_, past)| !past.is_snapshot);
        Self { untried: past.map(|(cno, _)| *cno).collect(), tried: 0 }
    }

    /// Whether a checkpoint is one of them, and is tried for the first time.
    fn try_now(&mut self, cno: Cno) -> bool {
        let is_due = self.tried < MOST_TRIED && self.untried.remove(&cno);
        self.tried += usize::from(is_due);
        is_due
    }
}

impl Draft {
    /// Deletes checkpoints of which the rest of the volume tells nothing more. Returns whether there were
    /// any.
    pub(crate) fn give_up_broken_past(&mut self, report: &Report) -> Result<bool, RepairError> {
        let broken: BTreeMap<Cno, &Finding> = report
            .errors()
            .filter(|it| breaks_its_checkpoint(it) || self.has_a_better_one_than(it))
            .filter_map(|it| Some((it.place.checkpoint?, it)))
            .collect();
        for (cno, finding) in broken.into_iter().rev() {
            let Some(past) = report.faulty_past.get(&cno).copied() else { continue };
            if !self.doomed.try_now(cno) {
                continue;
            }
            let Some(run) = self.run_that_ends_with((cno, past), report)? else { continue };
            let mut touched = Vec::new();
            for (it, flags) in run {
                let correction = Correction::Checkpoint { at: flags };
                self.make(&correction, (finding, report), &mut touched)?;
                self.repairs.push(Repair {
                    fault: finding.fault(),
                    action: given_up(it, cno, report),
                    risk: Risk::Loses,
                    concerned: Concerned::none(),
                });
            }
            let superblock = superblocks::best(&*self.device)?;
            self.seal_logs(&superblock, &touched, report.newest_log)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether an error is of the checkpoint that was the newest before an earlier pass has put it right, or of one that
    /// the pass has made in between.
    fn has_a_better_one_than(&self, finding: &Finding) -> bool {
        self.made_after.is_some_and(|newest| finding.place.checkpoint >= Some(newest))
    }

    /// The checkpoints that have to go for what is wrong with one of them to end, with the places of their
    /// flags: that one, and those before it that have the same blocks. `None`: a snapshot has them, too many
    /// checkpoints have, or other errors would come to light.
    fn run_that_ends_with(
        &self,
        newest: (Cno, PastCheckpoint),
        report: &Report,
    ) -> Result<Option<BTreeMap<Cno, Position>>, RepairError> {
        let without = Arc::new(Writes::new(&self.scratch));
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let device = rewrite::view(&device, [&without]);
        let block_size = self.block_size()?;
        let (mut before, mut run) = (errors_of_past(report), BTreeMap::new());
        let (mut cno, mut past) = newest;
        while run.len() < LONGEST_RUN && !past.is_snapshot {
            if self.is_immovable(past.flags.block)?.is_some() {
                break;
            }
            let at = past.flags.block.0 * block_size + past.flags.offset as u64;
            device.write_at(at, &[IoSlice::new(&INVALID.to_le_bytes())])?;
            run.insert(cno, past.flags);
            let after = self.observer.check(&*device, &self.options).map_err(RepairError::Check)?;
            let had = before.remove(&cno).unwrap_or_default();
            let errors = errors_of_past(&after);
            let mut more = errors.iter().filter(|(it, count)| before.get(it) < Some(count));
            let Some((older, count)) = more.next() else { return Ok(Some(run)) };
            let moved = before.get(older).unwrap_or(&0) + had;
            // A file that is damaged in the one before is no reason to give that up, too.
            let is_broken = |it: &Finding| it.place.checkpoint == Some(*older) && hides_all(it);
            if more.next().is_some() || *count > moved || !after.errors().any(is_broken) {
                break;
            }
            let Some(it) = after.faulty_past.get(older) else { break };
            (cno, past) = (*older, *it);
            before = errors;
        }
        Ok(None)
    }
}

/// Giving a checkpoint up, in words: for errors of its own, or for those of a later one.
fn given_up(cno: Cno, of: Cno, report: &Report) -> String {
    let these = match errors_of_past(report).get(&cno).copied().unwrap_or_default() {
        _ if cno != of => format!("what it has in common with checkpoint {of}"),
        1 => "this error of it".to_owned(),
        errors => format!("{errors} errors of it"),
    };
    format!(
        "give up checkpoint {cno}, as nilfs checkpoints delete does: {these} cannot be put right"
    )
}

/// How many errors each checkpoint of the past has.
fn errors_of_past(report: &Report) -> BTreeMap<Cno, u64> {
    let mut errors = BTreeMap::new();
    let past = report.errors().filter_map(|it| it.place.checkpoint);
    past.filter(|cno| *cno < report.newest).for_each(|cno| *errors.entry(cno).or_default() += 1);
    errors
}

/// Whether nothing of a checkpoint with this error can be reached.
fn hides_all(finding: &Finding) -> bool {
    match finding.rule {
        Rule::Allocation => finding.place.ino == Some(Ino::IFILE),
        _ => breaks_its_checkpoint(finding),
    }
}

/// Whether a checkpoint with an error that is left cannot be used: all of its files, or the way to them, may
/// be others.
fn breaks_its_checkpoint(finding: &Finding) -> bool {
    match finding.rule {
        Rule::BlockMap
        | Rule::Pointer
        | Rule::Owner
        | Rule::Readable
        | Rule::SharedBlock
        | Rule::Lifetime => finding.place.ino == Some(Ino::IFILE),
        Rule::Directory | Rule::Inode => finding.place.ino == Some(Ino::ROOT),
        Rule::Checkpoint => true,
        _ => false,
    }
}
