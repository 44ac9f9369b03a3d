//! The times that a regular file may show after a crash: partly content, partly attributes.
//!
//! The times of writing come with the content, those that somebody has chosen with the names. Where
//! both have changed since the file was last durable, the later of them is expected. But recovery
//! may also take attributes over after content that is newer, and the ctime may be that of the
//! content, whatever has happened to the attributes.

use nilfs_engine::{Order, SetAttr, Timestamp};

use super::Crash;
use crate::history::Promise;
use crate::model::{Node, NodeId};
use crate::op::Op;
use crate::outcome::Facts;

/// How an operation has changed the times of a file.
struct Change {
    /// It belongs to the content.
    writes: bool,
    /// It is a change of attributes, or recovery may take it for one.
    attributes: bool,
    /// It has set the mtime, not only the ctime.
    mtime: bool,
}

/// The times that a file may have.
struct Times {
    modified: Vec<Timestamp>,
    changed: Vec<Timestamp>,
}

impl Crash<'_> {
    /// How the times found differ from those of the file `id` with the content of moment `m` and the
    /// attributes of moment `n`, if they do.
    pub(super) fn times_difference(
        &self,
        n: usize,
        m: usize,
        id: NodeId,
        found: &Facts,
    ) -> Option<String> {
        let known = self.oldest_moment(n, id, Promise::covers_times_of);
        // After an fdatasync the times may be older than the content.
        let oldest = if self.is_of_fdatasync(m, id) { known } else { m };
        let fits = |Times { modified, changed }: Times| {
            modified.contains(&found.mtime) && changed.contains(&found.ctime)
        };
        if (oldest..=m).rev().any(|written| fits(self.times(id, known, written, n))) {
            return None;
        }
        let Times { modified, changed } = self.times(id, known, m, n);
        Some(format!(
            "mtime {:?} and ctime {:?}, expected one of {modified:?} and one of {changed:?}",
            found.mtime, found.ctime
        ))
    }

    /// Whether an fdatasync made the content of moment `m` durable.
    fn is_of_fdatasync(&self, m: usize, id: NodeId) -> bool {
        let content = |step: usize| self.node(step, id).map(|node| &node.body);
        let synced = |step: usize| self.steps[step].promise == Promise::Data(id);
        self.order == Order::Relaxed
            && (0..=self.newest()).any(|step| synced(step) && content(step) == content(m))
    }

    /// The times of a file that has all of the moment `known`, what was written up to the moment
    /// `written`, and the attributes of moment `n`.
    fn times(&self, id: NodeId, known: usize, written: usize, n: usize) -> Times {
        let last = |counts: &dyn Fn(usize, Change) -> bool| {
            let counts =
                |step: &usize| self.change(*step, id).is_some_and(|change| counts(*step, change));
            (known + 1..=written.max(n)).rev().find(counts)
        };
        let is_there =
            |step: usize, change: &Change| step <= if change.writes { written } else { n };
        let times = |steps: &[Option<usize>], time: fn(&Node) -> Timestamp| {
            let nodes = steps.iter().flatten().filter_map(|step| self.node(*step, id));
            nodes.map(time).collect()
        };
        let modified = [
            last(&|step, change| change.mtime && is_there(step, &change)).or(Some(known)),
            last(&|step, change| change.mtime && change.attributes && step <= n),
        ];
        let changed = [
            last(&|step, change| is_there(step, &change)).or(Some(known)),
            last(&|step, change| change.attributes && step <= n),
            Some(written),
        ];
        Times {
            modified: times(&modified, |node| node.mtime),
            changed: times(&changed, |node| node.ctime),
        }
    }

    /// How a step has changed the file `id`, if it has.
    fn change(&self, step: usize, id: NodeId) -> Option<Change> {
        let (before, after) = (self.before(step, id)?, self.node(step, id)?);
        (!std::ptr::eq(before, after)).then(|| Change::of(self.steps[step].op.as_ref()))
    }
}

impl Change {
    fn of(op: Option<&Op>) -> Self {
        match op {
            Some(Op::Write { .. }) => Self { writes: true, attributes: false, mtime: true },
            // One checkpoint brings everything back.
            Some(Op::RollBack { .. }) => Self { writes: true, attributes: true, mtime: true },
            // With a ctime, the times are from the kernel's cache, which says when programs wrote.
            Some(Op::SetAttr { changes, .. }) => Self {
                writes: changes.size.is_some() || changes.ctime.is_some(),
                attributes: SetAttr { size: None, ..*changes } != SetAttr::default(),
                mtime: changes.size.is_some() || changes.mtime.is_some(),
            },
            _ => Self { writes: false, attributes: true, mtime: false },
        }
    }
}
