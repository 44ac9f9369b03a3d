//! Parts of a volume that are lost if it is read as fsck would leave it, by file.

use std::collections::{BTreeSet, HashMap};

use nilfs_engine::{Cno, Ino};
use nilfs_repair::{Concerned, Loss, Plan, Risk};

/// Losses of the repairs that a salvage takes for granted.
#[derive(Default)]
pub struct Losses {
    repairs: Vec<Losing>,
    /// Places of those that are about a file.
    of_files: HashMap<Ino, Vec<usize>>,
    /// More repairs by which something is lost, of which no more is known.
    omitted: u64,
    /// Losses of the volume that no repair is known for.
    of_volume: Vec<String>,
    /// Checkpoints that are salvaged.
    salvaged: BTreeSet<Cno>,
}

/// A repair by which something is lost.
struct Losing {
    /// For a file of which that is said.
    why: String,
    /// For the volume, with the paths of files.
    named: String,
    /// The users' files that it is about: none if it is about the volume.
    concerned: Concerned,
    /// Files of which that has not been said.
    unsaid: BTreeSet<Ino>,
}

impl Losses {
    /// Returns those of a plan.
    pub fn of(plan: Option<&Plan>) -> Self {
        let mut losses = Self::default();
        let Some(plan) = plan else { return losses };
        for repair in plan.repairs.iter().filter(|repair| repair.risk == Risk::Loses) {
            let mut concerned = repair.concerned.clone();
            concerned.files.retain(|ino| ino.is_of_user());
            for ino in &concerned.files {
                losses.of_files.entry(*ino).or_default().push(losses.repairs.len());
            }
            let unsaid = concerned.files.clone();
            let why = format!("{}: {}", repair.fault, repair.action);
            losses.repairs.push(Losing { why, named: repair.to_string(), concerned, unsaid });
        }
        losses.omitted = plan.omitted.get(&Risk::Loses).copied().unwrap_or_default();
        losses
    }

    /// Adds something that is lost of the volume.
    pub fn add(&mut self, loss: String) {
        self.of_volume.push(loss);
    }

    /// Remembers that a checkpoint is salvaged.
    pub fn salvage(&mut self, cno: Cno) {
        self.salvaged.insert(cno);
    }

    /// Returns the worst that is lost of a file in a checkpoint, and why. It counts as said then.
    pub fn of_file(&mut self, ino: Ino, cno: Cno) -> Option<(Loss, String)> {
        let mut worst: Option<(Loss, usize)> = None;
        for nth in self.of_files.get(&ino)? {
            let losing = self.repairs.get_mut(*nth);
            let Some(losing) = losing.filter(|it| it.concerned.includes(ino, cno)) else {
                continue;
            };
            losing.unsaid.remove(&ino);
            let loss = losing.concerned.loss;
            if worst.is_none_or(|(worst, _)| worst < loss) {
                worst = Some((loss, *nth));
            }
        }
        let (loss, nth) = worst?;
        Some((loss, self.repairs.get(nth)?.why.clone()))
    }

    /// Returns the losses of the volume, and those of files of which it has not been said.
    pub fn others(&self) -> Vec<String> {
        let is_salvaged =
            |it: &Losing| self.salvaged.iter().any(|cno| it.concerned.life.contains(cno));
        let is_left = |it: &&Losing| {
            it.concerned.files.is_empty() || is_salvaged(it) && !it.unsaid.is_empty()
        };
        let left = self.repairs.iter().filter(is_left).map(|it| it.named.clone());
        let mut others: Vec<String> = left.chain(self.of_volume.iter().cloned()).collect();
        if self.omitted > 0 {
            others.push(format!("{} more repairs by which something is lost", self.omitted));
        }
        others
    }
}
