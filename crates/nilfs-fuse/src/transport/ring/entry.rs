//! The memory of one request and its answer, and its way between the kernel and us.

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::MmapMut;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::super::abi::{InHeader, OutHeader, RingHeader};
use super::super::request::Request;

/// The memory of one request and its answer, which is lent to the kernel.
pub(super) struct Entry {
    /// Which one of its thread's.
    pub(super) index: usize,
    /// The queue it belongs to.
    pub(super) queue: u16,
    pub(super) header: Box<RingHeader>,
    /// The system gets it back when the mount ends, which an allocator might keep, and it takes no
    /// memory until something is written there.
    pub(super) payload: MmapMut,
    /// Bytes of the payload that may have been written since the system has got its memory.
    pub(super) used: usize,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry {} of queue {}", self.index, self.queue)
    }
}

impl Entry {
    pub fn new(index: usize, queue: u16, payload_size: usize) -> io::Result<Self> {
        let payload = MmapMut::map_anon(payload_size)?;
        Ok(Self { index, queue, header: Box::default(), payload, used: 0 })
    }

    /// Puts the head of an answer where the request had its own, from which it takes the name.
    fn conclude(&mut self, error: i32, length: usize) {
        let InHeader { unique, .. } = self.header.request();
        let out = OutHeader { length: (size_of::<OutHeader>() + length) as u32, error, unique };
        self.header.in_out.as_mut_bytes()[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        self.header.entry.payload_size = length as u32;
        self.used = self.used.max(length);
    }
}

/// A request that has come in an entry.
///
/// The entry goes back to the thread whose ring lends it to the kernel, regardless of what becomes of
/// the request: the kernel waits for that with every request of a ring, also with those that want no
/// answer, and neither a signal nor another entry ends the wait. Dropped without an answer, a request
/// has an error for one. Where the mount has ended, the thread is gone, and the entry stays with what it
/// has left.
#[derive(Debug)]
pub(in super::super) struct Delivery {
    /// `None`: it has gone back.
    entry: Option<Entry>,
    home: Arc<Home>,
}

impl Delivery {
    pub(super) fn new(mut entry: Entry, home: Arc<Home>) -> Self {
        entry.used = entry.used.max(entry.header.entry.payload_size as usize);
        Self { entry: Some(entry), home }
    }

    /// Request that has come in the entry.
    pub fn request(&self) -> Option<Request<'_>> {
        self.entry.as_ref().map(|entry| Request::from_ring(&entry.header, &entry.payload))
    }

    /// Where the first `size` bytes of an answer go; `None` if there is less room.
    pub fn payload(&mut self, size: usize) -> Option<&mut [u8]> {
        self.entry.as_mut()?.payload.get_mut(..size)
    }

    /// The first `size` bytes of the payload, to be used before the answer is given; nothing if there is
    /// less room.
    pub fn scratch(&mut self, size: usize) -> &mut [u8] {
        let Some(entry) = &mut self.entry else { return &mut [] };
        entry.used = entry.used.max(size);
        entry.payload.get_mut(..size).unwrap_or_default()
    }

    /// Puts an answer where the kernel fetches it. Returns its length, or `None` if there is too
    /// little room.
    pub fn put(&mut self, [first, second]: [&[u8]; 2]) -> Option<usize> {
        let length = first.len() + second.len();
        let (to_first, to_second) = self.payload(length)?.split_at_mut(first.len());
        to_first.copy_from_slice(first);
        to_second.copy_from_slice(second);
        Some(length)
    }

    /// Answers with `length` bytes of the payload, or with an error, a negative errno.
    pub fn answer(mut self, error: i32, length: usize) {
        self.go_back(error, length);
    }

    fn go_back(&mut self, error: i32, length: usize) {
        if let Some(mut entry) = self.entry.take() {
            entry.conclude(error, length);
            self.home.take_back(entry);
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.go_back(-Errno::IO.raw_os_error(), 0);
    }
}

/// Where entries go when they are answered: to the thread whose ring they are lent by.
#[derive(Debug)]
pub(super) struct Home {
    answered: Mutex<Vec<Entry>>,
    /// Whether the thread waits for requests, and has to be woken.
    asleep: AtomicBool,
    bell: OwnedFd,
}

impl Home {
    pub fn new() -> rustix::io::Result<Self> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { answered: Mutex::default(), asleep: AtomicBool::new(false), bell })
    }

    /// What becomes readable when the thread is woken.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    fn take_back(&self, entry: Entry) {
        self.answered.lock().push(entry);
        if self.asleep.swap(false, Ordering::SeqCst) {
            // It can only fail if it has been rung very often.
            _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Exchanges what was answered for an empty list.
    pub fn answered(&self, list: &mut Vec<Entry>) {
        mem::swap(&mut *self.answered.lock(), list);
    }

    /// Whether the thread may wait for requests: from now on it is woken by what is answered.
    pub fn sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let may = self.answered.lock().is_empty();
        if !may {
            self.wake();
        }
        may
    }

    /// The thread does not wait any more.
    pub fn wake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}
