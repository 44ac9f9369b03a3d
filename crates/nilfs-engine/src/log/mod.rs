//! Logs (partial segments): reading and checking them, and laying out new ones (docs/format.md §4).

pub(crate) mod chain;
pub(crate) mod layout;
pub(crate) mod reader;
pub(crate) mod writer;
