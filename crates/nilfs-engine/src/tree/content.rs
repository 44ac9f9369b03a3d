//! The content of a file in layers: whatever is known in memory, and below it the map of a
//! checkpoint.
//!
//! Files of a [`Tree`](super::Tree) have nothing above the map, unless something was synced after
//! the checkpoint. Those of the live file system have what was changed; everything that only reads
//! is here, for both.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{BlockNr, FileBlock, VBlockNr};

use super::device_reads::DeviceReads;
use super::{File, View};
use crate::block::{Block, bytes_mut, zeroed};
use crate::error::{Error, Result};
use crate::overlay::{InMemory, Place};
use crate::types::Seek;

/// A part of a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

impl Extent {
    /// The first byte after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// What the map of a damaged file tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// Parts with data, ascending.
    pub data: Vec<Extent>,
    /// Parts of which it cannot be told whether there are data, ascending.
    pub unknown: Vec<Extent>,
}

/// A file whose content can be read.
pub(crate) trait Content {
    /// The file, with the map that lies below everything in memory.
    fn file(&self) -> &File;

    /// A block as memory has it; `None`: the map below tells.
    fn in_memory(&self, _key: FileBlock) -> Option<Place<'_>> {
        None
    }

    /// What memory has from a block on.
    fn all_in_memory(&self, _from: FileBlock) -> InMemory {
        InMemory::default()
    }

    /// Where the content of a block comes from.
    fn place(&self, view: &View, key: FileBlock) -> Result<Place<'_>> {
        if let Some(place) = self.in_memory(key) {
            return Ok(place);
        }
        let source = view.source();
        Ok(match source.lookup(self.file().map()?, key)? {
            Some(pointer) => Place::Device(source.locate(pointer)?),
            None => Place::Hole,
        })
    }

    /// Whether a block is a hole. To replace one as a whole takes no more than this, and so not the
    /// DAT, which the commit before has changed if small writes alternate with fsyncs.
    fn is_hole(&self, view: &View, key: FileBlock) -> Result<bool> {
        match self.in_memory(key) {
            Some(place) => Ok(matches!(place, Place::Hole)),
            None => Ok(view.source().lookup(self.file().map()?, key)?.is_none()),
        }
    }

    /// The content of a block, `None` for a hole. That of metadata is kept in the cache.
    fn block(&self, view: &View, key: FileBlock) -> Result<Option<Block>> {
        match self.place(view, key)? {
            Place::Memory(block) => Ok(Some(Arc::clone(block))),
            Place::Hole => Ok(None),
            Place::Device(address) if self.file().file_type() != FileType::Regular => {
                view.store.read(address).map(Some)
            }
            Place::Device(address) => {
                let mut block = zeroed(view.store.block_size());
                view.store.read_content(address, bytes_mut(&mut block))?;
                view.store.set_right(address, bytes_mut(&mut block))?;
                // It will be written anew, with a checksum that makes damage right.
                view.store.check(address, &block)?;
                Ok(Some(block))
            }
        }
    }

    /// Calls `visit` with every block from `from` on that is not a hole, ascending.
    fn scan(
        &self,
        view: &View,
        from: FileBlock,
        visit: &mut dyn FnMut(FileBlock) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let InMemory { blocks, end_below } = self.all_in_memory(from);
        let mut above = blocks.into_iter().peekable();
        let mut stopped = false;
        view.source().scan(self.file().map()?, from, &mut |key, _| {
            if end_below.is_some_and(|end| key >= end) {
                return Ok(ControlFlow::Break(()));
            }
            while let Some(above) = above.next_if(|above| *above < key) {
                if visit(above)?.is_break() {
                    stopped = true;
                    return Ok(ControlFlow::Break(()));
                }
            }
            above.next_if_eq(&key);
            let flow = visit(key)?;
            stopped = flow.is_break();
            Ok(flow)
        })?;
        for key in above {
            if stopped || visit(key)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Fills `buffer` from `offset`, as far as the file goes. Returns the number of bytes.
    fn read(&self, view: &View, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let left = self.file().size().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let (ino, part) = (self.file().ino(), offset..offset + count as u64);
        let end = FileBlock(view.store.block_size().blocks_for(part.end));
        let below = Addresses::below(end);
        let (device, buffer) = (DeviceReads::default(), &mut buffer[..count]);
        let asked = view.sequences.begin(ino, &part);
        let places = Reader { content: self, view, below, device, buffer, asked }.read(offset)?;
        if let Some(ahead) = view.sequences.answer(ino, &part, places)
            && let Err(error) = self.ask(view, ahead)
        {
            tracing::debug!("not asked for ahead: {error}");
        }
        Ok(count)
    }

    /// Asks the device for a part of the file that will be read soon, as far as the map below has it.
    fn ask(&self, view: &View, part: Range<u64>) -> Result<()> {
        let (block_size, end) = (view.store.block_size(), part.end.min(self.file().size()));
        if part.start >= end {
            return Ok(());
        }
        let keys = block_size.block_of(part.start).0..block_size.blocks_for(end);
        let found = resolve(self.file(), view, keys)?;
        let mut device = DeviceReads::default();
        for (nth, block) in found.into_iter().enumerate().filter(|(_, block)| block.0 != 0) {
            let start = nth * block_size.bytes();
            device.add(block_size, block, 0, start..start + block_size.bytes());
        }
        device.ask(&view.store);
        Ok(())
    }

    /// The next data or hole at or after `offset`.
    fn seek(&self, view: &View, offset: u64, what: Seek) -> Result<u64> {
        if offset >= self.file().size() {
            return Err(Error::NoData);
        }
        let block_size = view.store.block_size();
        let from = block_size.block_of(offset);
        let mut hole = from;
        let mut data = None;
        self.scan(view, from, &mut |key| {
            data.get_or_insert(key);
            let in_row = key == hole;
            hole = if in_row { key.plus(1) } else { hole };
            let go_on = what == Seek::Hole && in_row;
            Ok(if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        let start = |key: FileBlock| offset.max(key.0.saturating_mul(block_size.bytes64()));
        match what {
            Seek::Hole => Ok(start(hole).min(self.file().size())),
            Seek::Data => {
                data.map(start).filter(|&start| start < self.file().size()).ok_or(Error::NoData)
            }
        }
    }

    /// The parts of the file that are data, in bytes, from `offset` on, at most `limit`.
    fn extents(&self, view: &View, offset: u64, limit: usize) -> Result<Vec<Extent>> {
        let block_size = view.store.block_size();
        let size = self.file().size();
        let mut extents: Vec<Extent> = Vec::new();
        self.scan(view, block_size.block_of(offset), &mut |key| {
            let start = key.0.saturating_mul(block_size.bytes64());
            if start >= size {
                return Ok(ControlFlow::Break(()));
            }
            let end = start.saturating_add(block_size.bytes64()).min(size);
            let full = extents.len() == limit;
            match extents.last_mut() {
                Some(last) if last.end() == start => last.length = end - last.offset,
                _ if full => return Ok(ControlFlow::Break(())),
                _ => {
                    let offset = start.max(offset);
                    extents.push(Extent { offset, length: end - offset });
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(extents)
    }

    /// What the map tells although parts of it are damaged.
    fn survey(&self, view: &View) -> Result<Survey> {
        let InMemory { blocks, end_below } = self.all_in_memory(FileBlock(0));
        let end = end_below.map_or(u64::MAX, |end| end.0);
        let (mut data, mut unknown) = (Runs::default(), Runs::default());
        let mut visit = |key: FileBlock, _| {
            data.add(key.0..key.0.saturating_add(1).min(end));
            Ok(if key.0 < end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        };
        let mut lost = |keys: Range<u64>, error| {
            tracing::debug!("passed over: {error}");
            unknown.add(keys.start..keys.end.min(end));
            Ok(())
        };
        match self.file().map() {
            Ok(map) => view.source().scan_around(map, FileBlock(0), &mut visit, &mut lost)?,
            Err(error) => lost(0..end, error)?,
        };
        blocks.iter().for_each(|key| data.add(key.0..key.0.saturating_add(1)));
        let (size, block_size) = (self.file().size(), view.store.block_size().bytes64());
        Ok(Survey {
            data: data.extents(block_size, size),
            unknown: unknown.extents(block_size, size),
        })
    }

    /// The target of a symbolic link.
    fn link_target(&self, view: &View) -> Result<Vec<u8>> {
        if self.file().file_type() != FileType::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let block = self.block(view, FileBlock(0))?;
        let size = usize::try_from(self.file().size()).ok();
        let target = block.and_then(|block| Some(block.get(..size?)?.to_vec()));
        let name = || format!("the target of symbolic link {}", self.file().ino());
        match target.filter(|target| !target.is_empty()) {
            // No path has a zero byte in it, and no system call takes one.
            Some(target) if target.contains(&0) => {
                Err(Error::Inconsistent(format!("{} has zero bytes in it", name())))
            }
            Some(target) => Ok(target),
            None => Err(Error::missing(name())),
        }
    }
}

/// Blocks that follow each other, taken together.
#[derive(Default)]
struct Runs(Vec<Range<u64>>);

impl Runs {
    fn add(&mut self, keys: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == keys.start => last.end = keys.end,
            _ => self.0.push(keys),
        }
    }

    /// In bytes, ascending, and only within the file.
    fn extents(mut self, block_size: u64, size: u64) -> Vec<Extent> {
        self.0.sort_unstable_by_key(|keys| keys.start);
        let byte = |key: u64| key.saturating_mul(block_size).min(size);
        let mut extents: Vec<Extent> = Vec::new();
        for keys in self.0 {
            let (start, end) = (byte(keys.start), byte(keys.end));
            match extents.last_mut() {
                Some(last) if start <= last.end() => {
                    last.length = last.length.max(end.saturating_sub(last.offset));
                }
                _ if start < end => extents.push(Extent { offset: start, length: end - start }),
                _ => {}
            }
        }
        extents
    }
}

/// Where the blocks of a range of a file are in its checkpoint, looked up together, through the map
/// and the DAT, when the first of them is asked for.
struct Addresses {
    /// The blocks in question, from the first that was asked for.
    keys: Range<u64>,
    /// 0 = a hole; empty until the first is asked for.
    found: Vec<BlockNr>,
}

impl Addresses {
    /// Of the blocks below `end`.
    fn below(end: FileBlock) -> Self {
        Self { keys: 0..end.0, found: Vec::new() }
    }

    /// Where a block is; `None` for a hole. Blocks are asked for in ascending order.
    fn of(&mut self, file: &File, view: &View, key: FileBlock) -> Result<Option<BlockNr>> {
        if self.found.is_empty() {
            self.keys.start = key.0;
            self.found = resolve(file, view, self.keys.clone())?;
        }
        let nth = key.0.checked_sub(self.keys.start).and_then(|nth| usize::try_from(nth).ok());
        let found = nth.and_then(|nth| self.found.get(nth)).copied();
        Ok(found.filter(|address| address.0 != 0))
    }
}

fn resolve(file: &File, view: &View, keys: Range<u64>) -> Result<Vec<BlockNr>> {
    let count = keys.end.saturating_sub(keys.start);
    let mut found = vec![BlockNr(0); usize::try_from(count).unwrap_or(usize::MAX)];
    let mut translator = view.dat.translator(&view.store);
    view.source().scan(file.map()?, FileBlock(keys.start), &mut |key, pointer| {
        let Some(slot) = found.get_mut((key.0 - keys.start) as usize) else {
            return Ok(ControlFlow::Break(()));
        };
        *slot = translator.translate(VBlockNr(pointer))?;
        Ok(if key.0 + 1 == keys.end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
}

/// Fills a buffer from a file.
struct Reader<'a, C: ?Sized> {
    content: &'a C,
    view: &'a View,
    below: Addresses,
    device: DeviceReads,
    buffer: &'a mut [u8],
    /// Whether the device has been asked for it.
    asked: bool,
}

impl<C: Content + ?Sized> Reader<'_, C> {
    /// Fills all of the buffer from `offset`; the range lies within the file. Returns in how many places
    /// of the device it lay.
    fn read(mut self, offset: u64) -> Result<usize> {
        let block_size = self.view.store.block_size();
        let mut filled = 0;
        while filled < self.buffer.len() {
            let at = offset + filled as u64;
            let within = (at % block_size.bytes64()) as usize;
            let count = (block_size.bytes() - within).min(self.buffer.len() - filled);
            self.read_block(block_size.block_of(at), within, filled..filled + count)?;
            filled += count;
        }
        self.device.read(&self.view.store, self.buffer, self.asked)
    }

    /// Fills a part of the buffer from one block, unless that has to come from the device.
    fn read_block(&mut self, key: FileBlock, within: usize, part: Range<usize>) -> Result<()> {
        let content = self.content;
        let place = match content.in_memory(key) {
            Some(place) => place,
            None => {
                let found = self.below.of(content.file(), self.view, key)?;
                found.map_or(Place::Hole, Place::Device)
            }
        };
        match place {
            Place::Memory(block) => {
                let end = within + part.len();
                self.buffer[part].copy_from_slice(&block[within..end]);
            }
            Place::Hole => self.buffer[part].fill(0),
            Place::Device(block) => {
                self.device.add(self.view.store.block_size(), block, within, part);
            }
        }
        Ok(())
    }
}
