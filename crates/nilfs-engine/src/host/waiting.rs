//! Whether this thread may wait for the device.
//!
//! A thread that serves many must not stand still for one of them. What it is asked, it does without
//! waiting first; if that fails, it leaves the whole of it to a thread that may wait. So nothing
//! in between has to know how to go on with half of an answer.

use std::cell::Cell;

use super::machine::thread_local;

thread_local! {
    static MAY_NOT: Cell<bool> = const { Cell::new(false) };
}

/// Does something in which this thread waits for no read of the device: what would have to be waited
/// for fails with [`Error::WouldWait`](crate::Error::WouldWait). Meant for what changes nothing, and so
/// can be done again.
pub fn without_waiting<T>(work: impl FnOnce() -> T) -> T {
    /// Puts back what was before.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            MAY_NOT.with(|may_not| may_not.set(self.0));
        }
    }
    let _before = Before(MAY_NOT.with(|may_not| may_not.replace(true)));
    work()
}

/// Whether this thread may wait for the device.
pub(crate) fn may_wait() -> bool {
    !MAY_NOT.with(Cell::get)
}
