//! Requests that come through io_uring: a queue for each core, of which the kernel takes the one of
//! the core that asks.
//!
//! # A queue
//! It has entries: memory for one request and its answer. The kernel is lent an entry with a
//! command, which completes when a request has come in it, in the thread that gave the command. The
//! next command about the entry says that the answer lies in it, and lends it again. It is submitted in
//! a system call of its own, before the one that waits for the next request: woken by the first, a
//! program has often asked again before the second, and then nobody has to be woken. One call for both
//! was tried, and creating a file took 67 µs in place of 58.
//!
//! # Threads
//! Each core has a thread that stays on it and serves its queue; the queues of cores that are
//! switched off are dealt out among them, because the kernel asks for all before it uses any.
//! A thread must not wait for the device, because nobody else can serve its queue. What takes long, or
//! would have to wait, is done by another thread, which hands the entry back.
//!
//! # What comes here
//! All that the kernel waits for. It gathers what it wants no answer to, `FORGET` above all, and lets that
//! come through `/dev/fuse`, where notices go, too. But it also forces a `FORGET` at once, for a file that
//! it was given and does not accept: an entry of a directory that leads back to what is above it. That
//! one comes as any other request, and the kernel waits for its entry, though for no answer. So every
//! entry [goes back](entry::Delivery), regardless of the request that has come in it.

mod entry;
mod queue;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread;

use rustix::thread::CpuSet;

use self::queue::Queues;
use super::channel::Channel;
use super::front::Front;
use super::{End, budget};

pub(super) use self::entry::Delivery;

/// Entries of all queues together, if there is memory for them, and if that leaves each a number between
/// these.
const ENTRIES: usize = 512;
const FEWEST_ENTRIES: usize = 8;
const MOST_ENTRIES: usize = 64;

/// Priority of the threads, as nice(2) counts, where we may have one.
///
/// Whoever has had less than its share of a core leaves the run queue when it waits, and is put on an
/// idle core when it is woken. Our share is larger, so that this is not the program that waits for us,
/// although answering takes longer than asking: creating a file takes 1.5 times as long where it is.
const NICE: i32 = -3;

/// The queues that there are to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// For each thread the cores whose queues it serves, its own first, with the number of their entries.
    threads: Vec<Vec<(u16, usize)>>,
    /// Bytes of data in an entry.
    request_size: u32,
}

impl Layout {
    /// Lays queues out for all cores, with entries that take so many bytes of `memory` at most; `None` if
    /// not even the smallest are small enough.
    ///
    /// # Errors
    /// The system does not say how many cores it has.
    pub fn within(memory: u64) -> io::Result<Option<Self>> {
        let possible = cores("/sys/devices/system/cpu/possible")?;
        let online = cores("/sys/devices/system/cpu/online")?;
        Ok(Self::of(&possible, &online, memory))
    }

    fn of(possible: &[u16], online: &[u16], memory: u64) -> Option<Self> {
        let off: Vec<_> = possible.iter().filter(|core| !online.contains(core)).collect();
        let fewest = FEWEST_ENTRIES * online.len() + off.len();
        let request_size = budget::size_of_requests(memory, fewest)?;
        let fitting = usize::try_from(memory / u64::from(request_size)).unwrap_or(usize::MAX);
        let entries = ENTRIES.min(fitting - off.len());
        let depth = (entries / online.len()).clamp(FEWEST_ENTRIES, MOST_ENTRIES);
        let mut threads: Vec<_> = online.iter().map(|core| vec![(*core, depth)]).collect();
        for (nth, core) in off.into_iter().enumerate() {
            threads[nth % online.len()].push((*core, 1));
        }
        Some(Self { threads, request_size })
    }
}

/// Threads that are ready to serve all queues.
pub(super) struct Rings {
    starts: Vec<mpsc::Sender<Start>>,
    request_size: u32,
}

/// What a thread needs to begin.
struct Start {
    front: Arc<Front>,
    ended: mpsc::Sender<End>,
    /// Gets to know whether the kernel has accepted the entries.
    begun: mpsc::Sender<io::Result<()>>,
}

impl Rings {
    /// Makes rings for the mount of `channel`, and starts threads to serve them.
    ///
    /// # Errors
    /// The system allows no rings, or not as many threads.
    pub fn prepare(channel: &Channel, layout: Layout) -> io::Result<Self> {
        let Layout { threads, request_size } = layout;
        let (made, results) = mpsc::channel();
        let mut starts = Vec::new();
        for cores in threads {
            let (start, started) = mpsc::channel::<Start>();
            let (channel, made) = (channel.clone(), made.clone());
            let name = format!("fuse-core-{}", cores[0].0);
            let serve = move || {
                stay_on(cores[0].0);
                ask_for_priority();
                // A ring belongs to the thread that has made it.
                let queues = match Queues::new(&channel, &cores, request_size as usize) {
                    Ok(queues) => queues,
                    Err(error) => {
                        _ = made.send(Err(error));
                        return;
                    }
                };
                _ = made.send(Ok(()));
                drop(made);
                if let Ok(Start { front, ended, begun }) = started.recv() {
                    _ = ended.send(queues.serve(&front, &ended, begun));
                }
            };
            thread::Builder::new().name(name).spawn(serve)?;
            starts.push(start);
        }
        drop(made);
        results.iter().collect::<io::Result<()>>()?;
        Ok(Self { starts, request_size })
    }

    /// Bytes of data that a request can have.
    pub fn request_size(&self) -> u32 {
        self.request_size
    }

    /// Begins to answer requests through the rings, after the kernel was told so.
    ///
    /// # Errors
    /// The kernel does not accept one; it goes on with `/dev/fuse` then.
    pub fn start(self, front: &Arc<Front>, ended: &mpsc::Sender<End>) -> io::Result<()> {
        let (begun, results) = mpsc::channel();
        for start in self.starts {
            let front = Arc::clone(front);
            // If the thread is gone, the channel of results is closed too early, which is noticed.
            _ = start.send(Start { front, ended: ended.clone(), begun: begun.clone() });
        }
        drop(begun);
        results.iter().collect()
    }
}

/// Keeps this thread on a core, if it may run there.
fn stay_on(core: u16) {
    let mut cores = CpuSet::new();
    if usize::from(core) < CpuSet::MAX_CPU {
        cores.set(usize::from(core));
        if let Err(error) = rustix::thread::sched_setaffinity(None, &cores) {
            tracing::debug!("requests of core {core} are answered on others: {error}");
        }
    }
}

/// Lets this thread have more of its core than others, if it may.
fn ask_for_priority() {
    let thread = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(thread), NICE) {
        tracing::debug!("requests are answered without priority: {error}");
    }
}

/// The cores that a file of the system names.
fn cores(path: &str) -> io::Result<Vec<u16>> {
    let text = fs::read_to_string(path)?;
    parse_cores(&text).ok_or_else(|| {
        let message = format!("{path} has no list of cores, but {:?}", text.trim());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// Reads a list of ranges, such as `0-3,6`.
fn parse_cores(text: &str) -> Option<Vec<u16>> {
    let mut cores = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    (!cores.is_empty()).then_some(cores)
}
