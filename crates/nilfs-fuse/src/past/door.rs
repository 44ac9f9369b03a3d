//! What is in the door of a directory, and in `gmt` in there.
//!
//! In both, a cookie is the number of the checkpoint that was listed last, so a listing goes on where
//! it was however many checkpoints come and go.

use std::ops::Range;

use jiff::Zoned;
use nilfs_engine::{Timestamp, newest_below};

use super::*;
use crate::when::{When, WhenError, gmt_second};

/// Checkpoints that are looked at when a door is listed, at a time.
const AT_ONCE: usize = 64;

/// Entries of `gmt`: as many as Windows shows.
const MOST_IN_GMT: u64 = 512;

/// The name of the directory that is for Samba.
const GMT_NAME: &[u8] = b"gmt";

/// Cookies after "." and "..", which no checkpoint has as its number.
const AFTER_DOT: u64 = 1 << 62;
const AFTER_DOTS: u64 = AFTER_DOT + 1;

/// A cookie of `gmt` has the number of the checkpoint in its lower bits, and above that how many were
/// listed until then.
const COUNT_SHIFT: u32 = 48;

impl Past {
    /// The door of a directory of the present.
    pub fn door(&self, dir: Ino) -> Result<Given> {
        let newest = self.checkpoints.newest();
        let node = NodeId::past(DOOR, numbers::short(dir)?);
        let attr = self.door_attr(dir)?;
        Ok(Given { node, attr, validity: self.note_told(node, newest) })
    }

    /// A door is like its directory, but cannot be written to, and not everybody may enter: what others
    /// could read once is not shown to them now. It is modified by each checkpoint, and by each that
    /// goes, because a checkpoint says so: the kernel remembers a listing until the modification time is
    /// another.
    pub(super) fn door_attr(&self, dir: Ino) -> Result<Attr> {
        let attr = self.files.attr(dir)?;
        if attr.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        let (uid, mode) = match self.settings.access {
            PastAccess::All => (attr.uid, attr.mode & 0o555),
            PastAccess::Owner => (self.owner, 0o500),
            PastAccess::Root => (0, 0o500),
        };
        let newest = self.checkpoints.newest();
        let created = self.checkpoints.checkpoints(newest, 1)?.first().map_or(0, |it| it.created);
        let mtime = Timestamp {
            seconds: i64::try_from(created).unwrap_or(i64::MAX),
            // There may be many in a second.
            nanoseconds: (newest.0 % 1_000_000_000) as u32,
        };
        Ok(Attr { ino: numbers::of_door(dir), nlink: 2, uid, mode, mtime, ctime: mtime, ..attr })
    }

    pub(super) fn gmt(&self, dir: Ino) -> Result<Given> {
        let newest = self.checkpoints.newest();
        let node = NodeId::past(GMT, numbers::short(dir)?);
        let attr = self.gmt_attr(dir)?;
        Ok(Given { node, attr, validity: self.note_told(node, newest) })
    }

    pub(super) fn gmt_attr(&self, dir: Ino) -> Result<Attr> {
        Ok(Attr { ino: numbers::of_gmt(dir), ..self.door_attr(dir)? })
    }

    pub(super) fn alias_attr(&self, entry: Entry, tree: &Tree) -> Result<Attr> {
        let ino = numbers::of_alias(entry.cno);
        let size = canonical_name(entry.cno, tree.created()).len() as u64;
        let attr = self.door_attr(entry.dir)?;
        Ok(Attr { ino, file_type: FileType::Symlink, mode: 0o777, nlink: 1, size, ..attr })
    }

    pub(super) fn lookup_in_door(&self, dir: Ino, name: &[u8]) -> Result<Given> {
        match name {
            b"." => return self.door(dir),
            b".." => return self.present(dir),
            GMT_NAME => return self.gmt(dir),
            _ => {}
        }
        let checkpoint = self.checkpoint_at(name)?;
        let entry = Entry { dir, list: List::Door, cno: checkpoint.cno };
        let (tree, file) = self.entry(entry)?.ok_or(Error::NotFound)?;
        if canonical_name(checkpoint.cno, checkpoint.created).as_bytes() == name {
            return self.give(entry, tree, &file, Validity::Always);
        }
        let attr = self.alias_attr(entry, &tree)?;
        let node = NodeId::past(self.note_given(entry, tree), ALIAS);
        Ok(Given { node, attr, validity: Validity::Never })
    }

    pub(super) fn lookup_in_gmt(&self, dir: Ino, name: &[u8]) -> Result<Given> {
        match name {
            b"." => return self.gmt(dir),
            b".." => return self.door(dir),
            _ => {}
        }
        let second = gmt_second(name).ok_or(Error::NotFound)?;
        let older = |end| self.checkpoints.newest_made(end, &(second..=second));
        let mut found = older(Cno::MAX)?;
        while let Some(hidden) = found.filter(|found| !is_shown(found)) {
            found = older(hidden.cno)?;
        }
        let checkpoint = found.ok_or(Error::NotFound)?;
        let entry = Entry { dir, list: List::Gmt, cno: checkpoint.cno };
        let (tree, file) = self.entry(entry)?.ok_or(Error::NotFound)?;
        // In the next moment, the name may mean another checkpoint of the same second.
        self.give(entry, tree, &file, Validity::Never)
    }

    /// The directory in which a door is.
    fn present(&self, dir: Ino) -> Result<Given> {
        Ok(Given::present(self.files.hold(dir)?))
    }

    /// The tree of an entry and the directory in it; `None` if the checkpoint has gone, or does not
    /// have the directory.
    fn entry(&self, entry: Entry) -> Result<Option<(Tree, File)>> {
        match self.checkpoints.tree(Some(entry.cno)) {
            Err(Error::NoCheckpoint(_)) => Ok(None),
            tree => {
                let tree = tree?;
                Ok(self.directory_in(&tree, entry.dir)?.map(|file| (tree, file)))
            }
        }
    }

    /// Whether a checkpoint has the directory. `known` remembers for which others that is so as well,
    /// so that most of them are not looked into.
    fn has_directory(&self, entry: Entry, known: &mut Option<(Range<Cno>, bool)>) -> Result<bool> {
        if entry.dir == Ino::ROOT {
            return Ok(true);
        }
        if let Some((during, is_there)) = known
            && during.contains(&entry.cno)
        {
            return Ok(*is_there);
        }
        let tree = match self.checkpoints.tree(Some(entry.cno)) {
            Err(Error::NoCheckpoint(_)) => return Ok(false),
            tree => tree?,
        };
        let is_there = self.directory_in(&tree, entry.dir)?.is_some();
        *known = Some((tree.same_file_during(entry.dir)?, is_there));
        Ok(is_there)
    }

    /// The checkpoint that a name in a door means.
    fn checkpoint_at(&self, name: &[u8]) -> Result<CheckpointInfo> {
        let words = str::from_utf8(name).map_err(|_| Error::NotFound)?;
        let when: When = words.parse().map_err(|_| Error::NotFound)?;
        let list = |from, limit| self.checkpoints.checkpoints(from, limit);
        let until = |second| self.checkpoints.newest_made(Cno::MAX, &(0..=second));
        let notes = || self.checkpoints.notes();
        let found = when.find(&Zoned::now, self.checkpoints.newest(), &list, &until, &notes);
        found.map_err(|error| match error {
            WhenError::Unreadable(error) => error,
            _ => Error::NotFound,
        })
    }

    /// The newest checkpoint below a number that fits.
    fn newest_below(
        &self,
        end: Cno,
        fits: &dyn Fn(&CheckpointInfo) -> bool,
    ) -> Result<Option<CheckpointInfo>> {
        let list = |from, limit| self.checkpoints.checkpoints(from, limit);
        let end = end.min(Cno(self.checkpoints.newest().0.saturating_add(1)));
        newest_below(end, &list, fits)
    }

    /// The directory as a checkpoint has it, unless it has none or another one with this number.
    fn directory_in(&self, tree: &Tree, dir: Ino) -> Result<Option<File>> {
        let generation = self.files.attr(dir)?.generation;
        match tree.file(dir) {
            Ok(file) => {
                let same =
                    file.attr().generation == generation && file.file_type() == FileType::Directory;
                Ok(same.then_some(file))
            }
            Err(Error::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds "." and "..", as far as they come after `cookie`. Returns the cookie from which the
    /// entries are listed.
    fn list_dots(listed: &mut Vec<Listed>, cookie: u64, own: Ino, above: Ino) -> u64 {
        let dots = [(&b"."[..], own, AFTER_DOT), (b"..", above, AFTER_DOTS)];
        let first = match cookie {
            0 => 0,
            AFTER_DOT => 1,
            AFTER_DOTS => 2,
            cookie => return cookie,
        };
        listed.extend(dots[first..].iter().map(|&(name, ino, next)| Listed {
            ino,
            name: name.to_vec(),
            next,
            file_type: Some(FileType::Directory),
        }));
        0
    }

    /// The checkpoints that have the directory, as far as they are shown.
    pub(super) fn list_door(&self, dir: Ino, cookie: u64, limit: usize) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let mut last = Self::list_dots(&mut listed, cookie, numbers::of_door(dir), dir);
        let mut known = None;
        while listed.len() < limit {
            let checkpoints = self.checkpoints.checkpoints(Cno(last.saturating_add(1)), AT_ONCE)?;
            let Some(newest) = checkpoints.last() else { break };
            last = newest.cno.0;
            for checkpoint in checkpoints.iter().filter(|checkpoint| is_shown(checkpoint)) {
                let cno = checkpoint.cno;
                if self.has_directory(Entry { dir, list: List::Door, cno }, &mut known)? {
                    listed.push(Listed {
                        ino: numbers::of_file(cno, dir),
                        name: canonical_name(cno, checkpoint.created).into_bytes(),
                        next: cno.0,
                        file_type: Some(FileType::Directory),
                    });
                }
            }
        }
        Ok(listed)
    }

    /// The newest entries, the newest first, one for each second.
    pub(super) fn list_gmt(&self, dir: Ino, cookie: u64, limit: usize) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let above = numbers::of_door(dir);
        let cookie = Self::list_dots(&mut listed, cookie, numbers::of_gmt(dir), above);
        let mut count = cookie >> COUNT_SHIFT;
        let from = Cno(cookie & ((1 << COUNT_SHIFT) - 1));
        let (mut end, mut seconds) = (Cno::MAX, HashSet::new());
        let mut known = None;
        while listed.len() < limit && count < MOST_IN_GMT {
            let fits = |it: &CheckpointInfo| is_shown(it) && !seconds.contains(&it.created);
            let Some(checkpoint) = self.newest_below(end, &fits)? else { break };
            let cno = checkpoint.cno;
            end = cno;
            seconds.insert(checkpoint.created);
            if cookie != 0 && cno >= from {
                continue;
            }
            if self.has_directory(Entry { dir, list: List::Gmt, cno }, &mut known)? {
                count += 1;
                listed.push(Listed {
                    ino: numbers::of_file(cno, dir),
                    name: gmt_name(checkpoint.created).into_bytes(),
                    next: count << COUNT_SHIFT | cno.0,
                    file_type: Some(FileType::Directory),
                });
            }
        }
        Ok(listed)
    }
}

/// Whether a checkpoint is listed. A minor one has nothing that the one before has not, but if it is a
/// snapshot, somebody looks for it.
fn is_shown(checkpoint: &CheckpointInfo) -> bool {
    checkpoint.snapshot || !checkpoint.minor
}
