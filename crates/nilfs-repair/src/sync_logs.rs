//! Sync logs that cannot be rolled forward. Which these are, the engine says, as its recovery would.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use nilfs_device::Device;
use nilfs_engine::{Log, RecoveryPlan, Verify, Volume};
use nilfs_ondisk::{BlockNr, Ino};

use crate::draft::{Draft, Made};
use crate::{Risk, superblocks};

/// Gives up the sync logs of a draft that cannot be rolled forward. The checker has found that this log is
/// wrong. Returns `None` if nothing is to be given up, or if damaged metadata leave that open.
pub(crate) fn give_up(draft: &mut Draft, wrong: BlockNr) -> io::Result<Option<Made>> {
    let is_unreadable = replace_unreadable(draft, wrong)?;
    let device: Arc<dyn Device> = Arc::clone(&draft.device) as Arc<dyn Device>;
    let plan = Volume::open_with(device, Verify::None).and_then(|it| it.recovery_plan());
    let (applied, lost) = match plan {
        Ok(RecoveryPlan { applied, lost, why: Some(_) }) => (applied, lost),
        Ok(_) if is_unreadable => {
            let action = "give up this log, as one that a power cut has torn";
            return Ok(Some(Made::new(action.to_owned(), Risk::Loses)));
        }
        _ => return Ok(None),
    };
    let is_applied = applied.iter().any(|log| log.start == wrong);
    let wrong = Some(wrong).filter(|_| !is_applied);
    let starts: BTreeSet<BlockNr> = lost.iter().map(|log| log.start).chain(wrong).collect();
    let Some(first) = starts.first().copied() else { return Ok(None) };
    for log in &starts {
        draft.give_up_log(*log)?;
    }
    let action = format!(
        "give up what fsyncs have written from there on, {} logs from block {first} on",
        starts.len()
    );
    let files = lost.iter().flat_map(files_in).filter(|ino| ino.is_of_user()).collect();
    draft.lost.extend(lost);
    Ok(Some(Made { files, ..Made::new(action, Risk::Loses) }))
}

/// Removes a log that cannot be read, because a recovery would look no further. A summary that cannot be read
/// cannot be written in part either, so there are zeros in place of all of the summary then. Returns whether it
/// was such a log.
fn replace_unreadable(draft: &mut Draft, log: BlockNr) -> io::Result<bool> {
    let geometry = superblocks::best(&*draft.device).map_err(io::Error::other)?.geometry();
    let size = geometry.block_size;
    let header = draft.header(&geometry, log).ok().flatten();
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
fn files_in(log: &Log) -> BTreeSet<Ino> {
    // Records that cannot be read tell nothing.
    let records = log.records().ok().flatten().map_or_else(Vec::new, |it| it.records);
    log.files.iter().map(|file| file.ino).chain(records.iter().map(|it| it.ino())).collect()
}
