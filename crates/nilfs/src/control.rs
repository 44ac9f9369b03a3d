//! Asking the process that serves a mount, from another process.
//!
//! | module | what it knows |
//! |---|---|
//! | `protocol` | what can be asked and answered, as JSON |
//! | `pages` | how an answer travels that is longer than a message |
//! | `server` | who may ask what, and whom to ask in turn |
//! | `client` | how to reach the process: an ioctl on any file or directory of the mount |
//!
//! An ioctl finds the right process by itself, in any mount namespace and after any renaming, the
//! kernel vouches for the caller, and nothing is left behind by a process that is killed. A socket
//! would have to be found, guarded and cleaned up.

mod client;
mod pages;
mod protocol;
mod server;

pub use client::Client;
pub use server::{Served, handler};
