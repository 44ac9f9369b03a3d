//! A copy of a volume without the content of files, for somebody who is to find out what is wrong
//! with it.
//!
//! Logs are copied one by one, as a scan finds them, with the damage that they have. Of their blocks,
//! those of metadata files stay, and all nodes of block maps. A data block of any other file stays only
//! if a checkpoint proves that the file is a directory or a symbolic link: in doubt it goes. So does
//! what fsync has recorded in a summary, because bytes of files may be in it. What goes is zeros in
//! the copy, and the checksums of a log are right there if they were right before. On request, names
//! go, too: those of files and links are replaced by others, and those of snapshots are left out.

mod scramble;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use nilfs_device::Device;
use nilfs_ondisk::crc::{Crc, crc32_le};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::summary::{BlockInfo, Items, LogHeader, parse_items};
use nilfs_ondisk::superblock::SUPERBLOCK_SIZE;
use nilfs_ondisk::{BlockNr, Cno, Ino, VBlockNr};

use self::scramble::Scramble;
use crate::error::{Error, Result};
use crate::rescue::Rescue;
use crate::scan::{FoundLog, Scan, Window};
use crate::tree::Tree;
use crate::volume::Volume;

/// Checkpoints that are kept open.
const OPEN_TREES: usize = 64;

/// Where the copy goes: it is given bytes and where they belong. What it is not given is zeros.
pub type Write<'a> = dyn FnMut(u64, &[u8]) -> io::Result<()> + 'a;

/// What a copy has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of metadata.
    pub kept: u64,
    /// Bytes of content that were left out.
    pub dropped: u64,
}

/// What of a block gets into the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Nothing,
    Everything,
    /// A block of a directory.
    Directory,
    /// A block of the target of a symbolic link.
    Target,
}

/// Copies the metadata of the volume on a device, with names `scrambled` or as they are. `progress` is
/// told how much of the device has been gone through, in bytes: once for finding the logs, and once more
/// for copying them, where the logs stand for the whole device.
///
/// # Errors
/// [`Error::NotAVolume`], or the copy cannot be written ([`Error::Device`]).
pub fn copy(
    device: &Arc<dyn Device>,
    scrambled: bool,
    write: &mut Write<'_>,
    progress: &dyn Fn(u64),
) -> Result<Copied> {
    let scan = Scan::run(&**device, progress)?;
    let owners = Rescue::open(Arc::clone(device), Box::new(|_| {}));
    let owners = owners.and_then(|rescue| rescue.into_volume(None)).ok();
    let owners = owners.map(|(volume, newest)| Owners::new(volume, newest));
    let scramble = scrambled.then(Scramble::new);
    let copied = Copied::default();
    let device = &**device;
    let window = Window::new(device, scan.geometry.block_size.bytes64());
    let mut copier = Copier { device, window, scan: &scan, owners, scramble, write, copied };
    copier.superblocks()?;
    let blocks_of = |log: &FoundLog| u128::from(log.header.nblocks);
    let (mut done, all) = (0, scan.logs.iter().map(blocks_of).sum::<u128>());
    for log in &scan.logs {
        progress((u128::from(device.size()) * done / all.max(1)) as u64);
        copier.log(log)?;
        done += blocks_of(log);
    }
    progress(device.size());
    Ok(copier.copied)
}

/// Knows which blocks belong to directories and symbolic links.
struct Owners {
    volume: Volume,
    newest: Cno,
    checkpoints: Vec<Cno>,
    trees: HashMap<Cno, Option<Tree>>,
}

impl Owners {
    fn new(volume: Volume, newest: Tree) -> Self {
        let all = volume.checkpoints(Cno::MIN, usize::MAX).unwrap_or_default();
        let checkpoints = all.iter().map(|it| it.cno).collect();
        let cno = newest.cno();
        Self { volume, newest: cno, checkpoints, trees: HashMap::from([(cno, Some(newest))]) }
    }

    /// What is kept of a data block: all, if a checkpoint has it in a file whose blocks are no content.
    fn keep(&mut self, ino: Ino, vblocknr: VBlockNr, at: BlockNr) -> Keep {
        let life = self.volume.dat.life(&self.volume.store, vblocknr);
        let Ok(Some(entry)) = life else { return Keep::Nothing };
        let first = self.checkpoints.partition_point(|cno| *cno < entry.start);
        let living = match entry.contains(self.newest) {
            true => Some(self.newest),
            false => self.checkpoints.get(first).copied().filter(|cno| entry.contains(*cno)),
        };
        let Some(cno) = living.filter(|_| entry.block == at) else { return Keep::Nothing };
        if self.trees.len() >= OPEN_TREES {
            self.trees.retain(|open, _| *open == self.newest || *open == cno);
        }
        let volume = &self.volume;
        let tree = self.trees.entry(cno).or_insert_with(|| volume.tree(Some(cno)).ok());
        let file = tree.as_ref().and_then(|tree| tree.file(ino).ok());
        match file.map(|file| file.file_type()) {
            Some(FileType::Directory) => Keep::Directory,
            Some(FileType::Symlink) => Keep::Target,
            _ => Keep::Nothing,
        }
    }
}

struct Copier<'a, 'w> {
    device: &'a dyn Device,
    window: Window<'a>,
    scan: &'a Scan,
    owners: Option<Owners>,
    scramble: Option<Scramble>,
    write: &'a mut Write<'w>,
    copied: Copied,
}

impl Copier<'_, '_> {
    /// Both places of the superblock, whatever is there.
    fn superblocks(&mut self) -> Result<()> {
        let secondary = secondary_superblock(self.device.size());
        for place in std::iter::once(PRIMARY_SUPERBLOCK).chain(secondary) {
            let mut bytes = [0; SUPERBLOCK_SIZE];
            if self.device.read_at(place, &mut bytes).is_ok() {
                if let Some(scramble) = &self.scramble {
                    scramble.superblock(&mut bytes, self.device.size());
                }
                self.put(place, &bytes)?;
            }
        }
        Ok(())
    }

    fn log(&mut self, log: &FoundLog) -> Result<()> {
        let block_size = self.scan.geometry.block_size;
        let (start, header) = (log.start.0 * block_size.bytes64(), &log.header);
        let summary_blocks = header.summary_blocks(block_size);
        let mut summary = vec![0; summary_blocks as usize * block_size.bytes()];
        if self.device.read_at(start, &mut summary).is_err() {
            return Ok(());
        }
        let mut was = Crc::new(self.scan.crc_seed);
        was.update(&summary[4..]);
        let items = parse_items(header, &summary, block_size).ok();
        self.without_records(&mut summary, header, items.as_ref());
        let mut is = Crc::new(self.scan.crc_seed);
        is.update(&summary[4..]);
        let kept = self.kept(log, items.as_ref());
        let mut is_readable = true;
        let mut block = vec![0; block_size.bytes()];
        for nth in summary_blocks..header.described_blocks(block_size) {
            let place = start + nth * block_size.bytes64();
            match self.window.block(place) {
                Some(content) => block.copy_from_slice(content),
                None => {
                    is_readable = false;
                    continue;
                }
            }
            was.update(&block);
            let keep = kept.get((nth - summary_blocks) as usize).copied();
            match (keep.unwrap_or(Keep::Nothing), &self.scramble) {
                (Keep::Nothing, _) => {
                    self.copied.dropped += block.len() as u64;
                    block.fill(0);
                }
                (Keep::Directory, Some(scramble)) => scramble.directory(&mut block),
                (Keep::Target, Some(scramble)) => scramble.target(&mut block),
                _ => {}
            }
            if keep.is_some_and(|keep| keep != Keep::Nothing) {
                self.put(place, &block)?;
            }
            is.update(&block);
        }
        if is_readable {
            // What goes may be just what was wrong.
            let is_right = header.verify_log(was, block_size).is_ok();
            let right = header.sum_of_log(is, block_size);
            let sum = if is_right { right } else { !right };
            summary[..4].copy_from_slice(&sum.to_le_bytes());
        }
        self.put(start, &summary)
    }

    /// Takes away what comes after the items of a summary.
    fn without_records(&self, summary: &mut [u8], header: &LogHeader, items: Option<&Items>) {
        let end = items.map_or(header.sumbytes as usize, |items| items.end);
        if let Some(rest) = summary.get_mut(end..) {
            rest.fill(0);
        }
        let sum = crc32_le(self.scan.crc_seed, &summary[8..header.sumbytes as usize]);
        summary[4..8].copy_from_slice(&sum.to_le_bytes());
    }

    /// What is kept of the blocks after the summary.
    fn kept(&mut self, log: &FoundLog, items: Option<&Items>) -> Vec<Keep> {
        let mut kept = Vec::new();
        let first = log.start.plus(log.header.summary_blocks(self.scan.geometry.block_size));
        for file in items.into_iter().flat_map(|items| &items.files) {
            for info in &file.blocks {
                let at = first.plus(kept.len() as u64);
                kept.push(match *info {
                    BlockInfo::Data { .. } if file.ino == Ino::ROOT => Keep::Directory,
                    // Names and notes of snapshots. Zeros are none.
                    BlockInfo::Data { .. } if file.ino == Ino::XATTR && self.scramble.is_some() => {
                        Keep::Nothing
                    }
                    BlockInfo::Data { vblocknr, .. } if file.ino >= Ino::FIRST_USER => {
                        let owners = self.owners.as_mut();
                        owners.map_or(Keep::Nothing, |it| it.keep(file.ino, vblocknr, at))
                    }
                    _ => Keep::Everything,
                });
            }
        }
        if log.header.has(nilfs_ondisk::summary::SR) {
            kept.push(Keep::Everything);
        }
        kept
    }

    fn put(&mut self, place: u64, bytes: &[u8]) -> Result<()> {
        self.copied.kept += bytes.len() as u64;
        (self.write)(place, bytes)
            .map_err(|source| Error::Device { what: "take the copy".into(), source })
    }
}
