//! Taking space back: what is alive, which segments are worth cleaning, what must be moved out of
//! them (docs/format.md §22). Here is only looking and judging; `fs/cleaning.rs` does it.

pub(crate) mod liveness;
pub mod options;
pub(crate) mod policy;
pub(crate) mod relocate;
pub(crate) mod table;
