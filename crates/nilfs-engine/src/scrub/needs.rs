//! Which files need damaged blocks, and from when until when. The summary of a log says which blocks
//! of which files are in it, the DAT whether they are alive there, and the checkpoints between birth
//! and death of a block are those that need it. Where there is no summary, the files of these
//! checkpoints are asked for their blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};

use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::summary::{BlockInfo, SR};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, SegNum, VBlockNr};

use super::moment::Moment;
use super::{Damage, Need, Suspect};
use crate::bmap::{Pointers, Source};
use crate::log::reader::Log;
use crate::tree::Extent;

/// Says who needs what is damaged.
pub(crate) struct Needs<'a> {
    moment: &'a Moment,
    /// All checkpoints, ascending.
    checkpoints: Vec<Cno>,
    block_bytes: u64,
}

/// The first and the last checkpoint that need a block.
type Span = (Cno, Cno);

/// Needs of one place, by inode number.
type ByFile = BTreeMap<Option<Ino>, Need>;

impl<'a> Needs<'a> {
    /// As a moment shows it.
    pub(crate) fn of(moment: &'a Moment) -> Self {
        let block_bytes = moment.store.block_size().bytes64();
        Self { moment, checkpoints: moment.checkpoints(), block_bytes }
    }

    /// Keeps what is needed, and says by what.
    pub(super) fn judge(&self, suspects: Vec<(SegNum, Suspect)>) -> Vec<Damage> {
        let mut needs = vec![ByFile::new(); suspects.len()];
        let mut lost = BTreeMap::new();
        for (nth, (_, Suspect { blocks, log, .. })) in suspects.iter().enumerate() {
            match log {
                Some(log) => needs[nth] = self.by_summary(log, blocks),
                None => _ = lost.insert(blocks.start, (blocks.end, nth)),
            }
        }
        if !lost.is_empty() {
            self.by_files(&lost, &mut needs);
        }
        let needed = suspects.into_iter().zip(needs).filter(|(_, needs)| !needs.is_empty());
        let mut damage: Vec<Damage> = needed
            .map(|((segment, Suspect { fault, blocks, log }), needs)| Damage {
                fault,
                segment,
                blocks,
                log: log.map(|log| log.start),
                needs: needs.into_values().collect(),
                repaired: false,
            })
            .collect();
        self.name(&mut damage);
        damage
    }

    /// What needs some of the blocks of a log.
    fn by_summary(&self, log: &Log, blocks: &Range<BlockNr>) -> ByFile {
        let mut needs = ByFile::new();
        let mut at = log.start.plus(log.header.summary_blocks(self.moment.store.block_size()));
        for file in &log.files {
            for info in &file.blocks {
                if blocks.contains(&at)
                    && let Some(span) = self.span(*info, at)
                {
                    let offset = match *info {
                        BlockInfo::Data { offset, .. } | BlockInfo::DatData { offset } => {
                            Some(offset)
                        }
                        BlockInfo::Node { .. } | BlockInfo::DatNode { .. } => None,
                    };
                    self.add(&mut needs, Some(file.ino), offset, span);
                }
                at = at.plus(1);
            }
        }
        let is_newest = log.start == self.moment.newest.block && log.header.has(SR);
        if is_newest
            && blocks.contains(&at)
            && let Some(all) = self.all()
        {
            // The super root has the inodes of these, for all checkpoints.
            for ino in [Ino::DAT, Ino::CPFILE, Ino::SUFILE] {
                self.add(&mut needs, Some(ino), None, all);
            }
        }
        needs
    }

    /// Adds what needs blocks of which no summary tells anything. `lost` has where such blocks begin,
    /// where they end, and which of the `needs` are theirs.
    fn by_files(&self, lost: &BTreeMap<BlockNr, (BlockNr, usize)>, needs: &mut [ByFile]) {
        let moment = self.moment;
        let place = |at: BlockNr| {
            let (_, (end, nth)) = lost.range(..=at).next_back()?;
            (at < *end).then_some(*nth)
        };
        let mut left: BTreeMap<BlockNr, (usize, Span)> = BTreeMap::new();
        // As far as it can be read.
        let _ = moment.dat.census(&moment.store, &mut |entry| {
            if let Some(nth) = place(entry.block) {
                left.extend(self.between(entry).map(|span| (entry.block, (nth, span))));
            }
        });
        let lasts: BTreeSet<Cno> = left.values().map(|(_, (_, last))| *last).collect();
        for tree in lasts.into_iter().filter_map(|cno| moment.tree(cno).ok()) {
            let mut files = vec![Ino::ROOT];
            let _ = tree.files_by_number(&mut |ino| files.push(ino));
            let maps = files.into_iter().filter_map(|ino| Some((ino, tree.file(ino).ok()?.map)));
            let ifile = (Ino::IFILE, tree.view().tree.ifile.clone());
            for (ino, map) in std::iter::once(ifile).chain(maps) {
                let mut visit = |key: FileBlock, vblocknr| {
                    let at = moment.dat.translate(&moment.store, VBlockNr(vblocknr));
                    if let Some((nth, span)) = at.ok().and_then(|at| left.remove(&at)) {
                        self.add(&mut needs[nth], Some(ino), Some(key), span);
                    }
                    Ok(ControlFlow::Continue(()))
                };
                // What lies below a damaged node stays unknown.
                let lost = &mut |_, _| Ok(());
                let _ = moment.source().scan_around(&map, FileBlock(0), &mut visit, lost);
            }
        }
        for (nth, span) in left.into_values() {
            self.add(&mut needs[nth], None, None, span);
        }
    }

    fn add(
        &self,
        needs: &mut ByFile,
        ino: Option<Ino>,
        offset: Option<FileBlock>,
        (first, last): Span,
    ) {
        let (data, other_blocks, is_current) = (Vec::new(), 0, false);
        let new = || Need { ino, path: None, data, other_blocks, first, last, is_current };
        let need = needs.entry(ino).or_insert_with(new);
        (need.first, need.last) = (need.first.min(first), need.last.max(last));
        need.is_current = self.checkpoints.last() == Some(&need.last);
        let Some(FileBlock(key)) = offset else {
            need.other_blocks += 1;
            return;
        };
        let offset = key.saturating_mul(self.block_bytes);
        match need.data.last_mut() {
            Some(extent) if extent.end() == offset => extent.length += self.block_bytes,
            _ => need.data.push(Extent { offset, length: self.block_bytes }),
        }
    }

    /// Which checkpoints need the block at an address; `None`: none does.
    pub(crate) fn span(&self, info: BlockInfo, at: BlockNr) -> Option<Span> {
        let (store, dat) = (&self.moment.store, &self.moment.dat);
        let alive = match info {
            BlockInfo::Data { vblocknr, .. } | BlockInfo::Node { vblocknr } => {
                match dat.life(store, vblocknr) {
                    Ok(None) => return None,
                    Ok(Some(entry)) if entry.block != at => return None,
                    Ok(Some(entry)) => return self.between(&entry),
                    Err(error) => Err(error),
                }
            }
            // There is one DAT, for all checkpoints.
            BlockInfo::DatData { offset } => {
                let source = Source { store, pointers: Pointers::Physical };
                source.lookup(dat.root(), offset).map(|found| found == Some(at.0))
            }
            BlockInfo::DatNode { key, level } => dat.has_node(store, key, level, at),
        };
        // What cannot be told may be needed.
        alive.unwrap_or(true).then(|| self.all()).flatten()
    }

    fn all(&self) -> Option<Span> {
        Some((*self.checkpoints.first()?, *self.checkpoints.last()?))
    }

    /// The checkpoints during a life.
    fn between(&self, entry: &DatEntry) -> Option<Span> {
        let nth = |bound: Cno| self.checkpoints.partition_point(|cno| *cno < bound);
        let during = self.checkpoints.get(nth(entry.start)..nth(entry.end))?;
        Some((*during.first()?, *during.last()?))
    }

    /// Finds the paths of all files, each in the newest checkpoint that needs the blocks.
    fn name(&self, damage: &mut [Damage]) {
        let mut wanted: BTreeMap<Cno, BTreeSet<Ino>> = BTreeMap::new();
        for need in damage.iter().flat_map(|it| &it.needs) {
            let file = need.ino.filter(|ino| ino.is_of_user());
            file.into_iter().for_each(|ino| _ = wanted.entry(need.last).or_default().insert(ino));
        }
        let mut paths = BTreeMap::new();
        for (cno, files) in wanted {
            let Ok(tree) = self.moment.tree(cno) else { continue };
            let found = tree.paths(files);
            paths.extend(found.into_iter().map(|(ino, path)| ((cno, ino), path)));
        }
        for need in damage.iter_mut().flat_map(|it| &mut it.needs) {
            need.path = need.ino.and_then(|ino| paths.get(&(need.last, ino)).cloned());
            need.data.sort_unstable_by_key(|extent| extent.offset);
        }
    }
}
