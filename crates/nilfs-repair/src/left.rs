//! Why errors are left when all is done that can be, and what else can be done about them.

use std::collections::BTreeSet;

use nilfs_check::{Finding, Report, Rule};

use crate::{Kept, Plan, RepairError};

/// What helps with whatever cannot be repaired.
pub(crate) const COPY_OUT: &str =
    "nilfs salvage copies what can be read, and so does a mount with -o ro,rescue";

const UNPROVED: &str = "nothing tells which of its blocks is not what was written; nilfs scrub names \
    the files that may be damaged, and looks for other copies with --repair";

const UNREADABLE: &str =
    "nothing tells what was there; the files that need it have to come from a backup";

const PAST: &str = "what other checkpoints have in common with this one would become wrong, or \
    nothing tells what was there";

impl Plan {
    /// Says of each error that is left why it is.
    pub(crate) fn explain_what_is_left(&mut self) {
        if self.obstacle.as_ref().is_some_and(|it| !matches!(it, RepairError::Displaced { .. })) {
            return;
        }
        let Some(report) = self.after.as_ref().or(self.before.as_ref().ok()) else { return };
        let known: BTreeSet<&str> = self.kept.iter().map(|kept| &kept.fault[..]).collect();
        let left = report.errors().map(|it| (it.fault(), why(it, report)));
        let left: Vec<_> = left.filter(|(fault, _)| !known.contains(&fault[..])).collect();
        self.kept.extend(left.into_iter().map(|(fault, why)| Kept { fault, why }));
    }
}

/// Why an error of a report is left.
fn why(finding: &Finding, report: &Report) -> String {
    match (finding.rule, finding.place.checkpoint.filter(|cno| *cno < report.newest)) {
        (Rule::Log, _) => UNPROVED.to_owned(),
        (Rule::Readable, _) => UNREADABLE.to_owned(),
        (_, None) => format!("no repair is known that leaves fewer errors; {COPY_OUT}"),
        (_, Some(cno)) => {
            let is_snapshot = report.faulty_past.get(&cno).is_some_and(|past| past.is_snapshot);
            let first = match is_snapshot {
                true => format!("nilfs snapshot delete DEVICE {cno} and "),
                false => String::new(),
            };
            format!(
                "{PAST}; that ends when the checkpoint goes, by {first}nilfs checkpoints delete DEVICE {cno}"
            )
        }
    }
}
