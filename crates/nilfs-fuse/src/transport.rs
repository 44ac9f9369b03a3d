//! Takes requests from the kernel, lets what is [served](Serve) answer them, and sends the answers
//! back.
//!
//! | module | what it knows |
//! |---|---|
//! | `abi` | the numbers and structures of the kernel's interface |
//! | `budget` | how much memory requests may take |
//! | `channel` | how bytes come and go through `/dev/fuse` |
//! | `connection` | what the kernel can be told and asked besides |
//! | `ring` | how they do through io_uring |
//! | `incoming` | a request and the right to answer it, whichever way it has come |
//! | `request` | what is asked for |
//! | `front` | how the answer follows from it |
//! | `workers` | threads for what takes long |
//!
//! # Two transports
//! Where the kernel offers io_uring, requests are answered on the core that asks, and between two of
//! them there is one system call instead of two; see `ring`. Else they come through `/dev/fuse`.
//!
//! # Threads
//! Two to four threads read `/dev/fuse` and answer. One that waits for the device in an fsync
//! answers nobody else, and concurrent fsyncs can only share a commit while all of them wait. So
//! at least one reader stays out of it: further fsyncs get a thread each, as long as there are
//! threads to be had. So do messages to the process itself, which may ask for a checkpoint. The
//! threads of rings stay out of all of that.
//!
//! # Memory
//! Requests that are under way take no more than [`Settings::memory`]. The entries of a ring are all that
//! takes memory there, because data are read into them and copied by way of them, and they are as many
//! and as large as fit. Through `/dev/fuse` the readers have a buffer each for what comes and for what
//! goes, and what they leave to other threads they keep only as far as there is memory left; else they
//! answer it themselves, and the kernel keeps what comes meanwhile.
//!
//! # The end
//! The kernel's last request, DESTROY, is answered by the thread that has joined the session, when
//! nothing is left to be written: see [`Farewell`].

mod abi;
mod budget;
mod channel;
mod connection;
#[cfg(test)]
mod fixtures;
mod front;
mod incoming;
mod request;
mod ring;
mod workers;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use self::abi::{InitIn, InitOut, capability};
use self::budget::Budget;
use self::channel::Channel;
pub use self::connection::Connection;
use self::front::Front;
use self::incoming::{Incoming, Reply};
use self::request::{Call, Request};
use self::ring::{Layout, Rings};
use crate::metrics::Metrics;
use crate::mountpoint::MountError;
use crate::serve::Serve;

/// Bytes that a request has besides its data, at most.
const HEADERS_SIZE: usize = 4096;

/// Buffers of the size of a request that a reader of `/dev/fuse` uses: for what comes, for what goes, and one
/// that it spares for other threads.
const BUFFERS: usize = 3;

/// Requests for which there is memory for each reader of `/dev/fuse`.
const REQUESTS_FOR_READER: usize = 8;

/// Requests that the kernel may have under way in the background, read-ahead above all.
const IN_BACKGROUND: u16 = 64;

/// How long the files that the kernel has forgotten are gathered, where it says so apart from
/// requests: a message for each file that is deleted would wake a thread for each.
const FORGOTTEN_TOGETHER: Duration = Duration::from_millis(1);

/// What the kernel must be able to do. Linux 5.13 and all later ones are.
const NEEDED: u32 = capability::NO_OPEN_SUPPORT | capability::NO_OPENDIR_SUPPORT;

/// What is asked of the kernel if it can do it. Not among them: ASYNC_DIO, with which a buffered
/// read during asynchronous direct writes is left with old pages in the cache; and ATOMIC_O_TRUNC,
/// with which OPEN would empty a file that the kernel then refuses to open, because it is a program
/// that runs, or because a security module forbids it.
const WANTED: u32 = capability::ASYNC_READ
    | capability::BIG_WRITES
    | capability::CACHE_SYMLINKS
    | capability::DO_READDIRPLUS
    | capability::EXPLICIT_INVAL_DATA
    | capability::EXPORT_SUPPORT
    | capability::HANDLE_KILLPRIV_V2
    | capability::INIT_EXT
    | capability::IOCTL_DIR
    | capability::MAX_PAGES
    | capability::PARALLEL_DIROPS
    | capability::READDIRPLUS_AUTO;

/// By which way requests and answers travel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// The fastest that is to be had.
    #[default]
    Auto,
    /// Through io_uring.
    Uring,
    /// Through `/dev/fuse`.
    Device,
}

impl fmt::Display for Transport {
    /// Writes it as the option of a mount has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Device => "dev",
        })
    }
}

/// How the kernel's requests are answered.
#[derive(Clone, Default)]
pub struct Settings {
    /// Which way requests take.
    pub transport: Transport,
    /// Lets the kernel keep small writes back and pass them on in large ones. Faster, but an
    /// error such as `ENOSPC` may come after `write(2)` has reported success.
    pub writeback: bool,
    /// Bytes that requests under way and their answers may take, if that is limited. Where it is little,
    /// requests are smaller, and fewer are under way.
    pub memory: Option<u64>,
    /// Where requests are counted.
    pub metrics: Arc<Metrics>,
}

/// The threads that answer the kernel's requests.
pub struct Session {
    served: Arc<dyn Serve>,
    ends: mpsc::Receiver<End>,
    transport: Transport,
    /// Why it is not io_uring, if that would have been taken.
    absent: Option<Absent>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// How a thread has come to its end.
#[derive(Debug)]
enum End {
    /// The kernel waits for the answer to its last request.
    Destroy(Reply<'static>),
    /// No more requests come through the channel.
    Closed(io::Result<()>),
}

/// What is said to the kernel at the end of a mount, when this is dropped. A mount of type
/// `fuseblk` is waited for by umount(2) until then; others are not.
#[derive(Debug)]
#[must_use = "umount(2) returns when this is dropped"]
pub struct Farewell(Option<LastAnswer>);

/// The answer to the last request.
#[derive(Debug)]
struct LastAnswer {
    reply: Reply<'static>,
    /// Closed when all threads have ended, which they do when the kernel has the answer.
    ends: mpsc::Receiver<End>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        if let Some(LastAnswer { reply, ends }) = self.0.take() {
            reply.ok();
            // Another thread may have to pass it on. If the process ended before that, and one of its
            // own threads waited in umount(2), neither would ever end.
            ends.iter().for_each(drop);
        }
    }
}

impl Session {
    /// Starts to let `served` answer the requests of a mount.
    ///
    /// # Errors
    /// [`MountError::Transport`], or the kernel's FUSE is older than Linux 5.13, or the connection or a
    /// thread fails.
    pub fn start(
        connection: Connection,
        served: Arc<dyn Serve>,
        settings: &Settings,
    ) -> Result<Self, MountError> {
        let failed = |error| MountError::system("answer the kernel", error);
        let memory = settings.memory.unwrap_or(u64::MAX);
        let Agreed { rings, request_size } =
            agree(&connection.channel, settings, memory).map_err(failed)?;
        let (ended, ends) = mpsc::channel();
        let front = |readers| {
            let (metrics, workers) =
                (Arc::clone(&settings.metrics), Arc::clone(&connection.workers));
            let taken = u64::from(request_size) * (BUFFERS * readers) as u64;
            let left = Budget::new(memory.saturating_sub(taken));
            Arc::new(Front::new(Arc::clone(&served), metrics, readers, workers, request_size, left))
        };
        let begun = rings.and_then(|rings| {
            let front = front(1);
            let begun = rings.start(&front, &ended);
            begun.map_err(|error| Some(Absent::Refused(error))).map(|()| front)
        });
        let insisted = settings.transport == Transport::Uring;
        let (transport, absent, readers, front) = match begun {
            Ok(front) => (Transport::Uring, None, 1, front),
            Err(Some(absent)) if insisted => {
                return Err(MountError::Transport { why: absent.to_string() });
            }
            Err(absent) => (Transport::Device, absent, Self::threads(), front(Self::threads())),
        };
        // Nobody waits for what comes besides the requests of rings.
        let pause = (transport == Transport::Uring).then_some(FORGOTTEN_TOGETHER);
        for nth in 0..readers {
            let channel = match nth {
                0 => connection.channel.clone(),
                _ => connection.channel.another().unwrap_or_else(|_| connection.channel.clone()),
            };
            let (front, ended) = (Arc::clone(&front), ended.clone());
            let read = move || _ = ended.send(serve(&front, &channel, &ended, request_size, pause));
            let thread = thread::Builder::new().name(format!("fuse-{nth}"));
            thread.spawn(read).map_err(failed)?;
        }
        Ok(Self { served, ends, transport, absent })
    }

    /// The way that requests take: through io_uring or `/dev/fuse`.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Why there is no io_uring for requests, if it was not to be had.
    #[must_use]
    pub fn why_not_uring(&self) -> Option<String> {
        self.absent.as_ref().map(Absent::to_string)
    }

    /// The number of threads that a session is made of.
    #[must_use]
    pub fn threads() -> usize {
        thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4))
    }

    /// Waits until the kernel sends no more requests: the volume has been unmounted and the last
    /// open file on it closed, or the connection was aborted.
    ///
    /// # Errors
    /// The channel failed.
    pub fn join(self) -> io::Result<Farewell> {
        let Self { served, ends, .. } = self;
        let mut result = Ok(());
        let mut last = None;
        for end in &ends {
            match end {
                End::Destroy(reply) => {
                    last = Some(reply);
                    break;
                }
                End::Closed(ended) => result = result.and(ended),
            }
        }
        // The kernel does not say so of each inode when it leaves.
        served.forget_all();
        match last {
            Some(reply) => Ok(Farewell(Some(LastAnswer { reply, ends }))),
            None => result.map(|()| Farewell(None)),
        }
    }
}

/// Why there is no io_uring for requests.
#[derive(Debug, Error)]
enum Absent {
    #[error("it came with Linux 6.14, built with CONFIG_FUSE_IO_URING")]
    TooOld,
    #[error("it is switched off; write Y to {SWITCH} before mounting")]
    SwitchedOff,
    #[error("{0}; look at sysctl kernel.io_uring_disabled, seccomp rules and ulimit -l")]
    Forbidden(io::Error),
    #[error(
        "its queues need more than the {} KiB of memory that requests may take here; \
         allow the process more",
        .0 >> 10
    )]
    NoMemory(u64),
    #[error("the kernel has offered it and then refused a queue: {0}; look at its log (dmesg)")]
    Refused(io::Error),
}

/// The kernel's switch.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Terms that were agreed on with the kernel.
struct Agreed {
    /// Rings if they are to be used, or why they cannot be, if they are wanted.
    rings: Result<Rings, Option<Absent>>,
    /// Bytes of data that a request has at most.
    request_size: u32,
}

/// Answers the kernel's first request, in which both sides say what they can do. Requests may take so many
/// bytes of `memory`.
fn agree(channel: &Channel, settings: &Settings, memory: u64) -> io::Result<Agreed> {
    let mut buffer = vec![0; 2 * HEADERS_SIZE];
    loop {
        let bytes = channel.receive(&mut buffer)?.ok_or(io::ErrorKind::NotConnected)?;
        let incoming = Incoming::Read { bytes, channel };
        let request = incoming.request().ok_or(io::ErrorKind::InvalidData)?;
        let unique = request.unique;
        let Ok(Call::Init { offer, more }) = request.call else {
            _ = incoming.reply(unique).error(Errno::IO);
            return Err(io::ErrorKind::InvalidData.into());
        };
        let reply = incoming.reply(unique);
        if offer.major > abi::MAJOR {
            // It asks once more, with ours.
            reply.value(&InitOut { major: abi::MAJOR, minor: abi::MINOR, ..InitOut::default() });
            continue;
        }
        if offer.major < abi::MAJOR || offer.flags & NEEDED != NEEDED {
            _ = reply.error(Errno::PROTO);
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's FUSE is too old; Linux 5.13 or newer is needed",
            ));
        }
        let rings = match settings.transport {
            Transport::Device => Err(None),
            Transport::Auto | Transport::Uring => rings(channel, more, memory).map_err(Some),
        };
        let request_size = rings.as_ref().map_or_else(
            |_| {
                let count = REQUESTS_FOR_READER * Session::threads();
                budget::size_of_requests(memory, count).unwrap_or(budget::SMALLEST)
            },
            Rings::request_size,
        );
        match (&rings, settings.transport) {
            (Err(_), Transport::Uring) => _ = reply.error(Errno::PROTO),
            _ => reply.value(&accept(&offer, wanted(settings), rings.is_ok(), request_size)),
        }
        return Ok(Agreed { rings, request_size });
    }
}

/// Prepares rings, if the kernel offers to use them, whose entries take so many bytes of `memory` at most.
fn rings(channel: &Channel, offered: u32, memory: u64) -> Result<Rings, Absent> {
    match offered & capability::OVER_IO_URING != 0 {
        true => {
            let layout = Layout::within(memory).map_err(Absent::Forbidden)?;
            let layout = layout.ok_or(Absent::NoMemory(memory))?;
            Rings::prepare(channel, layout).map_err(Absent::Forbidden)
        }
        false if Path::new(SWITCH).exists() => Err(Absent::SwitchedOff),
        false => Err(Absent::TooOld),
    }
}

/// What is asked of the kernel for this mount, if it can do it.
fn wanted(settings: &Settings) -> u32 {
    let cache = if settings.writeback { capability::WRITEBACK_CACHE } else { 0 };
    WANTED | cache
}

fn accept(offer: &InitIn, wanted: u32, uring: bool, request_size: u32) -> InitOut {
    let more = if uring { capability::OVER_IO_URING } else { 0 };
    InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        max_readahead: offer.max_readahead.min(request_size),
        flags: (NEEDED | wanted) & offer.flags,
        flags2: more,
        max_background: IN_BACKGROUND,
        congestion_threshold: IN_BACKGROUND / 4 * 3,
        max_write: request_size,
        time_granularity: 1,
        max_pages: request_size.div_ceil(rustix::param::page_size() as u32) as u16,
        ..InitOut::default()
    }
}

/// Answers requests from `/dev/fuse`, with so many bytes of data at most, until no more come. Between two
/// there is a `pause`, if no process waits for an answer to what comes here.
fn serve(
    front: &Arc<Front>,
    channel: &Channel,
    ended: &mpsc::Sender<End>,
    request_size: u32,
    pause: Option<Duration>,
) -> End {
    let mut incoming = vec![0; request_size as usize + HEADERS_SIZE];
    let mut outgoing = Vec::new();
    loop {
        let bytes = match channel.receive(&mut incoming) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return End::Closed(Ok(())),
            Err(error) => return End::Closed(Err(error)),
        };
        if Request::parse(bytes).is_none() {
            return End::Closed(Err(io::ErrorKind::InvalidData.into()));
        }
        take(Incoming::Read { bytes, channel }, front, ended, &mut outgoing);
        if let Some(pause) = pause {
            thread::sleep(pause);
        }
    }
}

/// Answers a request, or leaves it to the end of the session if it is the last one.
fn take(
    incoming: Incoming<'_>,
    front: &Arc<Front>,
    ended: &mpsc::Sender<End>,
    buffer: &mut Vec<u8>,
) {
    match incoming.request() {
        Some(Request { unique, call: Ok(Call::Destroy), .. }) => {
            _ = ended.send(End::Destroy(incoming.keep().reply(unique)));
        }
        _ => front.answer(incoming, buffer),
    }
}
