//! Asking the process that serves a mount, from another process.
//!
//! | module | what it knows |
//! |---|---|
//! | `requests` | what can be asked, what is answered, and what is done for it |
//! | `messages` | questions and answers as JSON, and versions that do not understand each other |
//! | `pages` | how an answer travels that is longer than a message |
//! | `server` | who may ask what, and what the process has to serve it with |
//! | `kept_past` | that a command which copies out of the past finds it there until it ends |
//! | `client` | how to reach the process: an ioctl on any file or directory of the mount |
//!
//! An ioctl finds the right process by itself, in any mount namespace and after any renaming, the
//! kernel vouches for the caller, and nothing is left behind by a process that is killed. A socket
//! would have to be found, guarded and cleaned up.

mod client;
mod kept_past;
mod messages;
mod pages;
mod requests;
mod server;

pub use client::Client;
pub use kept_past::KeptPast;
pub use requests::Powers;
pub use server::{Past, Served, handler};
