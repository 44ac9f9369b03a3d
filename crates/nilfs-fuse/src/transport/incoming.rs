//! A request that has come, whichever way, and the right to answer it.

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::channel::Channel;
use super::request::Request;
use super::ring::Entry;
use crate::serve::Answer;

/// A request that nobody has answered yet.
#[derive(Debug)]
pub(super) enum Incoming<'a> {
    /// It was read from `/dev/fuse`.
    Read { bytes: &'a [u8], channel: &'a Channel },
    /// It was read from `/dev/fuse`, and another thread than the reader answers it.
    Kept { bytes: Vec<u8>, channel: Channel },
    /// It lies in an entry of a ring.
    Ring(Entry),
}

impl Incoming<'_> {
    /// What is asked for; `None` if it is no request at all.
    pub fn request(&self) -> Option<Request<'_>> {
        match self {
            Self::Read { bytes, .. } => Request::parse(bytes),
            Self::Kept { bytes, .. } => Request::parse(bytes),
            Self::Ring(entry) => Some(entry.request()),
        }
    }

    /// Whether it has come to the only thread that serves its queue.
    pub fn is_in_ring(&self) -> bool {
        matches!(self, Self::Ring(_))
    }

    /// The answer, when the request is not needed any more, which says it is called `unique`.
    pub fn reply(self, unique: u64) -> Reply {
        let way = match self {
            Self::Read { channel, .. } => Way::Channel(channel.clone()),
            Self::Kept { channel, .. } => Way::Channel(channel),
            Self::Ring(entry) => Way::Ring(entry),
        };
        Reply { unique, way: Some(way) }
    }

    /// The same for another thread.
    pub fn keep(self) -> Incoming<'static> {
        match self {
            Self::Read { bytes, channel } => {
                Incoming::Kept { bytes: bytes.to_vec(), channel: channel.clone() }
            }
            Self::Kept { bytes, channel } => Incoming::Kept { bytes, channel },
            Self::Ring(entry) => Incoming::Ring(entry),
        }
    }
}

/// How an answer goes.
#[derive(Debug)]
enum Way {
    Channel(Channel),
    Ring(Entry),
}

/// The right to answer a request, once. Dropped without an answer, it is one: an error, so that
/// nobody waits for ever.
#[derive(Debug)]
pub(super) struct Reply {
    unique: u64,
    /// `None`: it has been answered.
    way: Option<Way>,
}

impl Reply {
    fn send(&mut self, error: i32, parts: [&[u8]; 2]) {
        match self.way.take() {
            // If it fails, that has been reported, or nobody waits for the answer any more.
            Some(Way::Channel(channel)) => _ = channel.send(error, self.unique, parts),
            Some(Way::Ring(mut entry)) => match entry.put(parts) {
                Some(length) => entry.answer(self.unique, error, length),
                None => entry.answer(self.unique, -Errno::MSGSIZE.raw_os_error(), 0),
            },
            None => {}
        }
    }

    pub fn error(mut self, errno: Errno) {
        self.send(-errno.raw_os_error(), [&[], &[]]);
    }

    pub fn ok(self) {
        self.bytes(&[]);
    }

    pub fn bytes(mut self, data: &[u8]) {
        self.send(0, [data, &[]]);
    }

    pub fn value(self, value: &(impl IntoBytes + Immutable)) {
        self.bytes(value.as_bytes());
    }

    pub fn value_and_bytes(mut self, value: &(impl IntoBytes + Immutable), data: &[u8]) {
        self.send(0, [value.as_bytes(), data]);
    }

    /// Answers with what `fill` leaves in at most `size` bytes, and with as many as it says. They go
    /// through `buffer`, or come to lie where the kernel fetches them.
    pub fn filled(
        mut self,
        size: usize,
        buffer: &mut Vec<u8>,
        fill: impl FnOnce(&mut [u8]) -> Answer<usize>,
    ) {
        if let Some(Way::Ring(mut entry)) = self.way.take_if(|way| matches!(way, Way::Ring(_))) {
            let filled = match entry.payload(size) {
                Some(payload) => fill(payload),
                None => Err(Errno::INVAL),
            };
            return match filled {
                Ok(length) => entry.answer(self.unique, 0, length),
                Err(errno) => entry.answer(self.unique, -errno.raw_os_error(), 0),
            };
        }
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        match fill(&mut buffer[..size]) {
            Ok(length) => self.bytes(&buffer[..length]),
            Err(errno) => self.error(errno),
        }
    }

    /// For requests that want none. They never come through a ring.
    pub fn none(mut self) {
        self.way = None;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(-Errno::IO.raw_os_error(), [&[], &[]]);
    }
}
