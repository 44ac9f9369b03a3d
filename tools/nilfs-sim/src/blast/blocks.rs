//! Content of each block in use, and what would be lost with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::scan::{FoundLog, Scan};
use nilfs_engine::{FileType, Ino, SegNum, Volume};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::inode::INODE_SIZE;
use nilfs_ondisk::palloc::{BlockRole, Palloc};
use nilfs_ondisk::summary::{BlockInfo, FileInfo, SR};
use nilfs_ondisk::superblock::CHECKED_BYTES;
use nilfs_ondisk::{BlockNr, BlockSize, Cno, FileBlock, Seq, dirent};

use super::cost::Cost;
use super::picture::Picture;

/// Content of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// A copy of the superblock.
    Superblock,
    /// The summary of a log.
    Summary,
    /// A super root.
    SuperRoot,
    /// Content of a file, or the target of a link.
    Content,
    /// Names of a directory.
    Directory,
    /// Inodes.
    Inodes,
    /// Descriptors or a bitmap of the ifile.
    InodeBitmap,
    /// A block of the cpfile.
    Checkpoints,
    /// A block of the sufile.
    Segments,
    /// A block of the DAT.
    Dat,
    /// A B-tree node.
    Node,
}

impl Holds {
    /// All there are.
    pub const ALL: [Self; 11] = [
        Self::Superblock,
        Self::Summary,
        Self::SuperRoot,
        Self::Content,
        Self::Directory,
        Self::Inodes,
        Self::InodeBitmap,
        Self::Checkpoints,
        Self::Segments,
        Self::Dat,
        Self::Node,
    ];
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Superblock => "superblock",
            Self::Summary => "summary",
            Self::SuperRoot => "super root",
            Self::Content => "content",
            Self::Directory => "directory",
            Self::Inodes => "ifile",
            Self::InodeBitmap => "ifile bitmap",
            Self::Checkpoints => "cpfile",
            Self::Segments => "sufile",
            Self::Dat => "DAT",
            Self::Node => "node",
        })
    }
}

/// A block in use.
#[derive(Debug, Clone)]
pub struct Block {
    /// Its number.
    pub number: u64,
    /// Where its log begins, if it is of one.
    pub log: Option<BlockNr>,
    /// Its content.
    pub holds: Holds,
    /// The file whose content it has, now or in the past.
    pub content_of: Option<Ino>,
    /// Bytes in it that mean something: a bit elsewhere is none of anybody.
    pub meant: std::ops::Range<usize>,
    /// Content that only it has.
    pub cost: Cost,
}

/// Content that a sync log has made durable.
#[derive(Debug, Clone)]
pub struct Synced {
    /// All of it.
    pub cost: Cost,
    /// Whether it is the last one: nothing that was written later proves that it was whole, so that
    /// damage in it cannot be told from a power cut.
    pub is_last: bool,
}

/// Bytes of a super root that mean something: its header and three inodes.
const SUPER_ROOT: usize = 16 + 3 * INODE_SIZE;

/// File and place in it for which a block was written.
type Owner = (Ino, FileBlock);

/// Checkpoint and log with which a block came, and its number. A block of the past that the cleaner has moved is in
/// a younger log than that of the present, but keeps its checkpoint.
type Age = (Cno, Seq, u64);

/// The blocks of a volume that are in use, by their numbers.
///
/// # Errors
/// The volume cannot be read.
pub fn in_use(
    content: &[u8],
    picture: &Picture,
    synced: &BTreeMap<(BlockNr, Seq), Synced>,
) -> Result<Vec<Block>, String> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(content.to_vec()));
    let scan = Scan::run(&*device, &|_| {}).map_err(|error| error.to_string())?;
    let block_size = scan.geometry.block_size;
    let volume = Volume::open(Arc::clone(&device)).map_err(|error| error.to_string())?;
    let logs = logs_in_use(&volume, &scan)?;
    let mut blocks = superblocks(content.len() as u64, block_size);
    let mut newest: BTreeMap<Owner, Age> = BTreeMap::new();
    let mut owned: Vec<(Owner, Age)> = Vec::new();
    for log in &logs {
        let first = blocks.len();
        let synced = synced.get(&(log.start, log.header.seq));
        let block = |number, holds, meant, cost| {
            let log = Some(log.start);
            Block { number, log, holds, content_of: None, meant, cost }
        };
        let items = scan.items_of(&*device, log).ok_or("a summary cannot be read")?;
        let summary = log.header.summary_blocks(block_size);
        for nth in 0..summary {
            let sumbytes = log.header.sumbytes as usize;
            let end = (sumbytes - nth as usize * block_size.bytes()).min(block_size.bytes());
            let cost = synced.map(|it| it.cost.clone()).unwrap_or_default();
            blocks.push(block(log.start.0 + nth, Holds::Summary, 0..end, cost));
        }
        let mut number = log.start.0 + summary;
        for file in &items.files {
            let of_file = file_type(&volume, file, picture);
            for info in &file.blocks {
                let holds = kind((file.ino, of_file), info, block_size);
                let content_of = (holds == Holds::Content).then_some(file.ino);
                let block = block(number, holds, 0..block_size.bytes(), Cost::default());
                blocks.push(Block { content_of, ..block });
                if let BlockInfo::Data { offset, .. } = info {
                    let owner = (file.ino, *offset);
                    let age = (file.cno, log.header.seq, number);
                    owned.push((owner, age));
                    let last = newest.entry(owner).or_default();
                    *last = (*last).max(age);
                }
                number += 1;
            }
        }
        if log.header.has(SR) {
            let number = log.end().0 - 1;
            blocks.push(block(number, Holds::SuperRoot, 0..SUPER_ROOT, Cost::default()));
        }
        if let Some(synced) = synced.filter(|it| it.is_last) {
            for block in &mut blocks[first..] {
                block.cost.add(&synced.cost);
                block.cost.unproven.extend(&synced.cost.inodes);
                block.cost.unproven_names.extend(synced.cost.names.iter().cloned());
            }
        }
    }
    let by_number: BTreeMap<Ino, FileType> =
        picture.files.values().map(|file| (file.ino, file.kind)).collect();
    let costs: BTreeMap<u64, Cost> = owned
        .into_iter()
        .filter_map(|(owner, age)| {
            let is_newest = newest.get(&owner) == Some(&age);
            let (.., number) = age;
            let at = number as usize * block_size.bytes();
            let bytes = &content[at..at + block_size.bytes()];
            let cost = cost_of(owner, bytes, is_newest, &by_number, picture, block_size)?;
            Some((number, cost))
        })
        .collect();
    for block in &mut blocks {
        if let Some(cost) = costs.get(&block.number) {
            block.cost.add(cost);
        }
    }
    blocks.sort_unstable_by_key(|block| block.number);
    Ok(blocks)
}

/// The logs of segments in use, but for those that were there before a segment was used again.
fn logs_in_use(volume: &Volume, scan: &Scan) -> Result<Vec<FoundLog>, String> {
    let segments = volume.segments(SegNum(0)).map_err(|error| error.to_string())?;
    let dirty: BTreeSet<SegNum> =
        segments.iter().filter(|it| it.dirty || it.active).map(|it| it.segment).collect();
    let mut newest: BTreeMap<SegNum, Seq> = BTreeMap::new();
    for log in &scan.logs {
        let last = newest.entry(scan.geometry.segment_of(log.start)).or_default();
        *last = (*last).max(log.header.seq);
    }
    let of_now = volume.last_log().seq;
    let is_in_use = |log: &&FoundLog| {
        let segment = scan.geometry.segment_of(log.start);
        let is_newest = newest.get(&segment) == Some(&log.header.seq);
        is_newest && (dirty.contains(&segment) || log.header.seq >= of_now)
    };
    Ok(scan.logs.iter().filter(is_in_use).copied().collect())
}

fn superblocks(bytes: u64, block_size: BlockSize) -> Vec<Block> {
    let secondary = secondary_superblock(bytes).unwrap_or(PRIMARY_SUPERBLOCK);
    let copy = |at: u64| {
        let within = (at % block_size.bytes64()) as usize;
        let meant = within..within + usize::from(CHECKED_BYTES);
        let number = at / block_size.bytes64();
        let (holds, cost) = (Holds::Superblock, Cost::default());
        Block { number, log: None, holds, content_of: None, meant, cost }
    };
    vec![copy(PRIMARY_SUPERBLOCK), copy(secondary)]
}

/// The type of a file that a log has, in the checkpoint of the log or the first that is left after it: another may
/// have the number now.
fn file_type(volume: &Volume, file: &FileInfo, picture: &Picture) -> Option<FileType> {
    let then = || {
        let cno = volume.checkpoints(file.cno, 1).ok()?.first()?.cno;
        volume.tree(Some(cno)).and_then(|tree| Ok(tree.file(file.ino)?.file_type())).ok()
    };
    let now = || picture.files.values().find(|seen| seen.ino == file.ino).map(|seen| seen.kind);
    then().or_else(now)
}

fn kind(
    (ino, file_type): (Ino, Option<FileType>),
    info: &BlockInfo,
    block_size: BlockSize,
) -> Holds {
    match (ino, info) {
        (_, info) if info.is_node() => Holds::Node,
        (Ino::DAT, _) => Holds::Dat,
        (Ino::CPFILE, _) => Holds::Checkpoints,
        (Ino::SUFILE, _) => Holds::Segments,
        (Ino::IFILE, BlockInfo::Data { offset, .. }) => {
            match Palloc::new(block_size, INODE_SIZE).role_of(*offset) {
                BlockRole::Entries { .. } => Holds::Inodes,
                _ => Holds::InodeBitmap,
            }
        }
        _ if file_type == Some(FileType::Directory) => Holds::Directory,
        _ => Holds::Content,
    }
}

/// Returns what is lost with a data block; `None` if that is nothing.
fn cost_of(
    (ino, offset): Owner,
    bytes: &[u8],
    is_newest: bool,
    kinds: &BTreeMap<Ino, FileType>,
    picture: &Picture,
    block_size: BlockSize,
) -> Option<Cost> {
    let mut cost = Cost::default();
    if ino == Ino::IFILE {
        let palloc = Palloc::new(block_size, INODE_SIZE);
        let BlockRole::Entries { first_entry } = palloc.role_of(offset) else { return None };
        let count = (block_size.bytes() / INODE_SIZE) as u64;
        let has = |ino: &&Ino| (first_entry..first_entry + count).contains(&ino.0);
        cost.inodes.extend(kinds.keys().filter(has).filter(|_| is_newest));
        return Some(cost);
    }
    if kinds.get(&ino) == Some(&FileType::Directory) {
        if is_newest {
            let used = dirent::records(bytes).flatten().filter(|record| record.is_used());
            cost.names.extend(used.map(|record| (ino, record.name.to_vec())));
            cost.directories.insert(ino);
        }
        return Some(cost);
    }
    // An old block with the same bytes as the one that counts may be that: the cleaner moves blocks.
    let start = offset.0 * block_size.bytes64();
    let range = start..start + block_size.bytes64();
    let file = picture.files.values().find(|seen| seen.ino == ino)?;
    let now = file.bytes.get(start as usize..file.bytes.len().min(range.end as usize))?;
    let is_same = bytes.starts_with(now);
    if is_same || is_newest {
        cost.ranges.insert(ino, vec![range]);
    }
    Some(cost)
}
