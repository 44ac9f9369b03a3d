//! What programs may rely on while a volume is mounted: each promise of POSIX and Linux that the
//! file system makes is one test, on a volume of its own, which is checked at the end.
//!
//! The file system and the test run in the same process. The superuser and `/dev/fuse` are needed.

mod asynchronous;
mod attributes;
mod client;
mod content;
mod control;
mod directories;
mod done_or_refused;
mod durability;
mod faults;
mod flags;
mod free_space;
mod locks;
mod mounting;
mod nameless;
mod names;
mod opening;
mod past;
mod permissions;
mod refused;
mod requests;
mod set_id;
mod support;
mod switch;
mod times;
mod transports;
