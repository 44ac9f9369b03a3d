//! Checkpoints of the past that cannot be used at all, and that nothing puts right: each is given up as a
//! whole, if that ends its errors and brings none to another.
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
    /// Deletes a checkpoint of which the rest of the volume tells nothing more. Returns whether there was
    /// one.
    pub(crate) fn give_up_broken_past(&mut self, report: &Report) -> Result<bool, RepairError> {
        let errors = errors_of_past(report);
        let broken: BTreeMap<Cno, &Finding> = report
            .errors()
            .filter(|it| breaks_its_checkpoint(it) || self.has_a_better_one_than(it))
            .filter_map(|it| Some((it.place.checkpoint?, it)))
            .collect();
        for (cno, finding) in broken.into_iter().rev() {
            let Some(PastCheckpoint { flags, .. }) = report.faulty_past.get(&cno).copied() else {
                continue;
            };
            if !self.doomed.try_now(cno) {
                continue;
            }
            if self.is_immovable(flags.block)?.is_some() || !self.ends_with(cno, flags, report)? {
                continue;
            }
            let mut touched = Vec::new();
            let correction = Correction::Checkpoint { at: flags };
            if self.make(&correction, (finding, report), &mut touched)?.is_none() {
                continue;
            }
            let count = errors.get(&cno).copied().unwrap_or_default();
            let these = if count == 1 { "this error" } else { &format!("{count} errors") };
            self.repairs.push(Repair {
                fault: finding.fault(),
                action: format!(
                    "give up checkpoint {cno}, as nilfs checkpoints delete does: {these} of it cannot be \
                     put right"
                ),
                risk: Risk::Loses,
                concerned: Concerned::none(),
            });
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

    /// Whether what is wrong with a checkpoint ends with it, and is not found in the one before instead,
    /// which may have the same blocks.
    fn ends_with(&self, cno: Cno, flags: Position, report: &Report) -> Result<bool, RepairError> {
        let without = Arc::new(Writes::new(&self.scratch));
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let device = rewrite::view(&device, [&without]);
        let at = flags.block.0 * self.block_size()? + flags.offset as u64;
        device.write_at(at, &[IoSlice::new(&INVALID.to_le_bytes())])?;
        let after = self.observer.check(&*device, &self.options).map_err(RepairError::Check)?;
        let before = errors_of_past(report);
        let no_more = |(it, count): (&Cno, &u64)| before.get(it).is_some_and(|had| count <= had);
        let after = errors_of_past(&after);
        Ok(!after.contains_key(&cno) && after.iter().all(no_more))
    }
}

/// How many errors each checkpoint of the past has.
fn errors_of_past(report: &Report) -> BTreeMap<Cno, u64> {
    let mut errors = BTreeMap::new();
    let past = report.errors().filter_map(|it| it.place.checkpoint);
    past.filter(|cno| *cno < report.newest).for_each(|cno| *errors.entry(cno).or_default() += 1);
    errors
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
