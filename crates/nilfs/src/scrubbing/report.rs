//! What a scrub found, as it is printed, sent and remembered.

use std::io::{self, Write};

use nilfs_engine::Ino;
use nilfs_engine::scrub::{Damage, Fault, Need, Scrubbed, Unreached};
use nilfs_engine::tree::Extent;
use nilfs_ondisk::ByteCount;
use serde::{Deserialize, Serialize};

use crate::output::{counted, printable};

/// Parts of a file that a line names; of more, it says how many bytes there are.
const NAMED: usize = 4;

/// The result of a scrub, or of what it has read so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The newest checkpoint when it began.
    pub checkpoint: u64,
    /// With what had to be read twice.
    pub read_bytes: u64,
    /// Logs of which every byte is as it was written.
    pub sound_logs: u64,
    /// It was ended before everything was read.
    pub interrupted: bool,
    /// Where the volume seems to end, though it does not.
    pub unreached: Option<UnreachedRecord>,
    /// What is damaged and needed.
    pub damage: Vec<DamageRecord>,
}

/// A log that should lead on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachedRecord {
    /// Where it should be.
    pub block: u64,
    /// The newest checkpoint that is known to be there, or after it; none if only fsyncs have written
    /// there.
    pub checkpoint: Option<u64>,
}

/// A damaged place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamageRecord {
    /// `unreadable`, `content`, `unverified`, `checksum` or `no-summary`.
    pub fault: String,
    pub segment: u64,
    pub block: u64,
    pub blocks: u64,
    pub needs: Vec<NeedRecord>,
    /// Everything that needs these blocks has got what was written there.
    #[serde(default)]
    pub repaired: bool,
}

/// A file, or a part of the metadata, that needs blocks there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeedRecord {
    pub inode: Option<u64>,
    pub path: Option<String>,
    pub metadata: Option<String>,
    pub data: Vec<ExtentRecord>,
    pub other_blocks: u64,
    pub first_checkpoint: u64,
    pub last_checkpoint: u64,
    pub current: bool,
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentRecord {
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

const CHECKSUM: &str = "checksum";
const CONTENT: &str = "content";
const NO_SUMMARY: &str = "no-summary";
const UNREADABLE: &str = "unreadable";
const UNVERIFIED: &str = "unverified";

impl From<&Scrubbed> for Report {
    fn from(found: &Scrubbed) -> Self {
        Self {
            checkpoint: found.checkpoint.0,
            read_bytes: found.bytes,
            sound_logs: found.sound_logs,
            interrupted: found.interrupted.is_some(),
            unreached: found.unreached.map(UnreachedRecord::from),
            damage: found.damage.iter().map(DamageRecord::from).collect(),
        }
    }
}

impl From<Unreached> for UnreachedRecord {
    fn from(unreached: Unreached) -> Self {
        Self { block: unreached.block.0, checkpoint: unreached.newest.map(|cno| cno.0) }
    }
}

impl From<&Damage> for DamageRecord {
    fn from(damage: &Damage) -> Self {
        let fault = match damage.fault {
            Fault::Unreadable => UNREADABLE,
            Fault::Content => CONTENT,
            Fault::Unverified => UNVERIFIED,
            Fault::Checksum => CHECKSUM,
            Fault::NoSummary => NO_SUMMARY,
        };
        Self {
            fault: fault.to_owned(),
            segment: damage.segment.0,
            block: damage.blocks.start.0,
            blocks: damage.blocks.end.0 - damage.blocks.start.0,
            needs: damage.needs.iter().map(NeedRecord::from).collect(),
            repaired: damage.repaired,
        }
    }
}

impl From<&Need> for NeedRecord {
    fn from(need: &Need) -> Self {
        let extent =
            |it: &Extent| ExtentRecord { offset_bytes: it.offset, length_bytes: it.length };
        Self {
            inode: need.ino.map(|ino| ino.0),
            path: need.path.as_ref().map(|path| String::from_utf8_lossy(path).into_owned()),
            metadata: need.ino.and_then(metadata).map(str::to_owned),
            data: need.data.iter().map(extent).collect(),
            other_blocks: need.other_blocks,
            first_checkpoint: need.first.0,
            last_checkpoint: need.last.0,
            current: need.is_current,
        }
    }
}

/// The name of a file of metadata.
fn metadata(ino: Ino) -> Option<&'static str> {
    Some(match ino {
        Ino::DAT => "DAT",
        Ino::CPFILE => "cpfile",
        Ino::SUFILE => "sufile",
        Ino::IFILE => "ifile",
        Ino::XATTR => "notes of snapshots",
        _ => return None,
    })
}

impl Report {
    /// Whether nothing is wrong any more with what was read.
    pub fn is_sound(&self) -> bool {
        self.left() == 0 && self.unreached.is_none()
    }

    /// How many damaged places are not repaired.
    pub fn left(&self) -> u64 {
        self.damage.iter().filter(|damage| !damage.repaired).count() as u64
    }

    /// Prints all of it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(UnreachedRecord { block, checkpoint }) = self.unreached {
            let what = match checkpoint {
                Some(cno) => format!("the way to checkpoint {cno} begins"),
                None => "what fsyncs have written goes on".to_owned(),
            };
            writeln!(out, "broken off: no whole log is in block {block}, where {what}")?;
        }
        for damage in &self.damage {
            writeln!(out, "{}", damage.place())?;
            for need in &damage.needs {
                writeln!(out, "  {}", damage.suffering(need))?;
            }
        }
        let end = if self.interrupted { ", interrupted" } else { "" };
        let (read, logs) = (ByteCount(self.read_bytes), counted(self.sound_logs, "log"));
        let found = self.summary();
        let cno = self.checkpoint;
        writeln!(out, "checkpoint {cno}: {read} read, {logs} sound, {found}{end}")
    }

    /// The same as a sentence that begins with the name of the volume.
    pub fn found(&self) -> String {
        format!("damaged in {}", counted(self.left(), "place"))
    }

    /// How much is damaged, in a few words.
    pub fn summary(&self) -> String {
        let repaired = self.damage.len() as u64 - self.left();
        let left = match (self.left(), self.unreached) {
            (0, None) if repaired > 0 => return format!("{} repaired", counted(repaired, "place")),
            (0, None) => "no damage".to_owned(),
            (0, Some(UnreachedRecord { checkpoint: None, .. })) => "fsyncs not reached".to_owned(),
            (0, Some(_)) => "newer checkpoints not reached".to_owned(),
            (many, _) => format!("{} damaged", counted(many, "place")),
        };
        match repaired {
            0 => left,
            many => format!("{left}, {many} repaired"),
        }
    }
}

impl DamageRecord {
    /// Where it is.
    pub fn place(&self) -> String {
        let Self { fault, segment, block, blocks, repaired, .. } = self;
        let count = counted(*blocks, "block");
        let end = if *repaired { ": repaired" } else { "" };
        let at = format!("{count} from block {block} on, in segment {segment}{end}");
        match fault.as_str() {
            UNREADABLE => format!("unreadable: {at}"),
            CONTENT => format!("not what was written: {at}"),
            UNVERIFIED => format!("not known whether it is what was written: {at}"),
            CHECKSUM => format!("wrong checksum: a log of {at}"),
            _ => format!("no log, where there should be one: {at}"),
        }
    }

    /// What suffers from it, and since when.
    pub fn suffering(&self, need: &NeedRecord) -> String {
        let verb = match self.fault.as_str() {
            _ if self.repaired => "whole again",
            CHECKSUM | UNVERIFIED => "may be damaged",
            _ => "damaged",
        };
        format!("{verb}: {}{}; {}", need.name(), need.parts(), need.span())
    }
}

impl NeedRecord {
    fn name(&self) -> String {
        let Some(ino) = self.inode else { return "files that cannot be told".to_owned() };
        match (&self.path, &self.metadata) {
            (Some(path), _) if path.is_empty() => "/".to_owned(),
            (Some(path), _) => printable(path.as_bytes()),
            (None, Some(name)) => format!("the {name}"),
            (None, None) => format!("inode {ino}, which no name leads to"),
        }
    }

    fn parts(&self) -> String {
        let bytes = self.data.iter().fold(0_u64, |sum, it| sum.saturating_add(it.length_bytes));
        let part = |it: &ExtentRecord| {
            format!("{} at {}", counted(it.length_bytes, "byte"), it.offset_bytes)
        };
        let mut parts: Vec<String> = match self.data.len() {
            0..=NAMED => self.data.iter().map(part).collect(),
            many => vec![format!("{} in {many} parts", ByteCount(bytes))],
        };
        match (self.other_blocks, self.inode) {
            (0, _) => {}
            (count, Some(_)) => parts.push(format!("{} of its block map", counted(count, "block"))),
            (count, None) => parts.push(counted(count, "block")),
        }
        format!(": {}", parts.join(", "))
    }

    fn span(&self) -> String {
        let Self { first_checkpoint: first, last_checkpoint: last, current, .. } = self;
        match (first == last, current) {
            (_, true) => format!("since checkpoint {first}"),
            (true, false) => format!("checkpoint {first}"),
            (false, false) => format!("checkpoints {first} to {last}"),
        }
    }
}
