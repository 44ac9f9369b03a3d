//! Volumes that are broken: every checkpoint of them that can still be looked at, the newest first.
//!
//! The superblocks are asked first. Where they lead to nothing, and where what they lead to is not
//! enough, the device is scanned for super roots. One after which no other checkpoint was made is as
//! good as what a superblock names. An older one shows the volume as it was then, with the DAT of then, so it may lead to
//! what a damaged DAT does not. But it may also lead to what has been overwritten since. Therefore,
//! under such a super root only blocks can be read that lie in logs of its time, as the scan has
//! found them: everything else counts as unreadable.
//!
//! Nothing is written. Which file is taken from which checkpoint is the caller's affair.

mod evidence;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use nilfs_device::{Device, MaskedDevice};
use nilfs_ondisk::Cno;
use nilfs_ondisk::notes::Note;

pub use self::evidence::{Doubts, Evidence};
use crate::checkpoints::CheckpointInfo;
use crate::error::{Error, Result};
use crate::files::Files;
use crate::scan::Scan;
use crate::store::Verify;
use crate::tree::Tree;
use crate::volume::Volume;

/// Older checkpoints of a volume that are looked at, besides snapshots.
const OLDER_CHECKPOINTS: usize = 1000;

/// Super roots that are tried one after the other. After them, one is tried of twice as many each
/// time: what two neighbours have in common is damaged in both.
const SUPER_ROOTS_IN_A_ROW: usize = 16;

/// The checkpoints of a broken volume.
pub struct Rescue {
    device: Arc<dyn Device>,
    progress: Box<dyn Fn(u64)>,
    /// Volumes, each as one super root shows it.
    volumes: Vec<Volume>,
    views: Vec<RescuedTree>,
    /// Why what was fsynced after the newest checkpoint of a volume is not in its view, if it is not.
    unrecovered: BTreeMap<usize, Error>,
    to_try: VecDeque<Candidate>,
    /// `None`: the device has not been scanned yet.
    scan: Option<Result<Scan>>,
    /// Why the superblocks lead to nothing.
    by_scan: Option<Error>,
}

/// A checkpoint, and the super root by which it is looked at.
#[derive(Clone)]
pub struct RescuedTree {
    /// Its files, as far as they can be read.
    pub tree: Tree,
    /// The same.
    pub files: Arc<dyn Files>,
    /// Trees with the same number find blocks by the same DAT.
    pub volume: usize,
}

/// A checkpoint that may be usable.
enum Candidate {
    Checkpoint { volume: usize, cno: Option<Cno> },
    SuperRoot(usize),
}

impl Rescue {
    /// Looks for a checkpoint that can be used. `progress` is told how many bytes of the device have
    /// been gone through, if it has to be scanned.
    ///
    /// # Errors
    /// [`Error::NotAVolume`], [`Error::Feature`], [`Error::NothingToRescue`].
    pub fn open(device: Arc<dyn Device>, progress: Box<dyn Fn(u64)>) -> Result<Self> {
        let (volumes, to_try, by_scan) =
            match Volume::open_with(Arc::clone(&device), Verify::Rescue) {
                Ok(volume) => {
                    let newest = Candidate::Checkpoint { volume: 0, cno: None };
                    (vec![volume], VecDeque::from([newest]), None)
                }
                Err(error @ Error::Feature(_)) => return Err(error),
                Err(error) => (Vec::new(), VecDeque::new(), Some(error)),
            };
        let (views, unrecovered, scan) = (Vec::new(), BTreeMap::new(), None);
        let mut rescue =
            Self { device, progress, volumes, views, unrecovered, to_try, scan, by_scan };
        match rescue.tree(0) {
            Some(_) => Ok(rescue),
            None => Err(match rescue.scan {
                Some(Err(error)) => error,
                _ => Error::NothingToRescue,
            }),
        }
    }

    /// Why the superblocks do not lead to a checkpoint, if they do not.
    #[must_use]
    pub fn by_scan(&self) -> Option<&Error> {
        self.by_scan.as_ref()
    }

    /// Why a usable checkpoint is shown without what was fsynced after it, if that was to be rolled forward.
    #[must_use]
    pub fn unrecovered(&self, checkpoint: &RescuedTree) -> Option<&Error> {
        let volume = self.volumes.get(checkpoint.volume)?;
        let is_newest = volume.last_log().cno == checkpoint.tree.cno();
        self.unrecovered.get(&checkpoint.volume).filter(|_| is_newest)
    }

    /// The newest checkpoint that a superblock names or that has a super root, usable or not.
    #[must_use]
    pub fn newest_known(&self) -> Cno {
        let scan = self.scan.as_ref().and_then(|scan| scan.as_ref().ok());
        let named = scan.and_then(|scan| scan.superblock).map(|copy| copy.last_log().cno);
        let found = scan.into_iter().flat_map(|scan| &scan.super_roots).map(|log| log.cursor.cno);
        let opened = self.volumes.iter().map(|volume| volume.last_log().cno);
        found.chain(named).chain(opened).max().unwrap_or_default()
    }

    /// The usable checkpoints, from the newest one (0) on; `None` if there are no more. They are
    /// opened as they are asked for. Some may come twice, by different super roots.
    pub fn tree(&mut self, nth: usize) -> Option<RescuedTree> {
        while self.views.len() <= nth {
            let Some(candidate) = self.to_try.pop_front() else {
                if self.scan.is_some() {
                    return None;
                }
                self.scan();
                continue;
            };
            self.try_out(&candidate);
        }
        self.views.get(nth).cloned()
    }

    /// Which of the usable checkpoints has this number, if one has.
    pub fn place_of(&mut self, cno: Cno) -> Option<usize> {
        let mut nth = 0;
        while self.tree(nth)?.tree.cno() != cno {
            nth += 1;
        }
        Some(nth)
    }

    /// The evidence on a device for the content of files that one of the usable checkpoints shows. The device is
    /// that of the volume, or what a corrected view shows of it.
    #[must_use]
    pub fn evidence(&self, on: Arc<dyn Device>, checkpoint: &RescuedTree) -> Option<Evidence> {
        self.volumes.get(checkpoint.volume).map(|volume| Evidence::new(on, volume))
    }

    /// The checkpoints that the volume lists, ascending, usable or not; none if its list cannot be read.
    #[must_use]
    pub fn checkpoints(&self) -> Vec<CheckpointInfo> {
        let mut lists = self.volumes.iter().map(|it| it.checkpoints(Cno::MIN, usize::MAX));
        lists.find_map(Result::ok).unwrap_or_default()
    }

    /// What is noted about snapshots, by ascending number, as far as that can be read.
    #[must_use]
    pub fn notes(&self) -> Vec<Note> {
        self.volumes.iter().find_map(|volume| volume.notes().ok()).unwrap_or_default()
    }

    /// The newest checkpoint that can be used, or the newest that shows `cno`.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] if there is none.
    pub(crate) fn find(&mut self, cno: Option<Cno>) -> Result<RescuedTree> {
        let mut nth = 0;
        while let Some(found) = self.tree(nth) {
            if cno.is_none_or(|cno| found.tree.cno() == cno) {
                return Ok(found);
            }
            nth += 1;
        }
        Err(Error::NoCheckpoint(cno.unwrap_or_default()))
    }

    /// The volume by the newest checkpoint that can be used, or by the newest that shows `cno`, and the
    /// files of that checkpoint.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] if it cannot be used.
    pub(crate) fn into_volume(mut self, cno: Option<Cno>) -> Result<(Volume, Tree)> {
        let RescuedTree { tree, volume, .. } = self.find(cno)?;
        Ok((self.volumes.swap_remove(volume), tree))
    }

    fn scan(&mut self) {
        let scan = Scan::run(&*self.device, &self.progress);
        let count = scan.as_ref().map_or(0, |scan| scan.super_roots.len());
        let spread = std::iter::successors(Some(SUPER_ROOTS_IN_A_ROW), |nth| nth.checked_mul(2));
        let tried = (0..SUPER_ROOTS_IN_A_ROW).chain(spread).take_while(|nth| *nth < count);
        self.to_try.extend(tried.map(Candidate::SuperRoot));
        self.scan = Some(scan);
    }

    fn try_out(&mut self, candidate: &Candidate) {
        let opened = match *candidate {
            Candidate::SuperRoot(nth) => self.open_super_root(nth),
            Candidate::Checkpoint { volume, cno } => self.open_checkpoint(volume, cno),
        };
        if let Err(error) = opened {
            tracing::debug!("a checkpoint cannot be used: {error}");
        }
        // Whether or not the newest checkpoint can be used, those before it may be.
        if let Candidate::Checkpoint { volume, cno: None } = *candidate {
            self.add_older(volume);
        }
    }

    fn open_checkpoint(&mut self, nth: usize, cno: Option<Cno>) -> Result<()> {
        let Some(volume) = self.volumes.get(nth) else { return Ok(()) };
        let tree = match cno {
            None => match volume.recovered_tree() {
                Ok(tree) => tree,
                Err(error) => {
                    let tree = volume.tree(None)?;
                    let error = match error {
                        Error::RollForward(cause) => *cause,
                        error => error,
                    };
                    if !volume.is_clean() {
                        self.unrecovered.insert(nth, error);
                    }
                    tree
                }
            },
            cno => volume.tree(cno)?,
        };
        let tree = tree.around_damage();
        self.views.push(RescuedTree { files: Arc::new(tree.clone()), tree, volume: nth });
        Ok(())
    }

    fn open_super_root(&mut self, nth: usize) -> Result<()> {
        let Some(Ok(scan)) = &self.scan else { return Ok(()) };
        let Some(log) = scan.super_roots.get(nth) else { return Ok(()) };
        let is_known = |volume: &Volume| volume.last_log() == log.cursor;
        if self.volumes.iter().any(is_known) {
            return Ok(());
        }
        let device = match is_up_to_date(scan, log.cursor.cno) {
            true => Arc::clone(&self.device),
            false => {
                let masked = scan.not_written_by(log.cursor.cno);
                Arc::new(MaskedDevice::new(Arc::clone(&self.device), masked))
            }
        };
        self.volumes.push(Volume::at(device, scan, log)?);
        let volume = self.volumes.len() - 1;
        match self.views.is_empty() {
            true => self.to_try.push_front(Candidate::Checkpoint { volume, cno: None }),
            false => self.open_checkpoint(volume, None)?,
        }
        Ok(())
    }

    /// Puts the older checkpoints of a volume next in line, the newest first.
    fn add_older(&mut self, nth: usize) {
        let Some(volume) = self.volumes.get(nth) else { return };
        let newest = volume.last_log().cno;
        let all = volume.checkpoints(Cno::MIN, usize::MAX).unwrap_or_default();
        let older = all.iter().filter(|it| it.cno < newest).rev().enumerate();
        let kept = older.filter(|(nth, it)| *nth < OLDER_CHECKPOINTS || it.snapshot);
        let kept: Vec<Cno> = kept.map(|(_, it)| it.cno).collect();
        for cno in kept.into_iter().rev() {
            self.to_try.push_front(Candidate::Checkpoint { volume: nth, cno: Some(cno) });
        }
    }
}

/// Whether nothing has been written over that a checkpoint needs. The checkpoint after it goes into
/// segments that are clean, and so do sync logs; only those that come then may use what it has freed.
fn is_up_to_date(scan: &Scan, cno: Cno) -> bool {
    scan.logs.iter().all(|log| log.header.cno <= cno.plus(1))
}
