//! Logs (partial segments, docs/format.md §4): reading and checking them, following their chain,
//! laying out and sealing new ones, and the owner of the log that writes them.

pub(crate) mod chain;
pub(crate) mod clean_segments;
pub(crate) mod group_commit;
pub(crate) mod layout;
pub(crate) mod reader;
pub(crate) mod resume;
pub(crate) mod sealed;
pub(crate) mod segment_reader;
pub(crate) mod segment_writer;
pub(crate) mod withheld;
