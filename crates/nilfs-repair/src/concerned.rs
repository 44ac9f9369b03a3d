//! The files that a repair is about, and what it takes from them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use nilfs_check::{Correction, Finding, Part, Rule};
use nilfs_ondisk::{Cno, Ino};

/// The part of a file that a repair gives up or guesses, if something is lost by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Its names: it is in lost+found. All else of it is there.
    Names,
    /// Names of it, its attributes, or where it ends. All content that it had is there.
    Attributes,
    /// A later version: the file stays as it was before.
    Version,
    /// Content, or names in a directory.
    Content,
}

/// The files that a repair is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concerned {
    /// Their numbers, those of metadata files among them.
    pub files: BTreeSet<Ino>,
    /// The checkpoints in which it is about them.
    pub life: Range<Cno>,
    /// The part of them that is lost, if something is.
    pub loss: Loss,
    /// Paths of the files, as far as they are known: of those of which something is lost, and not of very
    /// many.
    pub(crate) paths: Vec<String>,
    /// Paths that files would have had, if what is lost says so.
    pub(crate) names: BTreeMap<Ino, String>,
}

impl Concerned {
    /// Returns these files in all checkpoints.
    pub(crate) fn new(files: impl IntoIterator<Item = Ino>, loss: Loss) -> Self {
        let (files, life) = (files.into_iter().collect(), Cno::default()..Cno::MAX);
        let (paths, names) = Default::default();
        Self { files, life, loss, paths, names }
    }

    /// Returns no files, for a repair that is about the volume.
    pub(crate) fn none() -> Self {
        Self::new([], Loss::Attributes)
    }

    /// Returns the file of a finding, of which this is made.
    pub(crate) fn by(finding: &Finding, correction: &Correction) -> Self {
        let loss = match correction {
            Correction::Inode { .. } | Correction::FileType { .. } => Loss::Attributes,
            // The content follows from the logs.
            Correction::Block { part, .. } if part.ino == Ino::IFILE => Loss::Attributes,
            Correction::SyncLogs { .. } => Loss::Version,
            Correction::Count { .. } if finding.rule != Rule::InodeBlocks => Loss::Attributes,
            _ if finding.rule == Rule::InodeSize => Loss::Attributes,
            _ => Loss::Content,
        };
        let all = Self::new(finding.place.ino, loss);
        let life = match (correction.part(), finding.rule) {
            (Some(Part { life, .. }), _) => life.clone(),
            // Older versions of the file may have all of their blocks.
            (None, Rule::InodeBlocks) => finding.place.checkpoint.unwrap_or_default()..Cno::MAX,
            (None, _) => all.life,
        };
        Self { life, ..all }
    }

    /// Returns whether it is about a file in a checkpoint.
    #[must_use]
    pub fn includes(&self, ino: Ino, cno: Cno) -> bool {
        self.files.contains(&ino) && self.life.contains(&cno)
    }
}
