//! The flash lab: every file system and every workload of the published comparisons on modelled
//! flash devices, side by side.
//!
//! The way through the source: [`model`] says how long a flash device takes for a request and what
//! it wears; [`export`] serves an image as one file with a model and a recorder behind it, so that
//! a loop device, a virtual machine or our own daemon can use it; [`trace`] is what the recorder
//! wrote down; a [`place`] is where file systems run, this machine or a virtual one;
//! [`file_systems`] and [`workloads`] are the tables of who and what; [`run`] does it all, in
//! order; [`results`] is what it found and [`report`] how people read it. [`published`] holds
//! what others measured, [`probe`] finds out what a device is like.
//!
//! The lab knows nothing of how a file system works inside: it sees requests and files.

pub mod cleanup;
mod command;
pub mod draw;
pub mod export;
pub mod failure;
pub mod file_systems;
pub mod model;
pub mod names;
pub mod place;
pub mod probe;
pub mod published;
pub mod replay;
pub mod report;
pub mod results;
pub mod run;
pub mod trace;
pub mod workloads;
