//! What a mount would roll forward onto the newest checkpoint (docs/format.md §19): whether each record
//! fits the checkpoint and those before it, and the names and links that come out in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::roll_forward::{
    BytesRecord, ContentRecord, ExtentRecord, InodeRecord, NameRecord, Record,
};

use crate::block_map::Life;
use crate::checker::Checker;
use crate::directory::Directory;
use crate::inode::InodeFacts;
use crate::namespace::InodeTable;
use crate::report::{Location, Rule};

/// What an fsync has written.
pub(crate) struct SyncLog {
    pub(crate) place: Location,
    /// Linux writes none.
    pub(crate) records: Option<Vec<Record>>,
    /// Files of which it has blocks.
    pub(crate) files: BTreeSet<Ino>,
}

impl SyncLog {
    /// The inodes that it is about.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = Ino> {
        let records = self.records.iter().flatten().map(Record::ino);
        self.files.iter().copied().chain(records)
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
        for log in &newest.sync_logs {
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
        log.files.iter().for_each(|ino| note(after.file_with_content(*ino).map(drop)));
        faults
    }

    fn bytes(&self, record: &BytesRecord, after: &mut After<'_>) -> Result<(), Fault> {
        after.file_with_content(record.ino)?;
        let block_size = self.volume.block_size().bytes64();
        let end = record.offset % block_size + record.bytes.len() as u64;
        match end <= block_size {
            true => Ok(()),
            false => {
                Err((record.ino, "a sync log has bytes of it beyond the end of a block".into()))
            }
        }
    }

    fn extent(&self, record: &ExtentRecord, after: &mut After<'_>) -> Result<(), Fault> {
        after.file_with_content(record.ino)?;
        let last = record.block.plus(u64::from(record.count) - 1);
        let geometry = &self.volume.geometry;
        match geometry.has_block(record.block) && geometry.has_block(last) {
            true => Ok(()),
            false => Err((record.ino, "a sync log has blocks of it beyond the volume".into())),
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
                file_type,
                links: 0,
                generation: record.generation,
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
        self.file_with_content(record.ino).map(drop)
    }

    fn into_table(self) -> InodeTable {
        let mut all: BTreeMap<Ino, Rc<InodeFacts>> = self.checkpoint.shared().collect();
        all.extend(self.changed.into_iter().map(|(ino, facts)| (ino, Rc::new(facts))));
        let mut table = InodeTable::new(self.checkpoint.incomplete);
        all.into_iter().for_each(|(ino, facts)| table.push(ino, facts));
        table
    }
}
