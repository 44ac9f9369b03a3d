//! The subcommands, one file each.

pub mod cat;
pub mod check;
pub mod checkpoints;
pub mod cp;
pub mod dump;
pub mod generate;
pub mod info;
pub mod ls;
pub mod mkfs;
pub mod mount;
pub mod segments;
pub mod stat;
