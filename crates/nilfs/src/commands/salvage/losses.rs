//! What is lost of a volume as fsck would leave it, by file.

use std::collections::HashMap;

use nilfs_engine::Ino;
use nilfs_engine::rescue::Rescue;
use nilfs_repair::{Plan, Risk};

/// Bytes of a file that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// Losses of the repairs that a salvage takes for granted.
#[derive(Default)]
pub struct Losses {
    /// Reasons, by the file that they are about.
    files: HashMap<Ino, String>,
    /// What is lost besides.
    others: Vec<String>,
    /// The volume without the repairs.
    found: Option<Rescue>,
}

impl Losses {
    /// Returns those of a plan, with the volume as it was found.
    pub fn of(plan: Option<&Plan>, found: Option<Rescue>) -> Self {
        let mut losses = Self { found, ..Self::default() };
        let Some(plan) = plan else { return losses };
        for repair in plan.repairs.iter().filter(|repair| repair.risk == Risk::Loses) {
            match repair.file().filter(|ino| ino.is_of_user()) {
                Some(ino) => drop(losses.files.entry(ino).or_insert_with(|| repair.to_string())),
                None => losses.others.push(repair.to_string()),
            }
        }
        if let Some(count) = plan.omitted.get(&Risk::Loses) {
            losses.others.push(format!("{count} more repairs by which something is lost"));
        }
        losses
    }

    /// Returns why a file is not all that it was.
    pub fn of_file(&self, ino: Ino) -> Option<&str> {
        self.files.get(&ino).map(|why| &why[..])
    }

    /// Takes what is lost besides what can be named by a file.
    pub fn take_others(&mut self) -> Vec<String> {
        std::mem::take(&mut self.others)
    }

    /// Returns whether all of a file can be read without the repairs, too.
    pub fn is_readable_as_found(&mut self, ino: Ino) -> bool {
        let Some(newest) = self.found.as_mut().and_then(|found| found.tree(0)) else {
            return false;
        };
        let Ok(file) = newest.tree.file(ino) else { return false };
        let mut buffer = vec![0; READ_BYTES];
        let mut offset = 0;
        while let Ok(count) = newest.tree.read(&file, offset, &mut buffer) {
            if count == 0 {
                return true;
            }
            offset += count as u64;
        }
        false
    }
}
