//! Checkpoints that had been deleted, and are there again because a block of the cpfile was made anew from an
//! older version. Where the cleaner has been since, their blocks are gone: what they lead to is free, or has
//! been given to others. Nothing is corrected for their sake, which would take it from these.

use std::collections::BTreeMap;

use nilfs_check::{Correction, Finding, PastCheckpoint, Position, Report, Rule};
use nilfs_ondisk::{Cno, Ino};

use crate::concerned::Concerned;
use crate::draft::Draft;
use crate::{Repair, RepairError, Risk, superblocks};

impl Draft {
    /// Deletes checkpoints again of which the DAT tells that they were deleted. Returns whether there were any.
    /// A checkpoint that still has all of its blocks stays.
    pub(crate) fn delete_again(&mut self, report: &Report) -> Result<bool, RepairError> {
        if self.with_deleted.is_empty() || !tells_of_lives(report) {
            return Ok(false);
        }
        let mut touched = Vec::new();
        for (cno, (flags, finding)) in self.deleted(report) {
            let correction = Correction::Checkpoint { at: flags };
            if self.make(&correction, (finding, report), &mut touched)?.is_none() {
                continue;
            }
            self.repairs.push(Repair {
                fault: finding.fault(),
                action: format!(
                    "give up checkpoint {cno}, as nilfs checkpoints delete does: it had been deleted, and \
                     only the older version of the block has it"
                ),
                risk: Risk::Loses,
                concerned: Concerned::none(),
            });
        }
        let superblock = superblocks::best(&*self.device)?;
        self.seal_logs(&superblock, &touched, report.newest_log)?;
        Ok(!touched.is_empty())
    }

    /// Checkpoints in these blocks that reach what the DAT does not have for them, with the places of their
    /// flags.
    fn deleted<'r>(&self, report: &'r Report) -> BTreeMap<Cno, (Position, &'r Finding)> {
        let reaching = report.errors().filter(|it| reaches_what_is_gone(it));
        let reaching = reaching.filter_map(|it| {
            let cno = it.place.checkpoint?;
            let PastCheckpoint { flags, is_snapshot } = *report.faulty_past.get(&cno)?;
            let is_back = !is_snapshot && self.with_deleted.contains(&flags.block);
            is_back.then_some((cno, (flags, it)))
        });
        reaching.collect()
    }
}

/// Whether a checkpoint leads to a block that has another life or owner.
fn reaches_what_is_gone(finding: &Finding) -> bool {
    matches!(finding.rule, Rule::Pointer | Rule::Lifetime | Rule::Owner | Rule::SharedBlock)
}

/// Whether the DAT is to be believed: as long as it is damaged, or the present contradicts it, it tells nothing of
/// the past.
fn tells_of_lives(report: &Report) -> bool {
    report.errors().all(|it| {
        let is_of_present = it.place.checkpoint == Some(report.newest);
        it.place.ino != Some(Ino::DAT) && !(is_of_present && reaches_what_is_gone(it))
    })
}
