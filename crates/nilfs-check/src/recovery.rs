//! The search for the newest super root (behaviour spec §1.2) and what a mount would roll forward
//! behind it (§1.3), without writing anything.

use std::collections::BTreeSet;

use nilfs_ondisk::summary::{LOGBGN, LOGEND, LogHeader, SR, SYNDT};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Cno, Ino, SegNum, Seq};

use crate::CheckError;
use crate::log::{LogFault, LogReader};
use crate::report::{Findings, Place, Rule};
use crate::superblocks::Superblocks;
use crate::volume::Volume;

/// The log that completes the newest checkpoint.
pub(crate) struct Newest {
    /// First block of the log.
    pub(crate) log: BlockNr,
    pub(crate) header: LogHeader,
    pub(crate) cno: Cno,
    pub(crate) super_root: SuperRoot,
    /// Files that a mount would roll forward.
    pub(crate) rolled_forward: BTreeSet<Ino>,
}

/// Finds the newest super root as a mount would, and judges the ways that lead to it.
pub(crate) fn find_newest(
    volume: &Volume<'_>,
    superblocks: &Superblocks,
    findings: &mut Findings,
) -> Result<Newest, CheckError> {
    let mut reader = LogReader::new(volume);
    let winner = &superblocks.winner;
    let first = Scan::run(volume, &mut reader, winner.last_log(), winner.is_clean())
        .and_then(|scan| scan.with_super_root(volume, &mut reader));
    let mut fallen_back = false;
    let (scan, super_root) = match (first, &superblocks.other) {
        (Ok(found), _) => found,
        (Err(fault), None) => {
            return Err(CheckError::NoSuperRoot {
                fault: fault.to_string(),
            });
        }
        (Err(fault), Some(other)) => {
            let place = Place::VOLUME.log(winner.last_log().block);
            findings.error(Rule::SuperRoot, place, || {
                format!("the log that the superblock names cannot be used: {fault}")
            });
            fallen_back = true;
            Scan::run(volume, &mut reader, other.last_log(), false)
                .and_then(|scan| scan.with_super_root(volume, &mut reader))
                .map_err(|fault| CheckError::NoSuperRoot {
                    fault: fault.to_string(),
                })?
        }
    };
    let best = scan.best;
    if best.header.cno != best.cno {
        findings.error(Rule::SuperRoot, Place::VOLUME.log(best.log), || {
            format!(
                "the log is of checkpoint {}, but counting from the superblock gives {}",
                best.header.cno, best.cno
            )
        });
    }
    if !fallen_back {
        judge_superblocks(volume, &mut reader, superblocks, best.log, findings);
    }
    let rolled_forward = if winner.is_clean() && !fallen_back {
        BTreeSet::new()
    } else {
        roll_forward(volume, &mut reader, &scan, findings)
    };
    Ok(Newest {
        log: best.log,
        header: best.header,
        cno: best.header.cno,
        super_root,
        rolled_forward,
    })
}

/// Whether both copies lead to the log that was found.
fn judge_superblocks(
    volume: &Volume<'_>,
    reader: &mut LogReader<'_, '_>,
    superblocks: &Superblocks,
    newest: BlockNr,
    findings: &mut Findings,
) {
    let winner = &superblocks.winner;
    if winner.is_clean()
        && let Ok(scan) = Scan::run(volume, reader, winner.last_log(), false)
        && scan.best.log != newest
    {
        findings.warning(Rule::Superblock, Place::VOLUME.log(scan.best.log), || {
            "the volume is marked clean, but a newer super root follows the log that the \
             superblock names"
                .into()
        });
    }
    let Some(other) = superblocks
        .other
        .as_ref()
        .filter(|o| o.last_log() != winner.last_log())
    else {
        return;
    };
    let found = Scan::run(volume, reader, other.last_log(), false);
    let place = Place::VOLUME.log(other.last_log().block);
    match found {
        Ok(scan) if scan.best.log == newest => {}
        Ok(scan) => findings.warning(Rule::Superblock, place, || {
            format!(
                "the log that the older superblock names leads to block {}, not to the newest \
                 log at block {newest}",
                scan.best.log
            )
        }),
        Err(fault) => findings.warning(Rule::Superblock, place, || {
            format!("the log that the older superblock names cannot be used: {fault}")
        }),
    }
}

/// A log with a super root, as the scan finds it.
#[derive(Debug, Clone, Copy)]
struct Found {
    log: BlockNr,
    header: LogHeader,
    /// The checkpoint, counted from the superblock's.
    cno: Cno,
}

/// What the forward scan found.
struct Scan {
    best: Found,
    /// First data-sync log behind the best one, and its sequence number.
    first_behind: Option<(BlockNr, Seq)>,
    /// Last log that ends a logical segment behind the best one.
    last_end: Option<BlockNr>,
}

impl Scan {
    /// Follows the logs from `start` on. Each step takes a further valid log or a further
    /// sequence number after at most one miss, so the scan ends on any image.
    fn run(
        volume: &Volume<'_>,
        reader: &mut LogReader<'_, '_>,
        start: LogCursor,
        clean: bool,
    ) -> Result<Self, LogFault> {
        let mut scan: Option<Self> = None;
        let mut at = Position {
            block: start.block,
            seq: start.seq,
            next: SegNum(0),
        };
        let mut cno = start.cno;
        let mut missed = false;
        loop {
            match valid_log(reader, at.block, at.seq) {
                Ok(header) => {
                    missed = false;
                    at.next = volume.geometry.segment_of(header.next);
                    match (&mut scan, header.has(SR)) {
                        (None, false) => return Err(LogFault::NoSuperRoot),
                        (Some(scan), false) => {
                            if scan.first_behind.is_none() && header.has(LOGBGN) {
                                scan.first_behind = Some((at.block, at.seq));
                            }
                            if header.has(LOGEND) {
                                scan.last_end = Some(at.block);
                            }
                        }
                        (_, true) => {
                            let newer = scan.is_some();
                            let best = Found {
                                log: at.block,
                                header,
                                cno,
                            };
                            scan = Some(Self {
                                best,
                                first_behind: None,
                                last_end: None,
                            });
                            if clean && !newer {
                                break;
                            }
                            cno = cno.plus(1);
                        }
                    }
                    if at.advance(volume, &header) {
                        continue;
                    }
                }
                Err(fault) if scan.is_none() => return Err(fault),
                Err(_) if missed => break,
                Err(_) => {}
            }
            missed = true;
            if !at.next_segment(volume) {
                break;
            }
        }
        scan.ok_or(LogFault::NoSuperRoot)
    }

    fn with_super_root(
        self,
        volume: &Volume<'_>,
        reader: &mut LogReader<'_, '_>,
    ) -> Result<(Self, SuperRoot), LogFault> {
        let block = self.best.log.plus(u64::from(self.best.header.nblocks) - 1);
        let super_root = SuperRoot::parse(reader.block(block)?, &volume.geometry, volume.seed)?;
        Ok((self, super_root))
    }
}

/// Where the scan is.
struct Position {
    block: BlockNr,
    seq: Seq,
    /// The segment that follows, as the last valid log names it.
    next: SegNum,
}

impl Position {
    /// Goes behind a log; false if the segment has no room for another.
    fn advance(&mut self, volume: &Volume<'_>, header: &LogHeader) -> bool {
        let geometry = &volume.geometry;
        let end = geometry.segment_end(geometry.segment_of(self.block));
        self.block = self.block.plus(header.nblocks.into());
        self.block.0 + 1 < end.0
    }

    /// Goes to the start of the next segment; false if there is none.
    fn next_segment(&mut self, volume: &Volume<'_>) -> bool {
        self.seq = self.seq.plus(1);
        self.block = volume.geometry.segment_start(self.next);
        volume.geometry.has_segment(self.next)
    }
}

/// The header of a log of the given sequence number whose checksum is right.
fn valid_log(reader: &mut LogReader<'_, '_>, at: BlockNr, seq: Seq) -> Result<LogHeader, LogFault> {
    let header = reader.header(at)?;
    if header.seq != seq {
        return Err(LogFault::Sequence {
            found: header.seq,
            expected: seq,
        });
    }
    reader.verify(at, &header)?;
    Ok(header)
}

/// Names what a mount would roll forward, and says what would keep it from doing so.
fn roll_forward(
    volume: &Volume<'_>,
    reader: &mut LogReader<'_, '_>,
    scan: &Scan,
    findings: &mut Findings,
) -> BTreeSet<Ino> {
    let mut whole = BTreeSet::new();
    let (Some((block, seq)), Some(last)) = (scan.first_behind, scan.last_end) else {
        if let Some((block, _)) = scan.first_behind {
            findings.note(Rule::RollForward, Place::VOLUME.log(block), || {
                "an unfinished logical segment follows the newest super root; a mount drops it"
                    .into()
            });
        }
        return whole;
    };
    let mut at = Position {
        block,
        seq,
        next: volume.geometry.segment_of(scan.best.header.next),
    };
    let mut open: Option<BTreeSet<Ino>> = None;
    let (mut missed, mut logs) = (false, 0u64);
    loop {
        match valid_log(reader, at.block, at.seq) {
            Ok(header) => {
                missed = false;
                at.next = volume.geometry.segment_of(header.next);
                let begins = header.has(SYNDT) && header.has(LOGBGN);
                if begins {
                    open = Some(BTreeSet::new());
                }
                if let Some(files) = &mut open {
                    if !header.has(SYNDT) || header.has(SR) {
                        findings.error(Rule::RollForward, Place::VOLUME.log(at.block), || {
                            "this log stands between data-sync logs, so a mount would fail".into()
                        });
                        break;
                    }
                    logs += 1;
                    match reader.files(at.block, &header) {
                        Ok(items) => files.extend(items.iter().map(|file| file.ino)),
                        Err(fault) => {
                            findings.error(Rule::RollForward, Place::VOLUME.log(at.block), || {
                                fault.to_string()
                            });
                        }
                    }
                }
                if header.has(LOGEND) {
                    whole.extend(open.take().unwrap_or_default());
                }
                if at.block == last {
                    break;
                }
                if at.advance(volume, &header) {
                    continue;
                }
            }
            Err(_) if missed => break,
            Err(_) => {}
        }
        missed = true;
        if !at.next_segment(volume) {
            break;
        }
    }
    if !whole.is_empty() {
        findings.note(Rule::RollForward, Place::VOLUME.log(block), || {
            format!(
                "{logs} data-sync logs follow the newest super root, for {} files",
                whole.len()
            )
        });
    }
    whole
}
