//! The volume as it should be: the device with corrections laid over it in memory. Checksums of logs
//! are made right again, so that the engine and the checker take what was corrected for written so.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use nilfs_check::{CheckError, Correction, Finding, Options, Position, Report, Rule};
use nilfs_device::{CopyOnWriteDevice, Device, IoSlice};
use nilfs_ondisk::crc::crc32_le;
use nilfs_ondisk::summary::{LogHeader, SR};
use nilfs_ondisk::superblock::Superblock;
use nilfs_ondisk::{BlockNr, Geometry};

use crate::{Repair, RepairError, Risk, Segments, superblocks};

/// How often the corrected volume is checked and corrected again. Each round is for what the one
/// before has uncovered.
const ROUNDS: usize = 16;

/// How often the same is corrected, because something else has come to light.
const MOST_TIMES: u8 = 3;

/// A volume that is being corrected.
pub(crate) struct Draft {
    /// The device as it is.
    below: Arc<dyn Device>,
    pub(crate) device: Arc<CopyOnWriteDevice>,
    pub(crate) repairs: Vec<Repair>,
    /// Where blocks were corrected. They are right in the draft alone, so they have to be written
    /// elsewhere.
    pub(crate) segments: Segments,
    /// What is written to the device in place, before anything else: the heads of logs that are given
    /// up. Where few segments are clean, the log goes on right before them, and a later recovery must
    /// not run into them.
    pub(crate) given_up: Vec<(u64, Vec<u8>)>,
    /// Whether the superblocks of the draft name another log than those of the device.
    pub(crate) moved_cursor: bool,
    /// Whether files, directories and inodes are corrected, too.
    with_files: bool,
    /// How thoroughly it is checked.
    pub(crate) options: Options,
    pub(crate) uuid: [u8; 16],
    /// The logs that have corrected blocks: where they are on the device, and their bytes.
    sealed: BTreeMap<u64, u64>,
    /// How often what was corrected.
    made: HashMap<(Position, Option<u8>), u8>,
}

impl Draft {
    pub(crate) fn new(device: Arc<dyn Device>, options: Options, uuid: [u8; 16]) -> Self {
        Self {
            device: Arc::new(CopyOnWriteDevice::new(Arc::clone(&device))),
            below: device,
            repairs: Vec::new(),
            segments: Segments::new(),
            given_up: Vec::new(),
            moved_cursor: false,
            with_files: true,
            options,
            uuid,
            sealed: BTreeMap::new(),
            made: HashMap::new(),
        }
    }

    /// A draft of the same device, without corrections.
    pub(crate) fn afresh(&self) -> Self {
        let fresh = Self::new(Arc::clone(&self.below), self.options.clone(), self.uuid);
        Self { with_files: self.with_files, ..fresh }
    }

    /// A draft of the same device in which no file, directory or inode will be corrected.
    pub(crate) fn leaving_files_alone(&self) -> Self {
        Self { with_files: false, ..self.afresh() }
    }

    pub(crate) fn check(&self) -> Result<Report, CheckError> {
        nilfs_check::check(&*self.device, &self.options)
    }

    /// Corrects the draft, of which a check has said this, until the checker has nothing more to
    /// correct. Returns what it says then.
    pub(crate) fn correct(&mut self, mut report: Report) -> Result<Report, RepairError> {
        for _ in 0..ROUNDS {
            if !self.apply(&report)? {
                break;
            }
            report = self.check().map_err(RepairError::Check)?;
        }
        self.note_other_damage()?;
        Ok(report)
    }

    /// Says which logs will be moved although more is wrong with them than was corrected: their
    /// checksums were wrong, and are not right with the corrections either. Once they are moved,
    /// nobody can tell any more.
    fn note_other_damage(&mut self) -> io::Result<()> {
        for (offset, length) in &self.sealed {
            let log_of = |device: &dyn Device| -> io::Result<Vec<u8>> {
                let mut log = vec![0; *length as usize];
                device.read_at(*offset, &mut log)?;
                Ok(log)
            };
            let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
            let seed = superblock.crc_seed();
            let (found, corrected) = (log_of(&*self.below)?, log_of(&*self.device)?);
            let written = found[..4].to_vec();
            let sum = |log: &[u8]| crc32_le(seed, &log[4..]).to_le_bytes().to_vec();
            if sum(&found) != written && sum(&corrected) != written {
                let block = offset / superblock.geometry().block_size.bytes64();
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
                });
            }
        }
        Ok(())
    }

    /// Makes the corrections of a report: of what is counted before the counts. Returns whether
    /// there were any.
    fn apply(&mut self, report: &Report) -> Result<bool, RepairError> {
        let is_count = |correction: &Correction| matches!(correction, Correction::Count { .. });
        Ok(self.apply_those(report, &|it| !is_count(it))? || self.apply_those(report, &is_count)?)
    }

    fn apply_those(
        &mut self,
        report: &Report,
        which: &dyn Fn(&Correction) -> bool,
    ) -> Result<bool, RepairError> {
        let superblock = superblocks::best(&*self.device)?;
        let mut touched = Vec::new();
        let mut anything = false;
        let with_files = self.with_files;
        for finding in report.findings.iter().filter(|it| with_files || !is_of_files(it)) {
            let mut made = false;
            let mut action = String::new();
            for correction in finding.corrections.iter().filter(|it| which(it)) {
                if !self.make(correction, report, &mut touched)? {
                    continue;
                }
                if !made {
                    action = correction.to_string();
                }
                made = true;
            }
            if made {
                anything = true;
                self.repairs.push(repair_of(finding, action));
            }
        }
        touched.sort_unstable();
        touched.dedup();
        self.seal_logs(&superblock, &touched)?;
        Ok(anything)
    }

    /// Makes one correction. `false` if it was made too often: then others say otherwise, and there
    /// is no way to keep all rules.
    fn make(
        &mut self,
        correction: &Correction,
        report: &Report,
        touched: &mut Vec<BlockNr>,
    ) -> io::Result<bool> {
        let (at, bit, bytes) = match correction {
            Correction::Superblocks => {
                let sound = report.errors().next().is_none();
                return superblocks::renew(self, report.newest_log, sound);
            }
            Correction::Bytes { at, bytes } | Correction::Count { at, bytes } => {
                (*at, None, bytes.clone())
            }
            Correction::Bit { at, bit, set } => (*at, Some(*bit), vec![u8::from(*set)]),
            _ => return Ok(false),
        };
        let times = self.made.entry((at, bit)).or_default();
        if *times == MOST_TIMES {
            return Ok(false);
        }
        *times += 1;
        let size = self.block_size()?;
        let offset = at.block.0 * size + at.offset as u64;
        let mut found = vec![0; bytes.len()];
        self.device.read_at(offset, &mut found)?;
        let wanted = match bit {
            None => bytes.clone(),
            Some(bit) if bytes == [1] => vec![found[0] | 1 << bit],
            Some(bit) => vec![found[0] & !(1 << bit)],
        };
        self.device.write_at(offset, &[IoSlice::new(&wanted)])?;
        touched.push(at.block);
        Ok(true)
    }

    fn block_size(&self) -> io::Result<u64> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        Ok(superblock.geometry().block_size.bytes64())
    }

    /// Makes the checksums right of the logs that have these blocks, given in order.
    fn seal_logs(&mut self, superblock: &Superblock, blocks: &[BlockNr]) -> io::Result<()> {
        let geometry = superblock.geometry();
        let mut rest = blocks;
        while let Some(first) = rest.first() {
            let segment = geometry.segment_of(*first);
            let here = rest.iter().take_while(|block| geometry.segment_of(**block) == segment);
            let (these, others) = rest.split_at(here.count());
            rest = others;
            self.segments.insert(segment);
            let mut at = geometry.segment_start(segment);
            let end = geometry.segment_end(segment);
            while at < end
                && let Some(header) = self.header(&geometry, at)?
            {
                let next = at.plus(header.nblocks.into());
                if these.iter().any(|block| (at..next).contains(block)) {
                    self.seal(&geometry, superblock.crc_seed(), at, &header)?;
                    let size = geometry.block_size.bytes64();
                    self.sealed.insert(at.0 * size, u64::from(header.nblocks) * size);
                }
                at = next;
            }
        }
        Ok(())
    }

    fn header(&self, geometry: &Geometry, at: BlockNr) -> io::Result<Option<LogHeader>> {
        let mut block = vec![0; geometry.block_size.bytes()];
        self.device.read_at(at.0 * geometry.block_size.bytes64(), &mut block)?;
        let header = LogHeader::parse(&block, geometry.block_size, geometry.blocks_per_segment);
        let end = geometry.segment_end(geometry.segment_of(at));
        Ok(header.ok().filter(|header| at.0 + u64::from(header.nblocks) <= end.0))
    }

    /// Makes the checksums of a log right: of its super root, its summary, and all of it.
    fn seal(
        &self,
        geometry: &Geometry,
        seed: u32,
        at: BlockNr,
        header: &LogHeader,
    ) -> io::Result<()> {
        let size = geometry.block_size.bytes();
        let offset = at.0 * size as u64;
        let mut log = vec![0; header.nblocks as usize * size];
        self.device.read_at(offset, &mut log)?;
        let root = log.len() - size;
        if header.has(SR) {
            let covered = usize::from(u16::from_le_bytes([log[root + 4], log[root + 5]]));
            let sum = crc32_le(seed, &log[root + 4..root + covered.clamp(4, size)]);
            log[root..root + 4].copy_from_slice(&sum.to_le_bytes());
        }
        let covered = (header.sumbytes as usize).clamp(8, log.len());
        let sum = crc32_le(seed, &log[8..covered]);
        log[4..8].copy_from_slice(&sum.to_le_bytes());
        let sum = crc32_le(seed, &log[4..]);
        log[..4].copy_from_slice(&sum.to_le_bytes());
        self.device.write_at(offset, &[IoSlice::new(&log)])
    }
}

/// Whether a finding is about what users see.
fn is_of_files(finding: &Finding) -> bool {
    matches!(
        finding.rule,
        Rule::Inode
            | Rule::InodeSize
            | Rule::InodeBlocks
            | Rule::Directory
            | Rule::DirectoryEntry
            | Rule::LinkCount
    )
}

fn repair_of(finding: &Finding, action: String) -> Repair {
    let fault = format!("{}: {}", finding.place, finding.message);
    Repair { fault, action, risk: Risk::Safe }
}
