//! Names of which the inode number is wrong. Where a file is that lacks a name, and something else than the
//! number says that this is the name, it leads there again, and nothing is lost.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use nilfs_check::{Part, Position};
use nilfs_ondisk::dirent::{self, record_at};
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::{Cno, Ino, VBlockNr};

use crate::anew::Anew;
use crate::salvage;

/// A name that leads where it may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MisledName {
    /// Where its record is.
    pub(crate) at: Position,
    /// The directory that has it.
    pub(crate) directory: Ino,
}

impl Anew<'_> {
    /// Where names led, as far as that is proved, given how many names each file lacks.
    pub(crate) fn proved_targets(
        &mut self,
        names: &BTreeSet<MisledName>,
        lacking: &BTreeMap<Ino, u64>,
    ) -> HashMap<Position, Ino> {
        let mut lacking = lacking.clone();
        let mut proved = HashMap::new();
        let mut of_directories = BTreeMap::<Ino, Vec<Position>>::new();
        for name in names {
            match self.older_target(name).filter(|ino| lacking.get(ino).is_some_and(|it| *it > 0)) {
                Some(ino) => {
                    lacking.entry(ino).and_modify(|count| *count -= 1);
                    proved.insert(name.at, ino);
                }
                None if self.type_at(name.at) == Some(FileType::Directory) => {
                    of_directories.entry(name.directory).or_default().push(name.at);
                }
                None => {}
            }
        }
        if of_directories.is_empty() {
            return proved;
        }
        let mut children = BTreeMap::<Ino, Vec<Ino>>::new();
        for (ino, _) in lacking.into_iter().filter(|(_, count)| *count > 0) {
            if let Some(parent) = self.parent_of(ino) {
                children.entry(parent).or_default().push(ino);
            }
        }
        for (directory, names) in of_directories {
            if let ([at], Some([child])) = (&names[..], children.get(&directory).map(Vec::as_slice))
                && !self.names(directory, *child)
            {
                proved.insert(*at, *child);
            }
        }
        proved
    }

    /// Where a name led by an older version of its block, if the same file is still there.
    fn older_target(&self, name: &MisledName) -> Option<Ino> {
        let block = self.read(name.at.block)?;
        let found = record_at(&block, name.at.offset).ok()?;
        let all = self.logged.of(name.directory);
        let this = all.iter().find(|it| it.block == name.at.block)?;
        let key = this.offset()?;
        let versions = self.logged.data(name.directory, key, key.checked_add(1)).iter();
        versions.filter(|it| it.since < this.since).find_map(|older| {
            let block = self.read_as_written(older.block)?;
            let ino = salvage::named(&block, found.name).filter(|it| it.ino != found.ino)?.ino;
            let then = self.inode_as_of(ino, older.since)?;
            let now = self.inode_as_of(ino, self.newest.cno)?;
            let is_same =
                then.i_generation == now.i_generation && now.file_type().ok() == found.file_type();
            is_same.then_some(ino)
        })
    }

    /// Whether a name that leads nowhere in one checkpoint may be right in the newest one or in another of the `past`,
    /// which have the block, too; or that checkpoint has another block.
    pub(crate) fn may_be_right_but_for(
        &mut self,
        name: &MisledName,
        cno: Cno,
        past: &BTreeSet<Cno>,
    ) -> bool {
        let all = self.logged.of(name.directory);
        let this = all.iter().find(|it| it.block == name.at.block).copied();
        let Some(life) = this.and_then(|it| self.life_of(&it)) else { return true };
        if !life.contains(&cno) || life.end == Cno::MAX {
            return true;
        }
        let block = self.read(name.at.block);
        let found = block.as_ref().and_then(|it| record_at(it, name.at.offset).ok());
        found.is_none_or(|found| self.is_in_use(found.ino, (&life, cno), past))
    }

    /// Whether a file is there in one of these checkpoints that does not have its inode in common with `but_for`.
    fn is_in_use(
        &mut self,
        ino: Ino,
        (life, but_for): (&Range<Cno>, Cno),
        past: &BTreeSet<Cno>,
    ) -> bool {
        let slot = Palloc::new(self.geometry.block_size, self.geometry.inode_size).entry(ino.0);
        let key = slot.block.0;
        let versions = self.logged.data(Ino::IFILE, key, key.checked_add(1)).to_vec();
        versions.into_iter().any(|version| {
            let Some(lives) = self.life_of(&version) else { return false };
            let (start, end) = (lives.start.max(life.start), lives.end.min(life.end));
            let is_there = start < end && past.range(start..end).next().is_some();
            let inode = || {
                let block = self.read_as_written(version.block)?;
                RawInode::parse(block.get(slot.offset..)?).ok()
            };
            !lives.contains(&but_for)
                && is_there
                && inode().is_some_and(|inode| inode.i_links_count.get() > 0)
        })
    }

    /// Whether a name in a directory of the newest checkpoint leads to a file. A directory that has one may
    /// be out of reach all the same.
    fn names(&mut self, directory: Ino, ino: Ino) -> bool {
        let part = Part { level: 1, ..self.present(directory) };
        self.children(&part).into_iter().any(|(_, vblock)| {
            let entry = self.dat.as_mut().and_then(|dat| dat.entry(VBlockNr(vblock)));
            let Some(block) = entry.and_then(|entry| self.read(entry.block)) else { return true };
            let mut records = dirent::records(&block).filter_map(Result::ok);
            records.any(|it| it.ino == ino && !matches!(it.name, b"." | b".."))
        })
    }

    /// All of a file of the newest checkpoint.
    fn present(&self, ino: Ino) -> Part {
        Part { ino, level: 0, key: 0, limit: None, life: self.newest.cno..Cno::MAX }
    }

    fn type_at(&self, at: Position) -> Option<FileType> {
        record_at(&self.read(at.block)?, at.offset).ok()?.file_type()
    }

    /// Returns the inode that ".." names in a directory of the newest checkpoint.
    fn parent_of(&mut self, ino: Ino) -> Option<Ino> {
        let block = self.first_block(&self.present(ino))?;
        let mut records = dirent::records(&block).filter_map(Result::ok);
        let own = records.next().filter(|it| it.name == b"." && it.ino == ino);
        own.and(records.next()).filter(|it| it.name == b"..").map(|it| it.ino)
    }
}
