//! A volume to which no superblock leads any more, or whose newest checkpoint cannot be used: the
//! newest one that can be is found by looking at all logs there are.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use nilfs_check::{CheckError, Correction, Finding, Report, Rule};
use nilfs_device::Device;
use nilfs_engine::scan::{FoundLog, Scan, SuperRootLog};
use nilfs_engine::{Error, Verify, Volume};
use nilfs_ondisk::geometry::secondary_superblock;
use nilfs_ondisk::summary::SR;
use nilfs_ondisk::superblock::{LogCursor, RawSuperblock, STATE_VALID, Superblock};
use nilfs_ondisk::{BlockNr, Cno, Geometry, Ino, Seq};
use zerocopy::little_endian::{U16, U64};

use crate::draft::Draft;
use crate::{
    Concerned, Loss, Repair, RepairError, Risk, lost_summaries, lost_super_roots, rewrite,
    superblocks, wrong_bits,
};

/// Super roots that are tried, from the newest on.
const MOST_TRIED: usize = 256;

/// Whether there may be a checkpoint that can be used, although none can be checked.
pub(crate) fn is_curable(error: &CheckError) -> bool {
    matches!(
        error,
        CheckError::NoSuperblock { .. }
            | CheckError::NoSuperRoot { .. }
            | CheckError::NewestLog { .. }
    )
}

/// Corrects a draft of which a check has found this. If its newest checkpoint cannot be used even
/// so, it becomes one that goes on from the newest that can.
pub(crate) fn usable(
    mut draft: Draft,
    found: &Result<Report, CheckError>,
) -> Result<Draft, RepairError> {
    let mut corrected;
    let mut found = found;
    if wrong_bits::correct(&mut draft, found)? {
        corrected = draft.check();
        found = &corrected;
    }
    if may_lack_super_roots(found)
        && let Ok(scan) = draft.observer.scan(&*draft.device)
        && lost_super_roots::put_together(&mut draft, &scan)?
    {
        corrected = draft.check();
        found = &corrected;
    }
    let newest = found.as_ref().ok().map(|report| report.newest);
    let is_wrong = found.as_ref().is_ok_and(|report| !report.is_consistent());
    if (is_wrong || found.is_err())
        && let Some((begun, report)) = with_new_summary(&draft, newest)?
    {
        (draft, corrected) = (begun, Ok(report));
        found = &corrected;
    }
    match found {
        Ok(report) => {
            if let Some(lost) = lost_cursor(report) {
                let fault = format!("{}: {}", lost.place, lost.message);
                return newest_usable(&draft, &fault);
            }
            let report = draft.correct(report.clone())?;
            let Some(why) = why_unusable(&mut draft, &report)? else { return Ok(draft) };
            let fault = format!("checkpoint {} cannot be used: {why}", report.newest);
            match newest_usable(&draft, &fault) {
                // An older one is no better.
                Err(RepairError::NoCheckpoint(_)) => Ok(draft),
                found => found,
            }
        }
        Err(error) => newest_usable(&draft, &error.to_string()),
    }
}

/// A draft in which the log has a summary again that a superblock names, and a check of it, if a later checkpoint is
/// found by that.
fn with_new_summary(from: &Draft, newest: Option<Cno>) -> io::Result<Option<(Draft, Report)>> {
    let mut draft = from.afresh();
    if !lost_summaries::begin_anew(&mut draft)? {
        return Ok(None);
    }
    let report = draft.check().ok().filter(|report| Some(report.newest) > newest);
    Ok(report.map(|report| (draft, report)))
}

/// Whether a log that should have a super root may have none that can be read.
fn may_lack_super_roots(found: &Result<Report, CheckError>) -> bool {
    let of_chain = [Rule::SuperRoot, Rule::LogChain, Rule::RollForward];
    match found {
        Ok(report) => report.errors().any(|it| of_chain.contains(&it.rule)),
        Err(_) => true,
    }
}

/// That the log which a superblock names cannot be used, though the other superblock leads somewhere:
/// to an older checkpoint, so something may be lost.
fn lost_cursor(report: &Report) -> Option<&Finding> {
    let renewed = |finding: &&Finding| finding.corrections.contains(&Correction::Superblocks);
    report.errors().find(|it| it.rule == Rule::SuperRoot && renewed(it))
}

/// Says why the newest checkpoint of a corrected draft cannot be used, if that is so.
fn why_unusable(draft: &mut Draft, report: &Report) -> io::Result<Option<String>> {
    if let Some(finding) = fatal(report) {
        return Ok(Some(format!("{}: {}", finding.place, finding.message)));
    }
    if draft.is_as_found() {
        return Ok(None);
    }
    if draft.has_older_dat {
        let lost =
            "the summary of its log is lost with nodes of the DAT, which tell where its blocks are";
        return Ok(Some(lost.to_owned()));
    }
    let mut why = rewrite::why_not_mounted(draft);
    if matches!(why, Some(Error::Device { .. })) && !draft.in_view && draft.clear_unused()? {
        why = rewrite::why_not_mounted(draft);
    }
    Ok(why.map(|error| error.to_string()))
}

/// What keeps the newest checkpoint from being used, and is not corrected.
fn fatal(report: &Report) -> Option<&Finding> {
    let of_metadata = |finding: &Finding| {
        matches!(finding.place.ino, Some(Ino::DAT | Ino::CPFILE | Ino::SUFILE | Ino::IFILE))
            && finding.place.checkpoint.is_none_or(|cno| cno == report.newest)
    };
    let breaks = |finding: &&Finding| match finding.rule {
        Rule::BlockMap | Rule::Pointer | Rule::Owner | Rule::Readable | Rule::SharedBlock => {
            of_metadata(finding)
        }
        // Without a root directory nothing can be mounted. Blocks that it lacks are filled in.
        Rule::Inode => {
            finding.place.ino == Some(Ino::ROOT) && finding.place.checkpoint == Some(report.newest)
        }
        Rule::Checkpoint => finding.place.checkpoint == Some(report.newest),
        _ => false,
    };
    report.errors().find(breaks)
}

/// Where a superblock comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// It was found.
    Copy,
    /// It is made of what the logs tell. A copy that they contradict tells the label and the UUID.
    Identity,
    /// It is made of what the logs tell alone.
    Logs,
}

/// The superblock by which the logs of a scan can be used: the copy that the scan has found, or one
/// for each layout that is possible.
fn superblocks_for(scan: &Scan, draft: &Draft) -> (Origin, Vec<Superblock>) {
    let device = &*draft.below;
    let size = device.size();
    // The scan takes a copy, too, if the device has been cut short.
    let fits = |found: &Superblock| Superblock::parse(&found.encode(), size).is_ok();
    if let Some(found) = scan.superblock.filter(fits) {
        return (Origin::Copy, vec![found]);
    }
    let contradicted = superblocks::best(device).ok().filter(|it| it.crc_seed() == scan.crc_seed);
    let origin = if contradicted.is_some() { Origin::Identity } else { Origin::Logs };
    let made = |geometry: &Geometry| {
        let room = secondary_superblock(size)? / geometry.segment_bytes();
        let geometry = Geometry { nsegments: geometry.nsegments.min(room), ..*geometry };
        let mut raw = RawSuperblock {
            s_uuid: draft.uuid,
            s_dev_size: U64::new(size),
            ..scan.made_superblock(&geometry)
        };
        if let Some(copy) = &contradicted {
            (raw.s_uuid, raw.s_volume_name) = (copy.raw().s_uuid, copy.raw().s_volume_name);
        }
        Superblock::from_raw(raw, size).ok()
    };
    let layouts = std::iter::once(&scan.geometry).chain(&scan.alternatives);
    (origin, layouts.filter_map(made).collect())
}

/// A draft that goes on from the newest checkpoint that can be used, with the layout that leaves
/// least to be corrected. Later logs are given up.
fn newest_usable(from: &Draft, fault: &str) -> Result<Draft, RepairError> {
    // Corrections for a checkpoint that cannot be used even so are none for an older one.
    let device = &*from.below;
    let scan = from.observer.scan(device).map_err(|_| RepairError::NoLog)?;
    let (origin, superblocks) = superblocks_for(&scan, from);
    let mut logs = scan.logs.clone();
    logs.sort_by_key(written);
    let (mut tried, mut best) = (0, None::<Draft>);
    for superblock in &superblocks {
        let roots = scan.super_roots.iter().filter(|root| scan.is_whole(device, root));
        for root in roots.take(MOST_TRIED) {
            tried += 1;
            let later =
                logs.partition_point(|log| written(log) <= (root.cursor.seq, root.cursor.block));
            let later: Vec<_> =
                logs[later..].iter().filter(|log| !log.header.is_off_chain()).copied().collect();
            let mut draft = from.afresh();
            let kept = go_on_from(&mut draft, superblock, root.cursor, &later)?;
            let given_up = &later[kept..];
            let found = draft.check();
            let found = match wrong_bits::correct(&mut draft, &found)? {
                true => draft.check(),
                false => found,
            };
            let corrected =
                found.map_err(RepairError::Check).and_then(|report| draft.correct(report));
            match corrected {
                Ok(report) if why_unusable(&mut draft, &report)?.is_none() => {
                    let files = files_in(&scan, device, given_up);
                    let lost = lost_checkpoint(from, root.cursor);
                    let mut going_on = repair(fault, (origin, root), (given_up, lost), files);
                    going_on.risk = match draft.in_view && given_up.is_empty() && lost.is_none() {
                        // Of a label and settings, a view shows nothing.
                        true => Risk::Safe,
                        false => going_on.risk.max(draft.risk_of_superblocks()),
                    };
                    draft.repairs.listed.insert(0, going_on);
                    if draft.repairs.count() == 1 || superblocks.len() == 1 {
                        return Ok(draft);
                    }
                    if best.as_ref().is_none_or(|best| draft.repairs.count() < best.repairs.count())
                    {
                        best = Some(draft);
                    }
                    break;
                }
                Ok(_) | Err(RepairError::Check(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    best.ok_or(RepairError::NoCheckpoint(tried))
}

/// Returns the checkpoint after one from which a draft goes on that a superblock names: even if no log of it is
/// left, it was there. The number alone may be wrong.
fn lost_checkpoint(from: &Draft, chosen: LogCursor) -> Option<Cno> {
    let named = superblocks::cursors(&*from.below).into_iter();
    let later = named.filter(|named| named.cno > chosen.cno && named.block != chosen.block);
    later.map(|named| named.cno).max()
}

/// When a log was written, among others.
fn written(log: &FoundLog) -> (Seq, BlockNr) {
    (log.header.seq, log.start)
}

/// The users' files of which logs have blocks.
fn files_in(scan: &Scan, device: &dyn Device, logs: &[FoundLog]) -> BTreeSet<Ino> {
    let all = logs.iter().flat_map(|log| scan.files_in(device, log));
    all.filter(|ino| ino.is_of_user()).collect()
}

/// What it means to go on from a log.
fn repair(
    fault: &str,
    (origin, root): (Origin, &SuperRootLog),
    (later, lost): (&[FoundLog], Option<Cno>),
    files: BTreeSet<Ino>,
) -> Repair {
    let mut action = match origin {
        Origin::Copy => "",
        Origin::Identity => {
            "make superblocks of what the logs tell, with the label and the UUID that are there; \
             the settings are lost, and the volume is taken to be as large as the device; "
        }
        Origin::Logs => {
            "make superblocks of what the logs tell; the label, the UUID and the settings are lost, \
             and the volume is taken to be as large as the device; "
        }
    }
    .to_owned();
    let made = local_time(root.header.create);
    action.push_str(&format!("go on from checkpoint {} of {made}", root.cursor.cno));
    if let Some(last) = later.last() {
        let newest = later.iter().map(|log| log.header.create).max().unwrap_or_default();
        action.push_str(&format!(
            ", and give up what was written after it, until {}: {} logs, up to checkpoint {}, with \
             blocks of {} files and directories",
            local_time(newest),
            later.len(),
            last.header.cno,
            files.len()
        ));
    }
    if let Some(lost) = lost.filter(|_| later.is_empty()) {
        action.push_str(&format!(
            ", and give up what was written after it, up to checkpoint {lost}, which a superblock \
             names"
        ));
    }
    let is_all = origin == Origin::Copy && later.is_empty() && lost.is_none();
    let risk = if is_all { Risk::Safe } else { Risk::Loses };
    let life = root.cursor.cno..Cno::MAX;
    let concerned = Concerned { life, ..Concerned::new(files, Loss::Version) };
    Repair { fault: fault.to_owned(), action, risk, concerned }
}

/// A time of a log for people.
fn local_time(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|it| Timestamp::from_second(it).ok());
    match time {
        Some(time) => time.to_zoned(TimeZone::system()).strftime("%F %T").to_string(),
        None => format!("{seconds} s"),
    }
}

/// Lets the superblocks of a draft name a log, and makes sure that no later checkpoint is found. Returns how
/// many of the later logs stay, because what fsyncs have written there can be rolled forward on this one.
fn go_on_from(
    draft: &mut Draft,
    superblock: &Superblock,
    root: LogCursor,
    later: &[FoundLog],
) -> io::Result<usize> {
    let mut superblock = *superblock;
    superblock.set_last_log(root);
    // So the chain is followed, and a mount recovers.
    let state = superblock.raw().s_state.get();
    superblock.raw_mut().s_state = U16::new(state & !STATE_VALID);
    superblocks::write(draft, &superblock)?;
    draft.moved_cursor = true;
    // Those before the next checkpoint may be sync logs on this one.
    let of_others = later.iter().position(|log| log.header.has(SR)).unwrap_or(later.len());
    let (own, others) = later.split_at(of_others);
    others.iter().try_for_each(|log| draft.give_up_log(log.start))?;
    let kept = rolled_forward(draft, root, own);
    own[kept..].iter().try_for_each(|log| draft.give_up_log(log.start))?;
    Ok(kept)
}

/// How many of the logs after a checkpoint a mount goes through to roll forward what fsyncs have written.
fn rolled_forward(draft: &Draft, root: LogCursor, logs: &[FoundLog]) -> usize {
    let device = Arc::clone(&draft.device) as Arc<dyn Device>;
    let Ok(volume) = Volume::open_with(device, Verify::Rescue) else { return 0 };
    let plan = volume.recovery_plan().ok().filter(|_| volume.last_log() == root);
    let last = plan.and_then(|plan| plan.applied.last().map(|log| log.start));
    let last = last.and_then(|last| logs.iter().position(|log| log.start == last));
    last.map_or(0, |last| last + 1)
}
