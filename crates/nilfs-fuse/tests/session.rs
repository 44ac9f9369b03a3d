//! What the process that serves a mount makes of requests that no sound kernel makes: cut off, out of
//! order, unknown, or asking for too much. The kernel's end of the channel is a socket here, so nothing
//! is mounted.
//!
//! `NILFS_TEST_SEED=n` replays what is made by chance.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::thread;

use nilfs_device::{Device, IoSlice, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{DeviceCode, Filesystem, MountOptions, SetAttr, StatFs};
use nilfs_fuse::{
    AddEntry, Answer, Caller, Connection, Content, Found, Given, MountError, NodeId, Operations,
    Serve, Session, Settings, Transport,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const MKNOD: u32 = 8;
const READ: u32 = 15;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;
const SYNCFS: u32 = 50;
/// No opcode is as large, but for one that is not for file systems.
const BEYOND_OPCODES: u32 = 70;

const ROOT: u64 = 1;

/// A kernel, as far as the process can tell.
struct Kernel {
    socket: OwnedFd,
    asked: Cell<u64>,
}

impl Kernel {
    /// A kernel, and the channel to it.
    fn new() -> (Self, OwnedFd) {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (socket, channel) =
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        (Self { socket, asked: Cell::new(0) }, channel)
    }

    /// A request, and what it is called.
    fn request(&self, opcode: u32, node: u64, arguments: &[u8]) -> (Vec<u8>, u64) {
        self.asked.set(self.asked.get() + 2);
        let unique = self.asked.get();
        let length = 40 + arguments.len() as u32;
        let mut bytes = [length.to_ne_bytes(), opcode.to_ne_bytes()].concat();
        bytes.extend([unique.to_ne_bytes(), node.to_ne_bytes()].concat());
        bytes.extend([0; 16]);
        bytes.extend(arguments);
        (bytes, unique)
    }

    fn send(&self, bytes: &[u8]) {
        rustix::net::send(&self.socket, bytes, SendFlags::empty()).unwrap();
    }

    /// Makes a request and returns what it is called.
    fn say(&self, opcode: u32, node: u64, arguments: &[u8]) -> u64 {
        let (bytes, unique) = self.request(opcode, node, arguments);
        self.send(&bytes);
        unique
    }

    /// The next answer: to which request, and which.
    fn hear(&self) -> (u64, Result<Vec<u8>, Errno>) {
        let mut bytes = vec![0; 2 << 20];
        let (length, _) =
            rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty()).unwrap();
        let bytes = &bytes[..length];
        let word = |at: usize| i32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(0) as usize, length);
        match (u64::from_ne_bytes(bytes[8..16].try_into().unwrap()), word(4)) {
            // A notice.
            (0, _) => self.hear(),
            (unique, 0) => (unique, Ok(bytes[16..].to_vec())),
            (unique, error) => (unique, Err(Errno::from_raw_os_error(-error))),
        }
    }

    fn hear_of(&self, unique: u64) -> Result<Vec<u8>, Errno> {
        let (answered, answer) = self.hear();
        assert_eq!(answered, unique, "another request was answered");
        answer
    }

    fn ask(&self, opcode: u32, node: u64, arguments: &[u8]) -> Result<Vec<u8>, Errno> {
        let unique = self.say(opcode, node, arguments);
        self.hear_of(unique)
    }

    /// Asks for the first time, as a kernel that can do everything.
    fn say_init(&self) -> u64 {
        let everything = u32::MAX;
        let words = [7, 45, 128 << 10, everything, everything];
        self.say(INIT, 0, &words.map(u32::to_ne_bytes).concat())
    }
}

/// With a transport, and all else as it is by default.
fn by(transport: Transport) -> Settings {
    Settings { transport, ..Settings::default() }
}

/// Something that is served, and its kernel.
struct World {
    kernel: Kernel,
    session: Session,
    /// Answer of the session to the first request.
    agreed: Vec<u8>,
}

impl World {
    fn try_new(
        settings: &Settings,
        serve: impl FnOnce(&Connection) -> Arc<dyn Serve>,
    ) -> Result<Self, MountError> {
        static ONCE: Once = Once::new();
        ONCE.call_once(end_with_the_first_panic_of_a_server);
        let (kernel, channel) = Kernel::new();
        let init = kernel.say_init();
        let connection = Connection::new(channel);
        let served = serve(&connection);
        let session = Session::start(connection, served, settings)?;
        let agreed = kernel.hear_of(init).unwrap();
        Ok(Self { kernel, session, agreed })
    }

    fn new(serve: impl FnOnce(&Connection) -> Arc<dyn Serve>) -> Self {
        Self::try_new(&by(Transport::Device), serve).unwrap()
    }

    fn of_volume(fs: &Arc<Filesystem>) -> Self {
        let content = Content::from(Arc::clone(fs));
        Self::new(|connection| Operations::new(content, connection).unwrap())
    }

    /// Ends the mount as a kernel does. `then` happens before the channel is closed.
    fn end(self, then: impl FnOnce(&Kernel)) {
        let Self { kernel, session, .. } = self;
        let destroy = kernel.say(DESTROY, 0, &[]);
        let farewell = session.join().unwrap();
        then(&kernel);
        rustix::net::shutdown(&kernel.socket, Shutdown::Write).unwrap();
        drop(farewell);
        kernel.hear_of(destroy).unwrap();
    }
}

/// A thread that panics would answer with an error, and not be missed.
fn end_with_the_first_panic_of_a_server() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        if thread::current().name().is_some_and(|name| name.starts_with("fuse")) {
            std::process::abort();
        }
    }));
}

fn formatted() -> MemoryDevice {
    let device = MemoryDevice::new(64 << 20);
    let parameters =
        Parameters { blocks_per_segment: 256, ..Parameters::new([7; 16], 1, 1_700_000_000) };
    format(&device, &parameters).unwrap();
    device
}

fn volume() -> (Arc<MemoryDevice>, Arc<Filesystem>) {
    let device = Arc::new(formatted());
    let below: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&device);
    (device, Filesystem::mount(below, MountOptions::default()).unwrap())
}

fn check(device: &MemoryDevice) {
    let report = nilfs_check::check(device, &nilfs_check::Options::default()).unwrap();
    let errors: Vec<_> = report.errors().map(ToString::to_string).collect();
    assert!(errors.is_empty(), "the volume is damaged: {errors:#?}");
}

/// Nothing, of which it is known who has asked for it.
#[derive(Default)]
struct Nothing {
    largest_read: AtomicUsize,
    synced_by: Mutex<String>,
}

impl Serve for Nothing {
    fn lookup(&self, _: NodeId, _: &[u8]) -> Answer<Found> {
        Ok(None)
    }

    fn attr(&self, _: NodeId) -> Answer<Given> {
        Err(Errno::STALE)
    }

    fn set_attr(&self, _: NodeId, _: &SetAttr) -> Answer<Given> {
        Err(Errno::ROFS)
    }

    fn read_link(&self, _: NodeId) -> Answer<Vec<u8>> {
        Err(Errno::INVAL)
    }

    fn create(&self, _: Caller, _: NodeId, _: &[u8], _: u16, _: DeviceCode) -> Answer<Given> {
        Err(Errno::ROFS)
    }

    fn symlink(&self, _: Caller, _: NodeId, _: &[u8], _: &[u8]) -> Answer<Given> {
        Err(Errno::ROFS)
    }

    fn unlink(&self, _: NodeId, _: &[u8]) -> Answer<()> {
        Err(Errno::ROFS)
    }

    fn rmdir(&self, _: NodeId, _: &[u8]) -> Answer<()> {
        Err(Errno::ROFS)
    }

    fn read(&self, _: NodeId, _: u64, buffer: &mut [u8]) -> Answer<usize> {
        self.largest_read.fetch_max(buffer.len(), Ordering::Relaxed);
        Ok(0)
    }

    fn write(
        &self,
        _: NodeId,
        _: u64,
        _: &[u8],
        _: Option<rustix::fs::OFlags>,
        _: bool,
    ) -> Answer<usize> {
        Err(Errno::ROFS)
    }

    fn sync(&self, _: NodeId) -> Answer<()> {
        *self.synced_by.lock().unwrap() = thread::current().name().unwrap().to_owned();
        Ok(())
    }

    fn stat_fs(&self, _: NodeId) -> Answer<StatFs> {
        Err(Errno::NOSYS)
    }

    fn list(&self, _: NodeId, _: u64, _: bool, _: &mut AddEntry<'_>) -> Answer<()> {
        Ok(())
    }
}

#[test]
fn a_read_gets_no_more_room_than_was_agreed_on() {
    let nothing = Arc::new(Nothing::default());
    let world = World::new(|_| Arc::<Nothing>::clone(&nothing));
    let mut arguments = [0; 40];
    arguments[16..20].fill(0xff);
    assert_eq!(world.kernel.ask(READ, ROOT, &arguments), Ok(Vec::new()));
    assert_eq!(nothing.largest_read.load(Ordering::Relaxed), 1 << 20);
    world.end(|_| ());
}

/// No socket takes the commands of a ring. So that is as if the kernel offered io_uring, and
/// refused it later.
#[test]
fn io_uring_that_is_offered_and_then_refused_is_refused_to_who_insists_on_it() {
    let refused = World::try_new(&by(Transport::Uring), |_| Arc::new(Nothing::default()));
    let Err(error @ MountError::Transport { .. }) = refused.map(drop) else {
        panic!("a mount went on without io_uring")
    };
    assert!(error.to_string().contains("transport=auto"), "{error}");
}

#[test]
fn who_does_not_insist_on_io_uring_has_all_that_dev_fuse_offers() {
    let nothing = Arc::new(Nothing::default());
    let world = World::try_new(&by(Transport::Auto), |_| Arc::<Nothing>::clone(&nothing)).unwrap();
    assert_eq!(world.session.transport(), Transport::Device);
    assert!(world.session.why_not_uring().is_some());
    world.kernel.ask(FSYNC, ROOT, &[0; 16]).unwrap();
    // One of several readers may wait; only the last one leaves that to others.
    assert_ne!(*nothing.synced_by.lock().unwrap(), "fuse-worker");
    world.end(|_| ());
}

/// Bytes that the kernel may write by a request.
fn largest_write(world: &World) -> u32 {
    u32::from_ne_bytes(world.agreed[20..24].try_into().unwrap())
}

#[test]
fn where_there_is_little_memory_requests_are_small_and_do_without_io_uring() {
    for (memory, largest) in [(None, 1 << 20), (Some(32 << 20), 1 << 20), (Some(0), 64 << 10)] {
        let settings = Settings { memory, ..by(Transport::Device) };
        let world = World::try_new(&settings, |_| Arc::new(Nothing::default())).unwrap();
        assert_eq!(largest_write(&world), largest, "{memory:?}");
        world.end(|_| ());
    }
    let settings = |transport| Settings { memory: Some(0), ..by(transport) };
    let world =
        World::try_new(&settings(Transport::Auto), |_| Arc::new(Nothing::default())).unwrap();
    let why = world.session.why_not_uring().unwrap();
    assert!(why.contains("memory") && world.session.transport() == Transport::Device, "{why}");
    world.end(|_| ());
    let refused = World::try_new(&settings(Transport::Uring), |_| Arc::new(Nothing::default()));
    assert!(refused.is_err_and(|error| error.to_string().contains("memory")));
}

#[test]
fn what_comes_before_the_first_request_is_an_error_and_ends_the_mount() {
    for opcode in [LOOKUP, DESTROY, 4711] {
        let (kernel, channel) = Kernel::new();
        let early = kernel.say(opcode, ROOT, b"name\0");
        let served = Arc::new(Nothing::default());
        let started = Session::start(Connection::new(channel), served, &Settings::default());
        assert!(started.is_err());
        assert_eq!(kernel.hear_of(early), Err(Errno::IO));
    }
}

#[test]
fn what_is_out_of_order_or_unknown_is_answered_and_nothing_else_happens() {
    let (device, fs) = volume();
    let world = World::of_volume(&fs);
    let kernel = &world.kernel;
    let again = kernel.say_init();
    assert_eq!(kernel.hear_of(again), Err(Errno::NOSYS));
    assert_eq!(kernel.ask(RELEASE, 4711, &[0; 24]), Ok(Vec::new()), "nobody has opened it");
    for opcode in [0, 7, 41, 4096, u32::MAX] {
        assert_eq!(kernel.ask(opcode, ROOT, &[0; 64]), Err(Errno::NOSYS), "{opcode}");
    }
    // Nobody was given these; FORGET is not answered.
    for node in [0, ROOT, 11, 4711, u64::MAX, 1 << 63] {
        kernel.say(FORGET, node, &u64::MAX.to_ne_bytes());
        let forget = [node.to_ne_bytes(), u64::MAX.to_ne_bytes()].concat();
        kernel.say(BATCH_FORGET, 0, &[&[255; 8], &forget[..]].concat());
        assert_eq!(kernel.ask(GETATTR, node, &[0; 16]).is_ok(), node == ROOT, "{node}");
    }
    world.end(|_| ());
    fs.unmount().unwrap();
    check(&device);
}

#[test]
fn what_is_cut_off_or_too_long_is_answered_with_an_error() {
    let (_, fs) = volume();
    let world = World::of_volume(&fs);
    let kernel = &world.kernel;
    let (bytes, unique) = kernel.request(MKNOD, ROOT, &[&[0; 16], &b"name\0"[..]].concat());
    for length in 40..bytes.len() {
        kernel.send(&bytes[..length]);
        assert_eq!(kernel.hear_of(unique), Err(Errno::INVAL), "{length} bytes");
    }
    kernel.send(&[&bytes[..], b"more"].concat());
    assert_eq!(kernel.hear_of(unique), Err(Errno::INVAL));
    // As long as it says, but without the zero after the name.
    assert_eq!(kernel.ask(LOOKUP, ROOT, b"name"), Err(Errno::INVAL));
    kernel.ask(GETATTR, ROOT, &[0; 16]).unwrap();
    world.end(|_| ());
    fs.unmount().unwrap();
}

/// Numbers by chance, the same for a seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) ^ self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[test]
fn whatever_is_asked_is_answered_and_leaves_a_sound_volume() {
    let seed = std::env::var("NILFS_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    eprintln!("NILFS_TEST_SEED={seed}");
    let mut chance = Chance(seed);
    let (device, fs) = volume();
    let world = World::of_volume(&fs);
    for _ in 0..5000 {
        let opcode = chance.below(u64::from(BEYOND_OPCODES)) as u32;
        // A whole BATCH_FORGET has no answer, as FORGET has none.
        if matches!(opcode, FORGET | BATCH_FORGET | DESTROY) {
            continue;
        }
        let node = match chance.below(3) {
            0 => ROOT,
            1 => chance.below(20),
            _ => chance.next(),
        };
        let mut arguments = vec![0; chance.below(120) as usize];
        match chance.below(3) {
            0 => {}
            1 => arguments.iter_mut().for_each(|byte| *byte = chance.below(3) as u8),
            _ => arguments.iter_mut().for_each(|byte| *byte = chance.next() as u8),
        }
        let (bytes, unique) = world.kernel.request(opcode, node, &arguments);
        world.kernel.send(&bytes);
        assert_eq!(world.kernel.hear().0, unique, "opcode {opcode}, node {node}: {arguments:?}");
    }
    world.end(|_| ());
    fs.unmount().unwrap();
    check(&device);
}

#[test]
fn what_comes_after_the_end_is_answered_and_changes_nothing() {
    let (device, fs) = volume();
    let world = World::of_volume(&fs);
    world.kernel.ask(GETATTR, ROOT, &[0; 16]).unwrap();
    world.end(|kernel| {
        fs.unmount().unwrap();
        let at_the_end = device.snapshot();
        let name = [&0o100644_u32.to_ne_bytes()[..], &[0; 12], b"name\0"].concat();
        assert_eq!(kernel.ask(MKNOD, ROOT, &name), Err(Errno::ROFS));
        assert_eq!(kernel.ask(LOOKUP, ROOT, b"name\0").map(|entry| entry[0]), Ok(0));
        for opcode in [GETATTR, STATFS, FSYNC, SYNCFS, READ] {
            _ = kernel.ask(opcode, ROOT, &[0; 80]);
        }
        assert!(device.snapshot() == at_the_end, "a volume that is unmounted was written");
    });
    check(&device);
}

/// A device whose flushes wait until they are let go.
struct Gate {
    below: MemoryDevice,
    /// Whether it is closed, and whether somebody waits.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Device for Gate {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.1 = state.0;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.0).unwrap());
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.below.discard(offset, bytes)
    }
}

#[test]
fn an_fsync_that_is_interrupted_is_answered_when_it_is_done() {
    let gate =
        Arc::new(Gate { below: formatted(), state: Mutex::default(), changed: Condvar::new() });
    let device: Arc<dyn Device> = Arc::<Gate>::clone(&gate);
    let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
    let world = World::of_volume(&fs);
    let kernel = &world.kernel;
    let name = [&0o100644_u32.to_ne_bytes()[..], &[0; 12], b"name\0"].concat();
    kernel.ask(MKNOD, ROOT, &name).unwrap();
    gate.state.lock().unwrap().0 = true;
    let fsync = kernel.say(FSYNC, ROOT, &[0; 16]);
    drop(gate.changed.wait_while(gate.state.lock().unwrap(), |state| !state.1).unwrap());
    // The kernel does not interrupt anything again then.
    assert_eq!(kernel.ask(INTERRUPT, 0, &fsync.to_ne_bytes()), Err(Errno::NOSYS));
    gate.state.lock().unwrap().0 = false;
    gate.changed.notify_all();
    assert_eq!(kernel.hear_of(fsync), Ok(Vec::new()));
    world.end(|_| ());
    fs.unmount().unwrap();
}
