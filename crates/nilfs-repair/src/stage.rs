//! The order of corrections, and which of them are made at all.

use nilfs_check::{Correction, Finding, Rule};
use nilfs_ondisk::Ino;

/// What is corrected of files, directories and inodes, in all checkpoints that share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    All,
    /// Counts of links are other ones where names are missing. Those of the present are set when it is
    /// mounted.
    ButLinks,
    Nothing,
}

impl Sharing {
    /// What is tried if that makes another checkpoint worse.
    pub(crate) fn less(self) -> Option<Self> {
        match self {
            Self::All => Some(Self::ButLinks),
            Self::ButLinks => Some(Self::Nothing),
            Self::Nothing => None,
        }
    }

    pub(crate) fn corrects(self, finding: &Finding) -> bool {
        match self {
            Self::All => true,
            Self::ButLinks => finding.rule != Rule::LinkCount,
            Self::Nothing => !is_of_files(finding),
        }
    }
}

/// When a correction is made: only if there is none of an earlier stage. What leads to blocks comes
/// before what is in them: else all of it would seem to be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stage {
    /// What a mount would put on top of all the rest.
    SyncLogs,
    /// What follows from the rest of the volume.
    Known,
    /// What has to be made anew, because it cannot be used as it is.
    Anew(Layer),
    /// Pointers, where what they lead to is neither there nor to be had.
    Pointers(Layer),
    /// Of which type files are: what is in them is judged by that.
    FileTypes,
    /// What is marked as in use, and is nowhere.
    Stray,
    /// Summaries of logs: whose their blocks are follows from everything that leads there.
    Summaries,
    /// What counts all that.
    Counts,
    /// Summaries of logs of which it has not come to light whose all of their blocks are: as long as these have
    /// none, nothing that is corrected there can be moved.
    LastSummaries,
}

/// What is needed to find what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Layer {
    Dat,
    Volume,
    Ifile,
    Files,
}

impl Layer {
    pub(crate) fn of(ino: Ino) -> Self {
        match ino {
            Ino::DAT => Self::Dat,
            Ino::CPFILE | Ino::SUFILE => Self::Volume,
            Ino::IFILE => Self::Ifile,
            _ => Self::Files,
        }
    }
}

impl Stage {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let of_layer = |it| [Self::Anew(it), Self::Pointers(it)];
        let of_metadata = [Layer::Dat, Layer::Volume, Layer::Ifile].into_iter().flat_map(of_layer);
        let first = [Self::SyncLogs, Self::Known].into_iter();
        let of_files = [Self::FileTypes].into_iter().chain(of_layer(Layer::Files));
        let last = [Self::Stray, Self::Summaries, Self::Counts, Self::LastSummaries];
        first.chain(of_metadata).chain(of_files).chain(last)
    }

    pub(crate) fn of(correction: &Correction) -> Self {
        match correction {
            Correction::SyncLogs { .. } => Self::SyncLogs,
            Correction::Count { .. } => Self::Counts,
            Correction::DatEntry { .. } | Correction::Start { .. } => Self::Anew(Layer::Dat),
            Correction::Block { part, .. }
            | Correction::Root { part, .. }
            | Correction::Unmapped { part, .. }
            | Correction::Inode { part, .. } => Self::Anew(Layer::of(part.ino)),
            Correction::FileType { .. } => Self::FileTypes,
            Correction::Bit { set: false, .. } | Correction::Checkpoint { .. } => Self::Stray,
            Correction::Summary { is_complete: false, .. } => Self::LastSummaries,
            Correction::Summary { .. } => Self::Summaries,
            Correction::Pointer { part, .. } => Self::Pointers(Layer::of(part.ino)),
            _ => Self::Known,
        }
    }
}

/// Whether a finding is about what users see, or about which numbers of files are in use.
fn is_of_files(finding: &Finding) -> bool {
    let is_of_numbers = finding.rule == Rule::Allocation && finding.place.ino == Some(Ino::IFILE);
    is_of_numbers
        || matches!(
            finding.rule,
            Rule::Inode
                | Rule::InodeSize
                | Rule::InodeBlocks
                | Rule::Directory
                | Rule::DirectoryEntry
                | Rule::LinkCount
        )
}
