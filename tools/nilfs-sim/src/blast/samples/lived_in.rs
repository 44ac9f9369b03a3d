//! Volumes that have lived for longer: with more names, deeper directories, larger maps and a richer past.

use std::ops::Range;
use std::time::Duration;

use nilfs_engine::{Error, MadeBy, SnapshotChange};

use super::changes::Change;
use super::lived::Lived;
use super::syncs::Step;
use super::writer::{LONG, Writer};

/// Letters in one directory: their names are more than a block.
const LETTERS: u64 = 90;

/// Blocks of the large file: with the smallest blocks, its map has nodes above nodes.
const LARGE: u64 = 400;

/// Bytes of the file that uses every segment once.
const CHURN: u64 = 1 << 20;

/// Checkpoints of the past, one after the other.
const ROUNDS: u64 = 8;

/// Rounds of syncs until the power fails.
const SYNC_ROUNDS: u64 = 4;

/// Syncs with a checkpoint right after one of them.
const WITH_CHECKPOINT: [Range<u64>; 2] = [2..8, 9..18];

/// One in so many changes of the past has a checkpoint right after it, so that each seed has others: a number that is
/// free for a while may be so in some checkpoint or in none.
const CHANGES_OF_CHECKPOINT: u64 = 8;

/// Blocks of each file that fills the volume.
const FILLING: u64 = 9;

impl Writer {
    /// A long life, and an end of it.
    pub(super) fn live_long(mut self) -> Result<Lived, String> {
        self.live_in().map_err(|error| self.in_words(&error))?;
        self.unmount().map_err(|error| error.to_string())
    }

    /// A long life that ends without power.
    pub(super) fn live_long_and_crash(mut self) -> Result<Lived, String> {
        self.live_in().map_err(|error| self.in_words(&error))?;
        let block = self.block;
        let mut steps: Vec<Step> =
            (0..SYNC_ROUNDS).flat_map(|round| sync_round(round, block)).collect();
        for among in WITH_CHECKPOINT {
            steps[self.pick(among) as usize].is_checkpoint = true;
        }
        self.crash_after(&steps)
    }

    /// A long life until nothing more can be written.
    pub(super) fn live_until_full(mut self) -> Result<Lived, String> {
        let fill = |writer: &mut Self| {
            writer.live_in()?;
            let count = writer.fill_up("filled")?;
            let some = (0..count).step_by(3).map(|nth| Change::remove(format!("filled {nth}")));
            writer.apply_all(&some.collect::<Vec<_>>())?;
            writer.sync()?;
            writer.forget()?;
            writer.fill_up("filled again").map(drop)
        };
        fill(&mut self).map_err(|error| self.in_words(&error))?;
        self.unmount().map_err(|error| error.to_string())
    }

    fn in_words(&self, error: &Error) -> String {
        format!("{error}: {:?}", self.fs.status())
    }

    /// A life with much that is gone, a past and a present.
    fn live_in(&mut self) -> Result<(), Error> {
        self.use_every_segment(CHURN)?;
        self.apply_all(&letters())?;
        self.apply_all(&sources())?;
        self.apply_all(&large_and_linked(self.block))?;
        self.keep(Some("moved-in"))?;
        for round in 0..ROUNDS {
            for change in past_round(round, self.block) {
                self.apply(&change)?;
                if self.pick(0..CHANGES_OF_CHECKPOINT) == 0 {
                    self.commit()?;
                }
            }
            match round % 3 {
                0 => self.sync()?,
                _ => self.commit()?,
            }
            if round == ROUNDS / 2 {
                self.keep(None)?;
                self.forget()?;
                self.pass(LONG);
            }
        }
        Ok(())
    }

    /// Makes a snapshot.
    fn keep(&mut self, name: Option<&str>) -> Result<(), Error> {
        let cno = self.fs.checkpoint_now()?;
        let name = name.map(|name| name.parse().expect("the name is one"));
        let made_by = MadeBy::User;
        self.fs.change_snapshots(&[SnapshotChange::Keep { cno, made_by, name, text: None }])?;
        self.pass(Duration::from_secs(1));
        Ok(())
    }

    /// Makes files until there is no space for one. Returns how many there are.
    fn fill_up(&mut self, name: &str) -> Result<u64, Error> {
        for nth in 0.. {
            match self.apply(&Change::make(format!("{name} {nth}"), FILLING * self.block)) {
                Err(Error::NoSpace) => {
                    self.sync()?;
                    return Ok(nth);
                }
                made => made.map(drop)?,
            }
        }
        unreachable!("a volume ends")
    }
}

/// Name of a letter.
fn letter(nth: u64) -> String {
    format!("mail/{nth:03} a letter with a subject that is as long as the sender was patient")
}

/// A directory with many long names.
fn letters() -> Vec<Change> {
    let letters = (0..LETTERS).map(|nth| {
        let bytes = if nth % 3 == 0 { 150 + 37 * nth } else { 0 };
        Change::make(letter(nth), bytes)
    });
    std::iter::once(Change::make_directory("mail")).chain(letters).collect()
}

/// Directories of three levels with files.
fn sources() -> Vec<Change> {
    let mut changes = vec![Change::make_directory("src")];
    for (nth, part) in ["engine", "mount", "check"].into_iter().enumerate() {
        changes.push(Change::make_directory(format!("src/{part}")));
        for (mth, module) in ["fs", "log"].into_iter().enumerate() {
            let path = format!("src/{part}/{module}");
            let bytes = 700 + 1500 * (nth + 3 * mth) as u64;
            changes.extend([
                Change::make_directory(&*path),
                Change::make(format!("{path}/mod.rs"), bytes),
                Change::make(format!("{path}/tests.rs"), 2 * bytes),
            ]);
        }
    }
    changes
}

/// A large file, a sparse one, links, and a directory for what is to come.
fn large_and_linked(block: u64) -> Vec<Change> {
    vec![
        Change::make("large", LARGE * block + 77),
        Change::make("sparse", block),
        Change::write("sparse", 300 * block, 2 * block),
        Change::write("sparse", 700 * block, block),
        Change::link("src/engine/fs/mod.rs", "src/mount/shared.rs"),
        Change::link("src/engine/fs/mod.rs", "shared.rs"),
        Change::symlink("short", "src/engine"),
        Change::symlink("src/long", format!("{}src/check/log/mod.rs", "../src/".repeat(90))),
        Change::make_directory("home"),
    ]
}

/// Changes before a checkpoint of the past.
fn past_round(round: u64, block: u64) -> Vec<Change> {
    let moved = format!("moved {round}");
    vec![
        Change::write("large", (57 * round + 11) * block, 9 * block),
        Change::append("src/engine/log/tests.rs", 900),
        Change::truncate("src/mount/log/tests.rs", 9000 - 1000 * round),
        Change::replace("src/check/fs/mod.rs", 2000 + 300 * round),
        Change::rename(letter(7 * round), format!("src/mount/letter {round}")),
        Change::remove(letter(7 * round + 1)),
        Change::make_directory(&*moved),
        Change::make(format!("{moved}/file"), 3 * block / 2),
        Change::rename(moved, format!("src/check/moved {round}")),
        Change::make(format!("home/note {round}"), 200 + 900 * round),
    ]
}

/// Syncs of all kinds.
fn sync_round(round: u64, block: u64) -> Vec<Step> {
    let new = format!("home/new {round}");
    let directory = format!("home/directory {round}");
    let changes = [
        Change::make(&*new, 300 + 2500 * round),
        Change::append(&*new, block),
        Change::write("large", (97 * round + 30) * block, 3 * block),
        Change::make_directory(&*directory),
        Change::make(format!("{directory}/file"), 700),
        Change::replace("src/mount/fs/mod.rs", 1500 + 700 * round),
        Change::remove(letter(7 * round + 2)),
        Change::truncate("src/check/log/tests.rs", 4000 - 900 * round),
        Change::link("src/engine/log/mod.rs", format!("home/link {round}")),
        Change::rename(new, format!("src/{round} was new")),
    ];
    changes.into_iter().map(Step::from).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilfs_device::MemoryDevice;
    use nilfs_engine::{Filesystem, Volume};

    use super::super::super::blocks::Holds;
    use super::super::writer::new_file;
    use super::super::{Left, Sample, Which, options};
    use super::*;

    fn sample(left: Left, block_bytes: u32) -> Sample {
        Which { left, block_bytes }.make(1).unwrap()
    }

    fn device(sample: &Sample) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::from(sample.content.clone()))
    }

    #[test]
    fn a_long_life_leaves_two_snapshots_and_something_of_every_kind() {
        let sample = sample(Left::LivedIn, 1024);
        let volume = Volume::open(device(&sample)).unwrap();
        assert_eq!(volume.checkpoint_totals().unwrap().snapshots, 2);
        for holds in Holds::ALL {
            let count = sample.blocks.iter().filter(|block| block.holds == holds).count();
            assert!(count > 0, "no block holds a {holds}");
        }
        let letters = sample.picture.files.keys().filter(|path| path.starts_with(b"mail/"));
        assert!(letters.count() > 70);
        assert!(sample.picture.files[&b"src/long"[..]].bytes.len() > 600);
    }

    #[test]
    fn a_crash_leaves_many_syncs_that_only_their_logs_have() {
        for block_bytes in [4096, 1024] {
            let sample = sample(Left::LivedInCrashed, block_bytes);
            let summaries = sample.blocks.iter().filter(|block| block.holds == Holds::Summary);
            let synced = summaries.filter(|block| !block.cost.is_nothing());
            assert!(synced.count() >= 20, "{block_bytes}");
        }
    }

    #[test]
    fn a_full_volume_takes_no_more_files() {
        let sample = sample(Left::Full, 4096);
        let fs = Filesystem::mount(device(&sample), options()).unwrap();
        let root = fs.root().unwrap().inode;
        let file = fs.create(&root, b"one more", &new_file());
        let written = file.and_then(|file| fs.write(&file.inode, 0, &[1; 9 * 4096]));
        assert!(matches!(written, Err(Error::NoSpace)), "{written:?}");
    }
}
