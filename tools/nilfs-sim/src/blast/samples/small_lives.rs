//! Small volumes with something of everything.

use nilfs_engine::{Error, SnapshotChange};

use super::Left;
use super::changes::Change;
use super::lived::Lived;
use super::syncs::Step;
use super::writer::{LONG, Writer};

/// Syncs before a crash.
const SYNCED: u64 = 9;

/// Syncs before a crash that are in more than one segment.
const MANY_SYNCED: u64 = 24;

/// Bytes of the file that uses every segment once.
const CHURN: u64 = (5 << 20) / 8;

impl Writer {
    /// A whole life: much that is gone, a past, a present.
    pub(super) fn live(mut self, left: Left) -> Result<Lived, String> {
        let lived = self.use_every_segment(CHURN).and_then(|()| self.fill());
        lived.map_err(|error| format!("{error}: {:?}", self.fs.status()))?;
        match left {
            Left::Clean => self.unmount().map_err(|error| error.to_string()),
            Left::Synced => {
                let steps = steps(self.block, MANY_SYNCED);
                self.crash_after(&steps)
            }
            _ => self.crash_soon(),
        }
    }

    /// The first checkpoints of a volume.
    pub(super) fn begin_to_live(mut self) -> Result<Lived, String> {
        let begin = |writer: &mut Self| -> Result<(), Error> {
            for nth in 0..20 {
                writer.apply(&Change::make_directory(format!("directory {nth}")))?;
                writer.apply(&Change::make(format!("directory {nth}/file"), 3))?;
            }
            writer.commit()?;
            writer.some_checkpoints()
        };
        begin(&mut self).map_err(|error| error.to_string())?;
        Ok(self.lose_power())
    }

    /// Some checkpoints and syncs on a volume that has lived elsewhere.
    pub(super) fn live_briefly(mut self) -> Result<Lived, String> {
        self.some_checkpoints().map_err(|error| error.to_string())?;
        self.crash_soon()
    }

    /// Loses power after some syncs, with a checkpoint between them.
    fn crash_soon(self) -> Result<Lived, String> {
        let mut steps = steps(self.block, SYNCED);
        steps[1].is_checkpoint = true;
        self.crash_after(&steps)
    }

    fn fill(&mut self) -> Result<(), Error> {
        let block = self.block;
        self.apply(&Change::make_directory("docs"))?;
        for nth in 0..48 {
            let name = format!("docs/{nth:02} a name that is long enough to fill a block soon");
            let length = if nth % 4 == 0 { 300 + 40 * nth } else { 0 };
            self.apply(&Change::make(name, length))?;
        }
        self.apply_all(&[
            Change::make_directory("docs/sub"),
            Change::make_directory("docs/sub/deep"),
            Change::make("docs/sub/deep/one", 3 * block),
            Change::make("docs/sub/deep/two", 100),
            Change::link("docs/sub/deep/two", "link"),
            Change::symlink("symlink", "docs/sub/deep/one"),
            Change::make("big", 30 * block + 77),
            Change::make("old", 5 * block),
        ])?;
        let kept = self.fs.checkpoint_now()?;
        self.fs.change_snapshots(&[SnapshotChange::plain(kept, true)])?;
        self.pass(LONG);
        self.apply_all(&[
            Change::remove("old"),
            Change::write("big", 9 * block, 6 * block),
            Change::make("sparse", block),
            Change::write("sparse", 300 * block, 2 * block),
        ])?;
        self.sync()?;
        self.some_checkpoints()
    }

    /// Checkpoints that follow each other quickly: superblocks do not name the last ones.
    fn some_checkpoints(&mut self) -> Result<(), Error> {
        for nth in 0..4 {
            self.apply(&Change::make_directory(format!("checkpoint {nth}")))?;
            for file in 0..4 {
                let path = format!("checkpoint {nth}/file {file}");
                self.apply(&Change::make(path, 200 + 900 * file))?;
            }
            self.apply(&Change::make(format!("made by checkpoint {nth}"), 2 * self.block))?;
            self.commit()?;
        }
        Ok(())
    }
}

/// Files that are synced as soon as they are there, but for a block of one that is written over.
fn steps(block: u64, syncs: u64) -> Vec<Step> {
    let step = |nth: u64| {
        let name = format!("synced {nth}");
        match nth {
            2 => Change::make(name, 80 << 10).into(),
            4 => Change::write("synced 3", 0, block).into(),
            6 => {
                let file = Change::make(format!("{name}/file"), 700);
                Step::after(Change::make_directory(name), file)
            }
            _ => Change::make(name, 300 + 1000 * nth).into(),
        }
    };
    (0..syncs).map(step).collect()
}
