//! What a mount would roll forward onto the newest checkpoint (docs/format.md §19): whether each record
//! fits the checkpoint and those before it, and the names and links that come out in the end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::roll_forward::{
    BytesRecord, ContentRecord, ExtentRecord, InodeRecord, NameRecord, Record,
};
use nilfs_ondisk::summary::{BlockInfo, FileInfo};
use nilfs_ondisk::{BlockNr, FileBlock, Ino, VBlockNr};

use crate::block_map::Life;
use crate::checker::Checker;
use crate::directory::Directory;
use crate::files::{Files, Inode};
use crate::inode::InodeFacts;
use crate::recovery::given_up;
use crate::report::{Location, Rule};

/// What has been written after the newest checkpoint.
#[derive(Default)]
pub(crate) struct Synced {
    /// What fsyncs have written, in order.
    pub(crate) logs: Vec<SyncLog>,
    /// Whether some of it is lost for those who know no records.
    pub(crate) only_by_records: bool,
    /// The blocks of files in all logs.
    blocks: HashMap<BlockNr, FileData>,
    /// Blocks of logs that a mount does not come by.
    pub(crate) passed_over: Vec<PassedOver>,
}

/// The rest of a segment from a log on that is damaged.
pub(crate) struct PassedOver {
    pub(crate) blocks: Range<BlockNr>,
    /// The fault of the log, in words.
    pub(crate) fault: String,
}

/// Which block of which file, and its number.
type FileData = (Ino, FileBlock, VBlockNr);

impl Synced {
    /// Blocks in earlier logs to which records refer.
    pub(crate) fn extents(&self) -> impl Iterator<Item = &ExtentRecord> {
        let records = self.logs.iter().flat_map(|log| log.records.iter().flatten());
        records.filter_map(|record| match record {
            Record::Extent(extent) => Some(extent),
            _ => None,
        })
    }

    /// Whether a block of a file is what a record says of it, as far as a log tells that can be read.
    fn confirms(&self, block: BlockNr, expected: FileData) -> bool {
        match self.blocks.get(&block) {
            Some(found) => *found == expected,
            None => self.passed_over.iter().any(|it| it.blocks.contains(&block)),
        }
    }

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

/// An inode with what has been rolled forward so far.
struct Changed {
    file_type: Option<FileType>,
    links: u16,
    generation: u32,
    size: u64,
    /// Of a directory that was made or moved.
    parent: Option<Ino>,
    /// Names that lead somewhere else now, or nowhere.
    names: BTreeMap<Vec<u8>, Option<(Ino, FileType)>>,
}

/// The inodes of the newest checkpoint with what has been rolled forward so far.
struct After<'a> {
    checker: &'a Checker<'a, 'a>,
    files: &'a Files,
    changed: BTreeMap<Ino, Changed>,
}

/// What is wrong, and with which inode.
type Fault = (Ino, String);

impl Checker<'_, '_> {
    /// Judges the sync logs, given the files of the newest checkpoint.
    pub(crate) fn check_sync_logs(&mut self, files: &mut Files) {
        let newest = self.newest;
        let mut after = After { checker: self, files, changed: BTreeMap::new() };
        let mut found = Vec::new();
        for log in &newest.synced.logs {
            found.extend(
                self.faults_of(log, &mut after).into_iter().map(|fault| (log.place, fault)),
            );
        }
        let changed = after.changed;
        // What cannot be read is reported where it was to be read.
        if !files.is_incomplete() {
            for (place, (ino, fault)) in found {
                let error = self.error(Rule::RollForward, place.ino(ino), || {
                    format!("{fault}: a mount would fail")
                });
                error.corrected_by(given_up(place));
            }
        }
        if !changed.is_empty() {
            self.check_changed_names(files, changed);
        }
    }

    /// Checks the names as they are after a mount. `files` are afterwards as they were.
    fn check_changed_names(&mut self, files: &mut Files, changed: BTreeMap<Ino, Changed>) {
        let mut old_names = Vec::new();
        for (directory, change) in changed.iter().filter(|(_, change)| !change.names.is_empty()) {
            self.each_name(files, *directory, &mut |_, name| {
                if change.names.contains_key(name.name) {
                    old_names.push((*directory, name.ino));
                }
            });
        }
        let new_targets = changed.values().flat_map(|it| it.names.values().flatten());
        let touched: BTreeSet<Ino> = changed
            .keys()
            .copied()
            .chain(old_names.iter().map(|(_, ino)| *ino))
            .chain(new_targets.map(|(ino, _)| *ino))
            .collect();
        let before: Vec<(Ino, Inode)> =
            touched.iter().map(|ino| (*ino, files.inode(*ino).clone())).collect();
        let waiting = files.waiting.clone();
        for (directory, ino) in old_names {
            files.remove_name(directory, ino);
        }
        for (ino, change) in &changed {
            files.inode_mut(*ino).roll_forward(change);
        }
        for (directory, change) in changed {
            // A directory that has been removed has no names that anybody can see.
            if files.inode(directory).facts.as_ref().is_none_or(|facts| facts.directory.is_none()) {
                continue;
            }
            for (ino, file_type) in change.names.values().flatten() {
                files.add_name(directory, *ino, Some(*file_type));
            }
            files.changed_names.insert(directory, change.names);
        }
        self.check_names(files, touched.into_iter().collect());
        files.changed_names.clear();
        files.waiting = waiting;
        for (ino, inode) in before {
            *files.inode_mut(ino) = inode;
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
            !self.newest.synced.confirms(record.block.plus(*nth), expected)
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
    fn get(&mut self, ino: Ino) -> Result<&mut Changed, Fault> {
        if !self.changed.contains_key(&ino) {
            let found = self.unchanged(ino);
            let missing = || (ino, "a sync log is for this inode, which does not exist".to_owned());
            self.changed.insert(ino, found.ok_or_else(missing)?);
        }
        Ok(self.changed.get_mut(&ino).expect("it was inserted"))
    }

    fn of_generation(&mut self, ino: Ino, generation: u32) -> Result<&mut Changed, Fault> {
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

    fn file_with_content(&mut self, ino: Ino) -> Result<&mut Changed, Fault> {
        let facts = self.get(ino)?;
        match facts.file_type {
            Some(FileType::Regular | FileType::Symlink) | None => Ok(facts),
            Some(other) => Err((ino, format!("a sync log has content of a {}", other.in_words()))),
        }
    }

    fn inode(&mut self, record: &InodeRecord) -> Result<(), Fault> {
        let ino = record.ino;
        let file_type = FileType::from_mode(record.mode);
        let is_new = !self.changed.contains_key(&ino) && self.unchanged(ino).is_none();
        if is_new {
            let made = Changed {
                file_type,
                links: 0,
                generation: record.generation,
                size: 0,
                parent: None,
                names: BTreeMap::new(),
            };
            self.changed.insert(ino, made);
        }
        let facts = self.of_generation(ino, record.generation)?;
        if facts.file_type != file_type {
            let [is, was] = [file_type, facts.file_type]
                .map(|it| it.map_or("file of unknown type", FileType::in_words));
            let fault = format!("a sync log makes a {is} of a {was}");
            return Err((ino, fault));
        }
        facts.links = record.links;
        if file_type == Some(FileType::Directory) && record.links > 0 {
            facts.parent = Some(Ino(record.device_or_parent));
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
        facts.names.insert(record.name.clone(), record.target);
        Ok(())
    }

    fn content(&mut self, record: &ContentRecord) -> Result<(), Fault> {
        self.of_generation(record.ino, record.generation)?;
        self.file_with_content(record.ino)?.size = record.size;
        Ok(())
    }

    /// An inode as the checkpoint has it.
    fn unchanged(&self, ino: Ino) -> Option<Changed> {
        let facts = self.files.inode(ino).facts.as_ref()?;
        let inode = self.checker.raw_inode(self.files, ino)?;
        Some(Changed {
            file_type: facts.file_type,
            links: facts.links,
            generation: inode.i_generation.get(),
            size: inode.i_size.get(),
            parent: None,
            names: BTreeMap::new(),
        })
    }
}

impl Inode {
    /// It is as sync logs say.
    fn roll_forward(&mut self, change: &Changed) {
        let facts = self.facts.get_or_insert(InodeFacts {
            file_type: change.file_type,
            links: 0,
            whole: true,
            blocks: 0,
            start: Life::ALWAYS.start,
            directory: None,
        });
        facts.links = change.links;
        if let Some(parent) = change.parent {
            let directory =
                facts.directory.get_or_insert_with(|| Box::new(Directory::empty(parent)));
            directory.parent = Some(parent);
        }
        if change.links == 0 {
            facts.directory = None;
        }
    }
}
