//! From a request to the answer: lets what is [served](Serve) do the work, and puts what it says into
//! the words of the kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nilfs_engine::{Attr, DeviceCode, DirEntry, SetAttr, SetTime, Timestamp, without_waiting};
use nilfs_ondisk::inode::{S_IFDIR, S_IFMT, S_IFREG};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::abi::{
    self, AttrOut, CopyOut, CreateOut, EntryOut, IoctlOut, LseekOut, OPEN_KEEP_CACHE,
    OPEN_NO_FLUSH, OpenOut, SetAttrIn, StatFsOut, WRITE_CACHE, WRITE_KILL_SUIDGID, WriteOut,
    setattr,
};
use super::budget::Budget;
use super::incoming::{Incoming, Reply};
use super::request::{Call, Request};
use super::workers::Workers;
use crate::control;
use crate::metrics::{Metrics, Operation, Outcome};
use crate::nodes::NodeId;
use crate::serve::{Answer, Caller, Found, Given, Serve, Validity, WOULD_WAIT};

/// How long the kernel may keep a name. Nobody but the kernel changes names.
const NAMES_KEPT: Duration = Duration::from_secs(24 * 3600);

/// How long the kernel may keep attributes. It knows of all changes except that of the number of
/// blocks when delayed blocks get their place.
const ATTRIBUTES_KEPT: Duration = Duration::from_secs(60);

/// How long the kernel may keep doors: long enough for those who look at many files by paths that
/// lead through one, and short enough that nobody can tell when a checkpoint was made that nobody
/// asked for.
const DOORS_KEPT: Duration = Duration::from_millis(50);

/// Bytes from which on a read is worth another thread, if its queue would stand still meanwhile.
const LARGE_READ: u64 = 64 << 10;

/// When and where a request is answered.
enum Pace {
    /// At once, by the thread that has received it.
    Brief,
    /// The same, unless that thread would have to wait.
    Tried,
    /// By a thread that may wait.
    Long,
}

/// What answers requests, whichever thread has received them.
pub(super) struct Front {
    served: Arc<dyn Serve>,
    metrics: Arc<Metrics>,
    /// How many threads receive requests that each of them could answer.
    readers: usize,
    /// Requests under way that may take long.
    long: AtomicUsize,
    workers: Arc<Workers>,
    /// Bytes of data that a request has at most.
    request_size: u32,
    /// Memory for what workers are left with.
    memory: Arc<Budget>,
    /// Buffers of workers that have just been used, one for each reader at most. To clear a new one takes
    /// a tenth as long as to fill it from a fast device.
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Front {
    pub fn new(
        served: Arc<dyn Serve>,
        metrics: Arc<Metrics>,
        readers: usize,
        workers: Arc<Workers>,
        request_size: u32,
        memory: Arc<Budget>,
    ) -> Self {
        let (long, spare) = Default::default();
        Self { served, metrics, readers, long, workers, request_size, memory, spare }
    }

    /// Answers a request. What is to be read goes through `buffer`. What takes long, or has to wait, is
    /// left to another thread, if the last reader would be taken from everybody else, and if there is
    /// memory to keep it.
    pub fn answer(self: &Arc<Self>, incoming: Incoming<'_>, buffer: &mut Vec<u8>) {
        let pace = incoming.request().map_or(Pace::Brief, |request| {
            let is_large = incoming.is_in_ring() && request.read_size() >= LARGE_READ;
            let waits = || request.changes() && self.served.may_delay_changes(request.shortened());
            match request.changes_nothing() {
                _ if is_large || request.is_long() || waits() => Pace::Long,
                true => Pace::Tried,
                false => Pace::Brief,
            }
        });
        let left = match pace {
            Pace::Brief => self.answer_here(incoming, buffer),
            Pace::Tried => without_waiting(|| self.answer_here(incoming, buffer)),
            Pace::Long => Some(incoming),
        };
        let Some(incoming) = left else { return };
        let long = self.long.fetch_add(1, Ordering::Relaxed) + 1;
        let claim = match long < self.readers {
            true => None,
            false => self.memory.claim(incoming.kept_size(self.request_size)),
        };
        let Some(claim) = claim else { return self.answer_waiting(incoming, buffer) };
        let (front, incoming) = (Arc::clone(self), incoming.keep());
        self.workers.run(Box::new(move || {
            let mut buffer = front.spare.lock().pop().unwrap_or_default();
            front.answer_waiting(incoming, &mut buffer);
            front.spare_buffer(buffer);
            drop(claim);
        }));
    }

    fn spare_buffer(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.lock();
        if spare.len() < self.readers {
            spare.push(buffer);
        }
    }

    /// Answers a request that was counted as one that takes long.
    fn answer_waiting(&self, incoming: Incoming<'_>, buffer: &mut Vec<u8>) {
        let left = self.answer_here(incoming, buffer);
        assert!(left.is_none(), "a thread that may wait has left a request to others");
        self.long.fetch_sub(1, Ordering::Relaxed);
    }

    /// Answers a request, or returns it if this thread must not wait and would have to.
    fn answer_here<'a>(
        &self,
        incoming: Incoming<'a>,
        buffer: &mut Vec<u8>,
    ) -> Option<Incoming<'a>> {
        let request = incoming.request()?;
        let Request { unique, node, caller, call } = request;
        let served = &*self.served;
        match call {
            Ok(Call::Lookup { name }) => {
                let found = self.looked_up(|| served.lookup(node, name));
                send(found, incoming.reply(unique), |reply, found| match found {
                    Some(given) => reply.value(&entry_out(&given)),
                    None => reply.value(&no_entry()),
                })
            }
            Ok(Call::Forget { lookups }) => {
                self.counted(Operation::Forget, || served.forget(node, lookups));
                incoming.reply(unique).none();
                None
            }
            Ok(Call::BatchForget(nodes)) => {
                self.counted(Operation::Forget, || {
                    nodes.iter().for_each(|one| served.forget(NodeId(one.node), one.lookups));
                });
                incoming.reply(unique).none();
                None
            }
            Ok(Call::GetAttr) => {
                let given = self.noted(Operation::GetAttr, || served.attr(node));
                send_attr(given, incoming.reply(unique))
            }
            Ok(Call::SetAttr(arguments)) => {
                let changes = changes(&arguments);
                let given = self.noted(Operation::SetAttr, || served.set_attr(node, &changes));
                send_attr(given, incoming.reply(unique))
            }
            Ok(Call::ReadLink) => {
                let target = self.noted(Operation::ReadLink, || served.read_link(node));
                send(target, incoming.reply(unique), |reply, target| reply.bytes(&target))
            }
            Ok(Call::Symlink { name, target }) => {
                let given =
                    self.noted(Operation::Symlink, || served.symlink(caller, node, name, target));
                send_entry(given, incoming.reply(unique))
            }
            Ok(Call::MkNod { name, mode, rdev }) => {
                let rdev = DeviceCode::decode(u64::from(rdev));
                let given = self.noted(Operation::MkNod, || {
                    served.create(caller, node, name, mode as u16, rdev)
                });
                send_entry(given, incoming.reply(unique))
            }
            Ok(Call::MkDir { name, mode }) => {
                let mode = mode as u16 & !S_IFMT | S_IFDIR;
                let given = self.noted(Operation::MkDir, || {
                    served.create(caller, node, name, mode, DeviceCode::default())
                });
                send_entry(given, incoming.reply(unique))
            }
            Ok(Call::Create { name, mode }) => {
                let mode = mode as u16 & !S_IFMT | S_IFREG;
                let given = self.noted(Operation::Create, || {
                    served.create(caller, node, name, mode, DeviceCode::default())
                });
                send_created(given, incoming.reply(unique))
            }
            Ok(Call::CreateNameless { mode }) => {
                let mode = mode as u16 & !S_IFMT | S_IFREG;
                let given = self.noted(Operation::CreateNameless, || {
                    served.create_nameless(caller, node, mode)
                });
                send_created(given, incoming.reply(unique))
            }
            Ok(Call::Unlink { name }) => {
                let done = self.noted(Operation::Unlink, || served.unlink(node, name));
                send_done(done, incoming.reply(unique))
            }
            Ok(Call::RmDir { name }) => {
                let done = self.noted(Operation::Rmdir, || served.rmdir(node, name));
                send_done(done, incoming.reply(unique))
            }
            Ok(Call::Rename { name, to_dir, to_name, flags }) => {
                let done = self
                    .noted(Operation::Rename, || served.rename(node, name, to_dir, to_name, flags));
                send_done(done, incoming.reply(unique))
            }
            Ok(Call::Link { node: file, name }) => {
                let given = self.noted(Operation::Link, || served.link(file, node, name));
                send_entry(given, incoming.reply(unique))
            }
            Ok(Call::Open { flags }) if served.is_asked_for_opening() => {
                let flags = OFlags::from_bits_retain(flags);
                let opened = self.noted(Operation::Open, || served.open(node, flags));
                send(opened, incoming.reply(unique), |reply, ()| reply.value(&OPENED))
            }
            Ok(Call::Release) => {
                // What is open is known by its node.
                self.counted(Operation::Release, || ());
                incoming.reply(unique).ok();
                None
            }
            Ok(Call::Read { offset, size }) => {
                let reply = incoming.reply(unique);
                reply.filled(size as usize, buffer, |room| {
                    self.noted(Operation::Read, || served.read(node, offset, room))
                })
            }
            Ok(Call::Write { offset, data, write_flags, flags }) => {
                // Pages that the kernel writes back belong to no particular open file.
                let written_back = write_flags & WRITE_CACHE != 0;
                let flags = (!written_back).then_some(OFlags::from_bits_retain(flags));
                let clear_set_id = write_flags & WRITE_KILL_SUIDGID != 0;
                let written = self.noted(Operation::Write, || {
                    served.write(node, offset, data, flags, clear_set_id)
                });
                send(written, incoming.reply(unique), |reply, written| {
                    reply.value(&WriteOut { size: written as u32, padding: 0 });
                })
            }
            Ok(Call::Copy { offset, to, to_offset, length, wide }) => {
                let mut reply = incoming.reply(unique);
                let room = reply.scratch(self.request_size as usize, buffer);
                let copied = self.noted(Operation::Copy, || {
                    served.copy(node, offset, to, to_offset, length, room)
                });
                send(copied, reply, |reply, copied| match wide {
                    true => reply.value(&CopyOut { copied: copied as u64 }),
                    false => reply.value(&WriteOut { size: copied as u32, padding: 0 }),
                })
            }
            Ok(Call::Lseek { offset, whence }) => {
                let found = self.noted(Operation::Seek, || served.seek(node, offset, whence));
                send(found, incoming.reply(unique), |reply, offset| {
                    reply.value(&LseekOut { offset });
                })
            }
            Ok(Call::Fsync) => {
                let done = self.noted(Operation::Fsync, || served.sync(node));
                send_done(done, incoming.reply(unique))
            }
            Ok(Call::SyncFs) => {
                let done = self.noted(Operation::SyncFs, || served.sync_fs());
                send_done(done, incoming.reply(unique))
            }
            Ok(Call::ReadDir { cookie, size }) => {
                let page = self
                    .noted(Operation::ReadDir, || self.page(node, cookie, size as usize, false));
                send(page, incoming.reply(unique), |reply, page| reply.bytes(&page.bytes))
            }
            Ok(Call::ReadDirPlus { cookie, size }) => {
                let page = self
                    .noted(Operation::ReadDirPlus, || self.page(node, cookie, size as usize, true));
                send(page, incoming.reply(unique), |reply, page| reply.bytes(&page.bytes))
            }
            Ok(Call::StatFs) => {
                let stat = self.noted(Operation::StatFs, || served.stat_fs(node));
                send(stat, incoming.reply(unique), |reply, stat| {
                    reply.value(&StatFsOut {
                        blocks: stat.blocks,
                        free: stat.free,
                        available: stat.available,
                        files: stat.files,
                        files_free: stat.files_free,
                        block_size: stat.block_size,
                        name_max: stat.name_max,
                        fragment_size: stat.block_size,
                        ..StatFsOut::default()
                    });
                })
            }
            Ok(Call::Ioctl { command: control::NUMBER, input, room }) => {
                send_output(self.message(caller, input, room), incoming.reply(unique))
            }
            Ok(Call::Ioctl { command, input, room }) => {
                let output =
                    self.noted(Operation::Ioctl, || served.ioctl(node, command, input, room));
                send_output(output, incoming.reply(unique))
            }
            // The session's affair, which never come here; and what we say we do not do, FLUSH among
            // others, see the crate's documentation.
            refused @ (Ok(
                Call::Init { .. } | Call::Destroy | Call::Open { .. } | Call::Unknown,
            )
            | Err(_)) => {
                let errno = refused.err().unwrap_or(Errno::NOSYS);
                self.counted(Operation::Unsupported, || ());
                incoming.reply(unique).error(errno)
            }
        }
    }

    /// Notes how a request went.
    fn noted<T>(&self, operation: Operation, work: impl FnOnce() -> Answer<T>) -> Answer<T> {
        self.metrics.measure(operation, outcome, work)
    }

    /// Notes a request that looks something up: that it is not there is an answer.
    fn looked_up(&self, work: impl FnOnce() -> Answer<Found>) -> Answer<Found> {
        let judge = |answer: &Answer<Found>| match answer {
            Err(Errno::NOENT) => Outcome::Done,
            answer => outcome(answer),
        };
        self.metrics.measure(Operation::Lookup, judge, work)
    }

    /// Notes a request that has no result of its own; one that we do not know has failed.
    fn counted(&self, operation: Operation, work: impl FnOnce()) {
        let outcome = match operation {
            Operation::Unsupported => Outcome::Failed,
            _ => Outcome::Done,
        };
        self.metrics.measure(operation, |()| outcome, work);
    }

    /// Passes a message on. Returns the answer as it travels.
    fn message(&self, caller: Caller, input: &[u8], room: usize) -> Answer<Vec<u8>> {
        let message = control::unframed(input).ok_or(Errno::NOTTY)?;
        let answer = control::frame(&self.served.message(caller, message)?);
        answer.filter(|answer| answer.len() <= room).ok_or(Errno::MSGSIZE)
    }

    /// Lists a directory from `cookie` on, with as many entries as fit into `size` bytes; each with
    /// its file, if there are to be `files`.
    fn page(&self, dir: NodeId, cookie: u64, size: usize, files: bool) -> Answer<Page> {
        let mut page = Page { bytes: Vec::with_capacity(size), size, files };
        let listed =
            self.served.list(dir, cookie, files, &mut |entry, given| page.add(entry, given));
        // What was found before an error is an answer; the error comes at the next call.
        if page.bytes.is_empty() { listed.map(|()| page) } else { Ok(page) }
    }
}

/// Entries of a directory on their way to the kernel.
struct Page {
    bytes: Vec<u8>,
    size: usize,
    /// Each entry comes with its file.
    files: bool,
}

impl Page {
    /// Adds an entry, if there is room.
    fn add(&mut self, entry: &DirEntry<'_>, given: Option<&Given>) -> bool {
        let file = self.files.then(|| given.map(entry_out).unwrap_or_default());
        let file = file.as_ref().map_or(&[][..], IntoBytes::as_bytes);
        let length = file.len() + size_of::<abi::DirEntry>() + entry.name.len();
        if self.bytes.len() + length.next_multiple_of(8) > self.size {
            return false;
        }
        let file_type = given.map(|given| given.attr.file_type).or(entry.file_type);
        let header = abi::DirEntry {
            ino: entry.ino.0,
            next: entry.next,
            name_length: entry.name.len() as u32,
            // 0: unknown, as that of a damaged inode is.
            file_type: file_type.map_or(0, |file_type| u32::from(file_type.mode_bits() >> 12)),
        };
        self.bytes.extend_from_slice(file);
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        true
    }
}

/// A file that was opened. What is known of it is known by its node.
const OPENED: OpenOut = OpenOut { handle: 0, flags: OPEN_KEEP_CACHE | OPEN_NO_FLUSH, backing: 0 };

/// An ioctl that was done.
const DONE: IoctlOut = IoctlOut { result: 0, flags: 0, in_vectors: 0, out_vectors: 0 };

fn outcome<T>(answer: &Answer<T>) -> Outcome {
    match answer {
        Ok(_) => Outcome::Done,
        Err(WOULD_WAIT) => Outcome::Postponed,
        Err(_) => Outcome::Failed,
    }
}

fn send<'a, T>(
    answer: Answer<T>,
    reply: Reply<'a>,
    success: impl FnOnce(Reply<'a>, T),
) -> Option<Incoming<'a>> {
    match answer {
        Ok(value) => {
            success(reply, value);
            None
        }
        Err(errno) => reply.error(errno),
    }
}

fn send_done(answer: Answer<()>, reply: Reply<'_>) -> Option<Incoming<'_>> {
    send(answer, reply, |reply, ()| reply.ok())
}

fn send_output(answer: Answer<Vec<u8>>, reply: Reply<'_>) -> Option<Incoming<'_>> {
    send(answer, reply, |reply, output| reply.value_and_bytes(&DONE, &output))
}

fn send_entry(answer: Answer<Given>, reply: Reply<'_>) -> Option<Incoming<'_>> {
    send(answer, reply, |reply, given| reply.value(&entry_out(&given)))
}

fn send_created(answer: Answer<Given>, reply: Reply<'_>) -> Option<Incoming<'_>> {
    send(answer, reply, |reply, given| {
        reply.value(&CreateOut { entry: entry_out(&given), open: OPENED });
    })
}

fn send_attr(answer: Answer<Given>, reply: Reply<'_>) -> Option<Incoming<'_>> {
    send(answer, reply, |reply, given| {
        reply.value(&AttrOut {
            valid: kept(given.validity).attributes.as_secs(),
            valid_ns: kept(given.validity).attributes.subsec_nanos(),
            padding: 0,
            attr: attr_out(&given.attr),
        });
    })
}

/// How long the kernel may keep what it is told.
struct Keeping {
    name: Duration,
    attributes: Duration,
}

fn kept(validity: Validity) -> Keeping {
    match validity {
        Validity::Present => Keeping { name: NAMES_KEPT, attributes: ATTRIBUTES_KEPT },
        Validity::Always => Keeping { name: NAMES_KEPT, attributes: NAMES_KEPT },
        Validity::Never => Keeping { name: Duration::ZERO, attributes: Duration::ZERO },
        Validity::Shortly => Keeping { name: DOORS_KEPT, attributes: DOORS_KEPT },
    }
}

/// A file that the kernel is given.
fn entry_out(given: &Given) -> EntryOut {
    let kept = kept(given.validity);
    EntryOut {
        node: given.node.0,
        generation: u64::from(given.attr.generation),
        entry_valid: kept.name.as_secs(),
        attr_valid: kept.attributes.as_secs(),
        entry_valid_ns: kept.name.subsec_nanos(),
        attr_valid_ns: kept.attributes.subsec_nanos(),
        attr: attr_out(&given.attr),
    }
}

/// That there is no such name.
fn no_entry() -> EntryOut {
    EntryOut { entry_valid: NAMES_KEPT.as_secs(), ..EntryOut::default() }
}

fn attr_out(attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        // The format has no atime.
        atime: attr.mtime.seconds,
        mtime: attr.mtime.seconds,
        ctime: attr.ctime.seconds,
        atime_ns: attr.mtime.nanoseconds,
        mtime_ns: attr.mtime.nanoseconds,
        ctime_ns: attr.ctime.nanoseconds,
        mode: u32::from(attr.file_type.mode_bits() | attr.mode),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev.encode() as u32,
        ..abi::Attr::default()
    }
}

fn changes(asked: &SetAttrIn) -> SetAttr {
    let given = |field| asked.valid & field != 0;
    // Before it writes to a file that has set-id bits, for somebody who must not leave them, the
    // kernel asks for a change of nothing, to hear the mode that there is then.
    let nothing = asked.valid & setattr::CHANGES == 0;
    let time = |field, now, seconds, nanoseconds| {
        given(field).then_some(match given(now) {
            true => SetTime::Now,
            false => SetTime::At(Timestamp { seconds, nanoseconds }),
        })
    };
    SetAttr {
        mode: given(setattr::MODE).then_some((asked.mode & 0o7777) as u16),
        uid: given(setattr::UID).then_some(asked.uid),
        gid: given(setattr::GID).then_some(asked.gid),
        clear_set_id: nothing || given(setattr::KILL_SUIDGID),
        size: given(setattr::SIZE).then_some(asked.size),
        atime: time(setattr::ATIME, setattr::ATIME_NOW, asked.atime, asked.atime_ns),
        mtime: time(setattr::MTIME, setattr::MTIME_NOW, asked.mtime, asked.mtime_ns),
        ctime: given(setattr::CTIME)
            .then_some(Timestamp { seconds: asked.ctime, nanoseconds: asked.ctime_ns }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rustix::net::RecvFlags;

    use super::super::abi::{FsyncIn, InHeader, opcode};
    use super::super::channel::Channel;
    use super::super::fixtures;
    use super::*;

    /// Each program that waited for its fsync or for room had its request kept, so that many of them
    /// took more memory than there was.
    #[test]
    fn what_there_is_no_memory_to_keep_is_answered_by_the_thread_that_has_received_it() {
        let (fs, operations) = fixtures::volume();
        let (kernel, ours) = fixtures::channel();
        let channel = Channel::new(ours);
        let arguments = FsyncIn::default();
        let length = (size_of::<InHeader>() + size_of::<FsyncIn>()) as u32;
        let header = InHeader { length, opcode: opcode::FSYNC, node: 1, ..InHeader::default() };
        let bytes = [header.as_bytes(), arguments.as_bytes()].concat();
        let workers = Arc::new(Workers::new(1));
        // The only other thread is busy until this is dropped.
        let (busy, gate) = mpsc::channel::<()>();
        workers.run(Box::new(move || _ = gate.recv()));
        let is_answered =
            || rustix::net::recv(&kernel, &mut [0; 64][..], RecvFlags::empty()).is_ok();
        let memory = Budget::new(2 * u64::from(length) - 1);
        let (served, metrics) = (operations as Arc<dyn Serve>, Arc::default());
        let front = Arc::new(Front::new(served, metrics, 1, workers, 4096, memory));
        for is_kept in [true, false, false] {
            front.answer(Incoming::Read { bytes: &bytes, channel: &channel }, &mut Vec::new());
            assert_eq!(is_answered(), !is_kept);
        }
        drop(busy);
        drop(front);
        fs.unmount().unwrap();
    }
}
