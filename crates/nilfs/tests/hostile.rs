//! What a local user may try against the mount of somebody else, and what the system may refuse to
//! it: the mount lives on, serves those whose it is, and grows by nothing. The superuser and
//! `/dev/fuse` are needed.

mod common {
    pub mod asking;
    pub mod ours;
}

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::asking::{json, nilfs, refused, works};
use common::ours::{GLANCE, Image};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::process::Uid;

/// Somebody who has nothing to do with the mount.
const NOBODY: u32 = 65534;

const MOUNT: &str = "nogc,cleaner-config=/dev/null";

fn image() -> Image {
    Image::ours("--size 32M -B 256")
}

/// A port that nobody has, as far as one can know.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).unwrap()
}

/// A connection on which this has been said so far. It may have been closed before all was said.
fn say(port: u16, words: &[u8]) -> TcpStream {
    let mut stream = connect(port);
    let _ = stream.write_all(words);
    stream
}

/// What comes back. A connection that is cut has no more to say.
fn answer(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[track_caller]
fn scrape(port: u16) {
    let answer = answer(say(port, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer:?}");
    assert!(answer.trim_end().ends_with("# EOF"), "{answer:?}");
}

/// What the system says of a process.
fn property(process: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().to_owned()
}

/// A number of these: KiB, or a count.
fn figure(process: u32, name: &str) -> u64 {
    property(process, name).parse().unwrap()
}

/// The HTTP library allocated what a request announced, and that ended the process; it waited for
/// what was never sent; and it had a thread for each connection.
#[test]
fn nothing_that_is_sent_to_the_metrics_s_port_ends_blocks_or_swells_the_mount() {
    let image = image();
    let port = free_port();
    let mounted = image.mount(&format!("{MOUNT},metrics=127.0.0.1:{port}"));
    scrape(port);
    let (threads, memory) = (figure(mounted.id(), "Threads"), figure(mounted.id(), "VmRSS"));
    let open_files = || fs::read_dir(format!("/proc/{}/fd", mounted.id())).unwrap().count();
    let files = open_files();
    let pending: Vec<TcpStream> = ["9223372036854775807", "100000000000000", "1000000"]
        .iter()
        .flat_map(|length| {
            ["/metrics", "/"].map(|path| {
                format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\nx")
            })
        })
        .map(|request| say(port, request.as_bytes()))
        .collect();
    scrape(port);
    drop(pending);
    let many = "x: y\r\n".repeat(100_000);
    for request in [
        &b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"\r\n\r\n\r\n\r\n",
        &[0; 100_000],
        &[b'A'; 1_000_000],
        format!("GET /metrics HTTP/1.1\r\n{many}\r\n").as_bytes(),
        format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1_000_000)).as_bytes(),
    ] {
        let stream = say(port, request);
        let _ = stream.shutdown(Shutdown::Write);
        answer(stream);
        scrape(port);
    }
    let idle: Vec<TcpStream> = (0..200)
        .map(|nth| say(port, if nth % 2 == 0 { b"" } else { b"GET /metrics HTTP/1.1\r\nHo" }))
        .collect();
    scrape(port);
    // It was served at the same time as they, not after their time was up.
    let youngest = idle.last().unwrap();
    youngest.set_nonblocking(true).unwrap();
    let said = { youngest }.read(&mut [0]);
    assert_eq!(said.unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(open_files() <= files + 40, "as many as it serves at a time");
    // One of the mount's own may have begun a moment after the first answer.
    assert!(figure(mounted.id(), "Threads") <= threads + 2, "no thread for each connection");
    assert!(figure(mounted.id(), "VmRSS") < memory + (16 << 10));
    drop(idle);
    scrape(port);
    mounted.unmount();
}

/// Runs `work` on a thread that is somebody else to the kernel.
fn as_nobody(work: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let nobody = Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            work();
        });
        thread.join().unwrap();
    });
}

/// Sends an ioctl with bytes that mean nothing, or not what they say.
fn send<const NUMBER: Opcode>(node: &File, bytes: &[u8]) -> Result<(), rustix::io::Errno> {
    let mut buffer = [0u8; 16384];
    buffer[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: no number here says that more bytes are read or written than the buffer has.
    unsafe { ioctl(node, Updater::<NUMBER, [u8; 16384]>::new(&mut buffer)) }
}

/// Bytes of a message that the process takes: a length, a ticket, an offset, and what it says.
fn message(ticket: u64, offset: u64, content: &[u8]) -> Vec<u8> {
    [&ticket.to_ne_bytes(), &offset.to_ne_bytes(), content].concat()
}

#[test]
fn no_message_of_somebody_else_ends_or_changes_the_mount() {
    const CONTROL: Opcode = opcode::read_write::<[u8; 16380]>(b'n', 0xa0);
    let image = image();
    fs::set_permissions(image.path().parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let mounted = image.mount(&format!("allow_other,{MOUNT}"));
    fs::set_permissions(mounted.root(), Permissions::from_mode(0o755)).unwrap();
    fs::write(mounted.join("file"), "content").unwrap();
    let before = json(&["status"], mounted.root())["newest_checkpoint"].clone();
    as_nobody(|| {
        let node = File::open(mounted.root()).unwrap();
        let nested = "[".repeat(16_000);
        let named = format!("{{\"{}\":0}}", "x".repeat(16_000));
        let contents: [&[u8]; 9] = [
            b"",
            b"\xff\xfe",
            b"null",
            nested.as_bytes(),
            named.as_bytes(),
            br#"{"request":"defragment","arguments":{"ino":18446744073709551615,"budget":0}}"#,
            br#"{"request":"trim","arguments":{"from":18446744073709551615,"to":0,"minimum":0}}"#,
            br#"{"request":"remount","arguments":{"words":["ro"]}}"#,
            br#"{"request":"reload-settings","arguments":{"file":"/dev/zero"}}"#,
        ];
        for content in contents {
            for (ticket, offset) in [(0, 0), (0, u64::MAX), (1, 0), (u64::MAX, u64::MAX)] {
                let said = message(ticket, offset, content);
                let answer = nilfs_fuse::ask(&node, &said).unwrap();
                let (_, content) = answer.split_at(2 * size_of::<u64>());
                let refused =
                    serde_json::from_slice::<serde_json::Value>(content).is_ok_and(|answer| {
                        !answer["refused"].is_null() || !answer["not-understood"].is_null()
                    });
                assert!(content.is_empty() || refused);
            }
        }
        for bytes in [&[][..], &[0xff; 16380], &[0xff; 4], &[1, 0, 0, 0]] {
            let _ = send::<CONTROL>(&node, bytes);
            // Numbers that the kernel's own nilfs2 has, and some of every file system.
            let _ = send::<{ opcode::write::<[u8; 16]>(b'n', 0x80) }>(&node, bytes);
            let _ = send::<{ opcode::write::<[u8; 8]>(b'n', 0x81) }>(&node, bytes);
            let _ = send::<{ opcode::write::<[u8; 120]>(b'n', 0x88) }>(&node, bytes);
            let _ = send::<{ opcode::write::<[u8; 8]>(b'n', 0x8b) }>(&node, bytes);
            let _ = send::<{ opcode::read_write::<[u8; 24]>(b'X', 121) }>(&node, bytes);
            let _ = send::<{ opcode::read_write::<[u8; 16383]>(b'n', 0xa1) }>(&node, bytes);
        }
        let file = File::open(mounted.join("file")).unwrap();
        let set_flags = send::<{ opcode::write::<[u8; 8]>(b'f', 2) }>(&file, &[0x10]);
        assert_eq!(set_flags, Err(rustix::io::Errno::PERM));
        let shut_down = send::<{ opcode::read::<[u8; 4]>(b'X', 125) }>(&node, &[2]);
        assert!(shut_down.is_err());
    });
    assert_eq!(json(&["status"], mounted.root())["newest_checkpoint"], before);
    fs::write(mounted.join("file"), "changed").unwrap();
    mounted.unmount();
    image.check();
}

#[test]
fn somebody_who_asks_without_end_keeps_the_owner_from_nothing() {
    let image = image();
    fs::set_permissions(image.path().parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let mounted = image.mount(&format!("allow_other,{MOUNT}"));
    fs::set_permissions(mounted.root(), Permissions::from_mode(0o755)).unwrap();
    let root = mounted.root().to_owned();
    let end = AtomicBool::new(false);
    let requests = ["usage", "metrics", "status", "resizing"]
        .map(|name| format!("{{\"request\":\"{name}\",\"arguments\":{{}}}}"));
    thread::scope(|scope| {
        for nth in 0..40 {
            let (end, root, requests) = (&end, &root, &requests);
            scope.spawn(move || {
                as_nobody(|| {
                    let node = File::open(root).unwrap();
                    while !end.load(Ordering::Relaxed) {
                        nilfs_fuse::ask(&node, &message(0, 0, requests[nth % 4].as_bytes()))
                            .unwrap();
                    }
                });
            });
        }
        for nth in 0..10 {
            let path = root.join(nth.to_string());
            fs::write(&path, "content").unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
        }
        works(&["df"], &root, &[]);
        works(&["snapshot", "create"], &root, &[]);
        assert!(works(&["metrics"], &root, &[]).contains("nilfs_operation_errors_total"));
        end.store(true, Ordering::Relaxed);
    });
    mounted.unmount();
    image.check();
}

/// A program that is killed in the middle of a request was worth a line in the log as an error.
#[test]
fn a_request_that_is_interrupted_is_no_error() {
    let image = image();
    let mounted = image.mount(MOUNT);
    let fifo = image.beside("settings");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let link = image.beside("nilfs-clean");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nilfs"), &link).unwrap();
    let mut reload = Command::new(&link);
    reload.arg(format!("--reload={}", fifo.display())).arg(mounted.root());
    let mut asking = reload.spawn().unwrap();
    // The mount waits for somebody to write into the FIFO, and with it the one who has asked.
    let mut settings = File::options().write(true).open(&fifo).unwrap();
    asking.kill().unwrap();
    while property(asking.id(), "State") != "D" {
        thread::sleep(GLANCE);
    }
    // It comes after the interruption.
    assert!(fs::metadata(mounted.join("missing")).is_err());
    settings.write_all(b"protection_period 60\n").unwrap();
    drop(settings);
    asking.wait().unwrap();
    assert_eq!(json(&["status"], mounted.root())["cleaner"]["protection_seconds"], 60.0);
    // Fails if there is anything in the log.
    mounted.unmount();
}

/// A cgroup that allows this many processes and threads. It goes away when they have.
struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    /// Nothing if this machine does not let us make one.
    fn new() -> Option<Self> {
        // Where the second version is, and where the first.
        for parent in ["/sys/fs/cgroup", "/sys/fs/cgroup/pids"] {
            let name = format!("nilfs-test-{:?}", thread::current().id());
            let cgroup =
                Self { dir: Path::new(parent).join(name + &std::process::id().to_string()) };
            if fs::create_dir(&cgroup.dir).is_ok() && cgroup.dir.join("pids.max").exists() {
                return Some(cgroup);
            }
        }
        eprintln!("skipped: no cgroup with a limit of processes can be made");
        None
    }

    fn allow(&self, most: u32) {
        fs::write(self.dir.join("pids.max"), most.to_string()).unwrap();
    }

    /// Runs `nilfs mount` in it.
    fn mount(&self, image: &Image, dir: &Path) -> (Option<i32>, String) {
        let output = Command::new("sh")
            .args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""])
            .args([&self.dir, Path::new(env!("CARGO_BIN_EXE_nilfs"))])
            .args(["mount", "-o", MOUNT])
            .args([&image.path(), dir])
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let is_busy = |error: std::io::Error| error.kind() == ErrorKind::ResourceBusy;
        while fs::remove_dir(&self.dir).is_err_and(is_busy) {
            thread::sleep(GLANCE);
        }
    }
}

/// A directory to mount on. If a test ends early, its mount goes with it.
struct Place(PathBuf);

impl Place {
    fn beside(image: &Image) -> Self {
        let dir = image.beside("mnt");
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// An fsync during another one aborted the process when there was no thread for it.
#[test]
fn a_mount_that_gets_no_further_thread_serves_what_is_asked_all_the_same() {
    let Some(cgroup) = Cgroup::new() else { return };
    let image = image();
    let place = Place::beside(&image);
    let dir = &place.0;
    cgroup.allow(16);
    assert_eq!(cgroup.mount(&image, dir), (Some(0), String::new()));
    cgroup.allow(1);
    thread::scope(|scope| {
        for nth in 0..16 {
            scope.spawn(move || {
                let mut file = File::create(dir.join(nth.to_string())).unwrap();
                for round in 0..20 {
                    file.write_all(&[round; 5000]).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    for words in [&["status"][..], &["df"], &["snapshot", "create"], &["clean"]] {
        works(words, dir, &[]);
    }
    let said = refused(&["resize"], dir, &["24M"]);
    assert!(said.contains("cannot start a thread"), "{said}");
    works(&["umount"], dir, &[]);
    image.check();
}

#[test]
fn a_mount_that_cannot_have_its_threads_says_so_and_leaves_nothing() {
    let Some(cgroup) = Cgroup::new() else { return };
    let image = image();
    let place = Place::beside(&image);
    let dir = &place.0;
    let mut enough = 1;
    loop {
        cgroup.allow(enough);
        let (code, said) = cgroup.mount(&image, dir);
        if code == Some(0) {
            break;
        }
        assert_eq!(code, Some(1), "{said}");
        assert!(said.starts_with("nilfs: cannot start ") && said.lines().count() == 1, "{said}");
        let (_, _, not_mounted) = nilfs(&["umount"], dir, &[]);
        assert!(not_mounted.contains("is not mounted"), "{not_mounted}");
        enough += 1;
    }
    assert!((2..=16).contains(&enough), "mounts with {enough} processes and threads");
    works(&["umount"], dir, &[]);
}
