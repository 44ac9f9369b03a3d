//! Making files durable, by a sync log (docs/format.md §19): the blocks of the files that somebody waits
//! for, as far as no log has them, and records of everything else that has changed — of these files
//! their sizes and times, and of the whole volume the names and attributes. So names are durable in the
//! order in which they were changed, and the content of each file when it is asked for.
//!
//! All that wait for the log at the same time are served by one log and one flush
//! (`log/group_commit.rs`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::roll_forward::{
    BytesRecord, ContentRecord, ExtentRecord, HEAD_SIZE, InodeRecord, Record, Time,
};
use nilfs_ondisk::summary::{FINFO_SIZE, HEADER_SIZE};
use nilfs_ondisk::{BlockSize, FileBlock, Ino, block_sums};

use super::Filesystem;
use super::inode::{InodeRef, State};
use super::options::{FsyncBy, Order};
use crate::block::Block;
use crate::commit::{MetadataChanges, SyncContent, SyncedFile};
use crate::error::{Error, Result};
use crate::host::Timestamp;
use crate::log::segment_writer::Synced;
use crate::overlay::Placed;
use crate::tree::names;
use crate::writer::Session;

/// Bytes that an item takes in the summary for a block that is alone of its file.
const ITEM_SIZE: usize = FINFO_SIZE + 16;

/// Clean segments that sync logs leave to commits and to the cleaner where room is short.
const LEFT_ALONE: u64 = 16;

/// A file that is to become durable.
pub(super) struct SyncRequest {
    inode: InodeRef,
    /// The freeze that will take what the caller has seen.
    ticket: u64,
}

/// What is to be written, and where it comes from.
struct Gathered {
    content: SyncContent,
    /// The inode of each of the content's files.
    inodes: Vec<InodeRef>,
    /// Blocks of which some bytes have changed.
    partial: Vec<Partial>,
}

/// Changed bytes of a block.
struct Partial {
    inode: InodeRef,
    key: FileBlock,
    block: Block,
    bytes: std::ops::Range<usize>,
}

impl Filesystem {
    /// Makes a file durable: its content, its attributes, and all names and attributes of the volume as
    /// they are now. With a directory these names and attributes alone; with the root, everything.
    ///
    /// # Errors
    /// As [`Filesystem::commit`].
    pub fn sync_file(&self, inode: &InodeRef) -> Result<()> {
        self.writer.note_sync();
        if inode.state.read().links() == 0 && self.options.order == Order::Relaxed {
            // It is gone after a crash, whatever is written. But in strict order a sync of it covers
            // all others.
            return self.check_writable();
        }
        self.write_much(inode)?;
        let ticket = self.writer.next_freeze();
        let request = SyncRequest { inode: Arc::clone(inode), ticket };
        self.file_syncs.join(
            request,
            || self.writing().session(),
            |session, requests| {
                self.write_files(session, requests)?;
                let has_written = session.has_unflushed();
                session.flush()?;
                Ok(has_written)
            },
        )
    }

    /// Whether an fsync of more than overwritten blocks is a log with records.
    pub(super) fn writes_records(&self) -> bool {
        self.options.order == Order::Relaxed && self.options.fsync == FsyncBy::Log
    }

    /// Writes the names and attributes that no log has, but does not make them durable.
    pub(super) fn write_records(&self) -> Result<()> {
        let mut session = self.writing().session()?;
        if self.writes_records() && self.write_sync_log(&mut session, &[])? {
            return Ok(());
        }
        session.commit(&MetadataChanges::default()).map(drop)
    }

    /// Writes whatever the requests still need.
    fn write_files(&self, session: &mut Session<'_>, requests: &[&SyncRequest]) -> Result<()> {
        // A commit that started after the request has everything that the caller has seen.
        let is_open = |request: &&&SyncRequest| self.writer.committed_freeze() < request.ticket;
        let open: Vec<&SyncRequest> = requests.iter().copied().filter(|it| is_open(&it)).collect();
        if open.is_empty() {
            return Ok(());
        }
        if self.options.order == Order::Relaxed && self.write_sync_log(session, &open)? {
            return Ok(());
        }
        session.commit(&MetadataChanges::default()).map(drop)
    }

    /// Writes a sync log, if there is anything to write; returns false if a checkpoint has to be
    /// written instead: because that is asked for, there is no room in the segment, or something cannot
    /// be read.
    fn write_sync_log(&self, session: &mut Session<'_>, requests: &[&SyncRequest]) -> Result<bool> {
        // If a part of it cannot be read, what was taken must still be written: by a checkpoint, which
        // need not read that.
        let Ok(gathered) = self.gather(requests) else { return Ok(false) };
        let gathered = gathered.settled(self.store.block_size(), session.has_announced_records());
        let Gathered { mut content, inodes, .. } = gathered;
        if content.is_empty() {
            return Ok(true);
        }
        if content.needs_records && self.options.fsync == FsyncBy::Checkpoint {
            return Ok(false);
        }
        let mut written = session.write_sync(&content)?;
        while written.is_none() && self.leave_segment(session, &mut content, &inodes)? {
            written = session.write_sync(&content)?;
        }
        let Some(written) = written else { return Ok(false) };
        self.note_placed(inodes.iter().zip(&content.files), written);
        Ok(true)
    }

    /// Lets the log go on in the next segment, after it was filled with blocks of what is to be synced:
    /// the sync log will refer to them. Returns false if it goes on where it is.
    fn leave_segment(
        &self,
        session: &mut Session<'_>,
        content: &mut SyncContent,
        inodes: &[InodeRef],
    ) -> Result<bool> {
        if !self.writes_records() {
            return Ok(false);
        }
        // A checkpoint turns what changes could cost into what they do, and lets dead blocks be reclaimed.
        // But who waits here should not wait for what others have changed.
        let is_short = self.writer.space.missing(None) > 0;
        if is_short && session.writable_segments() < LEFT_ALONE {
            return Ok(false);
        }
        if is_short || session.has_much_to_read() {
            self.wakeup.hurry();
        }
        let Some(written) = session.leave_segment(&content.files)? else { return Ok(false) };
        let mut ahead = Vec::with_capacity(content.files.len());
        for (file, placed) in content.files.iter_mut().zip(&written.placed) {
            let pages: Vec<_> = file.pages.drain(..placed.len()).collect();
            let mut extents = Vec::new();
            for ((key, _), placed) in pages.iter().zip(placed) {
                add_placed(&mut extents, file.ino, *key, *placed);
            }
            content.needs_records |= !extents.is_empty();
            content.records.extend(extents.into_iter().map(Record::Extent));
            ahead.push(SyncedFile { ino: file.ino, pages });
        }
        self.note_placed(inodes.iter().zip(&ahead), written);
        Ok(true)
    }

    /// Takes note of where a log has put the blocks of files.
    pub(super) fn note_placed<'a>(
        &self,
        files: impl ExactSizeIterator<Item = (&'a InodeRef, &'a SyncedFile)>,
        written: Synced,
    ) {
        assert_eq!(written.placed.len(), files.len(), "each file has its blocks in the log");
        for ((inode, file), placed) in files.zip(written.placed) {
            let mut state = inode.state.write();
            self.writer.space.add_placed(note_placed(&mut state, file, placed));
        }
    }

    /// Takes what no log has yet, in a moment in which no operation is under way. It must be written
    /// then, if not by a sync log, by a checkpoint.
    fn gather(&self, requests: &[&SyncRequest]) -> Result<Gathered> {
        let _alone = self.writer.exclude_transactions();
        let journal = std::mem::take(&mut *self.journal.lock());
        let mut gathered =
            Gathered { content: SyncContent::default(), inodes: Vec::new(), partial: Vec::new() };
        for ino in journal.inodes() {
            let record = self.attributes_of(&self.changed_inode(ino))?;
            gathered.content.records.extend(record.map(Record::Inode));
        }
        let mut files: BTreeMap<Ino, InodeRef> =
            requests.iter().map(|it| (it.inode.ino(), Arc::clone(&it.inode))).collect();
        if files.contains_key(&Ino::ROOT) {
            files.extend(self.table.lock().dirty.iter().map(|(ino, it)| (*ino, Arc::clone(it))));
        }
        files.extend(journal.contents().map(|ino| (ino, self.changed_inode(ino))));
        gathered.content.records.extend(journal.into_names().map(Record::Name));
        gathered.content.needs_records = !gathered.content.records.is_empty();
        let block_size = self.store.block_size();
        files.into_values().for_each(|inode| gathered.add_content(inode, block_size));
        Ok(gathered)
    }

    /// An inode of the journal: what has changed stays in memory until a commit takes it.
    fn changed_inode(&self, ino: Ino) -> InodeRef {
        self.table.lock().get(ino).expect("an inode that has changed is in memory")
    }

    /// The attributes of an inode that no log has; `None` if it was in none, and is gone.
    fn attributes_of(&self, inode: &InodeRef) -> Result<Option<InodeRecord>> {
        let mut state = inode.state.write();
        let Some(times) = state.unlogged.attributes.take() else { return Ok(None) };
        if state.fresh && !state.recorded && state.links() == 0 {
            return Ok(None);
        }
        state.recorded = true;
        let raw = &state.file.raw;
        let is_directory = inode.file_type() == FileType::Directory;
        let device_or_parent = match inode.file_type() {
            FileType::Directory if state.links() > 0 => {
                let parent = names::find(&*state, &self.view(), None, b"..")?;
                parent.ok_or_else(|| Error::missing("a \"..\" entry"))?.ino.0
            }
            FileType::CharDevice | FileType::BlockDevice => {
                let mut device = [0; 8];
                device.copy_from_slice(&raw.i_bmap[..8]);
                u64::from_le_bytes(device)
            }
            _ => 0,
        };
        Ok(Some(InodeRecord {
            ino: inode.ino(),
            generation: raw.i_generation.get(),
            mode: raw.i_mode.get(),
            links: raw.i_links_count.get(),
            uid: raw.i_uid.get(),
            gid: raw.i_gid.get(),
            flags: raw.i_flags.get(),
            device_or_parent,
            changed: time(times.changed),
            modified: match is_directory {
                true => Some(time(state.file.modified())),
                false => times.modified.map(time),
            },
        }))
    }
}

impl Gathered {
    /// Takes the content of a file that no log has. One without a name does not outlive a crash.
    fn add_content(&mut self, inode: InodeRef, block_size: BlockSize) {
        let mut state = inode.state.write();
        let has_content = matches!(inode.file_type(), FileType::Regular | FileType::Symlink);
        if !has_content || state.links() == 0 || !state.has_unlogged_content() {
            return;
        }
        let unlogged = std::mem::take(&mut state.unlogged);
        state.unlogged.attributes = unlogged.attributes;
        self.content.needs_records |= unlogged.size || unlogged.cut.is_some() || state.fresh;
        self.content.records.push(Record::Content(ContentRecord {
            ino: inode.ino(),
            generation: state.file.raw.i_generation.get(),
            size: state.size(),
            cut: unlogged.cut,
            modified: time(state.file.modified()),
            changed: time(state.file.changed()),
        }));
        let mut file = SyncedFile { ino: inode.ino(), pages: Vec::new() };
        let mut extents: Vec<ExtentRecord> = Vec::new();
        for (key, mut bytes) in std::mem::take(&mut state.overlay.unlogged) {
            // After the end there is nothing but zeros. But a block that is new must not be missing, so
            // at least its last byte before the end is logged.
            let before_end = state.size().saturating_sub(key.0 * block_size.bytes64());
            bytes.end = bytes.end.min(usize::try_from(before_end).unwrap_or(usize::MAX));
            bytes.start = bytes.start.min(bytes.end.saturating_sub(1));
            if bytes.is_empty() {
                continue;
            }
            let page = state.overlay.pages.get(&key).expect("a block that has changed is there");
            if let Some(placed) = page.placed {
                add_placed(&mut extents, inode.ino(), key, placed);
                continue;
            }
            let data = page.data.as_ref();
            let block = Block::clone(data.expect("a block that is in no log is in memory"));
            match bytes.len() == block.len() {
                true => file.pages.push((key, block)),
                false => {
                    self.partial.push(Partial { inode: Arc::clone(&inode), key, block, bytes });
                }
            }
        }
        drop(state);
        self.content.needs_records |= !extents.is_empty();
        self.content.records.extend(extents.into_iter().map(Record::Extent));
        if !file.pages.is_empty() {
            self.content.files.push(file);
            self.inodes.push(inode);
        }
    }

    /// Decides which blocks are written as such, and of which the changed bytes go into the summary:
    /// those of the smallest changes, if together they save a block. But without need none, so that
    /// Linux can recover what was overwritten.
    fn settled(mut self, block_size: BlockSize, has_announced_records: bool) -> Self {
        let may_be_bytes = self.content.needs_records || has_announced_records;
        let most = if may_be_bytes { self.partial.len() } else { 0 };
        let blocks = |bytes: usize| bytes.div_ceil(block_size.bytes());
        self.partial.sort_by_key(|partial| partial.bytes.len());
        let records: usize = self.content.records.iter().map(Record::size).sum();
        let items: usize =
            self.content.files.iter().map(|file| FINFO_SIZE + 16 * file.pages.len()).sum();
        let whole = HEADER_SIZE + HEAD_SIZE + records + items;
        let written: usize = self.content.files.iter().map(|file| file.pages.len()).sum();
        let sums = |more: usize| block_sums::size((written + more) as u64);
        let cost_of = |partials: &[Partial]| ITEM_SIZE * partials.len() + sums(partials.len());
        let (mut best, mut least) = (0, None);
        let mut bytes = 0;
        for count in 0..=most {
            let rest = &self.partial[count..];
            let total = blocks(whole + bytes + cost_of(rest)) + rest.len();
            if least.is_none_or(|least| total < least) {
                (best, least) = (count, Some(total));
            }
            bytes += self.partial.get(count).map_or(0, |it| BytesRecord::size(it.bytes.len()));
        }
        let as_blocks = self.partial.split_off(best);
        for Partial { inode, key, block, bytes } in std::mem::take(&mut self.partial) {
            let offset = key.0 * block_size.bytes64() + bytes.start as u64;
            let bytes = block[bytes].to_vec();
            let record = BytesRecord { ino: inode.ino(), offset, bytes };
            self.content.needs_records = true;
            self.content.records.push(Record::Bytes(record));
        }
        self.add_blocks(as_blocks);
        // Linux takes such a log for torn (docs/format.md §19).
        self.content.needs_records |= self.content.files.is_empty();
        self
    }

    /// Lets blocks be written as such, with those of the same files.
    fn add_blocks(&mut self, blocks: Vec<Partial>) {
        let files = self.content.files.iter().enumerate();
        let mut places: HashMap<Ino, usize> = files.map(|(nth, file)| (file.ino, nth)).collect();
        for Partial { inode, key, block, .. } in blocks {
            let nth = *places.entry(inode.ino()).or_insert_with(|| {
                self.content.files.push(SyncedFile { ino: inode.ino(), pages: Vec::new() });
                self.inodes.push(inode);
                self.inodes.len() - 1
            });
            let pages = &mut self.content.files[nth].pages;
            let at = pages.partition_point(|(other, _)| *other < key);
            pages.insert(at, (key, block));
        }
    }
}

/// Adds a block that was written ahead.
fn add_placed(extents: &mut Vec<ExtentRecord>, ino: Ino, offset: FileBlock, placed: Placed) {
    let Placed { vblocknr, block } = placed;
    if let Some(last) = extents.last_mut() {
        let count = u64::from(last.count);
        let follows = last.offset.0 + count == offset.0
            && last.vblocknr.plus(count) == vblocknr
            && last.block.plus(count) == block;
        if follows {
            last.count += 1;
            return;
        }
    }
    extents.push(ExtentRecord { ino, offset, vblocknr, block, count: 1 });
}

impl State {
    fn has_unlogged_content(&self) -> bool {
        self.unlogged.content || !self.overlay.unlogged.is_empty()
    }
}

fn time(time: Timestamp) -> Time {
    Time { seconds: time.seconds as u64, nanoseconds: time.nanoseconds }
}

/// Takes note of where a sync log has put the pages of a file. Some may have changed since. Returns how many
/// have not.
fn note_placed(state: &mut State, file: &SyncedFile, placed: Vec<Placed>) -> u64 {
    assert_eq!(placed.len(), file.pages.len(), "each block has its place in the log");
    let mut unchanged = 0;
    for ((key, data), placed) in file.pages.iter().zip(placed) {
        let same = |page: &&mut crate::overlay::Page| {
            page.data.as_ref().is_some_and(|now| Arc::ptr_eq(now, data))
        };
        match state.overlay.pages.get_mut(key).filter(same) {
            Some(page) => unchanged += u64::from(page.placed.replace(placed).is_none()),
            None => state.overlay.superseded.push(placed),
        }
    }
    unchanged
}
