//! Sync logs that cannot be rolled forward; the engine's plan of a recovery tells which these are. A summary
//! that is missing is restored where a later log has a copy of it. Else the logs are given up.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use nilfs_device::{Device, IoSlice};
use nilfs_engine::{Log, RecoveryPlan, Verify, Volume};
use nilfs_ondisk::roll_forward::{NameRecord, Record};
use nilfs_ondisk::summary::{LogHeader, SR, parse_items};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::Superblock;
use nilfs_ondisk::{BlockNr, BlockSize, Geometry, Ino};

use crate::draft::{Draft, Made, is_whole};
use crate::passed_over::{PassedOver, pass_over};
use crate::{Risk, dat, paths, superblocks};

/// Restores the summaries of sync logs of a draft from one on that the checker has found wrong, or gives up
/// those that cannot be rolled forward. Returns `None` if there are none, or if damaged metadata leave that open.
pub(crate) fn correct(draft: &mut Draft, wrong: BlockNr) -> io::Result<Option<Made>> {
    let is_unreadable = replace_unreadable(draft, wrong)?;
    let device: Arc<dyn Device> = Arc::clone(&draft.device) as Arc<dyn Device>;
    let volume = Volume::open_with(device, Verify::Rescue);
    let torn = || {
        let action = "give up this log, as one that a power cut has torn";
        is_unreadable.then(|| Made::new(action.to_owned(), Risk::Loses))
    };
    // Other logs may still keep it from being opened, until they are given up as well.
    let Ok(volume) = &volume else { return Ok(torn()) };
    let Ok(plan) = volume.recovery_plan() else { return Ok(torn()) };
    if let Some(made) = restore(draft, wrong, volume, &plan)? {
        return Ok(Some(made));
    }
    if plan.why.is_some() {
        return match pass_over(draft, &plan)? {
            Some(passed) => Ok(Some(told(draft, passed))),
            None => give_up(draft, wrong, plan),
        };
    }
    if is_unreadable {
        return Ok(torn());
    }
    // A mount passes over it, or takes it as it is. In a checkpoint, the DAT and the maps tell what it has.
    let goes_on = std::mem::replace(&mut draft.moved_cursor, true);
    let action = "make a checkpoint of what fsyncs have written";
    Ok((!goes_on).then(|| Made::new(action.to_owned(), Risk::Safe)))
}

/// Restores summaries that are missing, from the copies that later logs have.
fn restore(
    draft: &mut Draft,
    wrong: BlockNr,
    volume: &Volume,
    plan: &RecoveryPlan,
) -> io::Result<Option<Made>> {
    let superblock = superblocks::best(&*draft.device).map_err(io::Error::other)?;
    let (geometry, seed) = (superblock.geometry(), superblock.crc_seed());
    let size = geometry.block_size;
    // Where the log has gone on in another segment, a recovery has not seen the rest of this one.
    let missing = plan.stops_at.unwrap_or(wrong);
    let in_segment = volume.logs_beyond_damage(geometry.segment_of(missing));
    let logs = in_segment.iter().chain(&plan.applied).chain(&plan.lost);
    let mut copies: BTreeMap<BlockNr, Vec<(LogHeader, Vec<u8>)>> = BTreeMap::new();
    for copy in logs.flat_map(Log::summary_copies) {
        let restored = copy.restore(size, geometry.blocks_per_segment, seed);
        copies.entry(copy.start).or_default().extend(restored);
    }
    let mut restored = 0;
    for (at, copies) in copies {
        let Some((header, summary)) = copies.first() else { continue };
        let fits = geometry.has_block(at)
            && at.0 + u64::from(header.nblocks) <= geometry.segment_end(geometry.segment_of(at)).0;
        // Copies that contradict one another prove nothing.
        let is_proved = copies.iter().all(|(_, other)| other == summary);
        let is_usable = fits && is_proved && completes_what_it_says(draft, &geometry, at, header)?;
        // Another log in its place may be whole and right, but not the one that the checker has found wrong.
        let is_there = has_summary(draft, at, summary, size)
            || at != wrong && has_whole_log(draft, at, header, &superblock)
            || plan
                .applied
                .iter()
                .any(|log| log.start == at && describes(log, header, summary, size));
        if is_usable && !is_there {
            draft.device.write_at(at.0 * size.bytes64(), &[IoSlice::new(summary)])?;
            draft.segments.insert(geometry.segment_of(at));
            restored += 1;
        }
    }
    let action = match restored {
        0 => return Ok(None),
        1 => "restore the summary that is missing, of which a later log has a copy".to_owned(),
        _ => format!(
            "restore {restored} summaries that are missing, of which later logs have copies"
        ),
    };
    Ok(Some(Made::new(action, Risk::Safe)))
}

/// Whether a log, of which the summary is restored, has its super root, if it should have one: without that it
/// is no checkpoint, and has nothing that a file could get back.
fn completes_what_it_says(
    draft: &Draft,
    geometry: &Geometry,
    at: BlockNr,
    header: &LogHeader,
) -> io::Result<bool> {
    if !header.has(SR) {
        return Ok(true);
    }
    let last = at.plus(u64::from(header.nblocks) - 1);
    let seed = superblocks::best(&*draft.device).map_err(io::Error::other)?.crc_seed();
    let block = dat::read(&*draft.device, geometry, last);
    Ok(block.is_some_and(|block| SuperRoot::parse(&block, geometry, seed).is_ok()))
}

/// Whether a summary begins in a block.
fn has_summary(draft: &Draft, at: BlockNr, summary: &[u8], size: BlockSize) -> bool {
    let mut found = vec![0; summary.len()];
    draft.device.read_at(at.0 * size.bytes64(), &mut found).is_ok() && found == summary
}

/// Whether a log has the blocks of which a restored summary tells, with the same checksums: then nothing of its own
/// summary is missing.
fn describes(log: &Log, header: &LogHeader, summary: &[u8], size: BlockSize) -> bool {
    let items = parse_items(header, summary, size);
    !log.files.is_empty()
        && items.is_ok_and(|items| log.files == items.files && log.sums == items.sums)
}

/// Whether a block has a log of the same use of its segment as that with this header, all of which is what was written.
/// A whole summary by itself may have been written elsewhere.
fn has_whole_log(draft: &Draft, at: BlockNr, header: &LogHeader, superblock: &Superblock) -> bool {
    let (geometry, seed) = (superblock.geometry(), superblock.crc_seed());
    let size = geometry.block_size;
    if !draft.has_summary(&geometry, seed, at) {
        return false;
    }
    let found = draft.header(&geometry, at).filter(|found| found.seq == header.seq);
    found.is_some_and(|found| {
        let mut log = vec![0; found.described_blocks(size) as usize * size.bytes()];
        draft.device.read_at(at.0 * size.bytes64(), &mut log).is_ok()
            && is_whole(&log, &found, size, seed)
    })
}

/// Removes the logs that cannot be rolled forward: those that a plan calls lost, and the one in `wrong` unless the
/// plan applies it.
fn give_up(draft: &mut Draft, wrong: BlockNr, plan: RecoveryPlan) -> io::Result<Option<Made>> {
    let RecoveryPlan { applied, lost, stops_at, .. } = plan;
    let is_applied = applied.iter().any(|log| log.start == wrong);
    let offset = wrong.0 * draft.block_size()?;
    let is_gone = draft.given_up.iter().any(|(given_up, _)| *given_up == offset);
    let wrong = Some(wrong).filter(|_| !is_applied && !is_gone);
    let starts: BTreeSet<BlockNr> = lost.iter().map(|log| log.start).chain(wrong).collect();
    let Some(first) = starts.first().copied() else { return Ok(None) };
    for log in &starts {
        draft.give_up_log(*log)?;
    }
    let logs = if starts.len() == 1 { "log" } else { "logs" };
    let mut action = format!(
        "give up what fsyncs have written from there on, {} {logs} from block {first} on",
        starts.len()
    );
    let is_known = |log: BlockNr| lost.iter().any(|lost| lost.start == log);
    if let Some(unknown) = stops_at.or(wrong).filter(|log| !is_known(*log)) {
        action.push_str(&format!(
            "; what was fsynced in the log in block {unknown} is lost, too, and cannot be told"
        ));
    }
    let files = lost.iter().flat_map(files_in).filter(|ino| ino.is_of_user()).collect();
    let names = names_in(draft, &lost);
    draft.lost.extend(lost);
    Ok(Some(Made { files, names, ..Made::new(action, Risk::Loses) }))
}

/// Says what it means to roll forward without the logs that were passed over.
fn told(draft: &mut Draft, passed: PassedOver) -> Made {
    let PassedOver { missing, contradicting, later } = passed;
    let starts: Vec<_> = contradicting.iter().map(|log| log.start).collect();
    let gone = match (&missing[..], &starts[..]) {
        (missing, []) => format!("{}, which cannot be told", in_logs(missing)),
        ([], starts) => format!("{}, which builds on what is lost", in_logs(starts)),
        (missing, starts) => format!(
            "{}, which cannot be told, and {}, which builds on that",
            in_logs(missing),
            in_logs(starts)
        ),
    };
    let action = format!(
        "give up what was fsynced {gone}; what was fsynced later is kept, but may lack that"
    );
    let files = contradicting.iter().flat_map(files_in).filter(|ino| ino.is_of_user());
    let files = files.chain(later).collect();
    let names = names_in(draft, &contradicting);
    draft.lost.extend(contradicting);
    Made { files, names, ..Made::new(action, Risk::Loses) }
}

/// Names logs by where they begin.
fn in_logs(starts: &[BlockNr]) -> String {
    let blocks: Vec<_> = starts.iter().map(ToString::to_string).collect();
    match &blocks[..] {
        [block] => format!("in the log in block {block}"),
        blocks => format!("in the logs in blocks {}", blocks.join(", ")),
    }
}

/// Paths that files would have had, by the names in logs that are given up.
fn names_in(draft: &Draft, lost: &[Log]) -> BTreeMap<Ino, String> {
    let mut named: BTreeMap<Ino, (Ino, String)> = BTreeMap::new();
    for record in lost.iter().filter_map(|log| log.records().ok()?).flat_map(|it| it.records) {
        if let Record::Name(NameRecord { directory, name, target: Some((ino, _)) }) = record {
            named.insert(ino, (directory, String::from_utf8_lossy(&name).into_owned()));
        }
    }
    let device = Arc::clone(&draft.device) as Arc<dyn Device>;
    let directories = named.values().map(|(directory, _)| *directory).collect();
    let known = paths::newest(&device, directories);
    let path_of = |ino: Ino| {
        let (mut at, mut parts) = (ino, Vec::new());
        // Names that contradict each other may go round in a circle.
        while parts.len() <= named.len() {
            if let Some(path) = known.get(&at).filter(|_| at != ino) {
                parts.extend(Some(String::from_utf8_lossy(path)).filter(|path| !path.is_empty()));
                parts.reverse();
                return Some(parts.join("/"));
            }
            let (directory, name) = named.get(&at)?;
            parts.push(name.into());
            at = *directory;
        }
        None
    };
    named.keys().filter_map(|ino| Some((*ino, path_of(*ino)?))).collect()
}

/// Removes a log that cannot be read, because a recovery would look no further. A summary that cannot be read
/// cannot be written in part either, so there are zeros in place of all of the summary then. Returns whether it
/// was such a log.
fn replace_unreadable(draft: &mut Draft, log: BlockNr) -> io::Result<bool> {
    let geometry = superblocks::best(&*draft.device).map_err(io::Error::other)?.geometry();
    let size = geometry.block_size;
    let header = draft.header(&geometry, log);
    let [summary, all] = header
        .map_or([1; 2], |header| [header.summary_blocks(size), header.described_blocks(size)]);
    let mut bytes = vec![0; all as usize * size.bytes()];
    let offset = log.0 * size.bytes64();
    let mut can_read = |blocks: u64| {
        let bytes = &mut bytes[..blocks as usize * size.bytes()];
        draft.device.read_at(offset, bytes).is_ok()
    };
    let (has_summary, is_whole) = (can_read(summary), can_read(all));
    if !has_summary {
        draft.give_up_bytes(offset, vec![0; summary as usize * size.bytes()])?;
    } else if !is_whole {
        draft.give_up_log(log)?;
    }
    Ok(!is_whole)
}

/// The files that a sync log changes, by its blocks and its records.
pub(crate) fn files_in(log: &Log) -> BTreeSet<Ino> {
    // Records that cannot be read tell nothing.
    let records = log.records().ok().flatten().map_or_else(Vec::new, |it| it.records);
    log.files.iter().map(|file| file.ino).chain(records.iter().map(|it| it.ino())).collect()
}
