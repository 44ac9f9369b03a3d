//! What a mount would roll forward onto the newest checkpoint (docs/format.md §19): whether each record
//! fits the checkpoint and those before it, and the names and links that come out in the end.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::roll_forward::{
    BytesRecord, ContentRecord, ExtentRecord, InodeRecord, NameRecord, Record,
};
use nilfs_ondisk::summary::{BlockInfo, FileInfo};
use nilfs_ondisk::{BlockNr, FileBlock, Ino, VBlockNr};

use crate::block_map::Life;
use crate::checker::Checker;
use crate::directory::Directory;
use crate::inode::InodeFacts;
use crate::namespace::InodeTable;
use crate::report::{Location, Rule};

/// What has been written after the newest checkpoint.
#[derive(Default)]
pub(crate) struct Synced {
    /// What fsyncs have written, in order.
    pub(crate) logs: Vec<SyncLog>,
    /// The blocks of files in all logs.
    blocks: HashMap<BlockNr, FileData>,
}

/// Which block of which file, and its number.
type FileData = (Ino, FileBlock, VBlockNr);

impl Synced {
    /// Takes note of the blocks of a log, of which the first after its summary is given.
    pub(crate) fn note_blocks(&mut self, first: BlockNr, files: &[FileInfo]) {
        let all = files.iter().flat_map(|file| file.blocks.iter().map(|block| (file.ino, block)));
        for (nth, (ino, block)) in (0..).zip(all) {
            if let BlockInfo::Data { offset, vblocknr } = *block {
                self.blocks.insert(first.plus(nth), (ino, offset, vblocknr));
            }
        }
    }
}

/// What an fsync has written.
pub(crate) struct SyncLog {
    pub(crate) place: Location,
    /// Linux writes none.
    pub(crate) records: Option<Vec<Record>>,
    /// Files of which it has blocks, and the last of these in the file.
    pub(crate) files: BTreeMap<Ino, FileBlock>,
}

impl SyncLog {
    /// The inodes that it is about.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = Ino> {
        let records = self.records.iter().flatten().map(Record::ino);
        self.files.keys().copied().chain(records)
    }
}

/// The inodes of the newest checkpoint with what has been rolled forward so far.
struct After<'a> {
    checkpoint: &'a InodeTable,
    changed: BTreeMap<Ino, InodeFacts>,
}

/// What is wrong, and with which inode.
type Fault = (Ino, String);

impl Checker<'_, '_> {
    /// Judges the sync logs, given the inodes of the newest checkpoint.
    pub(crate) fn check_sync_logs(&mut self, table: &InodeTable) {
        let newest = self.newest;
        let mut after = After { checkpoint: table, changed: BTreeMap::new() };
        for log in &newest.synced.logs {
            for (ino, fault) in self.faults_of(log, &mut after) {
                // What cannot be read is reported where it was to be read.
                if !table.incomplete {
                    self.error(Rule::RollForward, log.place.ino(ino), || {
                        format!("{fault}: a mount would fail")
                    });
                }
            }
        }
        if !after.changed.is_empty() {
            self.check_names(newest.cno, &after.into_table());
        }
    }

    fn faults_of(&self, log: &SyncLog, after: &mut After<'_>) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut note = |result: Result<(), Fault>| faults.extend(result.err());
        for record in log.records.iter().flatten() {
            note(match record {
                Record::Inode(record) => after.inode(record),
                Record::Name(record) => after.name(record),
                Record::Content(record) => after.content(record),
                Record::Bytes(record) => self.bytes(record, after),
                Record::Extent(record) => self.extent(record, after),
            });
        }
        for (ino, last) in &log.files {
            // Linux writes no size along.
            let last = log.records.as_ref().map(|_| *last);
            note(self.content_of(*ino, last, after));
        }
        faults
    }

    /// Judges that a sync log can have content of a file, up to a block.
    fn content_of(
        &self,
        ino: Ino,
        last: Option<FileBlock>,
        after: &mut After<'_>,
    ) -> Result<(), Fault> {
        let facts = after.file_with_content(ino)?;
        match last {
            Some(last) if last.0 >= self.volume.block_size().blocks_for(facts.size) => Err((
                ino,
                format!("a sync log has block {last} of it, but its size is {}", facts.size),
            )),
            _ => Ok(()),
        }
    }

    fn bytes(&self, record: &BytesRecord, after: &mut After<'_>) -> Result<(), Fault> {
        let block_size = self.volume.block_size();
        self.content_of(record.ino, Some(block_size.block_of(record.offset)), after)?;
        let end = record.offset % block_size.bytes64() + record.bytes.len() as u64;
        match end <= block_size.bytes64() {
            true => Ok(()),
            false => {
                Err((record.ino, "a sync log has bytes of it beyond the end of a block".into()))
            }
        }
    }

    fn extent(&self, record: &ExtentRecord, after: &mut After<'_>) -> Result<(), Fault> {
        let others = u64::from(record.count) - 1;
        self.content_of(record.ino, Some(FileBlock(record.offset.0 + others)), after)?;
        let wrong = (0..u64::from(record.count)).find(|nth| {
            let offset = FileBlock(record.offset.0 + nth);
            let expected = (record.ino, offset, record.vblocknr.plus(*nth));
            self.newest.synced.blocks.get(&record.block.plus(*nth)) != Some(&expected)
        });
        match wrong {
            None => Ok(()),
            Some(nth) => Err((
                record.ino,
                format!(
                    "a sync log says that block {} is of it, which no log after the checkpoint says",
                    record.block.plus(nth)
                ),
            )),
        }
    }
}

impl After<'_> {
    fn get(&mut self, ino: Ino) -> Result<&mut InodeFacts, Fault> {
        if !self.changed.contains_key(&ino) {
            let found = self.checkpoint.get(ino).cloned();
            let missing = || (ino, "a sync log is for this inode, which does not exist".to_owned());
            self.changed.insert(ino, found.ok_or_else(missing)?);
        }
        Ok(self.changed.get_mut(&ino).expect("it was inserted"))
    }

    fn of_generation(&mut self, ino: Ino, generation: u32) -> Result<&mut InodeFacts, Fault> {
        let facts = self.get(ino)?;
        match facts.generation == generation {
            true => Ok(facts),
            false => Err((
                ino,
                format!(
                    "a sync log is for generation {generation} of this inode, which is {} now",
                    facts.generation
                ),
            )),
        }
    }

    fn file_with_content(&mut self, ino: Ino) -> Result<&mut InodeFacts, Fault> {
        let facts = self.get(ino)?;
        match facts.file_type {
            Some(FileType::Regular | FileType::Symlink) | None => Ok(facts),
            Some(other) => Err((ino, format!("a sync log has content of a {other:?}"))),
        }
    }

    fn inode(&mut self, record: &InodeRecord) -> Result<(), Fault> {
        let ino = record.ino;
        let file_type = FileType::from_mode(record.mode);
        let is_new = !self.changed.contains_key(&ino) && self.checkpoint.get(ino).is_none();
        if is_new {
            let made = InodeFacts {
                at: None,
                file_type,
                links: 0,
                generation: record.generation,
                size: 0,
                blocks: 0,
                life: Life::ALWAYS,
                whole: true,
                directory: None,
            };
            self.changed.insert(ino, made);
        }
        let facts = self.of_generation(ino, record.generation)?;
        if facts.file_type != file_type {
            let fault = format!("a sync log makes a {file_type:?} of a {:?}", facts.file_type);
            return Err((ino, fault));
        }
        facts.links = record.links;
        if file_type == Some(FileType::Directory) && record.links > 0 {
            let empty = || Rc::new(Directory::empty());
            let directory = Rc::make_mut(facts.directory.get_or_insert_with(empty));
            directory.parent = Some(Ino(record.device_or_parent));
        }
        Ok(())
    }

    fn name(&mut self, record: &NameRecord) -> Result<(), Fault> {
        let facts = self.get(record.directory)?;
        if !matches!(facts.file_type, Some(FileType::Directory) | None) {
            return Err((
                record.directory,
                "a sync log has a name in it: it is no directory".into(),
            ));
        }
        // A directory that has been removed has no names that anybody can see.
        if let Some(directory) = &mut facts.directory {
            Rc::make_mut(directory).changed.insert(record.name.clone(), record.target);
        }
        Ok(())
    }

    fn content(&mut self, record: &ContentRecord) -> Result<(), Fault> {
        self.of_generation(record.ino, record.generation)?;
        self.file_with_content(record.ino)?.size = record.size;
        Ok(())
    }

    fn into_table(self) -> InodeTable {
        let mut all: BTreeMap<Ino, Rc<InodeFacts>> = self.checkpoint.shared().collect();
        all.extend(self.changed.into_iter().map(|(ino, facts)| (ino, Rc::new(facts))));
        let mut table = InodeTable::new(self.checkpoint.incomplete);
        all.into_iter().for_each(|(ino, facts)| table.push(ino, facts));
        table
    }
}
