//! Requests that no sound kernel makes: each that is to be answered is answered once, and the volume
//! stays sound. The kernel's end of `/dev/fuse` is a socket here; entries of a ring, which only a kernel
//! can offer, have tests of their own in the front end.

#![no_main]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{Filesystem, MountOptions};
use nilfs_fuse::{Connection, Content, Operations, Session, Settings, Transport};
use nilfs_fuzz::forgery::sound;
use nilfs_fuzz::volumes::options;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};

const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const INIT: u32 = 26;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;

const ROOT: u64 = 1;
/// Bytes in the head of a request.
const HEAD: usize = 40;
/// Most requests of one input.
const MAX_REQUESTS: usize = 8;
/// The volumes that were closed have odd numbers.
const CLOSED: u8 = 1;

/// A kernel, as far as the front end can tell.
struct Kernel {
    socket: OwnedFd,
    asked: u64,
    /// What is answered only if it is not whole.
    forgetting: Vec<u64>,
    buffer: Vec<u8>,
}

impl Kernel {
    fn new() -> (Self, OwnedFd) {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let pair = socketpair(AddressFamily::UNIX, kind, flags, None);
        let (socket, channel) = pair.expect("there are descriptors");
        (Self { socket, asked: 0, forgetting: Vec::new(), buffer: vec![0; 2 << 20] }, channel)
    }

    /// Sends a request that says it is by `longer` bytes longer than it is, and returns its name.
    fn say(&mut self, opcode: u32, node: u64, longer: u8, arguments: &[u8]) -> u64 {
        self.asked += 2;
        let length = (HEAD + arguments.len()) as u32 + u32::from(longer);
        let mut bytes = [length.to_ne_bytes(), opcode.to_ne_bytes()].concat();
        bytes.extend([self.asked.to_ne_bytes(), node.to_ne_bytes()].concat());
        bytes.extend([0; 16]);
        bytes.extend(arguments);
        let sent = retry_on_intr(|| send(&self.socket, &bytes, SendFlags::empty()));
        sent.expect("the front end listens");
        self.asked
    }

    /// The request to which the next answer is; `None` at the end of the connection.
    fn hear(&mut self) -> Option<u64> {
        loop {
            // The fuzzer has an alarm clock.
            let received = retry_on_intr(|| {
                recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()).map(|it| it.0)
            });
            let length = received.expect("a socket can be read");
            let answer = self.buffer.get(..length).filter(|bytes| !bytes.is_empty())?;
            let says = u32::from_ne_bytes(answer[..4].try_into().expect("four bytes"));
            assert_eq!(says as usize, length, "an answer is as long as it says");
            match u64::from_ne_bytes(answer[8..16].try_into().expect("eight bytes")) {
                // A notice, which no request asks for.
                0 => {}
                unique => return Some(unique),
            }
        }
    }

    fn ask(&mut self, opcode: u32, node: u64, longer: u8, arguments: &[u8]) {
        let unique = self.say(opcode, node, longer, arguments);
        self.hear_of(unique);
    }

    /// Waits for the answer to a request. No other is answered meanwhile but what need not be.
    fn hear_of(&mut self, unique: u64) {
        loop {
            let answered = self.hear().expect("the front end is there");
            if answered == unique {
                return;
            }
            let place = self.forgetting.iter().position(|it| *it == answered);
            self.forgetting.swap_remove(place.expect("a request is answered once"));
        }
    }

    /// What is cut from an input: a byte each for the opcode, the node, the size of the arguments and
    /// how much longer the request says it is; then the arguments.
    fn make(&mut self, input: &mut &[u8]) -> Option<()> {
        let (&[opcode, node, size, longer], rest) = input.split_first_chunk()?;
        let (arguments, rest) = rest.split_at(usize::from(size).min(rest.len()));
        *input = rest;
        let node = match node {
            255 => u64::MAX,
            254 => 1 << 63,
            node => node.into(),
        };
        match u32::from(opcode) {
            DESTROY => {}
            opcode @ (FORGET | BATCH_FORGET) => {
                let unique = self.say(opcode, node, longer, arguments);
                self.forgetting.push(unique);
            }
            opcode => self.ask(opcode, node, longer, arguments),
        }
        Some(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, mut requests)) = bytes.split_first() else {
        return;
    };
    let device = Arc::new(MemoryDevice::from(sound(which & 0x7f | CLOSED)));
    let mounted = Filesystem::mount(Arc::clone(&device) as Arc<dyn Device>, quiet());
    let fs = mounted.expect("a sound volume can be mounted");
    let (mut kernel, channel) = Kernel::new();
    let words = [7, 45, 128 << 10, u32::MAX, u32::MAX];
    let init = kernel.say(INIT, 0, 0, &words.map(u32::to_ne_bytes).concat());
    let connection = Connection::new(channel);
    let served = Operations::new(Content::from(Arc::clone(&fs)), &connection).expect("it begins");
    let settings = Settings { transport: Transport::Device, ..Settings::default() };
    let session = Session::start(connection, served, &settings).expect("threads can be had");
    kernel.hear_of(init);
    for _ in 0..MAX_REQUESTS {
        if kernel.make(&mut requests).is_none() {
            break;
        }
    }
    kernel.ask(GETATTR, ROOT, 0, &[0; 16]);
    let destroy = kernel.say(DESTROY, 0, 0, &[]);
    let farewell = session.join().expect("the connection holds");
    shutdown(&kernel.socket, Shutdown::Write).expect("a socket can be shut down");
    drop(farewell);
    kernel.hear_of(destroy);
    fs.unmount().expect("the volume can be closed");
    let checks = nilfs_check::Options { threads: 1, ..Default::default() };
    let report = nilfs_check::check(&*device, &checks).expect("it can be checked");
    assert!(report.is_consistent(), "{report}");
});

fn quiet() -> MountOptions {
    let cleaner = nilfs_engine::CleanerOptions { enabled: false, ..Default::default() };
    MountOptions { cleaner, ..options() }
}
