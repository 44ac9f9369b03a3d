//! A checkpoint as a value: [`Tree`], the files of one moment.
//!
//! Opening one, old or new, reads a few blocks and writes none; any number of them can be open at
//! once, also while a writer works. What changes under an open tree is only where its blocks are,
//! and that is the newest DAT's business: so a tree keeps no addresses, and asks anew in each call.
//!
//! | module | what it knows |
//! |---|---|
//! | `file` | a file of a checkpoint: attributes, and the map of its blocks |
//! | `content` | reading what lies in layers of memory above a map |
//! | `device_reads` | the order in which the blocks of one request are read |
//! | `sequences` | which files are read in order, and what the device has been asked for ahead of that |
//! | `recovered` | what was synced after the newest checkpoint, on top of its files |
//! | `names` | reading directories |
//! | `difference` | what two trees do not have in common |
//! | `changes` | the same as users see it, by path |
//! | `parents` | where files are: from an inode to its paths |
//! | `paths` | a path of each of some files, on a volume that may be damaged |
//! | `history` | the versions of a file |
//! | `directories` | when names changed in a directory and below it |
//!
//! Nothing here knows how a volume is written. The live file system has its own layers, and reads
//! them, and the newest checkpoint below, by the same code.

mod changes;
pub(crate) mod content;
mod device_reads;
mod difference;
mod directories;
mod file;
mod history;
pub(crate) mod names;
mod parents;
mod past;
mod paths;
mod recovered;
mod sequences;
mod shared;

use std::ops::ControlFlow;
use std::sync::Arc;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::checkpoint::RawCheckpoint;
use nilfs_ondisk::inode::{FileType, RawInode, S_IFDIR, S_IFMT};
use nilfs_ondisk::palloc::{BlockRole, Palloc, test_bit};
use nilfs_ondisk::{BlockNr, BlockSize, Cno, FileBlock, Ino, VBlockNr};

pub use self::changes::{Change, FileAt};
pub use self::content::{Extent, Survey};
pub use self::difference::ChangedFile;
pub use self::directories::changes_of_directories;
pub use self::file::File;
pub use self::history::{Cause, Version, versions};
pub(crate) use self::history::{older_tree, tree_of, versions_of_all_at, versions_of_file};
pub use self::parents::Parents;
pub(crate) use self::parents::changed_names;
pub use self::past::Checkpoints;
pub(crate) use self::recovered::Recovered;
pub(crate) use self::sequences::Sequences;
pub(crate) use self::shared::{Kept, Shared};
use crate::block::Block;
use crate::bmap::{Pointers, Source};
use crate::dat::Dat;
use crate::error::{Error, Result};
use crate::memo::Memo;
use crate::store::Store;
use crate::types::{DirEntry, Seek};
use content::Content;

/// The files of one checkpoint, read-only.
///
/// A clone costs nothing and is the same tree. While there is one, the cleaner keeps what its
/// checkpoint needs, and works on: a tree takes room on the volume, but no part in writing.
///
/// Files are [`File`]s, which stay valid for as long as the tree is there, and are of no use with
/// another one.
#[derive(Clone)]
pub struct Tree {
    shared: Arc<Shared>,
    root: Arc<TreeRoot>,
    /// What was synced after the checkpoint.
    recovered: Arc<Recovered>,
    /// Whether it shows what can be read of damaged structures.
    around_damage: bool,
    _kept: Arc<Kept>,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("cno", &self.root.cno).finish_non_exhaustive()
    }
}

impl Tree {
    /// The tree of a checkpoint that `kept` keeps.
    pub(crate) fn new(shared: &Arc<Shared>, root: Arc<TreeRoot>, kept: Kept) -> Result<Self> {
        let (shared, recovered) = (Arc::clone(shared), Arc::default());
        let tree = Self { shared, root, recovered, around_damage: false, _kept: Arc::new(kept) };
        tree.view().check_root()?;
        Ok(tree)
    }

    /// The same files with what was synced after the checkpoint.
    pub(crate) fn with(self, recovered: Recovered) -> Self {
        Self { recovered: Arc::new(recovered), ..self }
    }

    /// Returns a tree of these files as far as they can be read: directories without their damaged blocks.
    #[must_use]
    pub fn around_damage(self) -> Self {
        Self { around_damage: true, ..self }
    }

    /// What it takes to read the tree, for the time of one call: blocks may move between two.
    pub(crate) fn view(&self) -> View {
        let (tree, around_damage) = (Arc::clone(&self.root), self.around_damage);
        View { tree, around_damage, ..View::clone(&self.shared.newest()) }
    }

    /// The number of the checkpoint.
    #[must_use]
    pub fn cno(&self) -> Cno {
        self.root.cno
    }

    /// When the checkpoint was made, in seconds since 1970.
    #[must_use]
    pub fn created(&self) -> u64 {
        self.root.created
    }

    /// Number of its inodes.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        self.root.inodes
    }

    /// The root directory.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn root(&self) -> Result<File> {
        self.file(Ino::ROOT)
    }

    /// A file by its number.
    ///
    /// # Errors
    /// [`Error::Stale`] if the checkpoint has none, damage, a device error.
    pub fn file(&self, ino: Ino) -> Result<File> {
        if !ino.is_of_user() {
            return Err(Error::Stale);
        }
        if let Some(file) = self.recovered.file(ino) {
            let is_gone = file.raw.i_links_count.get() == 0;
            return if is_gone { Err(Error::Stale) } else { Ok(file.clone()) };
        }
        File::new(ino, self.view().inode(ino)?)
    }

    /// The file that a name leads to; "." and ".." work too.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`], damage, a device
    /// error.
    pub fn lookup(&self, dir: &File, name: &[u8]) -> Result<File> {
        names::check(name)?;
        dir.require_directory()?;
        let view = self.view();
        let positions = self.shared.positions(&view, dir)?;
        let found = names::find(dir, &view, positions.as_deref(), name)?;
        let ino = found.ok_or(Error::NotFound)?.ino;
        let missing = || Error::missing(format_args!("a file of directory {}", dir.ino()));
        self.file(ino)
            .map_err(|error| if matches!(error, Error::Stale) { missing() } else { error })
    }

    /// Calls `emit` with the entries of a directory from `cookie` on (0 = the first, else the
    /// [`DirEntry::next`] of an entry) until it returns false.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], damage, a device error.
    pub fn read_dir(
        &self,
        dir: &File,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        dir.require_directory()?;
        names::read(dir, &self.view(), cookie, emit)
    }

    /// Reads into `buffer`. Returns the number of bytes, which is smaller only at the end of the
    /// file.
    ///
    /// # Errors
    /// Not a file with content, damage, a device error.
    pub fn read(&self, file: &File, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        file.require_regular()?;
        file.read(&self.view(), offset, buffer)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no link, damage, a device error.
    pub fn read_link(&self, file: &File) -> Result<Vec<u8>> {
        file.link_target(&self.view())
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none, damage, a device error.
    pub fn seek(&self, file: &File, offset: u64, what: Seek) -> Result<u64> {
        file.seek(&self.view(), offset, what)
    }

    /// What of a file is data and what cannot be told, as far as its map says so. Data may still be
    /// unreadable.
    ///
    /// # Errors
    /// None that comes from damage.
    pub fn survey(&self, file: &File) -> Result<Survey> {
        file.survey(&self.view())
    }

    /// Calls `visit` with every block of a file that lies on the device, and all of its content, or why that
    /// cannot be read. Ends where `visit` fails.
    ///
    /// # Errors
    /// Damage of the metadata that lead there, and what `visit` returns.
    pub fn blocks(
        &self,
        file: &File,
        mut visit: impl FnMut(MappedBlock, Result<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let view = self.view();
        let mut content = vec![0; view.store.block_size().bytes()];
        file.scan(&view, FileBlock(0), &mut |key| {
            if let Some(mapped) = file.on_device(&view, key)? {
                let read = view.store.read_content(mapped.block, &mut content);
                let read = read.and_then(|()| view.store.set_right(mapped.block, &mut content));
                visit(mapped, read.map(|()| &content[..]))?;
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Calls `visit` with the number of every file that can be found without names, but for the root
    /// directory, ascending.
    ///
    /// # Errors
    /// None that comes from damage.
    pub fn files_by_number(&self, visit: &mut dyn FnMut(Ino)) -> Result<()> {
        let view = self.view();
        let layout = view.ifile_layout();
        let mut of_block = |block: FileBlock, _| {
            if let BlockRole::Entries { first_entry } = layout.role_of(block) {
                let entries = layout.entries_of_block(layout.nth_entry_block(first_entry));
                let numbers = entries.map(Ino).filter(|ino| *ino >= Ino::FIRST_USER);
                numbers.filter(|ino| self.file(*ino).is_ok()).for_each(&mut *visit);
            }
            Ok(ControlFlow::Continue(()))
        };
        view.source().scan_around(&view.tree.ifile, FileBlock(0), &mut of_block, &mut |_, _| Ok(()))
    }

    /// Fails unless all of a directory can be read.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], damage, a device error.
    pub fn check_directory(&self, dir: &File) -> Result<()> {
        dir.require_directory()?;
        let view = View { around_damage: false, ..self.view() };
        names::read(dir, &view, 0, &mut |_| true)
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.view().store.block_size()
    }

    /// The parts of a file that are data, from the one at or after `offset` on; between them are
    /// holes. At most `limit` of them.
    ///
    /// # Errors
    /// Damage, a device error.
    pub fn extents(&self, file: &File, offset: u64, limit: usize) -> Result<Vec<Extent>> {
        file.extents(&self.view(), offset, limit)
    }
}

/// A block of a file that lies on the device.
#[derive(Debug, Clone, Copy)]
pub struct MappedBlock {
    /// Its place in the file.
    pub key: FileBlock,
    /// Its virtual number.
    pub vblock: VBlockNr,
    /// Where it is.
    pub block: BlockNr,
}

/// What a checkpoint entry says of its tree.
#[derive(Debug, Clone)]
pub(crate) struct TreeRoot {
    pub(crate) cno: Cno,
    pub(crate) ifile: Root,
    /// Where the map of the ifile has led lately. Only the checkpoint that a mount stands on has this,
    /// because very many others can be looked at.
    pub(crate) known: Option<Arc<Memo>>,
    pub(crate) inodes: u64,
    pub(crate) blocks: u64,
    /// In seconds since 1970.
    pub(crate) created: u64,
}

impl TreeRoot {
    /// The tree that a checkpoint entry describes.
    pub(crate) fn new(entry: &RawCheckpoint) -> Result<Self> {
        let cno = Cno(entry.cp_cno.get());
        let bad =
            |source| Error::Corrupt { what: format!("checkpoint {cno}"), block: None, source };
        entry.cp_ifile_inode.validate_metadata_file("ifile inode").map_err(bad)?;
        Ok(Self {
            cno,
            ifile: Root::parse(&entry.cp_ifile_inode.i_bmap).map_err(bad)?,
            known: None,
            inodes: entry.cp_inodes_count.get(),
            blocks: entry.cp_blocks_count.get(),
            created: entry.cp_create.get(),
        })
    }

    /// The same, with a memo of where the map of the ifile leads.
    pub(crate) fn remembering(self) -> Self {
        Self { known: Some(Arc::new(Memo::new())), ..self }
    }
}

/// A tree at one moment, with what it takes to read it.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) store: Arc<Store>,
    pub(crate) dat: Arc<Dat>,
    pub(crate) tree: Arc<TreeRoot>,
    /// Shared by all views between two moments at which the cleaner moved blocks. While somebody
    /// holds one, the places where the blocks were must not be written.
    pub(crate) era: Arc<Era>,
    /// Shared by all views of a volume.
    pub(crate) sequences: Arc<Sequences>,
    /// Whether damaged structures are passed over as far as possible.
    pub(crate) around_damage: bool,
}

/// The time between two moments at which the cleaner moved blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Era(pub(crate) u64);

impl View {
    /// Where the blocks of files come from.
    pub(crate) fn source(&self) -> Source<'_> {
        Source { store: &self.store, pointers: Pointers::Virtual(&self.dat) }
    }

    /// How the ifile is laid out.
    pub(crate) fn ifile_layout(&self) -> Palloc {
        let geometry = self.store.geometry();
        Palloc::new(geometry.block_size, geometry.inode_size)
    }

    /// Whether the bitmap of the ifile says that a number is in use (docs/format.md §10).
    pub(crate) fn has_inode(&self, ino: Ino) -> Result<bool> {
        let bit = self.ifile_layout().bit(ino.0);
        Ok(self.ifile_block(bit.block)?.is_some_and(|bitmap| test_bit(&bitmap, bit.bit)))
    }

    /// A block of the ifile, if it is not a hole.
    fn ifile_block(&self, key: FileBlock) -> Result<Option<Block>> {
        let (source, known) = (self.source(), self.tree.known.as_deref());
        let pointer = match known.and_then(|known| known.get(key.0)) {
            Some(pointer) => pointer,
            None => {
                let Some(pointer) = source.lookup(&self.tree.ifile, key)? else { return Ok(None) };
                known.inspect(|known| known.note(key.0, pointer));
                pointer
            }
        };
        self.store.read(source.locate(pointer)?).map(Some)
    }

    /// An inode as it lies on disk, whatever its state.
    pub(crate) fn raw_inode(&self, ino: Ino) -> Result<RawInode> {
        let slot = self.ifile_layout().entry(ino.0);
        let block = self.ifile_block(slot.block)?.ok_or(Error::Stale)?;
        RawInode::parse(&block[slot.offset..]).map_err(|source| Error::bad_inode(ino, source))
    }

    /// Inodes with links in the block of the ifile that has this one, whatever the bitmap says.
    pub(crate) fn linked_beside(&self, ino: Ino) -> Result<Vec<Ino>> {
        let layout = self.ifile_layout();
        let Some(block) = self.ifile_block(layout.entry(ino.0).block)? else { return Ok(vec![]) };
        let has_links = |ino: &Ino| {
            let inode = RawInode::parse(&block[layout.entry(ino.0).offset..]);
            inode.is_ok_and(|inode| inode.i_links_count.get() > 0)
        };
        let beside = layout.entries_of_block(layout.nth_entry_block(ino.0));
        Ok(beside.map(Ino).filter(has_links).collect())
    }

    /// The inode of a file that exists in this tree. One that was deleted has no links, and so has a
    /// number that never had a file: the bitmap, which can have lost a bit, is not asked.
    pub(crate) fn inode(&self, ino: Ino) -> Result<RawInode> {
        // A damaged name can lead to a reserved number.
        if !ino.is_of_user() {
            return Err(Error::Stale);
        }
        let missing = || match ino {
            Ino::ROOT => Error::missing(format_args!("the root directory")),
            _ => Error::Stale,
        };
        let inode = match self.raw_inode(ino) {
            Err(Error::Stale) => return Err(missing()),
            inode => inode?,
        };
        if inode.i_links_count.get() == 0 {
            return Err(missing());
        }
        inode.file_type().map_err(|source| Error::bad_inode(ino, source))?;
        Ok(inode)
    }

    /// What every mount demands of the root directory (docs/format.md §6).
    pub(crate) fn check_root(&self) -> Result<()> {
        let root = self.inode(Ino::ROOT)?;
        if root.i_mode.get() & S_IFMT != S_IFDIR || root.i_size.get() == 0 {
            return Err(Error::Inconsistent(
                "the root inode is not a directory with entries".into(),
            ));
        }
        Ok(())
    }
}

impl File {
    /// Fails unless the file is a directory.
    fn require_directory(&self) -> Result<()> {
        match self.file_type() {
            FileType::Directory => Ok(()),
            _ => Err(Error::NotDirectory),
        }
    }

    /// Fails unless the file has content that can be read.
    fn require_regular(&self) -> Result<()> {
        match self.file_type() {
            FileType::Regular => Ok(()),
            FileType::Directory => Err(Error::IsDirectory),
            _ => Err(Error::Invalid("only regular files can be read")),
        }
    }
}
