//! What happened to a file system and its device.

use nilfs_device::Event;
use nilfs_engine::Order;
use nilfs_ondisk::inode::FileType;

use crate::model::{Model, NodeId};
use crate::op::{Op, Target};
use crate::outcome::Outcome;
use crate::past::Past;

/// What the end of an operation promises to be durable (`oracle.rs` has the rules).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Nothing.
    Nothing,
    /// All names and attributes.
    Names,
    /// These, and the content of one file, whose times may be older.
    Data(NodeId),
    /// These, and the content of one file with its times.
    File(NodeId),
    /// Everything so far.
    Everything,
}

/// What the root of a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// The root of the volume.
    Volume,
    /// One of its directories.
    Directory,
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
    pub fn of(op: &Op, outcome: &Outcome, model: &Model, order: Order, root: Root) -> Self {
        if *outcome != Outcome::Done {
            return Self::Nothing;
        }
        let (target, one): (&Target, fn(NodeId) -> Self) = match op {
            Op::Sync | Op::Remount | Op::Checkpoint | Op::RollBack { .. } => {
                return Self::Everything;
            }
            Op::Fsync(target) => (target, Self::File),
            Op::Fdatasync(target) => (target, Self::Data),
            _ => return Self::Nothing,
        };
        let Ok(id) = model.find(target) else { return Self::Nothing };
        let Some(node) = model.node(id) else { return Self::Nothing };
        match order {
            Order::Strict => Self::Everything,
            Order::Relaxed if id == Model::ROOT && root == Root::Volume => Self::Everything,
            Order::Relaxed if node.nlink == 0 => Self::Nothing,
            Order::Relaxed if node.kind == FileType::Regular => one(id),
            Order::Relaxed => Self::Names,
        }
    }

    /// Whether the content of a file is promised.
    #[must_use]
    pub fn covers_content_of(self, id: NodeId) -> bool {
        self.covers_times_of(id) || self == Self::Data(id)
    }

    /// Whether the content of a file is promised with its times.
    #[must_use]
    pub fn covers_times_of(self, id: NodeId) -> bool {
        self == Self::Everything || self == Self::File(id)
    }
}
