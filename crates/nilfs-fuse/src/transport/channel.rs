//! An open `/dev/fuse` through which requests come and answers go.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::ioctl::{Setter, opcode};
use zerocopy::IntoBytes;

use super::abi::{
    InvalidEntry, InvalidInode, NOTICE_INVALID_ENTRY, NOTICE_INVALID_INODE, OutHeader,
};
use crate::nodes::NodeId;

/// A way to the kernel. An answer goes back on the channel on which its request has come.
#[derive(Debug, Clone)]
pub(super) struct Channel(Arc<File>);

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Channel {
    pub fn new(device: OwnedFd) -> Self {
        Self(Arc::new(device.into()))
    }

    /// A second channel to the same mount, so that two threads do not meet in the kernel.
    ///
    /// # Errors
    /// The device cannot be opened: a user who may not do so got the channel from fusermount3.
    pub fn another(&self) -> io::Result<Self> {
        const CLONE: u32 = opcode::read::<u32>(229, 0);
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let of = self.0.as_raw_fd() as u32;
        // SAFETY: the kernel reads a u32 at the address that it is given.
        unsafe { rustix::ioctl::ioctl(&device, Setter::<CLONE, u32>::new(of))? };
        Ok(Self(Arc::new(device)))
    }

    /// Waits for a request; `None` if no more will come, because the volume is unmounted or the
    /// connection was aborted.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            match rustix::io::read(&*self.0, &mut *buffer) {
                Ok(length) => return Ok(Some(&buffer[..length])),
                // Aborted while it was giving us a request, the kernel says so in the second way.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                // The process that made the request was interrupted before we got it.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends an answer or a notice.
    pub fn send(&self, error: i32, unique: u64, parts: [&[u8]; 2]) -> Result<(), Errno> {
        let length = size_of::<OutHeader>() + parts[0].len() + parts[1].len();
        let header = OutHeader { length: length as u32, error, unique };
        let pieces = [header.as_bytes(), parts[0], parts[1]].map(IoSlice::new);
        let sent = rustix::io::retry_on_intr(|| rustix::io::writev(&*self.0, &pieces));
        if let Err(error) = &sent
            && !matches!(*error, Errno::NOENT | Errno::NODEV | Errno::NOTDIR)
        {
            tracing::error!("the kernel does not accept an answer: {error}");
        }
        sent.map(drop)
    }

    /// Tells the kernel that the attributes which it keeps of an inode are out of date. Returns
    /// whether it has the inode, as far as can be known.
    pub fn invalidate_attributes(&self, node: NodeId) -> bool {
        let notice = InvalidInode { node: node.0, offset: -1, length: 0 };
        let sent = self.send(NOTICE_INVALID_INODE, 0, [notice.as_bytes(), &[]]);
        sent != Err(Errno::NOENT)
    }

    /// Tells the kernel that what it keeps of an inode is out of date: the attributes and the content.
    pub fn invalidate_content(&self, node: NodeId) {
        let notice = InvalidInode { node: node.0, offset: 0, length: 0 };
        // If it does not have the inode, it keeps nothing of it.
        let _ = self.send(NOTICE_INVALID_INODE, 0, [notice.as_bytes(), &[]]);
    }

    /// Tells the kernel that a name does not lead where it did, and waits until it has forgotten what
    /// was below it, as far as nobody uses that. It waits for requests about the directory, so this is
    /// nothing for a thread that answers them.
    pub fn invalidate_entry(&self, parent: NodeId, name: &[u8]) {
        let notice = InvalidEntry { parent: parent.0, name_length: name.len() as u32, flags: 0 };
        let name = [name, b"\0"].concat();
        // It may have forgotten the name long ago.
        let _ = self.send(NOTICE_INVALID_ENTRY, 0, [notice.as_bytes(), &name]);
    }
}
