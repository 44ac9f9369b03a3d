//! What the checker says: findings with a place, a severity and plain words, and what it counted.
//!
//! A damaged volume can break the same rule a million times; the collector keeps the first few
//! findings of a rule and counts the others, so a report stays readable and bounded.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use nilfs_ondisk::crc::BlockSum;
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, SegNum, VBlockNr};

use crate::correction::{Correction, Position};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; nothing is wrong.
    Note,
    /// Unusual or untidy; no data are in danger.
    Warning,
    /// The volume breaks a rule of the format.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// The rule that a finding is about. Each rule is one promise of the format (docs/format.md §15).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// A block that is needed can be read from the device.
    Readable,
    /// Both superblock copies are valid, agree, and lead to the newest log.
    Superblock,
    /// The newest super root is found where the superblock says or after it.
    SuperRoot,
    /// Logs after the newest super root can be rolled forward.
    RollForward,
    /// Logs fill their segment without a gap, and their summaries and checksums are right.
    Log,
    /// Logs follow each other: sequence numbers, next segments, begin and end flags.
    LogChain,
    /// Segment usage entries and their counters agree with the logs.
    SegmentUsage,
    /// Descriptors, bitmaps and entries of the DAT and of the ifile agree.
    Allocation,
    /// DAT entries name a block and a life that can be.
    DatEntry,
    /// Every block that the DAT counts as part of the present is used by the present.
    Leak,
    /// Block maps are well formed.
    BlockMap,
    /// Pointers of block maps lead to a block that exists.
    Pointer,
    /// A block belongs to the file for which its log says it was written.
    Owner,
    /// No block is used twice.
    SharedBlock,
    /// A block that a checkpoint reaches is part of this checkpoint.
    Lifetime,
    /// Checkpoint entries and their counters are right.
    Checkpoint,
    /// The list of snapshots is complete and in order.
    SnapshotList,
    /// The counts of inodes and blocks of a checkpoint are exact.
    CheckpointCounts,
    /// Inodes are well formed.
    Inode,
    /// No block lies beyond the end of its file.
    InodeSize,
    /// `i_blocks` is the number of blocks of the file.
    InodeBlocks,
    /// The last block of a file is zero beyond the end of the file.
    Tail,
    /// Symbolic links have a target.
    Symlink,
    /// Directory blocks are well formed, with "." and ".." in their places.
    Directory,
    /// Names lead to inodes that exist and have the type that the name claims.
    DirectoryEntry,
    /// `i_links_count` is the number of names.
    LinkCount,
    /// Every linked inode can be reached from the root directory.
    Unreachable,
    /// Inodes without a name wait for nobody.
    Orphan,
    /// The xattr file is a regular file, and its regions are well formed.
    XattrFile,
    /// Nothing else is on the device.
    Foreign,
    /// Part of the volume was not checked.
    NotChecked,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Readable => "readable blocks",
            Self::Superblock => "superblocks",
            Self::SuperRoot => "super root",
            Self::RollForward => "roll-forward",
            Self::Log => "logs",
            Self::LogChain => "order of logs",
            Self::SegmentUsage => "segment usage",
            Self::Allocation => "allocation",
            Self::DatEntry => "DAT entries",
            Self::Leak => "leaked blocks",
            Self::BlockMap => "block maps",
            Self::Pointer => "pointers",
            Self::Owner => "owners of blocks",
            Self::SharedBlock => "shared blocks",
            Self::Lifetime => "lives of blocks",
            Self::Checkpoint => "checkpoints",
            Self::SnapshotList => "list of snapshots",
            Self::CheckpointCounts => "counts of checkpoints",
            Self::Inode => "inodes",
            Self::InodeSize => "file sizes",
            Self::InodeBlocks => "block counts of files",
            Self::Tail => "ends of files",
            Self::Symlink => "symbolic links",
            Self::Directory => "directories",
            Self::DirectoryEntry => "directory entries",
            Self::LinkCount => "link counts",
            Self::Unreachable => "unreachable files",
            Self::Orphan => "orphans",
            Self::XattrFile => "xattr file",
            Self::Foreign => "foreign signatures",
            Self::NotChecked => "not checked",
        })
    }
}

/// Where something was found; only the parts that apply are set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Location {
    /// The segment.
    pub segment: Option<SegNum>,
    /// The first block of the log.
    pub log: Option<BlockNr>,
    /// The checkpoint.
    pub checkpoint: Option<Cno>,
    /// The file; metadata files go by their reserved numbers.
    pub ino: Option<Ino>,
    /// The block within the file, or the key of a B-tree node.
    pub file_block: Option<FileBlock>,
    /// The virtual block.
    pub vblock: Option<VBlockNr>,
    /// The physical block.
    pub block: Option<BlockNr>,
}

impl Location {
    /// Nowhere in particular: the volume as a whole.
    pub const VOLUME: Location = Location {
        segment: None,
        log: None,
        checkpoint: None,
        ino: None,
        file_block: None,
        vblock: None,
        block: None,
    };

    pub(crate) fn segment(segment: SegNum) -> Self {
        Self { segment: Some(segment), ..Self::VOLUME }
    }

    pub(crate) fn file(ino: Ino) -> Self {
        Self { ino: Some(ino), ..Self::VOLUME }
    }

    pub(crate) fn checkpoint(cno: Cno) -> Self {
        Self { checkpoint: Some(cno), ..Self::VOLUME }
    }

    pub(crate) fn log(self, log: BlockNr) -> Self {
        Self { log: Some(log), ..self }
    }

    pub(crate) fn ino(self, ino: Ino) -> Self {
        Self { ino: Some(ino), ..self }
    }

    pub(crate) fn file_block(self, key: u64) -> Self {
        Self { file_block: Some(FileBlock(key)), ..self }
    }

    pub(crate) fn vblock(self, vblock: VBlockNr) -> Self {
        Self { vblock: Some(vblock), ..self }
    }

    pub(crate) fn block(self, block: BlockNr) -> Self {
        Self { block: Some(block), ..self }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.ino.map(|ino| match ino {
            Ino::DAT => "DAT".to_owned(),
            Ino::CPFILE => "cpfile".to_owned(),
            Ino::SUFILE => "sufile".to_owned(),
            Ino::IFILE => "ifile".to_owned(),
            Ino::XATTR => "xattr file".to_owned(),
            _ => format!("inode {ino}"),
        });
        let parts = [
            self.segment.map(|n| format!("segment {n}")),
            self.log.map(|n| format!("log at block {n}")),
            self.checkpoint.map(|n| format!("checkpoint {n}")),
            file,
            self.file_block.map(|n| format!("file block {n}")),
            self.vblock.map(|n| format!("virtual block {n}")),
            self.block.map(|n| format!("block {n}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            return f.write_str("volume");
        }
        f.write_str(&parts.join(", "))
    }
}

/// One thing that the checker has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The rule it is about.
    pub rule: Rule,
    /// Where.
    pub place: Location,
    /// What, in plain words: found and expected.
    pub message: String,
    /// What would put it right, where that follows from the rest of the volume. With several of a
    /// kind, all are needed. A block, pointer, root or inode is to be made anew only if the finding
    /// stays when everything else is corrected.
    pub corrections: Vec<Correction>,
}

impl Finding {
    /// What is wrong, and where.
    #[must_use]
    pub fn fault(&self) -> String {
        format!("{}: {}", self.place, self.message)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, self.fault())
    }
}

/// How much of everything there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Checkpoints on the volume, snapshots among them.
    pub checkpoints: u64,
    /// Checkpoints whose trees were walked.
    pub checkpoints_walked: u64,
    /// Snapshots on the volume.
    pub snapshots: u64,
    /// Inodes in use in the newest checkpoint, as its counter counts them.
    pub inodes: u64,
    /// Blocks of the present: of the newest checkpoint and of the metadata files.
    pub live_blocks: u64,
    /// Blocks of the past that lived on into the protected checkpoints (see the options), and that no
    /// snapshot keeps.
    pub protected_blocks: u64,
    /// Blocks of the past that snapshots keep.
    pub snapshot_blocks: u64,
    /// Logs in the segments in use.
    pub logs: u64,
    /// Segments in use.
    pub segments: u64,
}

/// What was found on a volume.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// What was found, errors first; of each rule at most as many as the options allow.
    pub findings: Vec<Finding>,
    /// Findings that say the same as one of these about another checkpoint, with what corrects it there:
    /// blocks that are not shared.
    pub repeated: Vec<Finding>,
    /// How many findings of a rule were counted but not kept.
    pub omitted: Vec<(Rule, u64)>,
    /// The newest checkpoint, at which the volume was checked.
    pub newest: Cno,
    /// The log that completes it.
    pub newest_log: LogCursor,
    /// What there is on the volume.
    pub counts: Counts,
    /// The checkpoints of the past whose entries are there.
    pub past: BTreeSet<Cno>,
    /// The checkpoints of the past in which errors were found.
    pub faulty_past: BTreeMap<Cno, PastCheckpoint>,
    /// The checkpoints of which damage hides files or names, so that the links and counts of others were not
    /// judged.
    pub partly_seen: BTreeSet<Cno>,
    /// Blocks of metadata that were read and are not what was written, with the checksums that their logs have
    /// of them.
    pub changed_metadata: BTreeMap<BlockNr, BlockSum>,
    /// Blocks of logs without a summary that the DAT has, and no file that was reached.
    pub unclaimed: BTreeMap<BlockNr, Unclaimed>,
}

/// A block of which the DAT alone tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unclaimed {
    /// Its virtual number.
    pub vblock: VBlockNr,
    /// The checkpoints that have it.
    pub life: Range<Cno>,
}

/// A checkpoint that is not the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastCheckpoint {
    /// Place of the flags in its entry.
    pub flags: Position,
    /// Whether it is a snapshot.
    pub is_snapshot: bool,
}

impl Report {
    /// The findings that say the volume breaks a rule.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error)
    }

    /// The severity of the worst finding.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// Whether the volume keeps every rule that was checked.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.worst() != Some(Severity::Error)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        f.write_str(&self.summary())
    }
}

impl Report {
    /// How many findings are not shown, and what there is on the volume.
    #[must_use]
    pub fn summary(&self) -> String {
        let omitted = self.omitted.iter().map(|(rule, count)| {
            format!("not shown about {rule}: {}\n", counted(*count, "finding"))
        });
        let counts = &self.counts;
        let omitted: String = omitted.collect();
        format!(
            "{omitted}checkpoint {}: {} ({} walked), {}, {}, {}, {} in {}",
            self.newest,
            counted(counts.checkpoints, "checkpoint"),
            counts.checkpoints_walked,
            counted(counts.snapshots, "snapshot"),
            counted(counts.inodes, "inode"),
            counted(counts.live_blocks, "live block"),
            counted(counts.logs, "log"),
            counted(counts.segments, "segment")
        )
    }
}

/// A number of things, in the singular or plural.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

/// A finding that was just added.
#[derive(Debug)]
pub(crate) enum Added<'f> {
    /// Kept.
    New(&'f mut Finding),
    /// Said before, of another checkpoint.
    Again { finding: Finding, known: &'f mut HashSet<Correction>, repeated: &'f mut Vec<Finding> },
    /// Counted at most.
    Omitted,
}

impl Added<'_> {
    /// Says what would put it right.
    pub(crate) fn corrected_by(self, corrections: impl IntoIterator<Item = Correction>) {
        match self {
            Added::New(finding) => finding.corrections.extend(corrections),
            Added::Again { mut finding, known, repeated } => {
                let others = corrections.into_iter().filter(|it| known.insert(it.clone()));
                finding.corrections.extend(others);
                repeated.extend((!finding.corrections.is_empty()).then_some(finding));
            }
            Added::Omitted => {}
        }
    }
}

/// Place among the findings kept, with the corrections of that finding and of those that say the same.
#[derive(Debug)]
struct Told {
    nth: usize,
    corrections: HashSet<Correction>,
}

/// Collects findings while the volume is walked.
#[derive(Debug)]
pub(crate) struct Findings {
    per_rule: usize,
    kept: BTreeMap<(Severity, Rule), Vec<Finding>>,
    /// What was kept about blocks and files that checkpoints may share, wherever it was found.
    told: HashMap<(Severity, Rule, Location, String), Told>,
    /// Findings that say the same about another checkpoint, and are corrected elsewhere.
    repeated: Vec<Finding>,
    omitted: BTreeMap<Rule, u64>,
}

impl Findings {
    pub(crate) fn new(per_rule: usize) -> Self {
        let (kept, told, repeated, omitted) = Default::default();
        Self { per_rule: per_rule.max(1), kept, told, repeated, omitted }
    }

    pub(crate) fn error(
        &mut self,
        rule: Rule,
        place: Location,
        message: impl FnOnce() -> String,
    ) -> Added<'_> {
        self.add(Severity::Error, rule, place, message)
    }

    pub(crate) fn warning(
        &mut self,
        rule: Rule,
        place: Location,
        message: impl FnOnce() -> String,
    ) -> Added<'_> {
        self.add(Severity::Warning, rule, place, message)
    }

    pub(crate) fn note(&mut self, rule: Rule, place: Location, message: impl FnOnce() -> String) {
        self.add(Severity::Note, rule, place, message);
    }

    /// Keeps the finding, unless it is the same as one of another checkpoint (a fault in a block
    /// that checkpoints share is one fault), or there are enough of its rule. Of the same finding, other
    /// corrections are kept: it may be in blocks that are not shared.
    pub(crate) fn add(
        &mut self,
        severity: Severity,
        rule: Rule,
        place: Location,
        message: impl FnOnce() -> String,
    ) -> Added<'_> {
        let kept = self.kept.entry((severity, rule)).or_default();
        if kept.len() >= self.per_rule {
            *self.omitted.entry(rule).or_default() += 1;
            return Added::Omitted;
        }
        let message = message();
        let finding = Finding { severity, rule, place, message, corrections: Vec::new() };
        let shared = place.ino.is_some() || place.vblock.is_some() || place.block.is_some();
        if shared {
            let anywhere = Location { checkpoint: None, ..place };
            match self.told.entry((severity, rule, anywhere, finding.message.clone())) {
                Entry::Vacant(told) => {
                    _ = told.insert(Told { nth: kept.len(), corrections: HashSet::new() });
                }
                Entry::Occupied(_) if self.repeated.len() >= self.per_rule => {
                    return Added::Omitted;
                }
                Entry::Occupied(told) => {
                    let Told { nth, corrections: known } = told.into_mut();
                    if known.is_empty() {
                        known.extend(kept[*nth].corrections.iter().cloned());
                    }
                    return Added::Again { finding, known, repeated: &mut self.repeated };
                }
            }
        }
        kept.push(finding);
        kept.last_mut().map_or(Added::Omitted, Added::New)
    }

    /// Whether the volume breaks a rule, as far as is known.
    pub(crate) fn has_errors(&self) -> bool {
        self.kept
            .iter()
            .any(|((severity, _), kept)| *severity == Severity::Error && !kept.is_empty())
    }

    /// Whether there is nothing to be said.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Makes a report of all this, given the checkpoints of the past.
    pub(crate) fn into_report(
        self,
        newest_log: LogCursor,
        counts: Counts,
        past: &BTreeMap<Cno, PastCheckpoint>,
    ) -> Report {
        let mut findings: Vec<Finding> = self.kept.into_values().flatten().collect();
        findings.sort_by_key(|finding| Reverse(finding.severity));
        let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
        let faulty: BTreeSet<Cno> = errors.filter_map(|error| error.place.checkpoint).collect();
        let of_past = |cno| past.get(&cno).map(|it| (cno, *it));
        let faulty_past = faulty.into_iter().filter_map(of_past).collect();
        Report {
            findings,
            repeated: self.repeated,
            omitted: self.omitted.into_iter().collect(),
            newest: newest_log.cno,
            newest_log,
            counts,
            past: past.keys().copied().collect(),
            faulty_past,
            partly_seen: BTreeSet::new(),
            changed_metadata: BTreeMap::new(),
            unclaimed: BTreeMap::new(),
        }
    }
}
