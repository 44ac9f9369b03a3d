//! The subcommands, one file each.

pub mod cat;
pub mod check;
pub mod checkpoints;
pub mod clean;
pub mod cp;
pub mod defrag;
pub mod df;
pub mod diff;
pub mod dump;
pub mod fsck;
pub mod generate;
pub mod help;
pub mod image;
pub mod info;
pub mod list;
pub mod log;
pub mod ls;
pub mod metrics;
pub mod mkfs;
pub mod mount;
pub mod purge;
pub mod recover;
pub mod resize;
pub mod restore;
pub mod rollback;
pub mod salvage;
pub mod scrub;
pub mod segments;
pub mod snapshot;
pub mod stat;
pub mod status;
pub mod sync;
pub mod trim;
pub mod tune;
pub mod undelete;

pub use mount::options as mount_options;
