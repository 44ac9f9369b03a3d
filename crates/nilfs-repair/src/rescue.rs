//! A volume to which no superblock leads any more, or whose newest checkpoint cannot be used: the
//! newest one that can be is found by looking at all logs there are.

use std::collections::BTreeSet;
use std::io;

use nilfs_check::{CheckError, Correction, Finding, Report, Rule};
use nilfs_device::{Device, IoSlice};
use nilfs_ondisk::superblock::{STATE_VALID, Superblock};
use nilfs_ondisk::{Ino, SegNum};
use zerocopy::little_endian::U16;

use crate::draft::Draft;
use crate::logs::{self, Discovered, FoundLog};
use crate::{Repair, RepairError, Risk, superblocks};

/// Super roots that are tried, from the newest on.
const MOST_TRIED: usize = 256;

/// Corrects a draft. If its newest checkpoint cannot be used even so, it becomes one that goes on from
/// the newest that can.
pub(crate) fn usable(mut draft: Draft) -> Result<Draft, RepairError> {
    let fault = match draft.check() {
        Ok(report) => {
            if let Some(lost) = lost_cursor(&report) {
                let fault = format!("{}: {}", lost.place, lost.message);
                let superblock = superblocks::best(&*draft.device)?;
                return newest_usable(&draft, &[superblock], &fault);
            }
            let report = draft.correct()?;
            let Some(finding) = fatal(&report) else { return Ok(draft) };
            let fault = format!(
                "checkpoint {} cannot be used: {}: {}",
                report.newest, finding.place, finding.message
            );
            let superblock = superblocks::best(&*draft.device)?;
            return match newest_usable(&draft, &[superblock], &fault) {
                // An older one is no better.
                Err(RepairError::NoCheckpoint(_)) => Ok(draft),
                found => found,
            };
        }
        Err(error @ (CheckError::NoSuperblock { .. } | CheckError::NoSuperRoot { .. })) => error,
        Err(error) => return Err(RepairError::Check(error)),
    };
    let superblocks = match fault {
        CheckError::NoSuperRoot { .. } => vec![superblocks::best(&*draft.device)?],
        _ => rebuilt(&draft)?,
    };
    newest_usable(&draft, &superblocks, &fault.to_string())
}

/// That the log which a superblock names cannot be used, though the other superblock leads somewhere:
/// to an older checkpoint, so something may be lost.
fn lost_cursor(report: &Report) -> Option<&Finding> {
    let renewed = |finding: &&Finding| finding.corrections.contains(&Correction::Superblocks);
    report.errors().find(|it| it.rule == Rule::SuperRoot && renewed(it))
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
        // Without a root directory nothing can be mounted.
        Rule::Directory | Rule::Inode => {
            finding.place.ino == Some(Ino::ROOT) && finding.place.checkpoint == Some(report.newest)
        }
        Rule::Checkpoint => finding.place.checkpoint == Some(report.newest),
        _ => false,
    };
    report.errors().filter(|finding| finding.corrections.is_empty()).find(breaks)
}

/// Superblocks made of what the logs tell, one for each size of segments that is possible.
fn rebuilt(draft: &Draft) -> Result<Vec<Superblock>, RepairError> {
    let device = &*draft.device;
    let Discovered { seed, geometries } = logs::discover(device)?;
    let mut superblocks = Vec::new();
    for geometry in geometries {
        // Any block will do until the newest log is known.
        let somewhere = nilfs_ondisk::superblock::LogCursor {
            block: geometry.segment_start(SegNum(0)),
            seq: nilfs_ondisk::Seq(0),
            cno: nilfs_ondisk::Cno::MIN,
        };
        let made =
            superblocks::from_scratch(&geometry, seed, somewhere, draft.uuid, device.size())?;
        superblocks.push(made);
    }
    Ok(superblocks)
}

/// A draft that goes on from the newest checkpoint that can be used, with the one of these superblocks
/// that leaves least to be corrected. Later logs are given up.
fn newest_usable(
    from: &Draft,
    superblocks: &[Superblock],
    fault: &str,
) -> Result<Draft, RepairError> {
    let (mut tried, mut best) = (0, None::<Draft>);
    for superblock in superblocks {
        let logs = logs::all(&*from.device, &superblock.geometry(), superblock.crc_seed())?;
        let roots = logs.iter().enumerate().rev().filter(|(_, log)| log.has_super_root);
        for (nth, root) in roots.take(MOST_TRIED) {
            tried += 1;
            let later: Vec<_> =
                logs[nth + 1..].iter().filter(|log| !log.header.is_off_chain()).collect();
            let mut draft = from.afresh();
            go_on_from(&mut draft, superblock, root, &later)?;
            let repair = repair(fault, root, &later, &draft);
            draft.repairs.push(repair);
            match draft.correct() {
                Ok(report) if fatal(&report).is_none() => {
                    if draft.repairs.len() == 1 || superblocks.len() == 1 {
                        return Ok(draft);
                    }
                    if best.as_ref().is_none_or(|best| draft.repairs.len() < best.repairs.len()) {
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

/// What it means to go on from a log.
fn repair(fault: &str, root: &FoundLog, later: &[&FoundLog], draft: &Draft) -> Repair {
    let scratch = superblocks::best(&*draft.device).is_ok_and(|it| it.raw().s_uuid == draft.uuid);
    let mut action = String::new();
    if scratch {
        action.push_str(
            "make superblocks of what the logs tell; the label, the UUID and the settings are lost, \
             and the volume is taken to be as large as the device; ",
        );
    }
    action.push_str(&format!("go on from checkpoint {}", root.header.cno));
    let files: BTreeSet<Ino> = later.iter().flat_map(|log| log.files.iter().copied()).collect();
    if let Some(last) = later.last() {
        action.push_str(&format!(
            ", and give up what was written after it: {} logs, up to checkpoint {}, with blocks of \
             {} files and directories",
            later.len(),
            last.header.cno,
            files.len()
        ));
    }
    let risk = if scratch || !later.is_empty() { Risk::Loses } else { Risk::Safe };
    Repair { fault: fault.to_owned(), action, risk }
}

/// Lets the superblocks of a draft name a log, and makes sure that no later one is found.
fn go_on_from(
    draft: &mut Draft,
    superblock: &Superblock,
    root: &FoundLog,
    later: &[&FoundLog],
) -> io::Result<()> {
    let mut superblock = *superblock;
    superblock.set_last_log(root.cursor());
    // So the chain is followed, and a mount recovers.
    let state = superblock.raw().s_state.get();
    superblock.raw_mut().s_state = U16::new(state & !STATE_VALID);
    superblocks::write(draft, &superblock)?;
    draft.moved_cursor = true;
    let size = superblock.geometry().block_size.bytes64();
    for log in later.iter().filter(|log| log.whole) {
        // Without its magic number it is no log.
        let (offset, bytes) = (log.block.0 * size, vec![0; 16]);
        draft.device.write_at(offset, &[IoSlice::new(&bytes)])?;
        draft.given_up.push((offset, bytes));
    }
    Ok(())
}
