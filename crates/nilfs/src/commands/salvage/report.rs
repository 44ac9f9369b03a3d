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
        /// Why they are.
        why: String,
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

    fn name(&self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Older { .. } => "older",
            Self::Partial { .. } => "partial",
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
    lost: u64,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct ExtentRecord {
    offset_bytes: u64,
    length_bytes: u64,
}

impl Report {
    /// Adds a file under its path from the root of the volume.
    pub fn add(&mut self, path: &[u8], fate: Fate) {
        self.files.push((path.to_vec(), fate));
    }

    /// Puts the files in the order of their paths.
    pub fn sort(&mut self) {
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
        let [older, partial, lost] = ["older", "partial", "lost"].map(|name| self.count(name));
        Ok(writeln!(out, "{whole} whole, {older} older, {partial} partial, {lost} lost")?)
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
            lost: self.count("lost"),
            files: files.map(|(path, fate)| FileRecord::new(path, fate)).collect(),
        }
    }
}

impl FileRecord {
    fn new(path: &[u8], fate: &Fate) -> Self {
        let (mut checkpoint, mut missing, mut reason) = (None, Vec::new(), None);
        match fate {
            Fate::Whole => {}
            Fate::Older { cno, .. } => checkpoint = Some(cno.0),
            Fate::Partial { missing: parts, why } => {
                let part =
                    |it: &Extent| ExtentRecord { offset_bytes: it.offset, length_bytes: it.length };
                missing = parts.iter().map(part).collect();
                reason = Some(why.clone());
            }
            Fate::Lost { why } => reason = Some(why.clone()),
        }
        let path = String::from_utf8_lossy(path).into_owned();
        Self { path, state: fate.name(), checkpoint, missing, reason }
    }
}

fn shown(path: &[u8]) -> String {
    if path.is_empty() { "/".to_owned() } else { printable(path) }
}

/// What a line says about a file besides its name.
fn details(fate: &Fate) -> String {
    match fate {
        Fate::Whole => String::new(),
        Fate::Older { cno, created } => {
            format!(": as of checkpoint {cno}, {}", local_time(*created as i64))
        }
        Fate::Partial { missing, why } if missing.is_empty() => {
            format!(": names are missing: {}", printable(why.as_bytes()))
        }
        Fate::Partial { missing, .. } => {
            let bytes = missing.iter().fold(0_u64, |sum, it| sum.saturating_add(it.length));
            let part = |it: &Extent| format!("{} at {}", counted(it.length, "byte"), it.offset);
            let parts: Vec<String> = missing.iter().take(NAMED).map(part).collect();
            let more = if missing.len() > NAMED { ", …" } else { "" };
            format!(": {} missing: {}{more}", ByteCount(bytes), parts.join(", "))
        }
        Fate::Lost { why } => format!(": {}", printable(why.as_bytes())),
    }
}
