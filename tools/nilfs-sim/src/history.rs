//! What happened to a file system and its device, and so which states a power cut may leave.

use nilfs_device::Event;
use nilfs_engine::Order;
use nilfs_ondisk::inode::FileType;

use crate::model::{Model, NodeId};
use crate::op::Op;
use crate::outcome::Outcome;
use crate::past::Past;
use crate::tree::Tree;

/// What a finished operation has promised to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Nothing.
    Nothing,
    /// The data of one file, maybe in a data-sync log.
    Data(NodeId),
    /// One file with its attributes and the names that lead to it, in a checkpoint.
    File(NodeId),
    /// Everything so far.
    Everything,
}

/// An operation in time. Times are counts of device events.
#[derive(Debug, Clone)]
pub struct Step {
    /// How many events there had been when it began.
    pub began: usize,
    /// How many there had been when it had ended.
    pub ended: usize,
    /// What its end promised.
    pub promise: Promise,
    /// The file system after it.
    pub state: Model,
    /// The checkpoints after it.
    pub past: Past,
    /// What it was; `None` for the beginning.
    pub op: Option<Op>,
}

/// The record of a device together with the states of the file system on it.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// What the device held at the start.
    pub start: Vec<u8>,
    /// What was done to it since.
    pub events: Vec<Event>,
    /// The operations, first the mount.
    pub steps: Vec<Step>,
}

impl Promise {
    /// What `op` promises once it has ended with `outcome`.
    #[must_use]
    pub fn of(op: &Op, outcome: &Outcome, model: &Model, order: Order) -> Self {
        if *outcome != Outcome::Done {
            return Self::Nothing;
        }
        let (target, promise): (_, fn(NodeId) -> Self) = match op {
            Op::Sync | Op::Remount | Op::Checkpoint => return Self::Everything,
            Op::Fsync(target) => (target, Self::File),
            Op::Fdatasync(target) => (target, Self::Data),
            _ => return Self::Nothing,
        };
        let Ok(id) = model.find(target) else { return Self::Nothing };
        let directory = model.node(id).is_some_and(|node| node.kind == FileType::Directory);
        match order {
            Order::Strict => Self::Everything,
            Order::Relaxed if directory => Self::Everything,
            Order::Relaxed => promise(id),
        }
    }
}

/// The past that a volume has on which the power was cut when `cut` events had happened.
///
/// # Errors
/// See [`Past::after_cut`].
pub fn past_found(steps: &[Step], cut: usize, content: &[u8]) -> Result<Past, String> {
    let ended = steps.iter().rposition(|step| step.ended <= cut).unwrap_or(0);
    let newest = steps.iter().rposition(|step| step.began < cut || step.ended <= cut);
    let newest = newest.unwrap_or(0).max(ended);
    Past::after_cut(&steps[ended].past, &steps[newest].past, content)
}

/// Finds the state that `found`, seen after a cut when `cut` events had happened, is an image of.
///
/// That is the state after some step: none that began after the cut, none older than the last
/// that promised everything and ended before it. Where data of single files were promised since,
/// they are there too.
///
/// # Errors
/// There is none. The text says how `found` differs from the newest and the oldest state allowed.
pub fn state_found(steps: &[Step], cut: usize, found: &Tree) -> Result<Model, String> {
    let ended = steps.iter().rposition(|step| step.ended <= cut).unwrap_or(0);
    let newest = steps.iter().rposition(|step| step.began < cut || step.ended <= cut);
    let newest = newest.unwrap_or(0).max(ended);
    let oldest = steps
        .iter()
        .rposition(|step| step.promise == Promise::Everything && step.ended <= cut)
        .unwrap_or(0);
    let mut differences = Vec::new();
    for base in (oldest..=newest).rev() {
        for state in states_from(&steps[..=newest], base, cut) {
            match state.tree().difference(found) {
                None => return Ok(state),
                Some(what) => differences.push((base, what)),
            }
        }
    }
    let told = [differences.first(), differences.last()]
        .into_iter()
        .flatten()
        .map(|(base, what)| format!("\n  against the state after step {base}: {what}"));
    Err(format!(
        "the state found is none of those after steps {oldest} to {newest} (step {ended} had \
         ended):{}",
        told.collect::<String>()
    ))
}

/// The states that a checkpoint after step `base` can be found in: with all data that steps since
/// have promised before the cut, and with those that the others may have written. None if that
/// cannot keep a promise.
fn states_from(steps: &[Step], base: usize, cut: usize) -> Vec<Model> {
    let checkpoint = &steps[base].state;
    let mut state = checkpoint.clone();
    state.close_all();
    let mut states = Vec::new();
    for step in &steps[base + 1..] {
        let has_ended = step.ended <= cut;
        match step.promise {
            Promise::Data(id) => match with_data(&state, checkpoint, &step.state, id) {
                Some(next) if has_ended => state = next,
                Some(next) => states.push(std::mem::replace(&mut state, next)),
                None if has_ended => return Vec::new(),
                None => break,
            },
            Promise::File(id)
                if has_ended
                    && !(checkpoint.has_same(id, &step.state)
                        && checkpoint.paths_of(id) == step.state.paths_of(id)) =>
            {
                return Vec::new();
            }
            _ => {}
        }
    }
    states.push(state);
    states
}

/// `state`, which comes from `checkpoint`, with the data of a file as they are in `now`.
fn with_data(state: &Model, checkpoint: &Model, now: &Model, id: NodeId) -> Option<Model> {
    let node = checkpoint.node(id)?;
    // A file without a name does not outlive the cut; others than regular files have no data.
    if node.nlink == 0 || node.kind != FileType::Regular {
        return Some(state.clone());
    }
    state.with_data_of(id, now.node(id)?)
}

#[cfg(test)]
mod tests {
    use nilfs_ondisk::inode::DeviceCode;

    use super::*;
    use crate::clock::{EPOCH, ThreadClock};
    use crate::name::{Name, Path};
    use crate::op::Target;
    use crate::outcome::Facts;

    fn write(fill: u32) -> Op {
        Op::Write { target: Target::Path(file()), offset: 0, length: 100, fill }
    }

    fn file() -> Path {
        Path::root().join(Name(0))
    }

    /// A history in which the operation number n ends at event 10 n.
    fn history(ops: &[Op]) -> Vec<Step> {
        let root = Facts {
            kind: FileType::Directory,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: DeviceCode::default(),
            size: 0,
            mtime: EPOCH,
            ctime: EPOCH,
            flags: 0,
        };
        let mut model = Model::new(1024, &root);
        let create = Op::Create {
            path: file(),
            kind: FileType::Regular,
            mode: 0o644,
            rdev: DeviceCode::default(),
        };
        let before = [create, write(1), Op::Sync];
        let mut steps = Vec::new();
        for (nth, op) in before.iter().chain(ops).enumerate() {
            let outcome = model.apply(op, ThreadClock::at_step(nth as u64));
            steps.push(Step {
                began: nth * 10,
                ended: nth * 10 + 10,
                promise: Promise::of(op, &outcome, &model, Order::Relaxed),
                state: model.clone(),
                past: Past::default(),
                op: Some(op.clone()),
            });
        }
        steps
    }

    fn is_allowed(steps: &[Step], cut: usize, state: &Model) -> bool {
        state_found(steps, cut, &state.tree()).is_ok()
    }

    #[test]
    fn nothing_older_than_the_last_sync_and_nothing_from_the_future() {
        let steps = history(&[write(2), Op::Sync, write(3), write(4), write(5)]);
        let allowed = |nth: usize| is_allowed(&steps, 65, &steps[nth].state);
        assert!(!allowed(2), "older than the sync");
        assert!(allowed(4), "the sync");
        assert!(allowed(5), "finished since");
        assert!(allowed(6), "under way");
        assert!(!allowed(7), "not yet begun");
    }

    #[test]
    fn data_that_were_promised_are_there_on_an_older_checkpoint() {
        let datasync = Op::Fdatasync(Target::Path(file()));
        let steps = history(&[write(2), datasync, write(3)]);
        let id = steps[4].state.find(&Target::Path(file())).unwrap_or(NodeId(0));
        let node = steps[4].state.node(id);
        let replayed = node.and_then(|node| steps[2].state.with_data_of(id, node));
        let replayed = replayed.expect("the file exists in both");
        assert!(is_allowed(&steps, 60, &replayed), "the data on the old checkpoint");
        assert!(is_allowed(&steps, 60, &steps[4].state), "a newer checkpoint");
        assert!(!is_allowed(&steps, 60, &steps[2].state), "the data are lost");
    }
}
