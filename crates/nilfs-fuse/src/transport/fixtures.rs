//! A volume for the tests of this module, and the kernel's end of a channel.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Filesystem, MountOptions};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::connection::Connection;
use crate::content::Content;
use crate::operations::Operations;
use crate::past::PastSettings;

/// A channel as a socket, and the kernel's end of it.
pub(super) fn channel() -> (OwnedFd, OwnedFd) {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap()
}

/// A volume in memory that answers everything that it can, and whose notices are read by nothing.
pub(super) fn volume() -> (Arc<Filesystem>, Arc<Operations>) {
    let device = MemoryDevice::new(64 << 20);
    let parameters =
        Parameters { blocks_per_segment: 256, ..Parameters::new([7; 16], 1, 1_700_000_000) };
    format(&device, &parameters).unwrap();
    let fs = Filesystem::mount(Arc::new(device), MountOptions::default()).unwrap();
    let (notices, _) = channel();
    let content = Content::from(Arc::clone(&fs)).with_past(Some(PastSettings::default()));
    let operations = Operations::new(content, &Connection::new(notices)).unwrap();
    (fs, operations)
}
