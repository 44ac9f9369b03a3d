//! Every entry of a ring is handed back, regardless of what arrives in it. An entry with a `FORGET` that
//! the kernel had forced was not, and `ls` of a directory that is in a loop waited for it for ever, past
//! all signals.

use std::iter;

use nilfs_engine::Filesystem;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::super::abi::{ForgetIn, InHeader, OutHeader, opcode};
use super::super::budget::Budget;
use super::super::fixtures;
use super::super::incoming::Incoming;
use super::super::take;
use super::super::workers::Workers;
use super::entry::{Entry, Home};
use super::*;
use crate::metrics::Metrics;
use crate::serve::Serve;

/// Bytes of the payload of an entry.
const ROOM: usize = 64 << 10;

/// By which the kernel knows a request, and the entry in which it comes.
const UNIQUE: u64 = 7;
const INDEX: usize = 3;

/// Seconds after which an entry that has not come back never will.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Known and unknown ones: no opcode is as large as these, but for one that is not for file systems.
fn opcodes() -> impl Iterator<Item = u32> {
    (0..80).chain([4096, 4711, u32::MAX])
}

/// A request as it may lie in an entry.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    opcode: u32,
    node: u64,
    arguments: &'a [u8],
    payload: &'a [u8],
    /// Bytes of the payload that count, it says.
    size: u32,
}

impl Asked<'static> {
    fn new(opcode: u32) -> Self {
        Self { opcode, node: 1, arguments: &[], payload: &[], size: 0 }
    }
}

/// The thread of a queue, as far as it receives and answers requests.
struct Queue {
    front: Arc<Front>,
    home: Arc<Home>,
    ended: mpsc::Sender<End>,
    ends: mpsc::Receiver<End>,
}

impl Queue {
    fn new(served: Arc<dyn Serve>) -> Self {
        let workers = Arc::new(Workers::new(4));
        let front = Arc::new(Front::new(
            served,
            Arc::new(Metrics::default()),
            1,
            workers,
            ROOM as u32,
            Budget::new(u64::MAX),
        ));
        let (ended, ends) = mpsc::channel();
        Self { front, home: Arc::new(Home::new().unwrap()), ended, ends }
    }

    fn delivery(&self, asked: Asked<'_>) -> Delivery {
        let Asked { opcode, node, arguments, payload, size } = asked;
        let mut entry = Entry::new(INDEX, 0, ROOM).unwrap();
        let header = InHeader { opcode, unique: UNIQUE, node, ..InHeader::default() };
        entry.header.in_out.as_mut_bytes()[..size_of::<InHeader>()]
            .copy_from_slice(header.as_bytes());
        entry.header.arguments.as_mut_bytes()[..arguments.len()].copy_from_slice(arguments);
        entry.header.entry.commit_id = UNIQUE;
        entry.header.entry.payload_size = size;
        entry.payload[..payload.len()].copy_from_slice(payload);
        Delivery::new(entry, Arc::clone(&self.home))
    }

    /// Lets a request come, and returns the error that is its answer, 0 for none.
    fn ask(&self, asked: Asked<'_>) -> i32 {
        take(Incoming::Ring(self.delivery(asked)), &self.front, &self.ended, &mut Vec::new());
        // The session answers its last request when nothing is left to be written.
        for end in self.ends.try_iter() {
            let End::Destroy(reply) = end else { panic!("{asked:?} has ended the queue") };
            assert_eq!(asked.opcode, opcode::DESTROY);
            reply.ok();
        }
        self.handed_back(asked)
    }

    /// Waits for the entry, and returns the error that is in it.
    fn handed_back(&self, asked: Asked<'_>) -> i32 {
        let mut answered = Vec::new();
        self.home.answered(&mut answered);
        while answered.is_empty() {
            if self.home.sleep() {
                let mut bell = [PollFd::new(self.home.bell(), PollFlags::IN)];
                let rung = rustix::event::poll(&mut bell, Some(&PATIENCE)).unwrap();
                assert_eq!(rung, 1, "the entry of {asked:?} is not handed back");
                _ = rustix::io::read(self.home.bell(), &mut [0; 8]);
            }
            self.home.wake();
            self.home.answered(&mut answered);
        }
        let [entry] = &answered[..] else {
            panic!("{} entries are handed back for {asked:?}", answered.len())
        };
        let (out, _) = OutHeader::read_from_prefix(entry.header.in_out.as_bytes()).unwrap();
        assert_eq!((entry.index, entry.header.entry.commit_id), (INDEX, UNIQUE), "{asked:?}");
        assert_eq!(out.unique, UNIQUE, "{asked:?}");
        assert!((-4095..=0).contains(&out.error), "{asked:?}: {}", out.error);
        let size = entry.header.entry.payload_size;
        assert!(size as usize <= ROOM, "{asked:?}");
        assert_eq!(out.length as usize, size_of::<OutHeader>() + size as usize, "{asked:?}");
        out.error
    }
}

/// A volume that answers everything that it can, and a queue of requests to it.
fn volume() -> (Arc<Filesystem>, Queue) {
    let (fs, operations) = fixtures::volume();
    (fs, Queue::new(operations))
}

#[test]
fn whatever_arrives_in_an_entry_is_handed_back() {
    let (fs, queue) = volume();
    let numbers: Vec<u8> = (0..ROOM).map(|at| (at % 251) as u8).collect();
    let names = b"one\0other\0";
    let forged = [[0; 128], [1; 128], [0xff; 128]];
    for opcode in opcodes() {
        let asked = Asked::new(opcode);
        for arguments in forged.iter().chain(iter::once(numbers.first_chunk().unwrap())) {
            for node in [0, 1, 2, 11, 4711, 1 << 63, u64::MAX] {
                queue.ask(Asked { node, arguments, ..asked });
            }
            for payload in [&b""[..], b"\0", b"cut short", names, &numbers] {
                let length = payload.len() as u32;
                for size in [0, 1, length, length + 1, ROOM as u32, ROOM as u32 + 1, u32::MAX] {
                    queue.ask(Asked { arguments, payload, size, ..asked });
                }
            }
        }
    }
    fs.unmount().unwrap();
}

#[test]
fn what_wants_no_answer_is_handed_back_without_an_error() {
    let (fs, queue) = volume();
    let forget = ForgetIn { lookups: 1 };
    for code in [opcode::FORGET, opcode::BATCH_FORGET, opcode::RELEASE, opcode::DESTROY] {
        assert_eq!(queue.ask(Asked { arguments: forget.as_bytes(), ..Asked::new(code) }), 0);
    }
    fs.unmount().unwrap();
}

#[test]
fn what_is_dropped_is_handed_back_with_an_error() {
    let (fs, queue) = volume();
    for opcode in opcodes() {
        let asked = Asked::new(opcode);
        drop(queue.delivery(asked));
        assert_eq!(queue.handed_back(asked), -Errno::IO.raw_os_error());
        drop(Incoming::Ring(queue.delivery(asked)).keep().reply(UNIQUE));
        assert_eq!(queue.handed_back(asked), -Errno::IO.raw_os_error());
    }
    fs.unmount().unwrap();
}

/// Bytes that the entries of all queues can take, and how many a core has that is switched on.
fn laid_out(possible: u16, online: u16, memory: u64) -> Option<(u64, u32, usize)> {
    let (possible, online): (Vec<_>, Vec<_>) = ((0..possible).collect(), (0..online).collect());
    let Layout { threads, request_size } = Layout::of(&possible, &online, memory)?;
    let mut queues = threads.concat();
    queues.sort();
    assert!(queues.iter().map(|(core, _)| core).eq(&possible), "each core has a queue");
    let entries: usize = queues.iter().map(|(_, depth)| depth).sum();
    Some((entries as u64 * u64::from(request_size), request_size, queues[0].1))
}

/// The kernel killed a process in a control group of 64 MiB that had 128 entries of 1 MiB each.
#[test]
fn entries_are_as_many_and_as_large_as_there_is_memory() {
    const MIB: u64 = 1 << 20;
    assert_eq!(laid_out(2, 2, u64::MAX), Some((128 * MIB, 1 << 20, 64)));
    assert_eq!(laid_out(64, 64, u64::MAX), Some((512 * MIB, 1 << 20, 8)));
    for (possible, online) in [(1, 1), (2, 2), (4, 2), (64, 8), (64, 64), (512, 4)] {
        for memory in (0..40).map(|power| 1 << power).flat_map(|it: u64| [it, it + it / 3]) {
            match laid_out(possible, online, memory) {
                Some((bytes, size, depth)) => {
                    assert!(bytes <= memory && depth >= 8, "{bytes} of {memory} bytes");
                    assert!((budget::SMALLEST..=budget::LARGEST).contains(&size));
                }
                None => assert!(memory < 64 * 1024 * (8 * u64::from(online) + u64::from(possible))),
            }
        }
    }
}

#[test]
fn lists_of_cores_are_read_as_the_kernel_writes_them() {
    assert_eq!(parse_cores("0-1\n"), Some(vec![0, 1]));
    assert_eq!(parse_cores("0,2-4,7\n"), Some(vec![0, 2, 3, 4, 7]));
    assert_eq!(parse_cores("\n"), None);
    assert_eq!(parse_cores("0-x"), None);
    assert_eq!(parse_cores("70000"), None);
}
