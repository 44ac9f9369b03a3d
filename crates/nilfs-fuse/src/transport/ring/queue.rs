//! A thread's ring, and the queues that it serves by it. All `unsafe` of this transport is here.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use memmap2::UncheckedAdvice;
use rustix::event::PollFlags;
use rustix::io::Errno;
use zerocopy::transmute;

use super::super::abi::{RingCommand, RingHeader, ring_command};
use super::super::channel::Channel;
use super::super::front::Front;
use super::super::incoming::Incoming;
use super::super::{End, take};
use super::entry::{Delivery, Entry, Home};

/// Marks completions that are about no entry, but about the bell.
const BELL: u64 = u64::MAX;

/// Where submissions have a length, which the library lets nobody set for commands.
const LENGTH_OFFSET: usize = 24;
const _: () = assert!(size_of::<Entry128>() == 128);

/// Bytes with a request or an answer that make it a large one.
const LARGE: usize = 64 << 10;

/// How long no request comes before the memory that large ones took goes back to the system. Taking it
/// anew costs a page fault for each page, which is as much as copying its content.
const IDLE: Duration = Duration::from_secs(5);

/// A piece of memory, as readv(2) knows it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Piece {
    start: *mut u8,
    length: usize,
}

/// A ring, which only the thread that has made it uses.
pub(super) struct Queues {
    // First, because it must be gone before the memory that it refers to.
    ring: IoUring<Entry128, cqueue::Entry>,
    /// What the kernel has; none where a request is being answered.
    lent: Vec<Option<Entry>>,
    /// Where in memory each entry is: header and payload.
    pieces: Vec<[Piece; 2]>,
    home: Arc<Home>,
    /// Entries that the kernel still takes answers of.
    alive: usize,
    /// Whether there was a large request or answer since memory was given back.
    was_large: bool,
}

impl Queues {
    /// Makes a ring with entries for some queues: for each of them a number and how many.
    pub fn new(channel: &Channel, queues: &[(u16, usize)], payload: usize) -> io::Result<Self> {
        let home = Arc::new(Home::new()?);
        let all = queues.iter().flat_map(|(queue, depth)| (0..*depth).map(|_| *queue));
        let mut entries: Vec<Entry> = all
            .enumerate()
            .map(|(index, queue)| Entry::new(index, queue, payload))
            .collect::<io::Result<_>>()?;
        let pieces = entries.iter_mut().map(pieces).collect();
        let lent: Vec<_> = entries.into_iter().map(Some).collect();
        let count = lent.len() as u32 + 1;
        let ring = IoUring::<Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(2 * count.next_power_of_two())
            .build(count.next_power_of_two())?;
        // By its place in this list submissions know the mount, and by none the bell.
        ring.submitter().register_files(&[channel.as_raw_fd()])?;
        Ok(Self { ring, alive: lent.len(), lent, pieces, home, was_large: false })
    }

    /// Serves the queues until no more requests come. Says once whether the kernel has `begun` to
    /// use them, and then how it has `ended`.
    pub fn serve(
        mut self,
        front: &Arc<Front>,
        ended: &mpsc::Sender<End>,
        begun: mpsc::Sender<io::Result<()>>,
    ) -> End {
        let registered = self.register();
        let refused = registered.is_err();
        _ = begun.send(registered);
        drop(begun);
        if refused {
            return End::Closed(Ok(()));
        }
        let mut buffer = Vec::new();
        let mut answered = Vec::new();
        loop {
            let come = self.ring.completion().next();
            let is_idle = come.is_none();
            if let Some(delivery) = come.and_then(|completion| self.received(&completion)) {
                take(Incoming::Ring(delivery), front, ended, &mut buffer);
            }
            self.home.answered(&mut answered);
            for entry in answered.drain(..) {
                self.lend(entry, ring_command::COMMIT_AND_FETCH);
            }
            if self.alive == 0 {
                return End::Closed(Ok(()));
            }
            // An answer does not wait for the next request to be answered, which may depend on it: a
            // file has to be closed before the room that it took can be had.
            let submitted = match is_idle && self.home.sleep() {
                true => self.submit_and_wait(),
                false => self.submit_all(),
            };
            self.home.wake();
            if let Err(error) = submitted
                && !is_passing(&error)
            {
                return End::Closed(Err(error));
            }
        }
    }

    /// Submits what has not been submitted, if there is anything.
    fn submit_all(&mut self) -> io::Result<usize> {
        let nothing = self.ring.submission().is_empty();
        if nothing { Ok(0) } else { self.ring.submit() }
    }

    /// Submits what has not been submitted, and waits until something completes.
    fn submit_and_wait(&mut self) -> io::Result<usize> {
        if !self.was_large {
            return self.ring.submit_and_wait(1);
        }
        let idle = types::Timespec::from(IDLE);
        let limit = types::SubmitArgs::new().timespec(&idle);
        match self.ring.submitter().submit_with_args(1, &limit) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::TIME) => {
                if self.ring.completion().is_empty() {
                    self.give_memory_back();
                }
                Ok(0)
            }
            other => other,
        }
    }

    /// Lets the system have the memory of all entries that are lent to the kernel. No request may have
    /// come in one of them.
    fn give_memory_back(&mut self) {
        for entry in self.lent.iter_mut().flatten().filter(|entry| entry.used > 0) {
            match release(entry) {
                Ok(()) => entry.used = 0,
                Err(error) => {
                    tracing::debug!("the memory of a large request is not given back: {error}");
                }
            }
        }
        self.was_large = false;
    }

    /// Lends all entries to the kernel.
    fn register(&mut self) -> io::Result<()> {
        self.watch_bell();
        for index in 0..self.lent.len() {
            if let Some(entry) = self.lent[index].take() {
                self.lend(entry, ring_command::REGISTER);
            }
        }
        while let Err(error) = self.ring.submit() {
            if !is_passing(&error) {
                return Err(error);
            }
        }
        // A command that is accepted completes only when a request has come. None has: the kernel
        // uses no queue before it has all.
        let refused = self.ring.completion().find(|completion| completion.result() < 0);
        refused.map_or(Ok(()), |refused| Err(io::Error::from_raw_os_error(-refused.result())))
    }

    /// Lends an entry to the kernel.
    fn lend(&mut self, entry: Entry, command: u32) {
        let index = entry.index;
        self.was_large |= entry.used >= LARGE;
        let commit_id = entry.header.entry.commit_id;
        let arguments = RingCommand { commit_id, queue: entry.queue, ..RingCommand::default() };
        let mut submission =
            opcode::UringCmd80::new(types::Fixed(0), command).cmd(transmute!(arguments));
        let pieces = &self.pieces[index];
        if command == ring_command::REGISTER {
            submission = submission.addr(Some(pieces.as_ptr().addr() as u64));
        }
        let mut submission = submission.build().user_data(index as u64);
        if command == ring_command::REGISTER {
            // SAFETY: this is the 128 bytes of a submission as the kernel has it, and four of them are
            // its length.
            unsafe {
                let length = (&raw mut submission).cast::<u8>().add(LENGTH_OFFSET).cast::<u32>();
                length.write_unaligned(pieces.len() as u32);
            }
        }
        self.lent[index] = Some(entry);
        self.submit(&submission);
    }

    /// Lets the bell complete something whenever it rings.
    fn watch_bell(&mut self) {
        let bell = types::Fd(self.home.bell().as_raw_fd());
        let watch = opcode::PollAdd::new(bell, u32::from(PollFlags::IN.bits())).multi(true);
        self.submit(&watch.build().user_data(BELL).into());
    }

    fn submit(&mut self, submission: &Entry128) {
        // SAFETY: what it refers to is `pieces`, which stay until the ring is gone, and through these
        // an entry. The entry is in `lent`: nobody touches it before the command completes, and it is
        // freed after that or when the ring is gone. The kernel writes into it only while this thread
        // waits for completions.
        let pushed = unsafe { self.ring.submission().push(submission) };
        // There is room for all entries and the bell, and all was submitted before the last wait.
        assert!(pushed.is_ok(), "a ring has no room for an answer");
    }

    /// The request that a completion says has come.
    fn received(&mut self, completion: &cqueue::Entry) -> Option<Delivery> {
        if completion.user_data() == BELL {
            if !cqueue::more(completion.flags()) {
                self.watch_bell();
            }
            return None;
        }
        let entry = self.lent.get_mut(completion.user_data() as usize)?.take()?;
        if completion.result() >= 0 {
            return Some(Delivery::new(entry, Arc::clone(&self.home)));
        }
        match Errno::from_raw_os_error(-completion.result()) {
            // The end of the mount.
            Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => {}
            error => tracing::error!("the kernel does not accept an answer: {error}"),
        }
        self.alive -= 1;
        None
    }
}

/// Where an entry is.
fn pieces(entry: &mut Entry) -> [Piece; 2] {
    let header: *mut RingHeader = &mut *entry.header;
    let payload = &mut *entry.payload;
    [
        Piece { start: header.cast(), length: size_of::<RingHeader>() },
        Piece { start: payload.as_mut_ptr(), length: payload.len() },
    ]
}

/// Lets the system have the memory of an entry's payload. What was in it is lost.
fn release(entry: &Entry) -> io::Result<()> {
    // SAFETY: nobody refers to the payload, because whoever uses it owns the entry, and the kernel writes
    // into it only while this thread waits. The memory belongs to this mapping alone, and is zero from now on.
    unsafe { entry.payload.unchecked_advise(UncheckedAdvice::DontNeed) }
}

/// Whether a system call is to be made again.
fn is_passing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_given_back_can_be_used_again() {
        let mut entry = Entry::new(0, 0, 1 << 20).expect("memory");
        let place = entry.payload.as_ptr();
        entry.payload.fill(0xa5);
        release(&entry).expect("it is given back");
        assert!(entry.payload.iter().all(|byte| *byte == 0), "the system has not got the memory");
        entry.payload.fill(0x5a);
        assert_eq!(entry.payload.as_ptr(), place, "the kernel knows where it is");
    }
}
