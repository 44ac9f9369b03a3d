//! The volume as it should be: the device with corrections laid over it. Checksums of logs are made
//! right again, so that the engine and the checker take what was corrected for written so.

mod distrust;
mod given_up;
mod seal;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use nilfs_check::{CheckError, Correction, Finding, Options, Part, Position, Report, Rule};
use nilfs_device::{CopyOnWriteDevice, Device, IoSlice, Scratch, Writes};
use nilfs_engine::Log;
use nilfs_engine::scan::Scan;
use nilfs_ondisk::checkpoint::INVALID;
use nilfs_ondisk::summary::{LogHeader, parse_items};
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Cno, Geometry, Ino, SegNum};

use self::given_up::{is_name_given_up, misled_names, wanted_names};
use self::seal::is_walked;
use crate::anew::{self, Anew, Replacement};
use crate::broken_past::Doomed;
use crate::contradicted::Disputed;
use crate::dat::{self, Dat};
use crate::evidence::{self, Doubt};
use crate::logged::{self, LoggedBlocks, Wanted};
use crate::names::Nameless;
use crate::numbers::RemadeIfile;
use crate::repairs::Repairs;
use crate::salvage::LostName;
use crate::stage::{Sharing, Stage};
use crate::{
    Concerned, Kept, Loss, Observer, Repair, RepairError, Risk, Segments, Settings, displaced_by,
    superblocks, sync_logs,
};

pub(crate) use self::seal::is_whole;

/// How often the corrected volume is checked and corrected again. Each round is for what the one
/// before has uncovered.
const ROUNDS: usize = 64;

/// How often the same is corrected, because something else has come to light.
const MOST_TIMES: u8 = 3;

/// A volume that is being corrected.
pub(crate) struct Draft {
    /// The device as it is.
    pub(crate) below: Arc<dyn Device>,
    /// Where what is written is kept.
    pub(crate) scratch: Arc<Scratch>,
    pub(crate) device: Arc<CopyOnWriteDevice>,
    /// The difference between the two.
    pub(crate) corrections: Arc<Writes>,
    /// Blocks of metadata that are not what was written: in the draft, they cannot be read until they are made
    /// anew.
    distrusted: BTreeSet<BlockNr>,
    pub(crate) repairs: Repairs,
    /// Where blocks were corrected. They are right in the draft alone, so they have to be written
    /// elsewhere.
    pub(crate) segments: Segments,
    /// Segments that cannot be emptied, and why: nothing is corrected there.
    pub(crate) immovable: BTreeMap<SegNum, String>,
    /// What is not corrected for that.
    pub(crate) kept: BTreeSet<Kept>,
    /// What is written to the device in place, before anything else: the heads of logs that are given
    /// up. Where few segments are clean, the log goes on right before them, and a later recovery must
    /// not run into them.
    pub(crate) given_up: Vec<(u64, Vec<u8>)>,
    /// Sync logs among them, with what is lost.
    pub(crate) lost: Vec<Log>,
    /// Whether the log goes on in the draft, from the one that its superblocks name.
    pub(crate) moved_cursor: bool,
    /// What is corrected of files.
    pub(crate) sharing: Sharing,
    /// Whether errors may come to light in checkpoints of which damage hides files or names.
    pub(crate) shows_more: bool,
    /// Content that is moved, and not known to be what was written.
    pub(crate) doubts: Vec<Doubt>,
    /// Whether what is there is taken for what was written.
    accept: bool,
    /// Whether it is only to be read.
    pub(crate) in_view: bool,
    /// The logs of which it is.
    accepted: BTreeSet<BlockNr>,
    /// Blocks of content that is lost, and has been replaced: they stay known as damaged.
    made_up: BTreeSet<BlockNr>,
    /// How thoroughly it is checked.
    pub(crate) options: Options,
    /// Who wants to know how far that is.
    pub(crate) observer: Observer,
    pub(crate) uuid: [u8; 16],
    /// The logs that have corrected blocks.
    sealed: BTreeMap<BlockNr, LogHeader>,
    /// How often what was corrected: what begins in a place, or of that a bit or the pointer with a key.
    made: HashMap<(Position, Stage, Option<u64>), u8>,
    /// All logs, once they are asked for.
    scan: Option<Scan>,
    /// What they say about the blocks that are asked about.
    logged: LoggedBlocks,
    /// Whether they say something else now.
    described_anew: bool,
    /// What contradicts them.
    disputed: Disputed,
    /// Blocks of the ifile that were made anew.
    remade_ifile: RemadeIfile,
    /// Names that blocks of directories may have had that are damaged.
    lost_names: BTreeSet<LostName>,
    /// Where names led that lead elsewhere.
    proved_targets: HashMap<Position, Ino>,
    /// What of the present has no name, once all else is corrected.
    pub(crate) nameless: Nameless,
    /// Whether nodes of the DAT were made anew without the summary of the newest log: it is the DAT of before.
    pub(crate) has_older_dat: bool,
    /// The report with which corrections began.
    pub(crate) begun_with: Option<Report>,
    /// Files of which something was made anew, in these checkpoints: if they have fewer blocks then, something
    /// is lost.
    remade: BTreeMap<Ino, Range<Cno>>,
    /// The checkpoint that was the newest before the first pass.
    pub(crate) made_after: Option<Cno>,
    /// Checkpoints of the past that may have to be given up.
    pub(crate) doomed: Doomed,
    /// Blocks of the cpfile that were made anew: checkpoints that have been deleted may be in them again.
    pub(crate) with_deleted: BTreeSet<BlockNr>,
}

/// What a correction comes to.
pub(crate) struct Made {
    pub(crate) action: String,
    pub(crate) risk: Risk,
    /// The files that it is about, if these are others than that of its finding.
    pub(crate) files: BTreeSet<Ino>,
    /// Paths that these would have had.
    pub(crate) names: BTreeMap<Ino, String>,
    /// The part of them that is lost, if it is another one than that of such corrections.
    pub(crate) loss: Option<Loss>,
}

impl Made {
    pub(crate) fn new(action: String, risk: Risk) -> Self {
        Self { action, risk, files: BTreeSet::new(), names: BTreeMap::new(), loss: None }
    }
}

impl Draft {
    pub(crate) fn new(
        below: Arc<dyn Device>,
        scratch: &Arc<Scratch>,
        (options, settings, observer): (Options, Settings, Observer),
    ) -> Self {
        let Settings { uuid, accept, in_view } = settings;
        let corrections = Arc::new(Writes::new(scratch));
        Self {
            device: Arc::new(CopyOnWriteDevice::new(Arc::clone(&below), Arc::clone(&corrections))),
            distrusted: BTreeSet::new(),
            corrections,
            below,
            scratch: Arc::clone(scratch),
            repairs: Repairs::default(),
            segments: Segments::new(),
            immovable: BTreeMap::new(),
            kept: BTreeSet::new(),
            given_up: Vec::new(),
            lost: Vec::new(),
            moved_cursor: false,
            sharing: Sharing::All,
            shows_more: false,
            doubts: Vec::new(),
            accept,
            in_view,
            accepted: BTreeSet::new(),
            made_up: BTreeSet::new(),
            options,
            observer,
            uuid,
            sealed: BTreeMap::new(),
            made: HashMap::new(),
            scan: None,
            logged: LoggedBlocks::default(),
            described_anew: false,
            disputed: Disputed::default(),
            remade_ifile: RemadeIfile::default(),
            lost_names: BTreeSet::new(),
            proved_targets: HashMap::new(),
            nameless: Nameless::default(),
            has_older_dat: false,
            begun_with: None,
            remade: BTreeMap::new(),
            made_after: None,
            doomed: Doomed::default(),
            with_deleted: BTreeSet::new(),
        }
    }

    /// A draft of the same device, without corrections.
    pub(crate) fn afresh(&self) -> Self {
        let settings = Settings { uuid: self.uuid, accept: self.accept, in_view: self.in_view };
        let settings = (self.options.clone(), settings, self.observer.clone());
        let fresh = Self::new(Arc::clone(&self.below), &self.scratch, settings);
        Self {
            sharing: self.sharing,
            shows_more: self.shows_more,
            made_after: self.made_after,
            immovable: self.immovable.clone(),
            ..fresh
        }
    }

    /// Whether nothing of files is corrected.
    pub(crate) fn leaves_files(&self) -> bool {
        self.sharing == Sharing::Nothing
    }

    /// Has less corrected than that which has made a checkpoint worse: what is right for the present may be wrong for
    /// a checkpoint that shares the block. If that is no help either, what looks worse may only have been hidden.
    /// Returns whether there is something left to try.
    pub(crate) fn leave_more(&mut self) -> bool {
        match self.sharing.less() {
            Some(sharing) => self.sharing = sharing,
            None if self.shows_more => return false,
            None => (self.sharing, self.shows_more) = (Sharing::All, true),
        }
        true
    }

    /// Whether nothing is to be put right.
    pub(crate) fn is_as_found(&self) -> bool {
        self.repairs.is_empty() && self.nameless.is_empty()
    }

    /// Makes sure that nobody finds a log any more: without its magic number it is none.
    pub(crate) fn give_up_log(&mut self, log: BlockNr) -> io::Result<()> {
        let geometry = superblocks::best(&*self.device).map_err(io::Error::other)?.geometry();
        let size = geometry.block_size;
        // What cannot be read cannot be written in part, even if the draft has something else there.
        let bytes = match dat::read(&*self.below, &geometry, log) {
            Some(_) => 16,
            None => size.bytes(),
        };
        self.give_up_bytes(log.0 * size.bytes64(), vec![0; bytes])
    }

    /// Writes bytes in place that begin the head of a log.
    pub(crate) fn give_up_bytes(&mut self, offset: u64, bytes: Vec<u8>) -> io::Result<()> {
        self.device.write_at(offset, &[IoSlice::new(&bytes)])?;
        self.given_up.push((offset, bytes));
        Ok(())
    }

    /// What writing the superblocks anew costs. Where something else is in the place of the primary
    /// one, that is lost.
    pub(crate) fn risk_of_superblocks(&self) -> Risk {
        match displaced_by(&*self.below, || self.options.foreign.clone()).is_some() {
            true => Risk::Accepted,
            false => Risk::Safe,
        }
    }

    pub(crate) fn check(&self) -> Result<Report, CheckError> {
        self.observer.check(&*self.device, &self.options)
    }

    /// Corrects the draft, of which a check has said this, until the checker has nothing more to
    /// correct. Returns what it says then.
    pub(crate) fn correct(&mut self, report: Report) -> Result<Report, RepairError> {
        let mut report = self.judged(report)?;
        self.begun_with = Some(report.clone());
        if !self.in_view {
            self.doomed = Doomed::of(&report);
        }
        for _ in 0..ROUNDS {
            if !self.apply(&report)? {
                break;
            }
            report = self.check_again()?;
            while self.delete_again(&report)? {
                report = self.check_again()?;
            }
        }
        self.note_other_damage()?;
        if !self.in_view {
            self.replace_unreadable(&report)?;
        }
        self.nameless = Nameless::of(&report);
        if !self.in_view && !self.repairs.is_empty() {
            self.doubts = self.doubts_of(&self.segments, report.newest_log)?;
        }
        Ok(report)
    }

    fn check_again(&mut self) -> Result<Report, RepairError> {
        let report = self.check().map_err(RepairError::Check)?;
        self.judged(report)
    }

    /// Says which logs will be moved although more is wrong with them than was corrected: their
    /// checksums were wrong, and are not right with the corrections either. That stays known, unless a
    /// mount comes by them: then their checksums have to be right, and if they have none of their blocks,
    /// it cannot be told any more.
    fn note_other_damage(&mut self) -> io::Result<()> {
        for (block, header) in &self.sealed {
            let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
            if !is_walked(&superblock, *block, header.seq, header.flags)
                || self.accepted.contains(block)
            {
                continue;
            }
            let (seed, geometry) = (superblock.crc_seed(), superblock.geometry());
            let size = geometry.block_size;
            let log_of = |device: &dyn Device| -> Option<Vec<u8>> {
                let mut log = vec![0; header.described_blocks(size) as usize * size.bytes()];
                device.read_at(size.address_of(*block)?, &mut log).ok()?;
                Some(log)
            };
            // What cannot be read of it is told apart.
            let Some(found) = log_of(&*self.below) else { continue };
            let written = LogHeader::parse(&found, size, geometry.blocks_per_segment);
            let is_whole = |log: &[u8]| {
                written.as_ref().is_ok_and(|written| is_whole(log, written, size, seed))
            };
            let tells =
                |log: &[u8]| parse_items(header, log, size).is_ok_and(|items| items.sums.is_some());
            let explained = log_of(&*self.device).is_some_and(|log| is_whole(&log));
            if !is_whole(&found) && !explained && !tells(&found) {
                self.repairs.push(Repair {
                    fault: format!(
                        "log at block {block}: its checksum is wrong, and the corrections do not \
                         explain that"
                    ),
                    action:
                        "move what is in it as it is; what else of it is damaged cannot be told \
                             any more"
                            .to_owned(),
                    risk: Risk::Loses,
                    concerned: Concerned::none(),
                });
            }
        }
        Ok(())
    }

    /// Puts zeros where content of files cannot be read in the segments that are emptied, and back what was
    /// found in a block that is not what was written and that nothing has put right: what could not be moved
    /// would keep everything else from being repaired.
    fn replace_unreadable(&mut self, report: &Report) -> Result<(), RepairError> {
        let superblock = superblocks::best(&*self.device)?;
        let geometry = superblock.geometry();
        let size = geometry.block_size.bytes64();
        let mut bad = BTreeSet::new();
        for segment in &self.segments {
            bad.extend(self.unreadable_in(*segment)?);
        }
        if bad.is_empty() {
            return Ok(());
        }
        if self.scan.is_none() {
            self.scan = self.observer.scan(&*self.device).ok();
        }
        let replaced: Vec<BlockNr> = bad.iter().copied().collect();
        for block in bad {
            if self.distrusted.contains(&block)
                && let Some(found) = dat::read(&*self.below, &geometry, block)
            {
                self.device.write_at(block.0 * size, &[IoSlice::new(&found)])?;
                continue;
            }
            let owner = self
                .scan
                .as_ref()
                .and_then(|scan| logged::content_at(scan, &*self.device, block, report.newest_log));
            if let Some((ino, offset)) = owner {
                self.repairs.push(Repair {
                    fault: format!(
                        "inode {ino}: block {block} cannot be read, {size} bytes at byte {}",
                        u128::from(offset) * u128::from(size)
                    ),
                    action: "put zeros there, if the file still has them".to_owned(),
                    risk: Risk::Loses,
                    concerned: Concerned::new([ino], Loss::Content),
                });
            }
            self.device.write_at(block.0 * size, &[IoSlice::new(&vec![0; size as usize])])?;
        }
        self.made_up.extend(&replaced);
        self.seal_logs(&superblock, &replaced, report.newest_log)?;
        Ok(())
    }

    /// Makes the corrections of a report, of the first stage of which there are any. Returns whether
    /// there were any.
    fn apply(&mut self, report: &Report) -> Result<bool, RepairError> {
        // What a sync log contradicts may be damaged itself.
        let contradicts = |it: &Finding| it.rule == Rule::RollForward && it.place.ino.is_some();
        let comes_last = report.errors().any(contradicts);
        let is_first = |stage: &Stage| !(comes_last && *stage == Stage::SyncLogs);
        for stage in Stage::all().filter(|stage| *stage < Stage::Counts).filter(is_first) {
            if self.apply_stage(report, stage)? {
                return Ok(true);
            }
        }
        Ok(comes_last && self.apply_stage(report, Stage::SyncLogs)?
            || self.claim_blocks(report)?
            || self.give_up_broken_past(report)?
            || self.give_names_back(report)?
            || self.apply_stage(report, Stage::Counts)?
            || self.apply_stage(report, Stage::LastSummaries)?)
    }

    /// How many names of files are missing that the present or a checkpoint of the past has.
    fn missing_names<'r>(
        &self,
        report: &'r Report,
        geometry: &Geometry,
    ) -> BTreeMap<Ino, (u64, &'r Finding)> {
        let mut missing = BTreeMap::new();
        for finding in &report.findings {
            let count = match (finding.rule, &finding.corrections[..]) {
                (Rule::Unreachable, _) => 1,
                (Rule::LinkCount, [Correction::Count { at, bytes }]) => {
                    self.lowered_by(geometry, *at, bytes)
                }
                _ => 0,
            };
            if let Some(ino) = finding.place.ino.filter(|_| count > 0) {
                missing.entry(ino).or_insert((count, finding));
            }
        }
        missing
    }

    /// By how much a count becomes less that is set to this.
    fn lowered_by(&self, geometry: &Geometry, at: Position, bytes: &[u8]) -> u64 {
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let block = dat::read(&*self.device, geometry, at.block);
        let found = block
            .map_or(0, |block| block.get(at.offset..at.offset + bytes.len()).map_or(0, number));
        found.saturating_sub(number(bytes))
    }

    /// Whether blocks are given up that two witnesses have: the DAT counts them as part of the present, and
    /// their file has fewer than it counts.
    fn gives_blocks_up(&self, report: &Report, geometry: &Geometry) -> bool {
        let lacks = |finding: &Finding| {
            let mut counts = finding.corrections.iter();
            counts.any(|it| match it {
                Correction::Count { at, bytes } => self.lowered_by(geometry, *at, bytes) > 0,
                _ => false,
            })
        };
        report.findings.iter().any(|it| it.rule == Rule::Leak)
            && report.findings.iter().any(|it| it.rule == Rule::InodeBlocks && lacks(it))
    }

    /// Puts names into their blocks again that older versions of these had, where names of a file are
    /// missing: it must have been one of them. Returns whether there were any.
    fn give_names_back(&mut self, report: &Report) -> Result<bool, RepairError> {
        if self.lost_names.is_empty() || self.sharing == Sharing::Nothing {
            return Ok(false);
        }
        let superblock = superblocks::best(&*self.device)?;
        let geometry = superblock.geometry();
        let mut missing = self.missing_names(report, &geometry);
        let mut touched = Vec::new();
        for lost in std::mem::take(&mut self.lost_names) {
            let Some((count, finding)) = missing.get_mut(&lost.ino).filter(|(count, _)| *count > 0)
            else {
                self.lost_names.insert(lost);
                continue;
            };
            let Some(mut block) = dat::read(&*self.device, &geometry, lost.block) else { continue };
            if self.is_immovable(lost.block)?.is_none() && lost.give_back(&mut block).is_some() {
                *count -= 1;
                let offset = lost.block.0 * geometry.block_size.bytes64();
                self.device.write_at(offset, &[IoSlice::new(&block)])?;
                touched.push(lost.block);
                let name = String::from_utf8_lossy(&lost.name);
                self.repairs.push(Repair {
                    fault: finding.fault(),
                    action: format!("give it the name {name:?} back, which it {}", lost.source),
                    risk: Risk::Loses,
                    concerned: Concerned::new(finding.place.ino, Loss::Attributes),
                });
            }
        }
        touched.sort_unstable();
        touched.dedup();
        self.seal_logs(&superblock, &touched, report.newest_log)?;
        Ok(!touched.is_empty())
    }

    fn apply_stage(&mut self, report: &Report, stage: Stage) -> Result<bool, RepairError> {
        let superblock = superblocks::best(&*self.device)?;
        let of_stage = |it: &&Correction| Stage::of(it) == stage;
        let sharing = self.sharing;
        let found = || report.findings.iter().chain(&report.repeated);
        let wrong = || found().filter(|it| sharing.corrects(it));
        let corrections = wrong().flat_map(|it| &it.corrections).filter(of_stage);
        let geometry = superblock.geometry();
        let misled: BTreeSet<_> = wrong().flat_map(|it| misled_names(it, stage)).collect();
        let with_names = wanted_names(&misled, report);
        self.ask_logs(&geometry, report, corrections, with_names);
        self.proved_targets = self.prove_targets(&misled, report, &geometry);
        let gives_up = stage == Stage::Counts && self.gives_blocks_up(report, &geometry);
        self.disputed = Disputed::of(report);
        // Many findings may be about what one map has lost.
        let mut maps = HashSet::new();
        let mut touched = Vec::new();
        let mut anything = false;
        for finding in wrong() {
            let mut first = None;
            let mut risk = Risk::Safe;
            for correction in finding.corrections.iter().filter(of_stage) {
                if let Correction::Unmapped { root, .. } = correction
                    && !maps.insert(*root)
                {
                    continue;
                }
                let Some(made) = self.make(correction, (finding, report), &mut touched)? else {
                    continue;
                };
                risk = risk.max(made.risk);
                let mut concerned = Concerned::by(finding, correction);
                if !made.files.is_empty() {
                    concerned.files = made.files;
                }
                concerned.loss = made.loss.unwrap_or(concerned.loss);
                concerned.names.extend(made.names);
                first.get_or_insert((made.action, concerned));
            }
            let Some((action, mut concerned)) = first else { continue };
            anything = true;
            // Nothing else tells that blocks are missing in a map that was made anew.
            let remade = finding.place.ino.and_then(|ino| self.remade.get(&ino));
            // How far a file reached that has lost its size is a guess.
            let guessed = finding.rule == Rule::InodeSize;
            let counts_blocks = stage == Stage::Counts && finding.rule == Rule::InodeBlocks;
            let fewer = remade.filter(|_| counts_blocks);
            if let Some(life) = fewer {
                concerned.life = life.clone();
            }
            let given_up = gives_up && matches!(finding.rule, Rule::InodeBlocks | Rule::Leak);
            if fewer.is_some() || guessed || given_up {
                risk = Risk::Loses;
            }
            self.repairs.push(Repair { fault: finding.fault(), action, risk, concerned });
        }
        touched.sort_unstable();
        touched.dedup();
        self.seal_logs(&superblock, &touched, report.newest_log)?;
        if std::mem::take(&mut self.described_anew) {
            (self.scan, self.logged) = Default::default();
        }
        Ok(anything)
    }

    /// Reads what the logs say about what is to be made anew.
    pub(crate) fn ask_logs<'c>(
        &mut self,
        geometry: &Geometry,
        report: &Report,
        corrections: impl Iterator<Item = &'c Correction>,
        mut wanted: Wanted,
    ) {
        corrections.for_each(|it| anew::wanted(it, geometry, &mut wanted));
        if wanted == Wanted::default() {
            return;
        }
        if self.scan.is_none() {
            self.scan = self.observer.scan(&*self.device).ok();
        }
        if let Some(scan) = &self.scan {
            self.logged.load(&wanted, (scan, &*self.device), report);
        }
    }

    /// Makes one correction. `None` if it was made too often: then others say otherwise, and there is
    /// no way to keep all rules. `None`, too, if nothing is known of what it should be.
    pub(crate) fn make(
        &mut self,
        correction: &Correction,
        (finding, report): (&Finding, &Report),
        touched: &mut Vec<BlockNr>,
    ) -> io::Result<Option<Made>> {
        let (at, bit, bytes, made) = match correction {
            Correction::Superblocks => {
                let sound = report.errors().next().is_none();
                let renewed = superblocks::renew(self, report.newest_log, sound)?;
                // Where they led, there was a checkpoint.
                let risk = match finding.rule {
                    Rule::SuperRoot => Risk::Loses,
                    _ => self.risk_of_superblocks(),
                };
                let made = Made::new(correction.to_string(), risk);
                return Ok(renewed.then_some(made));
            }
            Correction::Feature { bit, set } => {
                let changed = superblocks::set_feature(self, *bit, *set)?;
                let made = Made::new(correction.to_string(), self.risk_of_superblocks());
                return Ok(changed.then_some(made));
            }
            Correction::SyncLogs { log } => return sync_logs::correct(self, *log),
            Correction::Succession { log, seq, next } => {
                let changed = superblocks::set_succession(self, *log, (*seq, *next))?;
                touched.extend(changed.then_some(*log));
                let made = Made::new(correction.to_string(), Risk::Safe);
                return Ok(changed.then_some(made));
            }
            Correction::Bytes { at, .. } if is_name_given_up(finding, correction) => {
                let Some(change) = self.instead_of_name(*at, (finding, report)) else {
                    return Ok(None);
                };
                change
            }
            Correction::Bytes { at, bytes } | Correction::Count { at, bytes } => {
                let made = Made::new(correction.to_string(), Risk::Safe);
                (*at, None, bytes.clone(), made)
            }
            Correction::Bit { at, bit, set } => {
                let made = Made::new(correction.to_string(), Risk::Safe);
                (*at, Some(*bit), vec![u8::from(*set)], made)
            }
            Correction::Checkpoint { at } => {
                let made = Made::new(correction.to_string(), Risk::Loses);
                (*at, None, INVALID.to_le_bytes().to_vec(), made)
            }
            Correction::Segment { segment } => {
                let why = self.why_immovable(*segment);
                let made = Made::new(correction.to_string(), Risk::Safe);
                return Ok(match why {
                    Some(why) => self.keep(finding, why),
                    None => self.segments.insert(*segment).then_some(made),
                });
            }
            Correction::Summary { at, header, files, payload, is_complete } => {
                self.pass_by((*at, header.seq, header.flags), report.newest_log)?;
                let Some(bytes) = self.summary(*at, header, (files, &[]), *payload)? else {
                    return Ok(None);
                };
                // What a summary says of a block that is in use follows from the maps and the DAT;
                // others need no description, because the segment is emptied; and what a sync log says
                // besides is in the checkpoint by which its blocks are in use. The checksums of the
                // content were lost with the summary, and that stays known.
                //
                // What it says about its blocks may be asked for.
                self.described_anew = true;
                let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
                let has_content = files.iter().any(evidence::has_content);
                let made = match is_walked(&superblock, *at, header.seq, header.flags) {
                    _ if !is_complete => {
                        let action = format!(
                            "{correction}, and move what lives in it, also what nothing leads to; \
                             whether the content is what was written cannot be told any more"
                        );
                        Made::new(action, Risk::Loses)
                    }
                    true if has_content => {
                        let action = format!(
                            "{correction}, and move what lives in it; whether the content is what \
                             was written cannot be told any more"
                        );
                        Made::new(action, Risk::Loses)
                    }
                    _ => {
                        let action = format!("{correction}, and move what lives in it");
                        Made::new(action, Risk::Safe)
                    }
                };
                (Position { block: *at, offset: 0 }, None, bytes, made)
            }
            Correction::Accept { log } => return self.accept(finding, *log, report.newest_log),
            _ => {
                let Some(new) = self.anew(correction, report) else { return Ok(None) };
                self.lost_names.extend(new.lost_names);
                self.described_anew |= new.describes;
                self.made_up.extend(new.is_made_up.then_some(new.at.block));
                (
                    new.at,
                    None,
                    new.bytes,
                    Made { files: new.files, ..Made::new(new.action, new.risk) },
                )
            }
        };
        if let Some(why) = self.is_immovable(at.block)? {
            return Ok(self.keep(finding, why));
        }
        let part_of_it = match correction {
            Correction::Pointer { part, .. } => Some(part.key),
            _ => bit.map(u64::from),
        };
        let times = self.made.entry((at, Stage::of(correction), part_of_it)).or_default();
        if *times >= most_times(finding, report) {
            return Ok(None);
        }
        *times += 1;
        if let Correction::Block { part, .. }
        | Correction::Root { part, .. }
        | Correction::Unmapped { part, .. }
        | Correction::Pointer { part, .. } = correction
        {
            let life = self.remade.entry(part.ino).or_insert_with(|| part.life.clone());
            *life = life.start.min(part.life.start)..life.end.max(part.life.end);
        }
        if let Correction::Block { block, part: Part { ino: Ino::DAT, level: 1.., .. } } =
            correction
        {
            self.has_older_dat |= self.is_of_unknown(report.newest_log.block, *block)?;
        }
        if let Correction::Block { part: Part { ino: Ino::CPFILE, .. }, .. } = correction {
            self.with_deleted.insert(at.block);
        }
        if let Correction::Block { block, part: part @ Part { ino: Ino::IFILE, level: 0, .. } } =
            correction
        {
            self.remade_ifile.add(*block, part);
        }
        let geometry = superblocks::best(&*self.device).map_err(io::Error::other)?.geometry();
        let size = geometry.block_size.bytes64();
        // What is around that would still be missing.
        if (bytes.len() as u64) < size && dat::read(&*self.device, &geometry, at.block).is_none() {
            return Ok(None);
        }
        let offset = at.block.0 * size + at.offset as u64;
        let wanted = match bit {
            None => bytes,
            Some(bit) => {
                let mut found = [0];
                self.device.read_at(offset, &mut found)?;
                match bytes == [1] {
                    true => vec![found[0] | 1 << bit],
                    false => vec![found[0] & !(1 << bit)],
                }
            }
        };
        self.device.write_at(offset, &[IoSlice::new(&wanted)])?;
        touched.push(at.block);
        Ok(Some(made))
    }

    /// Whether a block is one of a log of which the summary does not tell what it has.
    fn is_of_unknown(&self, log: BlockNr, block: BlockNr) -> io::Result<bool> {
        let geometry = superblocks::best(&*self.device).map_err(io::Error::other)?.geometry();
        let header = self.header(&geometry, log);
        let end = header.map_or(log, |header| log.plus(header.nblocks.into()));
        let is_known = self.scan.as_ref().is_some_and(|scan| {
            let mut logs = scan.logs.iter().filter(|it| it.start == log);
            logs.any(|log| scan.items_of(&*self.device, log).is_some())
        });
        Ok((log..end).contains(&block) && !is_known)
    }

    /// What a correction comes to that follows from the logs.
    fn anew(&self, correction: &Correction, report: &Report) -> Option<Replacement> {
        self.logs(report.newest_log)?.make(correction)
    }

    /// Returns what the logs say, up to the newest one.
    pub(crate) fn logs(&self, newest: LogCursor) -> Option<Anew<'_>> {
        let geometry = superblocks::best(&*self.device).ok()?.geometry();
        let device = &*self.device;
        let dat = self.dat(newest)?;
        let (logged, scan) = (&self.logged, self.scan.as_ref());
        let disputed = &self.disputed;
        let (as_found, remade_ifile) = (&*self.below, &self.remade_ifile);
        Some(Anew { device, as_found, geometry, newest, logged, scan, disputed, remade_ifile, dat })
    }

    /// The DAT to which a log with a super root leads; `None` within if that leads to none.
    pub(crate) fn dat(&self, newest: LogCursor) -> Option<Option<Dat<'_>>> {
        let superblock = superblocks::best(&*self.device).ok()?;
        let geometry = superblock.geometry();
        let header = self.header(&geometry, newest.block)?;
        let super_root = newest.block.plus(u64::from(header.nblocks) - 1);
        Some(Dat::open(&*self.device, (geometry, superblock.crc_seed()), super_root))
    }

    /// Takes what is in a log for what was written, if that is agreed.
    fn accept(
        &mut self,
        finding: &Finding,
        log: BlockNr,
        newest: LogCursor,
    ) -> io::Result<Option<Made>> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        let geometry = superblock.geometry();
        if !self.accept || self.accepted.contains(&log) {
            return Ok(None);
        }
        if let Some(why) = self.is_immovable(log)? {
            return Ok(self.keep(finding, why));
        }
        let Some(header) = self.header(&geometry, log) else { return Ok(None) };
        for doubt in self.doubts_in(log, newest)? {
            self.repairs.push(doubt.accepted());
        }
        self.accepted.insert(log);
        self.segments.insert(geometry.segment_of(log));
        self.seal(&geometry, superblock.crc_seed(), log, &header)?;
        let action = Correction::Accept { log }.to_string();
        Ok(Some(Made::new(action, Risk::Accepted)))
    }

    /// Why nothing can be corrected in a block, if its segment cannot be emptied.
    pub(crate) fn is_immovable(&self, block: BlockNr) -> io::Result<Option<String>> {
        if self.immovable.is_empty() {
            return Ok(None);
        }
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        Ok(self.why_immovable(superblock.geometry().segment_of(block)))
    }

    fn why_immovable(&self, segment: SegNum) -> Option<String> {
        let why = |what| format!("what is in segment {segment} cannot be moved: {what}");
        self.immovable.get(&segment).map(why)
    }

    /// Leaves something as it is.
    fn keep(&mut self, finding: &Finding, why: String) -> Option<Made> {
        self.kept.insert(Kept { fault: finding.fault(), why });
        None
    }

    pub(crate) fn block_size(&self) -> io::Result<u64> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        Ok(superblock.geometry().block_size.bytes64())
    }
}

/// How often what a finding is about is corrected. On the count of an inode that a checkpoint of the past shares
/// with the present, the present has the last word.
fn most_times(finding: &Finding, report: &Report) -> u8 {
    let is_past = finding.place.checkpoint.is_some_and(|cno| cno < report.newest);
    if is_past && finding.rule == Rule::LinkCount { 1 } else { MOST_TIMES }
}
