//! What became of each file.

use std::io::Write;

use nilfs_engine::tree::Extent;
use nilfs_engine::{Cno, Tree};
use nilfs_ondisk::ByteCount;
use serde::Serialize;

use crate::output::{self, counted, exact_time, local_time, printable};

/// Missing parts of a file that a line names; of more, it says how many there are.
const NAMED: usize = 4;

/// What became of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is as the checkpoint has it that is salvaged.
    Whole,
    /// It is as an older checkpoint has it, because there is no whole newer version.
    Older {
        /// The checkpoint.
        cno: Cno,
        /// When that was made, in seconds since 1970.
        created: u64,
    },
    /// Parts of it are missing. Of a directory, it is names.
    Partial {
        /// Those parts of a file.
        missing: Vec<Extent>,
        /// Parts that can be read, and are not what was written.
        wrong: Vec<Extent>,
        /// Why they are.
        why: String,
        /// An older checkpoint that has a whole version, without what can be read of this one.
        whole_in: Option<Cno>,
    },
    /// It can be read, but it is not what was written, or fsck gives something of it up, or guesses it.
    Damaged {
        /// The parts that have another checksum than they were written with.
        parts: Vec<Extent>,
        /// Reason, in words.
        why: String,
    },
    /// It can be read, and nothing tells whether it is what was written.
    Unverified {
        /// The parts of which nothing tells.
        parts: Vec<Extent>,
    },
    /// There is nothing of it.
    Lost {
        /// Why.
        why: String,
    },
}

impl Fate {
    /// As a checkpoint has it that is not the newest.
    pub fn older(tree: &Tree) -> Self {
        Self::Older { cno: tree.cno(), created: tree.created() }
    }

    /// Of a directory of which names are missing.
    pub fn names_missing(why: String) -> Self {
        Self::Partial { missing: Vec::new(), wrong: Vec::new(), why, whole_in: None }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Older { .. } => "older",
            Self::Partial { .. } => "partial",
            Self::Damaged { .. } => "damaged",
            Self::Unverified { .. } => "unverified",
            Self::Lost { .. } => "lost",
        }
    }
}

/// The checkpoint from which files are taken if possible; of snapshots and deleted files, it is that
/// of their directory.
pub struct Base {
    /// Its files.
    pub tree: Tree,
    /// Somebody has asked for it.
    pub chosen: bool,
    /// The newest checkpoint that the volume is known to have had.
    pub known: Cno,
    /// No superblock leads to it.
    pub by_scan: bool,
}

impl Base {
    /// Its number.
    pub fn cno(&self) -> Cno {
        self.tree.cno()
    }

    /// Whether nothing newer is missing.
    pub fn is_newest(&self) -> bool {
        self.chosen || self.known <= self.cno()
    }
}

/// What became of all files.
#[derive(Debug, Default)]
pub struct Report {
    files: Vec<(Vec<u8>, Fate)>,
    /// Losses of the volume that cannot be named by a file.
    others: Vec<String>,
}

/// The report in JSON.
#[derive(Debug, Serialize)]
pub struct Record {
    checkpoint: u64,
    newest_known_checkpoint: u64,
    created: String,
    found_by: &'static str,
    whole: u64,
    older: u64,
    partial: u64,
    damaged: u64,
    unverified: u64,
    lost: u64,
    losses: Vec<String>,
    files: Vec<FileRecord>,
}

#[derive(Debug, Serialize)]
struct FileRecord {
    path: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<ExtentRecord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    doubtful: Vec<ExtentRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct ExtentRecord {
    offset_bytes: u64,
    length_bytes: u64,
}

impl Report {
    /// Whether nothing is lost that cannot be named by a file.
    pub fn is_complete(&self) -> bool {
        self.others.is_empty()
    }

    /// Adds a file under its path from the root of the volume.
    pub fn add(&mut self, path: &[u8], fate: Fate) {
        self.files.push((path.to_vec(), fate));
    }

    /// Adds losses that were not said of a file, and puts the files in the order of their paths.
    pub fn conclude(&mut self, others: Vec<String>) {
        self.others = others;
        self.files.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    }

    fn count(&self, name: &str) -> u64 {
        self.files.iter().filter(|(_, fate)| fate.name() == name).count() as u64
    }

    /// How many files are not as the checkpoint has them that is salvaged.
    pub fn damaged(&self) -> u64 {
        self.files.len() as u64 - self.count("whole")
    }

    /// Prints the files that are not whole, or all of them, and how many there are of each kind.
    pub fn print(&self, all: bool, base: &Base) -> anyhow::Result<()> {
        let mut out = output::out();
        for (path, fate) in self.files.iter().filter(|(_, fate)| all || *fate != Fate::Whole) {
            writeln!(out, "{:<8} {}{}", fate.name(), shown(path), details(fate))?;
        }
        for loss in &self.others {
            writeln!(out, "lost: {}", printable(loss.as_bytes()))?;
        }
        let (cno, time) = (base.cno(), local_time(base.tree.created() as i64));
        let found = if base.by_scan { ", which was found by its log" } else { "" };
        match base.chosen {
            true => writeln!(out, "The files are those of checkpoint {cno} of {time}.")?,
            false => writeln!(out, "The newest usable checkpoint is {cno} of {time}{found}.")?,
        }
        if !base.is_newest() {
            writeln!(out, "Checkpoint {} is known, but cannot be used.", base.known)?;
        }
        let whole = counted(self.count("whole"), "file");
        let others = ["older", "partial", "damaged", "unverified", "lost"];
        let others = others.map(|name| format!("{} {name}", self.count(name)));
        Ok(writeln!(out, "{whole} whole, {}", others.join(", "))?)
    }

    /// The same for JSON.
    pub fn record(&self, all: bool, base: &Base) -> Record {
        let files = self.files.iter().filter(|(_, fate)| all || *fate != Fate::Whole);
        Record {
            checkpoint: base.cno().0,
            newest_known_checkpoint: base.known.0,
            created: exact_time(base.tree.created() as i64, 0),
            found_by: if base.by_scan { "scan" } else { "superblock" },
            whole: self.count("whole"),
            older: self.count("older"),
            partial: self.count("partial"),
            damaged: self.count("damaged"),
            unverified: self.count("unverified"),
            lost: self.count("lost"),
            losses: self.others.clone(),
            files: files.map(|(path, fate)| FileRecord::new(path, fate)).collect(),
        }
    }
}

impl FileRecord {
    fn new(path: &[u8], fate: &Fate) -> Self {
        let (mut checkpoint, mut reason) = (None, None);
        let (mut missing, mut doubtful) = (Vec::new(), Vec::new());
        let part = |it: &Extent| ExtentRecord { offset_bytes: it.offset, length_bytes: it.length };
        match fate {
            Fate::Whole => {}
            Fate::Older { cno, .. } => checkpoint = Some(cno.0),
            Fate::Partial { missing: parts, wrong, why, whole_in } => {
                missing = parts.iter().map(part).collect();
                doubtful = wrong.iter().map(part).collect();
                reason = Some(why.clone());
                checkpoint = whole_in.map(|cno| cno.0);
            }
            Fate::Damaged { parts, why } => {
                doubtful = parts.iter().map(part).collect();
                reason = Some(why.clone());
            }
            Fate::Unverified { parts } => doubtful = parts.iter().map(part).collect(),
            Fate::Lost { why } => reason = Some(why.clone()),
        }
        let path = String::from_utf8_lossy(path).into_owned();
        Self { path, state: fate.name(), checkpoint, missing, doubtful, reason }
    }
}

fn shown(path: &[u8]) -> String {
    if path.is_empty() { "/".to_owned() } else { printable(path) }
}

/// Parts of a file, and what is the matter with them.
fn named(parts: &[Extent], what: &str) -> String {
    let bytes = parts.iter().fold(0_u64, |sum, it| sum.saturating_add(it.length));
    let part = |it: &Extent| format!("{} at {}", counted(it.length, "byte"), it.offset);
    let named: Vec<String> = parts.iter().take(NAMED).map(part).collect();
    let more = if parts.len() > NAMED { ", …" } else { "" };
    format!(": {} {what}: {}{more}", ByteCount(bytes), named.join(", "))
}

/// What a line says about a file besides its name.
fn details(fate: &Fate) -> String {
    match fate {
        Fate::Whole => String::new(),
        Fate::Older { cno, created } => {
            format!(": as of checkpoint {cno}, {}", local_time(*created as i64))
        }
        Fate::Partial { missing, why, .. } if missing.is_empty() => {
            format!(": names are missing: {}", printable(why.as_bytes()))
        }
        Fate::Partial { missing, wrong, whole_in, .. } => {
            let wrong = if wrong.is_empty() { "" } else { &named(wrong, "not what was written") };
            let older =
                whole_in.map(|cno| format!("; an older version is whole in checkpoint {cno}"));
            format!("{}{wrong}{}", named(missing, "missing"), older.unwrap_or_default())
        }
        Fate::Damaged { parts, .. } if !parts.is_empty() => named(parts, "not what was written"),
        Fate::Unverified { parts } => named(parts, "may not be what was written"),
        Fate::Damaged { why, .. } | Fate::Lost { why } => {
            format!(": {}", printable(why.as_bytes()))
        }
    }
}
