//! What a rollback has to do, found out by comparing two checkpoints. Nothing is changed here but the
//! notes of which inode numbers are taken.
//!
//! A file is its number and its generation. One that is there in both checkpoints stays the file that it
//! is. One that is gone comes back under its number, if nobody has that now, or if the file that has it
//! goes and nobody knows it. Otherwise it becomes a copy under another number, and so does one that lives
//! on elsewhere: below another path than the one that is rolled back.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::{Cno, FileBlock, Ino, VBlockNr};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::Filesystem;
use super::Stale;
use super::scope::Scope;
use crate::error::{Error, Result};
use crate::overlay::RolledBack;
use crate::tree::content::Content;
use crate::tree::names::names_of_block;
use crate::tree::{File, Tree, View};

/// What a rollback has to do.
pub(super) struct Plan {
    pub(super) scope: Scope,
    pub(super) restored: Vec<Restored>,
    pub(super) leaving: Vec<Leaving>,
    /// Files that have another number than then, by that which they had.
    pub(super) numbers: BTreeMap<Ino, Ino>,
    /// What is not so any more when it is done.
    pub(super) stale: Stale,
}

/// A file that becomes what it was.
pub(super) struct Restored {
    /// Its number from now on.
    pub(super) ino: Ino,
    pub(super) then: File,
    pub(super) links: u16,
    /// What has the number in the present: the blocks that the changes begin with.
    pub(super) base: Option<RawInode>,
    /// From here on they go.
    pub(super) cut: Option<FileBlock>,
    /// Blocks that live on, and those that become holes.
    pub(super) blocks: RolledBack,
    /// Blocks that are written anew with the content of then.
    pub(super) copied: Vec<FileBlock>,
}

/// A file that loses names, or all of them.
pub(super) struct Leaving {
    pub(super) ino: Ino,
    pub(super) raw: RawInode,
    /// Names that are left.
    pub(super) links: u16,
    /// Nobody knows it, so that it can go at once.
    pub(super) is_unknown: bool,
}

/// A number that a file has in one of the two checkpoints, or files in both.
struct Candidate {
    ino: Ino,
    now: Option<RawInode>,
    then: Option<File>,
}

/// What becomes of the number of a file that comes back.
enum Number {
    /// The file has it now.
    Kept(RawInode),
    /// Another file has it, which goes.
    Replaced(RawInode),
    Free,
    /// It is another one.
    New,
}

impl Restored {
    /// Whether content is written anew that the volume has already, so that it has more to keep.
    pub(super) fn is_copied(&self) -> bool {
        !self.copied.is_empty() && self.then.file_type() != FileType::Directory
    }
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.restored.is_empty() && self.leaving.is_empty()
    }

    /// Blocks that live on.
    pub(super) fn revived_blocks(&self) -> u64 {
        let blocks = self.restored.iter().flat_map(|file| &file.blocks);
        blocks.filter(|(_, vblocknr)| vblocknr.is_some()).count() as u64
    }

    /// Blocks that are written anew.
    pub(super) fn copied_blocks(&self) -> u64 {
        self.restored.iter().map(|file| file.copied.len() as u64).sum()
    }
}

/// Finds out what it takes to make what is below `path` in `now`, which is the present, what it was `then`.
pub(super) fn plan(fs: &Filesystem, now: &Tree, then: &Tree, path: &[u8]) -> Result<Plan> {
    let planner = Planner { fs, now, then, view: now.view(), scope: Scope::new(now, then, path)? };
    planner.plan()
}

struct Planner<'a> {
    fs: &'a Filesystem,
    now: &'a Tree,
    then: &'a Tree,
    view: View,
    scope: Scope,
}

impl Planner<'_> {
    fn plan(self) -> Result<Plan> {
        let mut chosen = Vec::new();
        let mut going = Vec::new();
        for Candidate { ino, now, then } in self.candidates()? {
            let number = then.as_ref().map(|then| self.number(ino, now, then)).transpose()?;
            match (then, number) {
                (Some(then), Some(Some(number))) => {
                    let stays = matches!(number, Number::Kept(_) | Number::Replaced(_));
                    going.extend(now.filter(|_| !stays).map(|raw| (ino, raw)));
                    chosen.push((then, number));
                }
                // It is as it was.
                (Some(_), _) => {}
                (None, _) => going.extend(now.map(|raw| (ino, raw))),
            }
        }
        let numbers = self.new_numbers(&chosen)?;
        let mut stale = Stale::default();
        let mut restored = Vec::new();
        for (then, number) in chosen {
            let file = self.restored(then, number, &numbers)?;
            if let Some(file) = file {
                stale.inodes.push(file.ino);
                self.note_names(&file, &mut stale)?;
                restored.push(file);
            }
        }
        let leaving = self.leaving(going)?;
        stale.inodes.extend(leaving.iter().map(|file| file.ino));
        if let Scope::Below(subtree) = &self.scope {
            stale.inodes.push(subtree.directory.ino());
            stale.names.insert((subtree.directory.ino(), subtree.name.clone()));
        }
        Ok(Plan { scope: self.scope, restored, leaving, numbers, stale })
    }

    /// The files that may have to change.
    fn candidates(&self) -> Result<Vec<Candidate>> {
        let mut candidates = Vec::new();
        let then = |ino| match self.then.file(ino) {
            Ok(file) => Ok(Some(file)),
            Err(Error::Stale) => Ok(None),
            Err(error) => Err(error),
        };
        match &self.scope {
            Scope::Everything => self.now.changed_files(self.then, &mut |changed| {
                let now = self.raw_now(changed.ino)?;
                candidates.push(Candidate { ino: changed.ino, now, then: changed.after });
                Ok(ControlFlow::Continue(()))
            })?,
            Scope::Below(subtree) => {
                let now = subtree.names_now.keys();
                let all: BTreeSet<&Ino> = now.chain(subtree.names_then.keys()).collect();
                for &ino in all {
                    let was_below = subtree.names_then.contains_key(&ino);
                    let then = if was_below { then(ino)? } else { None };
                    // What lies elsewhere now matters only for what was here.
                    candidates.push(Candidate { ino, now: self.raw_now(ino)?, then });
                }
            }
        }
        Ok(candidates)
    }

    /// What has a number in the present, even without a name.
    fn raw_now(&self, ino: Ino) -> Result<Option<RawInode>> {
        match self.view.inode(ino) {
            Err(Error::Stale) if self.view.has_inode(ino)? => self.view.raw_inode(ino).map(Some),
            Err(Error::Stale) => Ok(None),
            found => found.map(Some),
        }
    }

    /// What becomes of the number of a file; `None` if the file is as it was.
    fn number(&self, ino: Ino, now: Option<RawInode>, then: &File) -> Result<Option<Number>> {
        let Some(now) = now else {
            let mut numbers = self.fs.numbers.lock();
            if numbers.is_taken(&self.view, ino)? {
                return Ok(Some(Number::New));
            }
            numbers.take_exactly(&self.view, ino)?;
            return Ok(Some(Number::Free));
        };
        if !is_same_file(&now, then) {
            let has_blocks = |raw: &RawInode| raw.file_type().is_ok_and(FileType::has_blocks);
            let can_go = now.i_links_count.get() > 0
                && self.scope.has_all_names(ino, &now)
                && (then.file_type().has_blocks() || !has_blocks(&now))
                && self.fs.table.lock().leave(ino);
            return Ok(Some(if can_go { Number::Replaced(now) } else { Number::New }));
        }
        let names = self.scope.names_now(ino, &now);
        let is_as_it_was = names == self.names_then(then)
            && self.has_same_attributes(&now, then)
            && self.differing(&now, then)?.is_empty();
        Ok(match self.scope.has_all_names(ino, &now) {
            true => Some(Number::Kept(now)),
            false if is_as_it_was => None,
            false => Some(Number::New),
        })
    }

    fn names_then(&self, then: &File) -> u32 {
        match &self.scope {
            Scope::Everything => then.raw.i_links_count.get().into(),
            Scope::Below(subtree) => subtree.names_then.get(&then.ino()).copied().unwrap_or(0),
        }
    }

    /// Whether an inode says the same of its file as then, but for the blocks, the number of links, and
    /// the time of its last change.
    fn has_same_attributes(&self, now: &RawInode, then: &File) -> bool {
        let comparable = |mut raw: RawInode| {
            (raw.i_ctime, raw.i_ctime_nsec) = (U64::ZERO, U32::ZERO);
            raw.i_links_count = U16::ZERO;
            if then.file_type().has_blocks() {
                (raw.i_bmap, raw.i_blocks) = (Root::default().encode(), U64::ZERO);
            }
            raw
        };
        comparable(*now).as_bytes() == comparable(then.raw).as_bytes()
    }

    /// The blocks that a file does not have as then: with their numbers of then.
    fn differing(&self, now: &RawInode, then: &File) -> Result<RolledBack> {
        let mut differing = Vec::new();
        if !then.file_type().has_blocks() {
            return Ok(differing);
        }
        let map =
            Root::parse(&now.i_bmap).map_err(|source| Error::bad_inode(then.ino(), source))?;
        self.view.source().differences(&map, &then.map, &mut |differs| {
            differing.push((differs.key, differs.pointers[1].map(VBlockNr)));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(differing)
    }

    /// Takes numbers for the files that get another one.
    fn new_numbers(&self, chosen: &[(File, Number)]) -> Result<BTreeMap<Ino, Ino>> {
        let mut numbers = self.fs.numbers.lock();
        let new = chosen.iter().filter(|(_, number)| matches!(number, Number::New));
        new.map(|(then, _)| Ok((then.ino(), numbers.take(&self.view)?))).collect()
    }

    /// What has to be done for a file; `None` if it is as it was.
    fn restored(
        &self,
        then: File,
        number: Number,
        numbers: &BTreeMap<Ino, Ino>,
    ) -> Result<Option<Restored>> {
        let links = self.scope.links_then(&then);
        let ino = numbers.get(&then.ino()).copied().unwrap_or(then.ino());
        let has_same_attributes = match &number {
            Number::Kept(now) => {
                now.i_links_count.get() == links && self.has_same_attributes(now, &then)
            }
            _ => false,
        };
        let (base, cut, blocks) = match number {
            Number::Kept(now) => (Some(now), None, self.differing(&now, &then)?),
            Number::Replaced(now) => (Some(now), Some(FileBlock(0)), self.all_blocks(&then)?),
            Number::Free | Number::New => (None, None, self.all_blocks(&then)?),
        };
        let mut file = Restored { ino, links, base, cut, blocks, copied: Vec::new(), then };
        match file.then.file_type() {
            FileType::Directory => self.copy_names(&mut file, numbers)?,
            _ => self.copy_what_lives(&mut file)?,
        }
        let has_same_content =
            file.copied.is_empty() && file.blocks.is_empty() && file.cut.is_none();
        let is_as_it_was = has_same_attributes && has_same_content;
        Ok(Some(file).filter(|_| !is_as_it_was))
    }

    fn all_blocks(&self, then: &File) -> Result<RolledBack> {
        let mut blocks = Vec::new();
        if then.file_type().has_blocks() {
            self.view.source().scan(&then.map, FileBlock(0), &mut |key, pointer| {
                blocks.push((key, Some(VBlockNr(pointer))));
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(blocks)
    }

    /// Blocks of directories are written anew: of what a path led to and since when, their numbers tell.
    fn copy_names(&self, file: &mut Restored, numbers: &BTreeMap<Ino, Ino>) -> Result<()> {
        let block_size = self.view.store.block_size();
        let end = block_size.blocks_for(file.then.size());
        let mut copied: BTreeSet<FileBlock> = file.blocks.drain(..).map(|(key, _)| key).collect();
        let beyond = copied.split_off(&FileBlock(end));
        if !beyond.is_empty() {
            file.cut = Some(file.cut.map_or(FileBlock(end), |cut| cut.min(FileBlock(end))));
        }
        if self.scope.subtree().is_some() {
            for key in (0..end).map(FileBlock) {
                copied.extend(self.is_renumbered(file, key, numbers)?.then_some(key));
            }
        }
        // A rollback before this one may have made a block anew that is as it was.
        let is_kept = |base: &RawInode| is_same_file(base, &file.then);
        let now = file.base.filter(is_kept).map(|base| File::new(file.ino, base)).transpose()?;
        for key in copied {
            let then = file.then.block(&self.then.view(), key)?;
            let same = match &now {
                Some(now) => {
                    then == now.block(&self.view, key)?
                        && !self.is_renumbered(file, key, numbers)?
                }
                None => false,
            };
            file.copied.extend((!same).then_some(key));
        }
        Ok(())
    }

    /// Whether a block of a directory had a file that has another number now, or another directory above.
    fn is_renumbered(
        &self,
        file: &Restored,
        key: FileBlock,
        numbers: &BTreeMap<Ino, Ino>,
    ) -> Result<bool> {
        let moved = self.scope.subtree().is_some_and(|subtree| {
            file.then.ino() == subtree.past.ino()
                && subtree.past_directory != subtree.directory.ino()
        });
        let mut is_renumbered = moved && key == FileBlock(0);
        if !numbers.is_empty() && !is_renumbered {
            names_of_block(&file.then, &self.then.view(), key, &mut |_, ino| {
                is_renumbered |= numbers.contains_key(&ino);
            })?;
        }
        Ok(is_renumbered)
    }

    /// Blocks that have ended live on; those of a copy are written anew, and so are any that live already.
    fn copy_what_lives(&self, file: &mut Restored) -> Result<()> {
        let is_copy = file.ino != file.then.ino();
        let mut translator = self.view.dat.translator(&self.view.store);
        let mut kept = Vec::with_capacity(file.blocks.len());
        for (key, vblocknr) in file.blocks.drain(..) {
            let lives = match vblocknr {
                Some(vblocknr) => translator.entry(vblocknr)?.end == Cno::MAX,
                None => false,
            };
            match is_copy || lives {
                true => file.copied.push(key),
                false => kept.push((key, vblocknr)),
            }
        }
        file.blocks = kept;
        Ok(())
    }

    /// Notes the names in blocks of a directory that change, old and new.
    fn note_names(&self, file: &Restored, stale: &mut Stale) -> Result<()> {
        let is_directory = file.then.file_type() == FileType::Directory;
        let Some(base) = file.base.filter(|base| is_directory && is_same_file(base, &file.then))
        else {
            return Ok(());
        };
        let now = File::new(file.ino, base)?;
        let (mut names, end) = (Vec::new(), self.view.store.block_size().blocks_for(now.size()));
        let beyond = file.cut.map_or(end, |cut| cut.0)..end;
        for key in file.copied.iter().copied().chain(beyond.map(FileBlock)) {
            let mut note = |name: &[u8], _| names.push(name.to_vec());
            if key.0 < end {
                names_of_block(&now, &self.view, key, &mut note)?;
            }
            if key.0 < self.view.store.block_size().blocks_for(file.then.size()) {
                names_of_block(&file.then, &self.then.view(), key, &mut note)?;
            }
        }
        stale.names.extend(names.into_iter().map(|name| (file.ino, name)));
        Ok(())
    }

    /// The files of the present that lose names. As many as a commit may free go at once, if nobody
    /// knows them.
    fn leaving(&self, going: Vec<(Ino, RawInode)>) -> Result<Vec<Leaving>> {
        let (mut freed, most) = (0, self.fs.most_freed());
        let per_block = self.view.store.block_size().sectors();
        let mut leaving = Vec::new();
        for (ino, raw) in going {
            let names = self.scope.names_now(ino, &raw);
            if names == 0 || raw.i_links_count.get() == 0 {
                continue;
            }
            let all = self.scope.has_all_names(ino, &raw);
            let links = if all { 0 } else { raw.i_links_count.get().saturating_sub(names as u16) };
            let blocks = raw.i_blocks.get() / per_block;
            let is_unknown = all && freed + blocks <= most && self.fs.table.lock().leave(ino);
            if is_unknown {
                freed += blocks;
                self.fs.numbers.lock().give_back(&self.view, ino)?;
            }
            leaving.push(Leaving { ino, raw, links, is_unknown });
        }
        Ok(leaving)
    }
}

/// Whether an inode is the same file as one of another checkpoint.
fn is_same_file(now: &RawInode, then: &File) -> bool {
    let file_type = now.file_type().ok();
    now.i_generation == then.raw.i_generation && file_type == Some(then.file_type())
}
