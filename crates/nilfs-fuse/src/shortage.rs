//! What a mount lets go of where there is no room: files without a name that the kernel has let go of,
//! and then the checkpoints that are only kept because a program looks at them, which are no snapshots.

use std::sync::Arc;

use nilfs_engine::Filesystem;
use nilfs_ondisk::Ino;
use parking_lot::Mutex;

use crate::nodes::NodeId;
use crate::past::Past;
use crate::transport::Connection;

/// What can go.
pub(crate) struct Dispensable {
    kernel: Connection,
    past: Option<Arc<Past>>,
    noticing: Mutex<()>,
}

impl Dispensable {
    pub fn new(kernel: Connection, past: Option<Arc<Past>>) -> Self {
        Self { kernel, past, noticing: Mutex::default() }
    }

    /// Lets go of something, because there is no room. Returns whether there was anything.
    pub fn let_go(&self, writer: &Filesystem) -> bool {
        self.notice_released(writer) || self.give_up_past()
    }

    /// Looks for files without a name that the kernel has let go of, but has not told us so: it
    /// sends `FORGET` when unlink(2) or close(2) is over, and waits for no answer. Returns whether
    /// there was any.
    ///
    /// The kernel cannot get back what it does not have: nothing leads to a file without a name. A
    /// lookup that found the file before it lost its name is over, because the kernel locks the
    /// directory for both.
    pub fn notice_released(&self, writer: &Filesystem) -> bool {
        let _one_at_a_time = self.noticing.lock();
        let held = writer.held_without_name().into_iter();
        let is_released = |ino: &Ino| !self.kernel.still_has(NodeId::from(*ino));
        let released: Vec<Ino> = held.filter(is_released).collect();
        released.iter().for_each(|ino| writer.expect_let_go(*ino));
        !released.is_empty()
    }

    fn give_up_past(&self) -> bool {
        let Some(cnos) = self.past.as_ref().and_then(|past| past.give_up_for_room()) else {
            return false;
        };
        tracing::warn!(
            "there is no room to write, so the checkpoints that somebody was looking at are not kept \
             any more, and whatever still reads them gets ESTALE: {cnos}"
        );
        true
    }
}
