//! `nilfs mount` and `nilfs umount`.
//!
//! A mount is a process that answers the kernel's requests until it is unmounted. `start` brings it
//! to life, `open` gets hold of the device, `serve` is its life, or `read_only` that of one that
//! cannot be written; `attend` is what both have in common. `remount` changes a mount, `umount`
//! waits for its end; `options` knows the words after `-o`, and `log` says where messages go once
//! nobody looks at the terminal.

mod attend;
mod logging;
mod open;
pub mod options;
mod read_only;
mod remount;
mod rescue;
mod serve;
mod start;
mod umount;

pub use start::{MountArgs, mount};
pub use umount::{UmountArgs, umount};
