//! What a process can tell the kernel of the mount that it serves, and ask, besides answers.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::channel::Channel;
use super::workers::Workers;
use crate::nodes::NodeId;

/// Threads for what takes long, at most. No more fsyncs than that share a log and a flush.
const WORKERS: usize = 64;

/// How long the kernel may take to say whether it has an inode. As a rule it says so at once.
const ANSWER_IN: Duration = Duration::from_millis(100);

/// The way to the kernel that a mount has.
#[derive(Debug, Clone)]
pub struct Connection {
    pub(super) channel: Channel,
    pub(super) workers: Arc<Workers>,
    /// Whether the kernel is being asked something.
    asking: Arc<AtomicBool>,
}

impl Connection {
    /// The way through `device`, an open `/dev/fuse`.
    #[must_use]
    pub fn new(device: OwnedFd) -> Self {
        let workers = Arc::new(Workers::new(WORKERS));
        Self { channel: Channel::new(device), workers, asking: Arc::default() }
    }

    /// Asks the kernel whether it still has an inode: there is no such question, but it says when it
    /// does not have what it is told something about.
    ///
    /// If the last process that has the file open closes it just now, the kernel waits for its pages
    /// to be written, by a request that may come to the very thread that needs to know. So another one
    /// asks, and no answer in time means that the kernel still has it.
    pub(crate) fn still_has(&self, node: NodeId) -> bool {
        if self.asking.swap(true, Ordering::Relaxed) {
            return true;
        }
        let (answer, answered) = mpsc::channel();
        let (channel, asking) = (self.channel.clone(), Arc::clone(&self.asking));
        let ask = move || {
            let has = channel.invalidate_attributes(node);
            asking.store(false, Ordering::Relaxed);
            _ = answer.send(has);
        };
        if self.workers.start(Box::new(ask)).is_err() {
            self.asking.store(false, Ordering::Relaxed);
            return true;
        }
        answered.recv_timeout(ANSWER_IN).unwrap_or(true)
    }

    /// Tells the kernel that the attributes which it keeps of an inode are out of date.
    pub(crate) fn outdate_attributes(&self, node: NodeId) {
        self.channel.invalidate_attributes(node);
    }

    /// Tells the kernel that what it keeps of an inode is out of date: the attributes and the content.
    pub(crate) fn outdate_content(&self, node: NodeId) {
        self.channel.invalidate_content(node);
    }

    /// Tells the kernel that a name does not lead where it did, and waits until it has forgotten what
    /// was below it, as far as nobody uses that. It waits for requests about the directory, so this is
    /// nothing for a thread that answers them.
    pub(crate) fn forget_name(&self, dir: NodeId, name: &[u8]) {
        self.channel.invalidate_entry(dir, name);
    }
}
