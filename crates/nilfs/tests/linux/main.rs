//! A real Linux and we, at the same volumes. One program for all of these tests, so that some of them
//! are always under way: each starts a Linux of its own, and keeps one core busy.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/ours.rs"]
mod ours;
#[path = "../common/past.rs"]
mod past;

mod cleaning;
mod crash;
mod devices;
mod drop_ins;
mod history;
mod image;
mod limits;
mod mount;
mod notes;
mod purge;
mod recovery;
mod roll_forward;
mod rollback;
mod turns;
