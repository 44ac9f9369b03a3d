//! The kernel front end: a mounted volume's FUSE requests become calls of the engine.
//!
//! [`Mountpoint`] and [`Mount`] ask the kernel to mount and unmount, [`Session`] answers its
//! requests. Between them lies one file descriptor of `/dev/fuse`, a [`Connection`]. What the answers
//! are is the affair of what is served: the [`Operations`] of a volume, or anything else that can
//! [`Serve`].
//!
//! | module | what it knows |
//! |---|---|
//! | `mountpoint` | `mount(2)`, `umount2(2)` and fusermount3 |
//! | `mounts` | the kernel's table of mounts |
//! | `users` | what keeps a mount in use |
//! | `loop_device` | a loop device that lends its name to a mount |
//! | `transport` | requests and answers as they travel, through `/dev/fuse` or io_uring |
//! | `serve` | what the transport asks of a file system |
//! | `content` | what is mounted of a volume, and what is shown of it |
//! | `operations` | what each request means for the engine; nothing of how it travels |
//! | `nodes` | the numbers by which the kernel knows files |
//! | `past` | the past of each directory, as it is shown in the mount |
//! | `when` | moments of the past as people name them |
//! | `ioctl` | inode flags as `chattr` sees them |
//! | `control` | messages to the process that serves a mount, and back |
//! | `metrics` | how often each kind of request comes and how long it takes |
//! | `fault` | which errno an engine error becomes, and which errors go to the log |
//! | `damage` | the paths of damaged files, for the log |
//!
//! # What is left to the kernel
//! Permissions (`default_permissions` is always on), the umask, file locks, and the page cache. We are
//! the only writer, so what it caches stays valid. Set-id bits are cleared here, where the kernel says
//! that they must be, because it would ask for the attributes first.
//!
//! # No write-back cache unless asked for
//! With the kernel's write-back cache a small `write(2)` returns before we hear of it, so a full
//! volume could not answer it with `ENOSPC`: the data would be lost after the program was told
//! that all is well. [`Settings::writeback`] is for those who prefer speed.
//!
//! # Opening and closing
//! The engine keeps nothing per open file. But only we can refuse to open a file for writing that is
//! of the past, immutable or append-only: the superuser may do what its mode forbids, the kernel does
//! not know the flags, and what is written to a shared mapping would be lost without a word. So
//! where anything can be written, the kernel asks before it opens a file. A read-only mount tells
//! it not to send `OPEN` and `RELEASE` at all; `FLUSH` is never sent. `O_TRUNC` arrives as a change of
//! size, after `OPEN`: the kernel may still refuse to open a file when we have answered.
//!
//! # What the kernel holds
//! The kernel counts how often it was given an inode and gives the count back with `FORGET`. Until
//! then the inode must stay, also when its last name is gone: a process may have it open. The
//! engine keeps that count, because it is what deletes files, and nothing else of a file that
//! rests. `FORGET` comes after unlink(2) or close(2) has returned. So before a request is refused
//! for want of room, and before statfs is answered, the kernel is asked which of the files without
//! a name it still has; see `shortage`.
//!
//! # What FUSE cannot pass on
//! `sync(2)` and `syncfs(2)` reach us only through a mount of type `fuseblk`, and only since
//! Linux 6.18, see `mountpoint`. Otherwise they return at once, and the engine's commit interval
//! bounds what a power cut can take. `fsync(2)` works as it should. And `copy_file_range(2)` into a
//! file that was opened with `O_SYNC` comes without that word, so it has to be followed by an fsync.

mod content;
mod control;
mod damage;
mod fault;
mod ioctl;
mod loop_device;
mod losses;
mod metrics;
mod mountpoint;
mod mounts;
mod nodes;
mod operations;
mod past;
mod serve;
mod shortage;
mod transport;
mod users;
mod when;

pub use content::Content;
pub use control::{Handler, LONGEST, ask};
pub use loop_device::lends_its_name;
pub use metrics::{LatencyBucket, Metrics, OperationCounts};
pub use mountpoint::{KernelOptions, Mount, MountError, Mountpoint, remount, unmount};
pub use mounts::{Mounted, says_nobody_serves};
pub use nodes::NodeId;
pub use operations::{HeldPast, Operations};
pub use past::{CopyNr, PastAccess, PastSettings, ino_of_past, is_of_past};
pub use serve::{AddEntry, Answer, Caller, Found, Given, Serve, Validity, WOULD_WAIT};
pub use transport::{Connection, Farewell, Session, Settings, Transport};
pub use users::{Hold, User};
pub use when::{NotAMoment, UnfitName, When, WhenError, new_name};
