//! Which superblock counts (docs/format.md §3). Nothing is written.

use nilfs_device::Device;
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::superblock::{STATE_ERROR, SUPERBLOCK_SIZE, Superblock};
use nilfs_ondisk::{BlockNr, FormatError};

use crate::correction::Correction;
use crate::report::{Findings, Location, Rule};
use crate::{CheckError, Foreign};

/// The copies that can be used.
pub(crate) struct Superblocks {
    /// The copy that a mount takes.
    pub(crate) winner: Superblock,
    /// The other copy, if it is valid.
    pub(crate) other: Option<Superblock>,
}

impl Superblocks {
    /// Whether the volume was closed cleanly. A copy that stands alone does not say so: it may be one that was not
    /// written since the volume was mounted.
    pub(crate) fn are_clean(&self) -> bool {
        self.winner.is_clean() && self.other.is_some()
    }
}

/// Reads both copies and takes the one that a mount would take.
pub(crate) fn choose(
    device: &dyn Device,
    foreign: &[Foreign],
    findings: &mut Findings,
) -> Result<Superblocks, CheckError> {
    let size = device.size();
    let Some(secondary_at) = secondary_superblock(size) else {
        return Err(CheckError::DeviceTooSmall { bytes: size });
    };
    let primary = read(device, PRIMARY_SUPERBLOCK);
    let secondary = read(device, secondary_at);
    note_foreign(foreign, primary.is_ok(), findings);
    let mut copies = match (primary, secondary) {
        (Ok(primary), Ok(secondary)) => {
            let newer = secondary.last_log().cno > primary.last_log().cno;
            let is_in_use = secondary.last_log().cno == primary.last_log().cno
                && primary.is_clean()
                && !secondary.is_clean();
            match newer || is_in_use {
                true => vec![secondary, primary],
                false => vec![primary, secondary],
            }
        }
        (Ok(valid), Err(error)) => {
            findings
                .warning(Rule::Superblock, Location::VOLUME, || {
                    format!("the secondary copy cannot be used: {error}")
                })
                .corrected_by([Correction::Superblocks]);
            vec![valid]
        }
        (Err(error), Ok(valid)) => {
            findings
                .warning(Rule::Superblock, Location::VOLUME, || {
                    format!("the primary copy cannot be used: {error}")
                })
                .corrected_by([Correction::Superblocks]);
            vec![valid]
        }
        // What else is wrong follows from it.
        (Err(error @ CheckError::Format(FormatError::Truncated { .. })), Err(_)) => {
            return Err(error);
        }
        (Err(primary), Err(secondary)) => {
            return Err(CheckError::NoSuperblock {
                primary: Box::new(primary),
                secondary: Box::new(secondary),
            });
        }
    };
    let winner = copies.remove(0);
    let other = copies.pop();
    winner.refuse_unknown_features(false)?;
    let geometry = winner.geometry();
    let segment = geometry.segment_of(BlockNr(geometry.block_size.block_of(secondary_at).0));
    if geometry.has_segment(segment) {
        findings.error(Rule::Superblock, Location::segment(segment), || {
            "the segment covers the place of the secondary superblock".into()
        });
    }
    if winner.raw().s_state.get() & STATE_ERROR != 0 {
        findings
            .warning(Rule::Superblock, Location::VOLUME, || {
                "the volume is marked as having errors (s_state)".into()
            })
            .corrected_by([Correction::Superblocks]);
    }
    if let Some(other) = &other
        && other.geometry() != geometry
    {
        findings
            .warning(Rule::Superblock, Location::VOLUME, || {
                "the two copies differ in the geometry of the volume".into()
            })
            .corrected_by([Correction::Superblocks]);
    }
    Ok(Superblocks { winner, other })
}

/// Says what else is on the device. Where the primary copy is gone, that has taken its place.
fn note_foreign(foreign: &[Foreign], has_primary: bool, findings: &mut Findings) {
    for it in foreign {
        match has_primary {
            true => findings.note(Rule::Foreign, Location::VOLUME, || {
                format!(
                    "{it}, left by what was there before, or in a file: a program that looks for \
                     it may take the device for that"
                )
            }),
            false => drop(findings.error(Rule::Foreign, Location::VOLUME, || {
                format!(
                    "{it}, and no primary superblock: the device seems to have been given to \
                     something else"
                )
            })),
        }
    }
}

fn read(device: &dyn Device, offset: u64) -> Result<Superblock, CheckError> {
    let read = || {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(offset, &mut bytes)?;
        Ok(Superblock::parse(&bytes, device.size())?)
    };
    match read() {
        // A mount may have been writing it at that moment.
        Err(CheckError::Format(_)) => read(),
        read => read,
    }
}
