//! Names that are to be taken out of directories: what else may be done, and what they have told.

use std::collections::{BTreeSet, HashMap};

use nilfs_check::{Correction, Finding, Position, Report, Rule};
use nilfs_ondisk::dirent::record_at;
use nilfs_ondisk::{Geometry, Ino};

use super::{Draft, Made};
use crate::logged::Wanted;
use crate::misled::MisledName;
use crate::salvage::{self, LostName, Source};
use crate::stage::{Layer, Stage};
use crate::{Loss, Risk, dat, superblocks};

impl Draft {
    /// Where names led that are to be taken out, as far as that is proved.
    pub(super) fn prove_targets(
        &self,
        misled: &BTreeSet<MisledName>,
        report: &Report,
        geometry: &Geometry,
    ) -> HashMap<Position, Ino> {
        if misled.is_empty() {
            return HashMap::new();
        }
        let lacking = self.missing_names(report, geometry).into_iter();
        let lacking = lacking.map(|(ino, (count, _))| (ino, count)).collect();
        let logs = self.logs(report.newest_log);
        logs.map(|mut logs| logs.proved_targets(misled, &lacking)).unwrap_or_default()
    }

    /// Returns the change that takes a name out; `None` if the name stays.
    pub(super) fn instead_of_name(
        &mut self,
        at: Position,
        (finding, report): (&Finding, &Report),
    ) -> Option<(Position, Option<u8>, Vec<u8>, Made)> {
        if let Some(ino) = self.proved_targets.get(&at) {
            let action = format!("let it lead to inode {ino} again");
            let made = Made::new(action, Risk::Safe);
            return Some((at, None, ino.0.to_le_bytes().to_vec(), made));
        }
        if let Some((ino, bitmap, bit)) = self.told_by_name(at, finding) {
            let action =
                "mark the number as in use: the name is all that is left to tell of the file";
            let (files, loss) = ([ino].into(), Some(Loss::Attributes));
            let made = Made { files, loss, ..Made::new(action.to_owned(), Risk::Loses) };
            return Some((bitmap, Some(bit), vec![1], made));
        }
        if self.may_be_right_elsewhere(at, (finding, report)) {
            return None;
        }
        self.lost_names.extend(self.older_name(at, finding));
        let made = Made::new("take the name out".to_owned(), Risk::Loses);
        Some((at, None, vec![0; 8], made))
    }

    /// The number in use, and where its bit is, if a name is all that tells of it, and is what was written.
    fn told_by_name(&self, at: Position, finding: &Finding) -> Option<(Ino, Position, u8)> {
        let start = Position { offset: 0, ..at };
        let anew = (start, Stage::Anew(Layer::Files), None);
        let geometry = superblocks::best(&*self.device).ok()?.geometry();
        let told = || self.remade_ifile.told_by_name((&*self.device, &geometry), (at, finding));
        if self.made.contains_key(&anew) { None } else { told() }
    }

    /// The name that a record of a directory has, with the file to which it led in an older version of the
    /// block.
    fn older_name(&self, at: Position, finding: &Finding) -> Option<LostName> {
        let geometry = superblocks::best(&*self.device).ok()?.geometry();
        let read = |block| dat::read(&*self.device, &geometry, block);
        let block = read(at.block)?;
        let found = record_at(&block, at.offset).ok()?;
        let logged = self.logged.of(finding.place.ino?);
        let key = logged.iter().find(|it| it.block == at.block)?.offset()?;
        let mut others = self.logged.data(finding.place.ino?, key, key.checked_add(1)).iter();
        others.find_map(|it| {
            let older = read(it.block).filter(|_| it.block != at.block)?;
            let record = salvage::named(&older, found.name).filter(|it| it.ino != found.ino)?;
            Some(LostName {
                block: at.block,
                source: Source::Older,
                name: record.name.to_vec(),
                ino: record.ino,
                type_code: record.type_code,
            })
        })
    }

    /// Whether a name that leads nowhere in a checkpoint of the past may be right in another one.
    fn may_be_right_elsewhere(&self, at: Position, (finding, report): (&Finding, &Report)) -> bool {
        let Some(cno) = finding.place.checkpoint.filter(|cno| *cno < report.newest) else {
            return false;
        };
        let Some(directory) = finding.place.ino else { return true };
        let name = MisledName { at, directory };
        let logs = self.logs(report.newest_log);
        logs.is_none_or(|mut logs| logs.may_be_right_but_for(&name, cno, &report.past))
    }
}

/// Whether a correction takes a name out of a directory.
pub(super) fn is_name_given_up(finding: &Finding, correction: &Correction) -> bool {
    let is_zeros = |bytes: &[u8]| bytes == [0; 8];
    finding.rule == Rule::DirectoryEntry
        && matches!(correction, Correction::Bytes { bytes, .. } if is_zeros(bytes))
}

/// Names that a finding takes out of a directory in a stage.
pub(super) fn misled_names(finding: &Finding, stage: Stage) -> impl Iterator<Item = MisledName> {
    let made = finding.corrections.iter().filter(move |it| Stage::of(it) == stage);
    made.filter_map(|it| match it {
        Correction::Bytes { at, .. } if is_name_given_up(finding, it) => {
            Some(MisledName { at: *at, directory: finding.place.ino? })
        }
        _ => None,
    })
}

/// Returns what may tell where names led: older versions of the blocks of their directories, and the files
/// to which no name leads.
pub(super) fn wanted_names(misled: &BTreeSet<MisledName>, report: &Report) -> Wanted {
    if misled.is_empty() {
        return Wanted::default();
    }
    let unreachable = report.findings.iter().filter(|it| it.rule == Rule::Unreachable);
    let files = misled.iter().map(|it| it.directory).chain([Ino::IFILE]);
    let files = files.chain(unreachable.filter_map(|it| it.place.ino)).collect();
    Wanted { files, ..Wanted::default() }
}
