//! Images to check, and a way to damage one structure of them so that every checksum above it is
//! right again: only the rule about the structure itself can then see the damage.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::process::Command;

use nilfs_check::{CheckError, Finding, Options, Report, Rule, Severity, check};
use nilfs_device::MemoryDevice;
use nilfs_ondisk::checkpoint::CpfileLayout;
use nilfs_ondisk::crc::{BlockSum, crc32_le};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::segment_usage::SufileLayout;
use nilfs_ondisk::summary::{
    BlockInfo, FileInfo, Items, LogHeader, NewLog, SR, encode_summary, parse_items, seal_again,
};
use nilfs_ondisk::superblock::{RawSuperblock, SUPERBLOCK_SIZE, Superblock};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Geometry, Ino, SegNum, Slot, VBlockNr, block_sums};
use rand::Rng;
use rand::rngs::StdRng;

/// The block sizes that Linux can mount.
pub const BLOCK_SIZES: [u64; 3] = [1024, 2048, 4096];

/// How many damaged copies of an image are checked; raise it with NILFS_CHECK_ROUNDS to search for longer.
pub fn rounds(usual: usize) -> usize {
    let rounds = std::env::var("NILFS_CHECK_ROUNDS").ok();
    rounds.map_or(usual, |rounds| rounds.parse().expect("a number of rounds"))
}

/// The first seed: another one in each run, or the one to be played again.
pub fn seed() -> u64 {
    match std::env::var("NILFS_CHECK_SEED") {
        Ok(seed) => seed.parse().expect("a seed is a number"),
        // Others come after it.
        Err(_) => rand::random::<u64>() / 2,
    }
}

/// A volume in memory.
#[derive(Clone)]
pub struct Image {
    pub bytes: Vec<u8>,
    pub superblock: Superblock,
}

/// A log of an image.
pub struct LogAt {
    pub block: BlockNr,
    pub header: LogHeader,
    pub files: Vec<FileInfo>,
    pub sums: Option<Vec<BlockSum>>,
}

/// A block of a file, and the log that it is in.
#[derive(Clone, Copy)]
pub struct LoggedBlock {
    pub block: BlockNr,
    pub log: BlockNr,
    pub info: BlockInfo,
}

impl Image {
    /// A volume as mkfs.nilfs2 makes it.
    pub fn by_mkfs(block_size: u64) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.as_file().set_len(8 << 20).expect("8 MiB");
        let status = Command::new("mkfs.nilfs2")
            .args(["-q", "-f", "-B", "32", "-b", &block_size.to_string()])
            .arg(file.path())
            .status()
            .expect("mkfs.nilfs2 (Debian: nilfs-tools) is installed");
        assert!(status.success(), "mkfs.nilfs2 makes a volume");
        Self::from(std::fs::read(file.path()).expect("the image"))
    }

    /// A volume that Linux filled.
    pub fn by_linux(block_size: u64) -> Self {
        Self::stored(&format!("linux-{block_size}"))
    }

    /// A volume by its name in the README next to the images.
    pub fn stored(name: &str) -> Self {
        // The tests of repairs use these images, too.
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nilfs-check/tests/images");
        let path = images.join(format!("{name}.img.gz"));
        let output = Command::new("gzip").arg("-dc").arg(path).output().expect("gzip runs");
        assert!(output.status.success(), "the image is whole");
        Self::from(output.stdout)
    }

    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry()
    }

    pub fn block_size(&self) -> usize {
        self.geometry().block_size.bytes()
    }

    /// Checks all of it.
    pub fn check(&self) -> Result<Report, CheckError> {
        check(&MemoryDevice::from(self.bytes.clone()), &Options::default())
    }

    /// The bytes of a block.
    pub fn block(&self, nr: BlockNr) -> &[u8] {
        let start = nr.0 as usize * self.block_size();
        &self.bytes[start..start + self.block_size()]
    }

    fn block_mut(&mut self, nr: BlockNr) -> &mut [u8] {
        let size = self.block_size();
        let start = nr.0 as usize * size;
        &mut self.bytes[start..start + size]
    }

    /// All logs, also stale ones, in the order in which they were written.
    pub fn logs(&self) -> Vec<LogAt> {
        let geometry = self.geometry();
        let mut logs = Vec::new();
        for segment in (0..geometry.nsegments).map(SegNum) {
            let mut at = geometry.segment_start(segment);
            while at.0 + 1 < geometry.segment_end(segment).0 {
                let Some(log) = self.log(at) else {
                    break;
                };
                at = at.plus(log.header.nblocks.into());
                logs.push(log);
            }
        }
        logs.sort_by_key(|log| (log.header.seq, log.block));
        logs
    }

    fn log(&self, block: BlockNr) -> Option<LogAt> {
        let geometry = self.geometry();
        let size = geometry.block_size;
        let header = LogHeader::parse(self.block(block), size, geometry.blocks_per_segment).ok()?;
        let summary = &self.bytes[block.0 as usize * size.bytes()..][..header.sumbytes as usize];
        header.verify_summary(summary, self.superblock.crc_seed()).ok()?;
        let Items { files, sums, .. } = parse_items(&header, summary, size).ok()?;
        Some(LogAt { block, header, files, sums })
    }

    /// All blocks of a file that a log describes, in the order in which they were first written.
    pub fn blocks_of(&self, ino: Ino) -> Vec<LoggedBlock> {
        let mut found: Vec<(Cno, LoggedBlock)> = Vec::new();
        for log in self.logs() {
            let mut block = log.block.plus(log.header.summary_blocks(self.geometry().block_size));
            for file in &log.files {
                for info in &file.blocks {
                    if file.ino == ino {
                        let here = LoggedBlock { block, log: log.block, info: *info };
                        // Files without history are never moved as old versions, and mkfs gives
                        // them another fi_cno than Linux.
                        let has_history = !matches!(ino, Ino::DAT | Ino::CPFILE | Ino::SUFILE);
                        found.push((if has_history { file.cno } else { Cno(0) }, here));
                    }
                    block = block.plus(1);
                }
            }
        }
        found.sort_by_key(|(cno, _)| *cno);
        found.into_iter().map(|(_, found)| found).collect()
    }

    /// The present block of a file.
    pub fn find(&self, ino: Ino, matches: impl Fn(&BlockInfo) -> bool) -> LoggedBlock {
        let blocks = self.blocks_of(ino);
        *blocks.iter().rfind(|found| matches(&found.info)).expect("the file has such a block")
    }

    /// The present data block of a file at an offset.
    pub fn data(&self, ino: Ino, at: u64) -> LoggedBlock {
        let wanted = FileBlock(at);
        self.find(ino, |info| match info {
            BlockInfo::Data { offset, .. } | BlockInfo::DatData { offset } => *offset == wanted,
            _ => false,
        })
    }

    /// The present B-tree node of a file that was written last.
    pub fn node(&self, ino: Ino) -> LoggedBlock {
        self.find(ino, BlockInfo::is_node)
    }

    /// Changes a block and seals its log again.
    pub fn edit(&mut self, found: LoggedBlock, change: impl FnOnce(&mut [u8])) {
        change(self.block_mut(found.block));
        self.seal(found.log);
    }

    /// Makes the sync logs such as older versions have written them, without copies of summaries.
    pub fn forget_copies(&mut self) {
        for log in self.logs() {
            let start = log.block.0 as usize * self.block_size();
            let summary = &mut self.bytes[start..][..log.header.sumbytes as usize];
            let Some(head) =
                (0..summary.len()).step_by(8).find(|at| summary[*at..].starts_with(b"NfRf"))
            else {
                continue;
            };
            let records = u32::from_le_bytes(summary[head + 8..head + 12].try_into().unwrap());
            if let Some(bytes) =
                summary.get_mut(head + records as usize..).and_then(|it| it.get_mut(..4))
            {
                bytes.fill(0);
            }
            self.seal(log.block);
        }
    }

    /// Changes the summary of a log and seals it again.
    pub fn edit_summary(&mut self, log: BlockNr, change: impl FnOnce(&mut [u8])) {
        change(self.block_mut(log));
        self.seal(log);
    }

    /// Makes the checksums of a log right: of its super root, its summary and the whole.
    pub fn seal(&mut self, log: BlockNr) {
        let size = self.block_size();
        let start = log.0 as usize * size;
        let blocks = u32::from_le_bytes(self.bytes[start + 40..start + 44].try_into().unwrap());
        self.seal_within(log, blocks as usize * size);
    }

    /// As [`Image::seal`], for a log of `length` bytes whatever its header says.
    pub fn seal_within(&mut self, log: BlockNr, length: usize) {
        let (size, seed) = (self.block_size(), self.superblock.crc_seed());
        let start = log.0 as usize * size;
        let bytes = &mut self.bytes[start..start + length];
        let root = length - size;
        if bytes[14] & SR as u8 != 0 {
            let covered = usize::from(u16::from_le_bytes([bytes[root + 4], bytes[root + 5]]));
            let sum = crc32_le(seed, &bytes[root + 4..root + covered.clamp(4, size)]);
            bytes[root..root + 4].copy_from_slice(&sum.to_le_bytes());
        }
        self.seal_blocks(log);
        let bytes = &mut self.bytes[start..start + length];
        let covered = u32::from_le_bytes(bytes[48..52].try_into().unwrap()) as usize;
        let sum = crc32_le(seed, &bytes[8..covered.clamp(8, length)]);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        let sum = crc32_le(seed, &bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Adds checksums of its blocks to a log of Linux, as ours have, where its summary has room for them.
    pub fn give_sums(&mut self, log: BlockNr) {
        let found = self.log(log).expect("there is a log");
        let size = self.geometry().block_size;
        let summary = found.header.summary_blocks(size) * size.bytes64();
        let blocks = found.header.described_blocks(size) - found.header.summary_blocks(size);
        let end = (log.0 * size.bytes64() + summary) as usize;
        let start = end - block_sums::size(blocks);
        assert!(self.bytes[start..end].iter().all(|byte| *byte == 0), "there is room for them");
        self.bytes[start..start + 4].copy_from_slice(b"NfBs");
        self.edit_summary(log, |block| {
            block[48..52].copy_from_slice(&(summary as u32).to_le_bytes())
        });
        let sums = self.log(log).expect("there is a log").sums;
        assert_eq!(sums.map(|sums| sums.len() as u64), Some(blocks));
    }

    /// Makes the checksums right that a summary has of the blocks of its log, if it makes sense.
    fn seal_blocks(&mut self, log: BlockNr) {
        let (geometry, seed) = (self.geometry(), self.superblock.crc_seed());
        let size = geometry.block_size;
        let log = &mut self.bytes[log.0 as usize * size.bytes()..];
        let Ok(header) = LogHeader::parse(log, size, geometry.blocks_per_segment) else { return };
        let described = header.described_blocks(size) as usize * size.bytes();
        let summary = header.summary_blocks(size) as usize * size.bytes();
        let (summary, payload) = log[..described].split_at_mut(summary);
        let sums: Vec<_> = payload.chunks(size.bytes()).map(BlockSum::of).collect();
        seal_again(summary, &header, &sums, size, seed);
    }

    /// Changes a few numbers in blocks, mostly of late logs, and makes the checksums right.
    pub fn damage_sound_logs(&mut self, random: &mut StdRng) {
        let logs = self.logs();
        for _ in 0..random.random_range(1..6) {
            // Late logs more often: they hold what is in use.
            let nth = logs.len()
                - 1
                - random.random_range(0..logs.len()).min(random.random_range(0..logs.len()));
            let log = &logs[nth];
            let size = self.block_size();
            let start = log.block.0 as usize * size;
            let end = start + log.header.nblocks as usize * size;
            let width = [1, 2, 4, 8][random.random_range(0..4)];
            // Fields are aligned, and most of what matters is near the start of a block.
            let block = random.random_range(0..log.header.nblocks as usize);
            let within = if random.random() {
                random.random_range(0..256)
            } else {
                random.random_range(0..size)
            };
            let at = (start + block * size + within) / width * width;
            let bytes = value(random).to_le_bytes();
            if at + width <= end {
                self.bytes[at..at + width].copy_from_slice(&bytes[..width]);
            }
            if u64::from(log.header.nblocks) * size as u64 <= (self.bytes.len() - start) as u64 {
                self.seal_within(log.block, end - start);
            }
        }
    }

    /// The newest log with a super root.
    pub fn newest_log(&self) -> LogAt {
        self.log(self.superblock.last_log().block).expect("a clean volume names its newest log")
    }

    /// Writes a log of one block after the newest log, for a file.
    pub fn append(&mut self, ino: Ino, flags: u16) {
        let newest = self.newest_log();
        let geometry = self.geometry();
        let mut at = newest.block.plus(newest.header.nblocks.into());
        let mut seq = newest.header.seq;
        if at.0 + 2 > geometry.segment_end(geometry.segment_of(newest.block)).0 {
            at = newest.header.next;
            seq = seq.plus(1);
        }
        let log = NewLog {
            flags,
            seq,
            create: newest.header.create,
            next: newest.header.next,
            cno: newest.header.cno.plus(1),
            summary_blocks: 0,
            block_sums: false,
        };
        let info = BlockInfo::Data { vblocknr: VBlockNr(999), offset: FileBlock(0) };
        let files = [FileInfo { ino, cno: log.cno, blocks: vec![info] }];
        let payload = vec![7; self.block_size()];
        let blocks = [BlockSum::of(&payload)];
        let seed = self.superblock.crc_seed();
        let mut bytes = encode_summary(&log, &files, &[], &blocks, geometry.block_size, seed);
        bytes.extend_from_slice(&payload);
        let start = at.0 as usize * self.block_size();
        self.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
    }

    /// The super root of the newest checkpoint, as a block to edit.
    pub fn super_root(&self) -> LoggedBlock {
        let log = self.newest_log();
        let block = log.block.plus(u64::from(log.header.nblocks) - 1);
        let info = BlockInfo::Node { vblocknr: VBlockNr(0) };
        LoggedBlock { block, log: log.block, info }
    }

    /// Changes both copies of the superblock and makes their checksums right.
    pub fn edit_superblocks(&mut self, change: impl Fn(&mut RawSuperblock)) {
        let mut raw = *self.superblock.raw();
        change(&mut raw);
        assert!(self.set_superblocks(raw), "the superblock stays valid");
    }

    /// Sets both copies of the superblock if a reader would take them as valid.
    pub fn set_superblocks(&mut self, raw: RawSuperblock) -> bool {
        let size = self.bytes.len() as u64;
        let secondary = secondary_superblock(size).expect("room for two copies");
        let Ok(superblock) = Superblock::from_raw(raw, size) else {
            return false;
        };
        for offset in [PRIMARY_SUPERBLOCK as usize, secondary as usize] {
            self.bytes[offset..offset + SUPERBLOCK_SIZE].copy_from_slice(&superblock.encode());
        }
        true
    }
}

impl From<Vec<u8>> for Image {
    fn from(bytes: Vec<u8>) -> Self {
        let size = bytes.len() as u64;
        let secondary = secondary_superblock(size).expect("room for two copies") as usize;
        let copies = [PRIMARY_SUPERBLOCK as usize, secondary]
            .map(|offset| Superblock::parse(&bytes[offset..], size).expect("a valid superblock"));
        let newest = copies.into_iter().max_by_key(|copy| copy.last_log().cno);
        Self { superblock: newest.expect("two copies"), bytes }
    }
}

/// Damages the Linux-filled volumes of all block sizes and demands a finding about the rule.
#[track_caller]
pub fn expect(severity: Severity, rule: Rule, says: &str, damage: impl Fn(&mut Image)) {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        damage(&mut image);
        let report = match image.check() {
            Ok(report) => report,
            Err(error) => panic!("block size {block_size}: {error}"),
        };
        let wanted = |finding: &Finding| {
            finding.severity == severity && finding.rule == rule && finding.message.contains(says)
        };
        assert!(
            report.findings.iter().any(wanted),
            "block size {block_size}: no {severity} about {rule} that says {says:?} in\n{report}"
        );
    }
}

/// As [`expect`], for an error.
#[track_caller]
pub fn expect_error(rule: Rule, says: &str, damage: impl Fn(&mut Image)) {
    expect(Severity::Error, rule, says, damage);
}

/// A value that is likely to hurt.
pub fn value(random: &mut StdRng) -> u64 {
    match random.random_range(0..6) {
        0 => 0,
        1 => u64::MAX,
        2 => random.random_range(0..64),
        3 => random.random_range(0..4096),
        4 => 1 << random.random_range(0..64),
        _ => random.random(),
    }
}

/// Adds to a little-endian number of 64 bits.
pub fn add(block: &mut [u8], at: usize, by: u64) {
    let old = read(block, at);
    write(block, at, old.wrapping_add(by));
}

/// A little-endian number of 64 bits.
pub fn read(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"))
}

/// Sets a little-endian number of 64 bits.
pub fn write(block: &mut [u8], at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

impl Image {
    /// The inode that the root directory names so.
    pub fn named(&self, name: &str) -> Ino {
        let found = self.data(Ino::ROOT, 0);
        nilfs_ondisk::dirent::records(self.block(found.block))
            .map(|record| record.expect("a sound directory"))
            .find(|record| record.is_used() && record.name == name.as_bytes())
            .unwrap_or_else(|| panic!("{name} is in the root directory"))
            .ino
    }

    /// The inodes that the root directory names, without its own.
    pub fn names_in_root(&self) -> Vec<Ino> {
        let found = self.data(Ino::ROOT, 0);
        nilfs_ondisk::dirent::records(self.block(found.block))
            .map(|record| record.expect("a sound directory"))
            .filter(|record| record.is_used() && record.ino != Ino::ROOT)
            .map(|record| record.ino)
            .collect()
    }

    /// Changes the record of a name in the first block of a directory, given from its start on.
    pub fn edit_record(&mut self, dir: Ino, name: &str, change: impl FnOnce(&mut [u8])) {
        let found = self.data(dir, 0);
        let at = nilfs_ondisk::dirent::records(self.block(found.block))
            .map(|record| record.expect("a sound directory"))
            .find(|record| record.is_used() && record.name == name.as_bytes())
            .unwrap_or_else(|| panic!("{name} is in the directory"))
            .offset;
        self.edit(found, |block| change(&mut block[at..]));
    }

    /// Changes the present inode, given its 128 bytes.
    pub fn edit_inode(&mut self, ino: Ino, change: impl FnOnce(&mut [u8])) {
        let slot = Palloc::new(self.geometry().block_size, 128).entry(ino.0);
        let found = self.data(Ino::IFILE, slot.block.0);
        self.edit(found, |block| change(&mut block[slot.offset..slot.offset + 128]));
    }

    /// The DAT entry of a virtual block: its block and the byte offset there.
    pub fn dat_entry(&self, vblock: VBlockNr) -> (LoggedBlock, usize) {
        let slot = Palloc::new(self.geometry().block_size, 32).entry(vblock.0);
        (self.data(Ino::DAT, slot.block.0), slot.offset)
    }

    /// Changes a DAT entry, given its 32 bytes.
    pub fn edit_dat(&mut self, vblock: VBlockNr, change: impl FnOnce(&mut [u8])) {
        let (found, at) = self.dat_entry(vblock);
        self.edit(found, |block| change(&mut block[at..at + 32]));
    }

    /// Changes the entry of a checkpoint, given its 192 bytes.
    pub fn edit_checkpoint(&mut self, cno: Cno, change: impl FnOnce(&mut [u8])) {
        let Slot { block, offset: at } = CpfileLayout::new(&self.geometry()).slot(cno);
        let found = self.data(Ino::CPFILE, block.0);
        self.edit(found, |block| change(&mut block[at..at + 192]));
    }

    /// Changes the usage entry of a segment, given its 16 bytes.
    pub fn edit_usage(&mut self, segment: SegNum, change: impl FnOnce(&mut [u8])) {
        let Slot { block, offset: at } = SufileLayout::new(&self.geometry()).slot(segment);
        let found = self.data(Ino::SUFILE, block.0);
        self.edit(found, |block| change(&mut block[at..at + 16]));
    }

    /// The newest checkpoint.
    pub fn newest(&self) -> Cno {
        self.superblock.last_log().cno
    }

    /// The snapshots, ascending.
    pub fn snapshots(&self) -> Vec<Cno> {
        let layout = CpfileLayout::new(&self.geometry());
        (1..=self.newest().0)
            .map(Cno)
            .filter(|cno| {
                let Slot { block, offset: at } = layout.slot(*cno);
                let found = self.data(Ino::CPFILE, block.0);
                self.block(found.block)[at] & 3 == 1
            })
            .collect()
    }
}

/// The virtual block of a block that is not the DAT's.
pub fn vblock(found: LoggedBlock) -> VBlockNr {
    found.info.vblock().expect("it is not a block of the DAT")
}
