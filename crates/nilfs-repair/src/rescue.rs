//! A volume to which no superblock leads any more, or whose newest checkpoint cannot be used: the
//! newest one that can be is found by looking at all logs there are.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use nilfs_check::{CheckError, Finding, Report, Rule};
use nilfs_device::{CopyOnWriteDevice, Device, IoSlice};
use nilfs_ondisk::superblock::{STATE_VALID, Superblock};
use nilfs_ondisk::{Ino, SegNum};
use zerocopy::little_endian::U16;

use crate::draft::Draft;
use crate::logs::{self, Discovered, FoundLog};
use crate::{Repair, RepairError, Risk, check_options, superblocks};

/// Super roots that are tried, from the newest on.
const MOST_TRIED: usize = 256;

/// Makes a draft one that can be checked, with a newest checkpoint that can be used. Returns what a
/// check of it says.
pub(crate) fn openable(draft: &mut Draft) -> Result<Report, RepairError> {
    let fault = match draft.check() {
        Ok(report) => match fatal(&report) {
            None => return Ok(report),
            Some(finding) => {
                let fault = format!(
                    "checkpoint {} cannot be used: {}: {}",
                    report.newest, finding.place, finding.message
                );
                let superblock = superblocks::best(&*draft.device)?;
                return match newest_usable(draft, &[superblock], &fault) {
                    // An older one is no better.
                    Err(RepairError::NoCheckpoint(_)) => Ok(report),
                    found => found,
                };
            }
        },
        Err(error @ (CheckError::NoSuperblock { .. } | CheckError::NoSuperRoot { .. })) => error,
        Err(error) => return Err(RepairError::Check(error)),
    };
    let superblocks = match fault {
        CheckError::NoSuperRoot { .. } => vec![superblocks::best(&*draft.device)?],
        _ => rebuilt(draft)?,
    };
    newest_usable(draft, &superblocks, &fault.to_string())
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

/// Lets the superblocks of a draft name the newest checkpoint that can be used, with one of these
/// superblocks. Later logs are given up.
fn newest_usable(
    draft: &mut Draft,
    superblocks: &[Superblock],
    fault: &str,
) -> Result<Report, RepairError> {
    let mut tried = 0;
    for superblock in superblocks {
        let logs = logs::all(&*draft.device, &superblock.geometry(), superblock.crc_seed())?;
        let roots = logs.iter().enumerate().rev().filter(|(_, log)| log.has_super_root);
        for (nth, root) in roots.take(MOST_TRIED) {
            tried += 1;
            let later: Vec<_> =
                logs[nth + 1..].iter().filter(|log| !log.header.is_off_chain()).collect();
            let trial = Trial::new(superblock, root, &later);
            let view = CopyOnWriteDevice::new(Arc::clone(&draft.device) as Arc<dyn Device>);
            trial.write(&view)?;
            let Ok(report) = nilfs_check::check(&view, &check_options()) else { continue };
            if fatal(&report).is_some() {
                continue;
            }
            trial.adopt(draft)?;
            let repair = repair(fault, root, &later, draft);
            draft.repairs.push(repair);
            return Ok(report);
        }
    }
    Err(RepairError::NoCheckpoint(tried))
}

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

/// What it takes to let a volume go on from a log.
struct Trial {
    superblock: Superblock,
    /// The magic numbers of logs that must not be found any more: where they are, and what is there
    /// instead.
    given_up: Vec<(u64, Vec<u8>)>,
}

impl Trial {
    fn new(superblock: &Superblock, root: &FoundLog, later: &[&FoundLog]) -> Self {
        let mut superblock = *superblock;
        superblock.set_last_log(root.cursor());
        // So the chain is followed, and a mount recovers.
        let state = superblock.raw().s_state.get();
        superblock.raw_mut().s_state = U16::new(state & !STATE_VALID);
        let size = superblock.geometry().block_size.bytes64();
        let given_up = later.iter().map(|log| (log.block.0 * size, vec![0; 16])).collect();
        Self { superblock, given_up }
    }

    fn write(&self, device: &dyn Device) -> io::Result<()> {
        for (offset, bytes) in &self.given_up {
            device.write_at(*offset, &[IoSlice::new(bytes)])?;
        }
        for offset in superblocks::offsets(device) {
            device.write_at(offset, &[IoSlice::new(&self.superblock.encode())])?;
        }
        Ok(())
    }

    fn adopt(self, draft: &mut Draft) -> io::Result<()> {
        self.write(&*draft.device)?;
        draft.moved_cursor = true;
        draft.given_up.extend(self.given_up);
        Ok(())
    }
}
