//! What the cleaner must know before it can choose: the lives of all blocks, the snapshots, the age
//! of every checkpoint. It is gathered from the DAT and the cpfile when it is first needed, while
//! commits go on, and every commit keeps it up to date.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::{Cno, SegNum};

use crate::bmap::{Pointers, Source};
use crate::checkpoints;
use crate::cleaner::segment_table::SegmentTable;
use crate::commit::{Effects, MetadataChanges, root_of};
use crate::dat::{Dat, LifeEvent};
use crate::error::Result;
use crate::protection::Protection;
use crate::segments;
use crate::store::Store;
use crate::times::EffectiveTimes;
use crate::writer::space::Needed;

/// What is known, or how far the gathering has come.
#[derive(Debug, Default)]
pub(crate) enum Tracking {
    /// Nobody has asked yet.
    #[default]
    Unknown,
    /// Being gathered from the state before these commits.
    Gathering(Vec<CheckpointEffects>),
    Ready(Box<LiveBlocks>),
}

/// What a commit has changed.
#[derive(Debug)]
pub(crate) struct CheckpointEffects {
    events: Vec<LifeEvent>,
    written: Vec<(SegNum, u64)>,
    cleaned: Vec<SegNum>,
    snapshots: Vec<(Cno, bool)>,
    deleted: Vec<Range<Cno>>,
    bad: Vec<SegNum>,
    cno: Cno,
    time: u64,
}

/// The lives of all blocks, and the checkpoints that give them a meaning.
#[derive(Debug)]
pub(crate) struct LiveBlocks {
    pub(crate) table: SegmentTable,
    pub(crate) snapshots: BTreeSet<Cno>,
    pub(crate) times: EffectiveTimes,
    /// Lives that this did not protect are forgotten.
    forgotten: Option<Protection>,
    /// Segments that cannot be written, by their usage entries.
    pub(crate) bad: BTreeSet<SegNum>,
}

impl Tracking {
    pub(crate) fn ready(&mut self) -> Option<&mut LiveBlocks> {
        match self {
            Self::Ready(known) => Some(known),
            Self::Unknown | Self::Gathering(_) => None,
        }
    }

    /// Forgets everything: it has to be gathered anew.
    pub(crate) fn forget_all(&mut self) {
        *self = Self::Unknown;
    }

    /// Takes note of a commit.
    pub(crate) fn follow(&mut self, effects: &Effects, changes: &MetadataChanges, time: u64) {
        if matches!(self, Self::Unknown) {
            return;
        }
        let effects = CheckpointEffects {
            events: effects.events.clone(),
            written: effects.written.clone(),
            cleaned: changes.cleaned.clone(),
            snapshots: changes.snapshots.clone(),
            deleted: changes.delete.clone(),
            bad: changes.bad.clone(),
            cno: effects.cno,
            time,
        };
        match self {
            Self::Unknown => {}
            Self::Gathering(waiting) => waiting.push(effects),
            Self::Ready(known) => known.follow(&effects),
        }
    }
}

impl LiveBlocks {
    /// Reads the state that a super root describes. Returns with it the segments that are clean by their
    /// usage entries, each with the number of blocks that all the same live there, by the DAT.
    pub(crate) fn gather(
        store: &Store,
        dat: &Dat,
        super_root: &SuperRoot,
    ) -> Result<(Self, Vec<(SegNum, u64)>)> {
        let source = Source { store, pointers: Pointers::Virtual(dat) };
        let mut table = SegmentTable::new(&store.geometry());
        dat.census(store, &mut |entry| table.add(entry))?;
        let sufile = root_of(&super_root.sufile)?;
        let mut written = Vec::new();
        let mut clean = Vec::new();
        let mut bad = BTreeSet::new();
        for usage in segments::usages(source, &sufile, SegNum(0)) {
            let (segment, usage) = usage?;
            if usage.is_bad() {
                bad.insert(segment);
            }
            if usage.is_clean() {
                clean.push((segment, table.live(segment, &Protection::of_everything())));
            }
            if usage.is_dirty() {
                written.push((usage.su_lastmod.get(), segment));
            }
        }
        written.sort_unstable();
        table.start_clock(written.into_iter().map(|(_, segment)| segment));
        let mut known = Self {
            table,
            snapshots: BTreeSet::new(),
            times: EffectiveTimes::default(),
            forgotten: None,
            bad,
        };
        let cpfile = root_of(&super_root.cpfile)?;
        checkpoints::scan(source, &cpfile, Cno::MIN, &mut |cno, entry| {
            known.times.add(cno, entry.cp_create.get());
            if entry.is_snapshot() {
                known.snapshots.insert(cno);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok((known, clean))
    }

    pub(crate) fn follow(&mut self, effects: &CheckpointEffects) {
        self.table.apply(&effects.events);
        for &segment in &effects.cleaned {
            self.table.clear(segment);
        }
        for &(segment, blocks) in &effects.written {
            self.table.wrote(segment, blocks);
        }
        for &(cno, snapshot) in &effects.snapshots {
            if snapshot {
                self.snapshots.insert(cno);
            } else {
                self.snapshots.remove(&cno);
            }
        }
        if !effects.snapshots.is_empty() {
            self.table.count_with(&self.snapshots);
        }
        self.bad.extend(&effects.bad);
        if !effects.deleted.is_empty() {
            let snapshots = &self.snapshots;
            let gone = |cno: &Cno| effects.deleted.iter().any(|range| range.contains(cno));
            self.times.retain(|cno| snapshots.contains(&cno) || !gone(&cno));
        }
        self.times.add(effects.cno, effects.time);
    }

    /// The newest checkpoint.
    fn newest(&self) -> Cno {
        self.times.checkpoints().last().copied().unwrap_or(Cno(0))
    }

    /// What is to be kept when everything younger than `period` is protected (docs/format.md §22).
    pub(crate) fn protection(&self, period: Duration, now: u64) -> Protection {
        let limit = now.saturating_sub(period.as_secs());
        let from = match period.is_zero() {
            true => Cno::MAX,
            // The next one will be young.
            false => self.times.first_since(limit).unwrap_or(self.newest().plus(1)),
        };
        Protection { from, kept: self.snapshots.clone() }
    }

    /// What is to be kept so that every checkpoint that is there can be read.
    pub(crate) fn protection_of_existing(&self) -> Protection {
        let mut kept = self.snapshots.clone();
        kept.extend(self.times.checkpoints());
        Protection { from: Cno::MAX, kept }
    }

    /// Returns what must be kept, as of the last [`SegmentTable::count`]: of the blocks of segments that
    /// cannot be written, all.
    pub(crate) fn needed(&self) -> Needed {
        Needed {
            blocks: self.table.needed() + self.table.segment_blocks() * self.bad.len() as u64,
            last_kept: self.table.counted().last_kept(self.newest()),
        }
    }

    /// Forgets what nothing needs, to save memory.
    pub(crate) fn forget(&mut self, protection: &Protection) {
        self.table.forget_dead(protection);
        self.forgotten = Some(protection.clone());
    }

    /// Whether everything that `protection` keeps is still known.
    pub(crate) fn covers(&self, protection: &Protection) -> bool {
        let Some(forgotten) = &self.forgotten else { return true };
        let known = |cno: &Cno| *cno >= forgotten.from || forgotten.kept.contains(cno);
        protection.from >= forgotten.from && protection.kept.iter().all(known)
    }
}
