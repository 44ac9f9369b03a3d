//! Snapshots of a mounted volume: which checkpoints are kept, and what is noted about them.

use nilfs_ondisk::Cno;
use nilfs_ondisk::checkpoint::RawCheckpoint;
use nilfs_ondisk::notes::{MadeBy, Note, NoteText, SnapshotName};
use serde::{Deserialize, Serialize};

use super::Filesystem;
use super::admin::change_metadata;
use crate::checkpoints;
use crate::commit::{MetadataChanges, root_of};
use crate::error::{Error, Result};
use crate::log::segment_writer::SegmentWriter;
use crate::tree::Kept;
use crate::writer::space::Effect;
use crate::xattr_file::{self, NotesFound, XattrFile};

/// What is to become of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotChange {
    /// It is a snapshot from now on, if it is none yet. What is not said about it stays as it is.
    Keep {
        /// The checkpoint.
        cno: Cno,
        /// Who wants it. What somebody wants to have is no longer the retention's; the other way
        /// round, nothing changes.
        made_by: MadeBy,
        /// How it is called from now on.
        name: Option<SnapshotName>,
        /// What is noted about it from now on.
        text: Option<NoteText>,
    },
    /// It is an ordinary checkpoint from now on, with neither name nor note.
    Release {
        /// The checkpoint.
        cno: Cno,
        /// Who does not want it any more. The retention lets go of nothing but what it made.
        made_by: MadeBy,
    },
}

impl SnapshotChange {
    /// Keeps a checkpoint, or lets go of it, as somebody who says no more than that.
    #[must_use]
    pub fn plain(cno: Cno, snapshot: bool) -> Self {
        let made_by = MadeBy::User;
        match snapshot {
            true => Self::Keep { cno, made_by, name: None, text: None },
            false => Self::Release { cno, made_by },
        }
    }

    /// The checkpoint.
    #[must_use]
    pub fn cno(&self) -> Cno {
        match self {
            Self::Keep { cno, .. } | Self::Release { cno, .. } => *cno,
        }
    }

    /// Whether there is more to be noted afterwards.
    fn says_something(&self) -> bool {
        let nothing = Self::plain(self.cno(), true);
        self.keeps() && *self != nothing
    }

    fn keeps(&self) -> bool {
        matches!(self, Self::Keep { .. })
    }
}

impl Filesystem {
    /// Makes a snapshot of a checkpoint, or an ordinary checkpoint of a snapshot. Durable on
    /// return.
    ///
    /// # Errors
    /// As [`Filesystem::change_snapshots`].
    pub fn set_snapshot(&self, cno: Cno, snapshot: bool) -> Result<()> {
        self.change_snapshots(&[SnapshotChange::plain(cno, snapshot)])
    }

    /// Makes all of these changes in one checkpoint, or none. Durable on return.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], [`Error::NameTaken`], [`Error::TooManyNotes`], [`Error::ReadOnly`],
    /// damage, a device error; notes of a later version, unless nothing changes in them.
    pub fn change_snapshots(&self, changes: &[SnapshotChange]) -> Result<()> {
        let pinned = self.pin(changes)?;
        let grows = changes.iter().any(SnapshotChange::keeps);
        let effect = if grows { Effect::Grows } else { Effect::Frees };
        let notes = changes.iter().any(SnapshotChange::says_something);
        self.admit_metadata_change(
            effect,
            if notes { xattr_file::blocks(&self.view()) } else { 0 },
        )?;
        let mut session = self.writing().write_ahead()?;
        drop(pinned);
        let mut changes = self.changes_of_metadata(&session, changes)?;
        if changes.is_empty() {
            return Ok(());
        }
        match change_metadata(&mut session, &changes) {
            // A note without its snapshot does not count, so it need not go at once.
            Err(Error::NoSpace) if !grows && changes.xattr_file.take().is_some() => {
                change_metadata(&mut session, &changes)?;
                Ok(())
            }
            done => done.map(|_| ()),
        }
    }

    /// What is noted about snapshots, by ascending number. Snapshots without a note are not there.
    ///
    /// # Errors
    /// The notes are damaged or of a later version; a device error.
    pub fn notes(&self) -> Result<Vec<Note>> {
        let log = self.writer.look();
        let cpfile = root_of(&log.base().super_root.cpfile)?;
        let view = log.view();
        drop(log);
        xattr_file::readable_notes(&view, &cpfile)
    }

    /// Keeps checkpoints from being given up until they are snapshots.
    fn pin(&self, changes: &[SnapshotChange]) -> Result<Vec<Kept>> {
        let session = self.writing().session()?;
        let pin = |change: &SnapshotChange| {
            entry_of(&session, change.cno())?;
            self.writer.trees.keep(change.cno())
        };
        changes.iter().map(pin).collect()
    }

    /// What changes in the cpfile and in the notes.
    pub(super) fn changes_of_metadata(
        &self,
        log: &SegmentWriter,
        wanted: &[SnapshotChange],
    ) -> Result<MetadataChanges> {
        let mut changes = MetadataChanges::default();
        let cpfile = root_of(&log.base().super_root.cpfile)?;
        let known = match xattr_file::notes(&log.view(), &cpfile) {
            Ok(NotesFound::Whole(notes)) => Ok(notes),
            Ok(NotesFound::Damaged(error)) => {
                tracing::warn!("names and notes of snapshots are lost: {error}");
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        };
        let mut notes = known.as_deref().unwrap_or_default().to_vec();
        for change in wanted {
            let entry = entry_of(log, change.cno())?;
            if let Some(snapshot) = change_notes(change, &entry, &mut notes)? {
                changes.snapshots.push((change.cno(), snapshot));
            }
        }
        match known {
            Ok(known) if known == notes => {}
            Ok(_) => {
                let now = self.now().seconds as u64;
                changes.xattr_file = Some(XattrFile::with_notes(&log.view(), &notes, now)?);
            }
            // They are left alone, unless somebody wants to note something.
            Err(_) if notes.is_empty() => {}
            Err(error) => return Err(error),
        }
        Ok(changes)
    }
}

fn entry_of(log: &SegmentWriter, cno: Cno) -> Result<RawCheckpoint> {
    let cpfile = root_of(&log.base().super_root.cpfile)?;
    checkpoints::checkpoint(log.source(), &cpfile, cno)
}

/// Makes a change in the notes. Returns whether the checkpoint is a snapshot from now on, if that
/// changes as well.
fn change_notes(
    change: &SnapshotChange,
    entry: &RawCheckpoint,
    notes: &mut Vec<Note>,
) -> Result<Option<bool>> {
    let (cno, is_snapshot) = (change.cno(), entry.is_snapshot());
    let place = notes.binary_search_by_key(&cno, |note| note.cno);
    let old = place.ok().map(|nth| &notes[nth]);
    let new = match change {
        SnapshotChange::Release { made_by: MadeBy::Retention, .. }
            if old.is_none_or(|note| note.made_by != MadeBy::Retention) =>
        {
            return Ok(None);
        }
        SnapshotChange::Release { .. } => None,
        SnapshotChange::Keep { made_by: MadeBy::Retention, .. } if is_snapshot => return Ok(None),
        SnapshotChange::Keep { made_by, name, text, .. } => {
            if let Some(name) = name
                && let Some(other) = notes.iter().find(|it| it.name.as_ref() == Some(name))
                && other.cno != cno
            {
                return Err(Error::NameTaken { name: name.to_string(), cno: other.cno });
            }
            let name = name.clone().or_else(|| old.and_then(|note| note.name.clone()));
            let text = text.clone().or_else(|| old.map(|note| note.text.clone()));
            let (created, text) = (entry.cp_create.get(), text.unwrap_or_default());
            Some(Note { cno, created, made_by: *made_by, name, text })
        }
    };
    match (new.filter(|note| !note.is_empty()), place) {
        (Some(new), Ok(nth)) => notes[nth] = new,
        (Some(new), Err(nth)) => notes.insert(nth, new),
        (None, Ok(nth)) => drop(notes.remove(nth)),
        (None, Err(_)) => {}
    }
    Ok((is_snapshot != change.keeps()).then_some(change.keeps()))
}
