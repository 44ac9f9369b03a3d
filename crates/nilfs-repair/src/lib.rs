//! Repairing a volume. The checker says what is wrong and what it should be; this crate makes it so.
//!
//! Nothing is written in place but superblocks, because a power cut in the middle must leave
//! something from which the next repair can go on. So a repair is made beside the device first:
//!
//! ```text
//! device ── check ──► corrections, laid over the device ──► check, until nothing is left
//!    │                                                                        │
//!    │             the engine mounts this view, and empties the segments in which something was
//!    │             corrected: the blocks are written to new places, right as they are in the view
//!    │                                                                        │
//!    └──► check what is on the device with these writes, and without the view ◄┘
//! ```
//!
//! What the engine has written is kept in order. It is the plan: how the volume will be is known
//! before the first byte of it reaches the device. Applying the plan is doing the same again.
//!
//! It may be more than fits into memory. So all of it, and what is laid over the device, lies in
//! scratch files ([`nilfs_device::Scratch`]).
//!
//! The crate has no rules of its own about what is sound, which are the checker's, and no code of
//! its own that finds or writes logs, which is the engine's.

mod anew;
mod as_repaired;
mod broken_past;
mod checkpoints;
mod concerned;
mod contradicted;
mod dat;
mod dat_nodes;
mod deleted_past;
mod draft;
mod evidence;
mod file_type;
mod inodes;
mod left;
mod logged;
mod lost_summaries;
mod lost_super_roots;
mod misled;
mod names;
mod numbers;
mod passed_over;
mod paths;
mod progress;
mod repairs;
mod rescue;
mod rewrite;
mod salvage;
mod stage;
mod superblocks;
mod sync_logs;
mod unclaimed;
mod undo;
mod unmapped;
mod wrong_bits;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::Arc;

use nilfs_check::{CheckError, Finding, Foreign, Options, Report, Rule, Severity};
use nilfs_device::{Device, MaskedDevice, Scratch, Writes};
use nilfs_engine::{Error, Log};
use nilfs_ondisk::{Ino, SegNum};
use thiserror::Error;

use crate::draft::Draft;
use crate::paths::Paths;

pub use as_repaired::{AsRepaired, Losses};
pub use concerned::{Concerned, Loss};
pub use progress::{Observer, Task};
pub use undo::{UndoDevice, UndoError, apply_undo};

/// Findings of one rule that are corrected in one round.
const FINDINGS_PER_RULE: usize = 100_000;

/// How often a volume is repaired in a plan: what the engine has put right shows what else is wrong.
const PASSES: usize = 4;

/// Whether a repair takes something away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Risk {
    /// It follows from the rest of the volume, and nothing is lost.
    Safe,
    /// Nothing of the volume is lost that is not lost already, but its owner has to ask for that: to take what
    /// is there for what was written, or the device back from something else.
    Accepted,
    /// Something is lost, or had to be guessed.
    Loses,
}

/// Something that is put right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// What is wrong, and where.
    pub fault: String,
    /// The correction, in words, without the paths of files.
    pub action: String,
    /// Whether something is lost by that.
    pub risk: Risk,
    /// The files that it is about, to be named by their paths.
    pub concerned: Concerned,
}

impl Repair {
    /// Returns what is done, with the paths of the files of which something is lost.
    #[must_use]
    pub fn action_by_path(&self) -> String {
        let action = &self.action;
        match (&self.concerned.paths[..], self.concerned.files.len()) {
            ([], _) => action.clone(),
            ([path], 1) => format!("{path}: {action}"),
            (paths, all) => {
                let more = match all - paths.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                format!("{action}: {}{more}", paths.join(", "))
            }
        }
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.fault, self.action_by_path())
    }
}

/// Something that stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept {
    /// What is wrong, and where.
    pub fault: String,
    /// Why, and what can be done about it.
    pub why: String,
}

/// How a volume is repaired.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The identity that the volume gets if its own is lost.
    pub uuid: [u8; 16],
    /// Whether content that is not known to be what was written is taken for that from now on. It takes a
    /// check that reads the content.
    pub accept: bool,
    /// Whether the volume is only to be read as it would be ([`Plan::view`]). Then what is corrected stays
    /// where it is, in memory alone, so that no room is needed, and what cannot be read stays so.
    pub in_view: bool,
}

/// What is wrong with a volume, and what would put it right.
pub struct Plan {
    /// What a check finds now.
    pub before: Result<Report, CheckError>,
    /// What is done, in this order.
    pub repairs: Vec<Repair>,
    /// How much else of which risk is done: there is a bound to what is listed.
    pub omitted: BTreeMap<Risk, u64>,
    /// Sync logs that are given up by that, with what they have: it was durable, and is lost.
    pub lost: Vec<Log>,
    /// What is wrong and stays so: among it, every error that is left when all of it is done, unless there
    /// is an obstacle.
    pub kept: BTreeSet<Kept>,
    /// Content of files that is moved by that, and is damaged or may be: it stays known.
    pub doubtful: BTreeSet<Kept>,
    /// What a check finds when all of it is done.
    pub after: Option<Report>,
    /// Why the repairs cannot be made, though they are known.
    pub obstacle: Option<RepairError>,
    /// The identity of the volume when all of it is done.
    pub uuid: [u8; 16],
    writes: Vec<Arc<Writes>>,
    /// Of the files in what a check finds now.
    paths: Paths,
}

/// Why a volume cannot be repaired.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] io::Error),
    /// What would be written cannot be kept in a scratch file.
    #[error(transparent)]
    Scratch(io::Error),
    /// It cannot be checked, and nothing is known to do about that.
    #[error(transparent)]
    Check(CheckError),
    /// Nothing on the device looks like a log of a volume.
    #[error("there is no log of a NILFS2 volume on the device")]
    NoLog,
    /// No checkpoint can be used.
    #[error(
        "none of the {0} super roots on the device leads to a checkpoint that can be used; {help}",
        help = left::COPY_OUT
    )]
    NoCheckpoint(usize),
    /// The corrected volume cannot be written.
    #[error("the corrected volume cannot be written: {0}")]
    Engine(#[from] nilfs_engine::Error),
    /// There is no room for what has to be moved.
    #[error(
        "there is no room to move what is in {0} segments with damage; delete files or snapshots, \
         or make the device larger"
    )]
    NoRoom(usize),
    /// What is in these segments cannot be moved, and why.
    #[error("segments with damage cannot be emptied: {}", in_words(.0))]
    Damaged(BTreeMap<SegNum, String>),
    /// More would be wrong than before.
    #[error("a repair would leave more errors than there are; {}", left::COPY_OUT)]
    Worse,
    /// Somebody writes to the volume.
    #[error("the volume is mounted; unmount it, and nilfs fsck tells what can be repaired")]
    Mounted,
    /// Something else has taken the place of the primary superblock, and would be damaged.
    #[error(
        "the primary superblock is gone, and the device holds {by}; if the volume is to have the \
         device back, nilfs fsck --force -y repairs"
    )]
    Displaced {
        /// What that is, and where.
        by: String,
        /// Why the repairs cannot be made even so.
        besides: Option<Box<RepairError>>,
    },
    /// Reading the volume needs a feature that is not known here.
    #[error(transparent)]
    Format(#[from] nilfs_ondisk::FormatError),
}

fn in_words(segments: &BTreeMap<SegNum, String>) -> String {
    let each = segments.iter().map(|(segment, what)| format!("segment {segment}, {what}"));
    each.collect::<Vec<_>>().join("; ")
}

/// Checks a volume in this way, and finds out what would put it right. Nothing is written. `uuid` is
/// the identity that the volume gets if its own is lost. A volume to which somebody writes meanwhile is
/// only checked.
///
/// # Errors
/// The volume is beyond repair, or the device fails.
pub fn plan(
    device: &Arc<dyn Device>,
    options: &Options,
    uuid: [u8; 16],
) -> Result<Plan, RepairError> {
    let settings = Settings { uuid, accept: false, in_view: false };
    plan_observed(device, options, settings, &Observer::default())
}

/// As [`plan`], with more settings, and for a caller who wants to know how far it is, which the observer of
/// the options is not told.
///
/// # Errors
/// As [`plan`].
pub fn plan_observed(
    device: &Arc<dyn Device>,
    options: &Options,
    settings: Settings,
    observer: &Observer,
) -> Result<Plan, RepairError> {
    let uuid = settings.uuid;
    let options = Options { findings_per_rule: FINDINGS_PER_RULE, ..options.clone() };
    let before = match observer.check(&**device, &options) {
        Err(error) if !rescue::is_curable(&error) => return Err(RepairError::Check(error)),
        before => before,
    };
    let paths = before.as_ref().map(|report| Paths::of(device, report)).unwrap_or_default();
    if options.newest.is_some() {
        // What somebody else writes would be torn apart.
        let is_sound = before.as_ref().is_ok_and(Report::is_consistent);
        let obstacle = (!is_sound).then_some(RepairError::Mounted);
        return Ok(Plan { paths, obstacle, ..only_checked(before, uuid) });
    }
    let scratch = Arc::new(Scratch::default());
    let found = before.as_ref().ok().cloned();
    let plan = passes(&scratch, device, (options, settings, observer), before);
    let Some(error) = scratch.failure() else { return Ok(Plan { paths, ..plan? }) };
    // What was found where something was kept badly is not so.
    let obstacle = RepairError::Scratch(error);
    match found {
        Some(report) => {
            Ok(Plan { paths, obstacle: Some(obstacle), ..only_checked(Ok(report), uuid) })
        }
        None => Err(obstacle),
    }
}

/// Repairs a volume, of which a check has found this, until nothing else comes to light.
fn passes(
    scratch: &Arc<Scratch>,
    device: &Arc<dyn Device>,
    (options, settings, observer): (Options, Settings, &Observer),
    before: Result<Report, CheckError>,
) -> Result<Plan, RepairError> {
    let draft = |device: &Arc<dyn Device>| {
        Draft::new(Arc::clone(device), scratch, (options.clone(), settings, observer.clone()))
    };
    let mut plan = pass(device, draft(device), before)?;
    for _ in 1..PASSES {
        let Some(after) = plan.after.clone().filter(|_| plan.can_be_applied()) else { break };
        let view = rewrite::view(device, &plan.writes);
        let made_after = plan.before.as_ref().ok().map(|before| before.newest);
        let mut again = draft(&view);
        again.made_after = made_after;
        let next = pass(&view, again, Ok(after))?;
        let is_idle =
            plan.after.iter().zip(&next.after).any(|(one, other)| tells_the_same(one, other));
        if !next.can_be_applied() || is_idle {
            break;
        }
        plan.repairs.extend(next.repairs);
        for (risk, count) in next.omitted {
            *plan.omitted.entry(risk).or_default() += count;
        }
        plan.lost.extend(next.lost);
        plan.kept.extend(next.kept);
        if settings.accept {
            // What is still damaged is found by the last check.
            plan.doubtful.clear();
        }
        plan.doubtful.extend(next.doubtful);
        plan.writes.extend(next.writes);
        plan.after = next.after;
    }
    if let Some(by) = displaced_by(&**device, || options.foreign.clone()) {
        let besides = plan.obstacle.take().map(Box::new);
        plan.obstacle = Some(RepairError::Displaced { by, besides });
    }
    plan.explain_what_is_left();
    let view = rewrite::view(device, if plan.can_be_applied() { &plan.writes[..] } else { &[] });
    let left = if plan.can_be_applied() { plan.after.as_ref() } else { plan.before.as_ref().ok() };
    if let Some(left) = left {
        plan.doubtful.extend(draft(&view).damaged_content(left));
    }
    Ok(plan)
}

/// Whether the same is wrong by two reports: one more pass would go on in a circle.
fn tells_the_same(one: &Report, other: &Report) -> bool {
    let told = |report: &Report| -> Vec<_> {
        let wrong = report.findings.iter().filter(|it| it.severity > Severity::Note);
        wrong.map(|it| (it.severity, it.rule, it.place.ino, it.message.clone())).collect()
    };
    told(one) == told(other)
}

/// Why nothing may be written to a volume whose secondary superblock is all that is left, while
/// something else, of which `foreign` tells, lies on the device. `foreign` is asked only where it
/// matters.
#[must_use]
pub fn displaced(
    device: &dyn Device,
    foreign: impl FnOnce() -> Vec<Foreign>,
) -> Option<RepairError> {
    superblocks::best(device).ok()?;
    displaced_by(device, foreign).map(|by| RepairError::Displaced { by, besides: None })
}

/// What has taken the place of the primary superblock: whoever has put it there may have given the
/// volume up.
pub(crate) fn displaced_by(
    device: &dyn Device,
    foreign: impl FnOnce() -> Vec<Foreign>,
) -> Option<String> {
    if superblocks::has_primary(device) {
        return None;
    }
    let by: Vec<_> = foreign().iter().map(ToString::to_string).collect();
    (!by.is_empty()).then(|| by.join(" and "))
}

/// A plan in which nothing is done.
fn only_checked(before: Result<Report, CheckError>, uuid: [u8; 16]) -> Plan {
    Plan {
        before,
        repairs: Vec::new(),
        omitted: BTreeMap::new(),
        lost: Vec::new(),
        kept: BTreeSet::new(),
        doubtful: BTreeSet::new(),
        after: None,
        obstacle: None,
        uuid,
        writes: Vec::new(),
        paths: Paths::default(),
    }
}

/// A plan for what can be seen to be wrong at once.
fn pass(
    device: &Arc<dyn Device>,
    mut draft: Draft,
    before: Result<Report, CheckError>,
) -> Result<Plan, RepairError> {
    let usable = rescue::usable(draft.afresh(), &before)?;
    let mut plan = plan_from(device, usable, before)?;
    loop {
        match &plan.obstacle {
            Some(RepairError::Worse) if draft.leave_more() => {}
            // All that was corrected made another checkpoint worse.
            None if draft.leaves_files() && plan.repairs.is_empty() && draft.leave_more() => {}
            // What is elsewhere can be repaired all the same.
            Some(RepairError::Damaged(segments)) => draft.immovable.extend(segments.clone()),
            _ => break,
        }
        let fewer = match rescue::usable(draft.afresh(), &plan.before) {
            // What is left alone would have been needed.
            Err(RepairError::NoCheckpoint(_)) => break,
            fewer => fewer?,
        };
        plan = plan_from(device, fewer, plan.before)?;
    }
    Ok(plan)
}

/// What it takes to make a device what a draft of it is.
fn plan_from(
    device: &Arc<dyn Device>,
    mut draft: Draft,
    before: Result<Report, CheckError>,
) -> Result<Plan, RepairError> {
    let mut plan = Plan {
        before,
        repairs: draft.repairs.listed.clone(),
        omitted: draft.repairs.omitted.clone(),
        lost: draft.lost.clone(),
        kept: draft.kept.clone(),
        doubtful: BTreeSet::new(),
        after: None,
        obstacle: None,
        uuid: superblocks::best(&*draft.device)?.raw().s_uuid,
        writes: Vec::new(),
        paths: Paths::default(),
    };
    if draft.is_as_found() {
        return Ok(plan);
    }
    let mut rewritten = rewrite::rewrite(&draft);
    if let Err(RepairError::Engine(Error::Device { .. })) = &rewritten
        && draft.clear_unused()?
    {
        rewritten = rewrite::rewrite(&draft);
    }
    match rewritten {
        Ok(rewritten) => {
            (plan.repairs, plan.omitted) = (rewritten.repairs.listed, rewritten.repairs.omitted);
            plan.doubtful = rewritten.doubtful;
            if plan.repairs.is_empty() {
                return Ok(plan);
            }
            let after = rewrite::preview(&draft, device, &rewritten.writes)?;
            // What is wrong with a later checkpoint shows when that is found again.
            let begun = draft.begun_with.as_ref();
            let is_worse_than = |it: &Report| {
                let later = begun.filter(|begun| begun.newest > it.newest);
                is_worse(later.unwrap_or(it), &after, &draft)
            };
            if plan.before.as_ref().is_ok_and(is_worse_than) {
                plan.obstacle = Some(RepairError::Worse);
            } else {
                plan.writes = rewritten.writes;
            }
            plan.after = Some(after);
        }
        Err(RepairError::Device(error)) => return Err(error.into()),
        Err(obstacle) => plan.obstacle = Some(obstacle),
    }
    Ok(plan)
}

/// Whether more is wrong with the volume as a whole, or with any checkpoint of the past, when a draft has been
/// written. Where checkpoints are seen that damage had hidden, their errors are not new: the next pass judges by
/// them. Nor are those of logs that can be rolled forward now, and of inodes in blocks that could not be read.
fn is_worse(before: &Report, after: &Report, draft: &Draft) -> bool {
    // A view makes none.
    let made = if draft.in_view { 0 } else { after.newest.0.saturating_sub(before.newest.0) };
    if after.counts.checkpoints_walked > before.counts.checkpoints_walked + made {
        return false;
    }
    // What fsyncs have written may lack what earlier ones have, which are lost.
    let is_of_logs = |it: &Finding| match it.rule {
        Rule::RollForward | Rule::Log => true,
        Rule::DirectoryEntry | Rule::LinkCount | Rule::Unreachable => {
            it.place.checkpoint.is_some_and(|cno| cno > before.newest)
        }
        _ => false,
    };
    let mut hiding = before.errors().filter(|it| it.rule == Rule::RollForward);
    let shows_logs = hiding.any(|it| after.errors().all(|left| left != it));
    let hides_inodes = |it: &Finding| it.rule == Rule::Readable && it.place.ino == Some(Ino::IFILE);
    let hiding = |report: &Report| report.errors().filter(|it| hides_inodes(it)).count();
    let shows_inodes = hiding(after) < hiding(before);
    let was_hidden = |it: &Finding| {
        let cno = it.place.checkpoint.map(|cno| cno.min(before.newest));
        draft.shows_more && cno.is_some_and(|cno| before.partly_seen.contains(&cno))
    };
    let is_shown = |it: &Finding| {
        shows_logs && is_of_logs(it)
            || shows_inodes && matches!(it.rule, Rule::Inode)
            || was_hidden(it)
    };
    let errors = |report: &Report| {
        let mut errors = BTreeMap::new();
        for finding in report.errors().filter(|it| !is_shown(it)) {
            // The newest checkpoint is another one afterwards.
            let past = finding.place.checkpoint.filter(|cno| *cno < before.newest);
            *errors.entry(past).or_insert(0) += 1;
        }
        errors
    };
    let (before, after) = (errors(before), errors(after));
    after.iter().any(|(place, count)| before.get(place).unwrap_or(&0) < count)
}

impl Plan {
    /// Whether there is something to write, and nothing that keeps it from being written.
    #[must_use]
    pub fn can_be_applied(&self) -> bool {
        self.obstacle.is_none() && self.writes.iter().any(|writes| !writes.is_empty())
    }

    /// Lets the plan take the device back from what has taken the place of the volume.
    pub fn take_back(&mut self) {
        self.obstacle = match self.obstacle.take() {
            Some(RepairError::Displaced { besides, .. }) => besides.map(|it| *it),
            other => other,
        };
    }

    /// A path of the file that a finding is about, in the checkpoint of the finding, relative to the root
    /// directory, whose own is empty. `None`: it is about no file, or no name of it can be read.
    #[must_use]
    pub fn path_of(&self, finding: &Finding) -> Option<&[u8]> {
        self.paths.get(finding, self.before.as_ref().ok()?.newest)
    }

    /// How many repairs there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.repairs.len() as u64 + self.omitted.values().sum::<u64>()
    }

    /// The worst that a repair of the plan does.
    #[must_use]
    pub fn risk(&self) -> Risk {
        let listed = self.repairs.iter().map(|repair| repair.risk);
        listed.chain(self.omitted.keys().copied()).max().unwrap_or(Risk::Safe)
    }

    /// Bytes that are written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.writes.iter().map(|writes| writes.bytes()).sum()
    }

    /// Returns the device as it is when the plan has been carried out, to be read. What is in memory is what
    /// the plan writes.
    #[must_use]
    pub fn view(&self, device: &Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(MaskedDevice::new(rewrite::view(device, &self.writes), []))
    }

    /// Carries the plan out, on the device for which it was made. Calls `progress` with the bytes
    /// that are written so far.
    ///
    /// Power may fail at any time: the next plan goes on from what is there then.
    ///
    /// # Errors
    /// The device fails.
    pub fn apply(&self, device: &dyn Device, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
        let mut written = 0;
        for writes in &self.writes {
            writes.replay(device, &mut |bytes| {
                written += bytes;
                progress(written);
            })?;
        }
        device.flush()
    }
}

/// The segments in which blocks lie that were corrected.
type Segments = BTreeSet<SegNum>;
