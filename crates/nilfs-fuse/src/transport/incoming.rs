//! A request that has come, whichever way, and the right to answer it.

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::channel::Channel;
use super::request::Request;
use super::ring::Delivery;
use crate::serve::{Answer, WOULD_WAIT};

/// A request that nobody has answered yet.
#[derive(Debug)]
pub(super) enum Incoming<'a> {
    /// It was read from `/dev/fuse`.
    Read { bytes: &'a [u8], channel: &'a Channel },
    /// It was read from `/dev/fuse`, and another thread than the reader answers it.
    Kept { bytes: Vec<u8>, channel: Channel },
    /// It lies in an entry of a ring.
    Ring(Delivery),
}

impl<'a> Incoming<'a> {
    /// What is asked for; `None` if it is so little that nobody could be answered.
    pub fn request(&self) -> Option<Request<'_>> {
        match self {
            Self::Read { bytes, .. } => Request::parse(bytes),
            Self::Kept { bytes, .. } => Request::parse(bytes),
            Self::Ring(delivery) => delivery.request(),
        }
    }

    /// Whether it has come to the only thread that serves its queue.
    pub fn is_in_ring(&self) -> bool {
        matches!(self, Self::Ring(_))
    }

    /// The answer, when the request is not needed any more, which says it is called `unique`.
    pub fn reply(self, unique: u64) -> Reply<'a> {
        Reply { unique, to: Some(self) }
    }

    /// Bytes that another thread needs to answer it, if a request has `request_size` at most. It needs
    /// none for what lies in a ring: all that is read or copied goes through the entry.
    pub fn kept_size(&self, request_size: u32) -> u64 {
        let read = self.request().map_or(0, |request| request.read_size());
        match self {
            Self::Read { bytes, .. } => bytes.len() as u64 + read.min(u64::from(request_size)),
            Self::Kept { .. } | Self::Ring(_) => 0,
        }
    }

    /// The same for another thread.
    pub fn keep(self) -> Incoming<'static> {
        match self {
            Self::Read { bytes, channel } => {
                Incoming::Kept { bytes: bytes.to_vec(), channel: channel.clone() }
            }
            Self::Kept { bytes, channel } => Incoming::Kept { bytes, channel },
            Self::Ring(delivery) => Incoming::Ring(delivery),
        }
    }
}

/// The right to answer a request, once. Dropped without an answer, it is one: an error, so that
/// nobody waits for ever.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    unique: u64,
    /// `None`: it has been answered.
    to: Option<Incoming<'a>>,
}

impl<'a> Reply<'a> {
    fn send(&mut self, error: i32, parts: [&[u8]; 2]) {
        match self.to.take() {
            // If it fails, that has been reported, or nobody waits for the answer any more.
            Some(Incoming::Read { channel, .. }) => _ = channel.send(error, self.unique, parts),
            Some(Incoming::Kept { channel, .. }) => _ = channel.send(error, self.unique, parts),
            Some(Incoming::Ring(mut delivery)) => match delivery.put(parts) {
                Some(length) => delivery.answer(error, length),
                None => delivery.answer(-Errno::MSGSIZE.raw_os_error(), 0),
            },
            None => {}
        }
    }

    /// Answers with an error. But the request comes back, unanswered, if what has gone wrong is only
    /// that it must not wait.
    pub fn error(mut self, errno: Errno) -> Option<Incoming<'a>> {
        if errno == WOULD_WAIT {
            return self.to.take();
        }
        self.send(-errno.raw_os_error(), [&[], &[]]);
        None
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
    /// through `buffer`, or come to lie where the kernel fetches them. With an error, as
    /// [`Reply::error`].
    pub fn filled(
        mut self,
        size: usize,
        buffer: &mut Vec<u8>,
        fill: impl FnOnce(&mut [u8]) -> Answer<usize>,
    ) -> Option<Incoming<'a>> {
        if let Some(Incoming::Ring(delivery)) = &mut self.to {
            let filled = delivery.payload(size).map_or(Err(Errno::INVAL), fill);
            return match filled {
                Ok(length) => {
                    if let Some(Incoming::Ring(delivery)) = self.to.take() {
                        delivery.answer(0, length);
                    }
                    None
                }
                Err(errno) => self.error(errno),
            };
        }
        match fill(at_least(buffer, size)) {
            Ok(length) => {
                self.bytes(&buffer[..length]);
                None
            }
            Err(errno) => self.error(errno),
        }
    }

    /// Memory of `size` bytes to be used before the answer is given: `buffer`, or the place for the answer.
    pub fn scratch<'b>(&'b mut self, size: usize, buffer: &'b mut Vec<u8>) -> &'b mut [u8] {
        match &mut self.to {
            Some(Incoming::Ring(delivery)) => delivery.scratch(size),
            _ => at_least(buffer, size),
        }
    }

    /// For requests that want none. Only the entry of a ring goes back.
    pub fn none(mut self) {
        if let Some(Incoming::Ring(delivery)) = self.to.take() {
            delivery.answer(0, 0);
        }
    }
}

/// The first `size` bytes of a buffer that grows where it is shorter.
fn at_least(buffer: &mut Vec<u8>, size: usize) -> &mut [u8] {
    if buffer.len() < size {
        buffer.resize(size, 0);
    }
    &mut buffer[..size]
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        self.send(-Errno::IO.raw_os_error(), [&[], &[]]);
    }
}
