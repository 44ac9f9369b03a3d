//! Both ways by which requests come from the kernel, as a user meets them: which one a mount takes,
//! and what becomes of programs when the process that serves them stops, dies, or is asked by many
//! at once. The superuser and `/dev/fuse` are needed; io_uring where the kernel offers it.

mod common;
#[path = "../../nilfs-fuse/tests/posix/switch.rs"]
mod switch;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use common::{CommandOutput, nilfs};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use switch::{SWITCH, Switch};

/// One test at a time, because the switch is one for all.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A volume of 64 MiB and a directory for it. If a test ends early, the mount goes with it.
struct World {
    directory: tempfile::TempDir,
    image: PathBuf,
    dir: PathBuf,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (image, dir) = (directory.path().join("disk.img"), directory.path().join("mnt"));
        fs::create_dir(&dir).unwrap();
        let made = Self { directory, image, dir };
        made.nilfs("mkfs --size 64M --blocks-per-segment 256 IMAGE").output();
        made
    }

    /// Runs a line of words, of which IMAGE and DIR stand for their paths.
    fn nilfs(&self, line: &str) -> CommandOutput {
        nilfs(line.split(' ').map(|word| match word {
            "IMAGE" => self.image.clone(),
            "DIR" => self.dir.clone(),
            word => word.into(),
        }))
    }

    fn mount(&self, transport: &str) {
        self.nilfs(&format!("mount -o transport={transport} IMAGE DIR")).output();
        let status = self.nilfs("status --json DIR").output();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["transport"], transport);
    }

    /// The process that serves it.
    fn server(&self) -> Pid {
        let other = self.directory.path().join("other");
        fs::create_dir_all(&other).unwrap();
        let refusal = nilfs(["mount".as_ref(), self.image.as_path(), &other]).sentence(5);
        let (_, words) = refusal.split_once("process ").expect("the refusal names the process");
        let digits: String = words.chars().take_while(char::is_ascii_digit).collect();
        Pid::from_raw(digits.parse().unwrap()).unwrap()
    }

    /// Starts a shell in the mount.
    fn shell(&self, script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(self.directory.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// Runs a test through each transport that is to be had.
fn each(test: impl Fn(&World, &str)) {
    let _alone = alone();
    test(&World::new(), "dev");
    if let Some(_on) = Switch::on() {
        test(&World::new(), "uring");
    }
}

fn signal(process: Pid, signal: Signal) {
    kill_process(process, signal).unwrap();
}

/// Stops a process, and returns when none of its threads does anything any more.
fn stop(process: Pid) {
    signal(process, Signal::STOP);
    let threads = format!("/proc/{}/task", process.as_raw_nonzero());
    let is_stopped = |stat: String| stat.contains(") T ");
    let stat = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("stat"));
    while !fs::read_dir(&threads).unwrap().all(|thread| stat(thread.unwrap()).is_ok_and(is_stopped))
    {
        thread::yield_now();
    }
}

/// Waits until a child waits for an answer.
fn wait_until_it_asks(child: &Child) {
    let state = PathBuf::from(format!("/proc/{}/wchan", child.id()));
    while !fs::read_to_string(&state).unwrap().starts_with("request_wait") {
        thread::yield_now();
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn with_the_switch_off_a_mount_uses_dev_fuse_unless_io_uring_is_insisted_on() {
    let _alone = alone();
    if !fs::read_to_string(SWITCH).is_ok_and(|it| it.trim() == "N") {
        return eprintln!("the switch is not there, or on");
    }
    let world = World::new();
    let refusal = world.nilfs("mount -o transport=uring IMAGE DIR").sentence(7);
    assert!(refusal.contains("enable_uring"), "{refusal}");
    assert!(!is_mounted(&world.dir));
    world.nilfs("mount IMAGE DIR").output();
    assert!(world.nilfs("status DIR").output().contains("dev"));
    world.nilfs("umount DIR").output();
}

/// A setting of the kernel, for as long as a test needs it; then it is again what it was.
struct Sysctl {
    path: &'static str,
    before: String,
}

impl Sysctl {
    fn set(path: &'static str, value: &str) -> Option<Self> {
        let before = fs::read_to_string(path).ok()?;
        fs::write(path, value).ok()?;
        Some(Self { path, before })
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        _ = fs::write(self.path, self.before.trim());
    }
}

/// What becomes of mounts that find io_uring forbidden. `hint` is a part of what the user is told.
fn is_done_without_io_uring(hint: &str) {
    let world = World::new();
    let refusal = world.nilfs("mount -o transport=uring IMAGE DIR").sentence(7);
    assert!(refusal.contains(hint), "{refusal}");
    assert!(!is_mounted(&world.dir));
    for access in ["rw", "ro"] {
        let log = world.directory.path().join(access);
        world.nilfs(&format!("mount --log {} -o {access} IMAGE DIR", log.display())).output();
        fs::read_dir(&world.dir).unwrap();
        let status = world.nilfs("status DIR").output();
        assert!(status.contains("transport            dev"), "{status}");
        world.nilfs("umount DIR").output();
        let log = fs::read_to_string(log).unwrap();
        let lines: Vec<_> = log.lines().filter(|line| line.contains("io_uring")).collect();
        assert_eq!(lines.len(), 1, "{access}: {log}");
        assert!(lines[0].contains("requests come through /dev/fuse"), "{log}");
        assert!(lines[0].contains(hint), "{log}");
    }
}

#[test]
fn where_io_uring_is_forbidden_the_log_says_so_in_a_line_and_dev_fuse_is_used() {
    let _alone = alone();
    let Some(_on) = Switch::on() else { return };
    let Some(_forbidden) = Sysctl::set("/proc/sys/kernel/io_uring_disabled", "2") else {
        return eprintln!("io_uring cannot be forbidden here");
    };
    is_done_without_io_uring("kernel.io_uring_disabled");
}

#[test]
fn where_seccomp_forbids_io_uring_the_log_says_so_in_a_line_and_dev_fuse_is_used() {
    /// The number of io_uring_setup(2), the same on all machines.
    const SETUP: i64 = 425;
    let _alone = alone();
    let Some(_on) = Switch::on() else { return };
    let forbid = || {
        let rules = [(SETUP, Vec::new())].into();
        let (others, this) =
            (SeccompAction::Allow, SeccompAction::Errno(Errno::PERM.raw_os_error() as u32));
        let machine = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, others, this, machine).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
        // The rule is for this thread, and the processes that it starts.
        is_done_without_io_uring("seccomp");
    };
    thread::scope(|scope| scope.spawn(forbid).join().unwrap());
}

#[test]
fn a_user_who_may_lock_no_memory_has_io_uring_all_the_same() {
    let _alone = alone();
    let Some(_on) = Switch::on() else { return };
    let world = World::new();
    let before = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: before.maximum }).unwrap();
    world.mount("uring");
    setrlimit(Resource::Memlock, before).unwrap();
    fs::write(world.dir.join("file"), vec![7; 3 << 20]).unwrap();
    world.nilfs("umount DIR").output();
}

#[test]
fn a_mount_that_is_in_use_is_not_taken_away_and_a_lazy_unmount_waits_for_its_end() {
    each(|world, transport| {
        world.mount(transport);
        let script = "exec 3> mnt/open; echo begun; for i in $(seq 200); do echo $i > mnt/$i; \
                      cat mnt/$i >&3; done; echo done; read line; echo last >&3; exec 3>&-";
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(world.directory.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "begun");
        // While requests come, and when none does.
        world.nilfs("umount DIR").sentence(5);
        assert_eq!(lines.next().unwrap().unwrap(), "done");
        world.nilfs("umount DIR").sentence(5);
        rustix::mount::unmount(&world.dir, UnmountFlags::DETACH).unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success(), "{transport}");
        // It waits for the process that serves the volume to its end.
        world.nilfs("check IMAGE").output();
        world.mount(transport);
        let expected: String = (1..=200).map(|i| format!("{i}\n")).collect();
        assert_eq!(fs::read_to_string(world.dir.join("open")).unwrap(), expected + "last\n");
        world.nilfs("umount DIR").output();
    });
}

fn is_mounted(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.contains(fs::canonicalize(dir).unwrap().to_str().unwrap())
}

/// The process unmounts the volume then. It used to end before the kernel had the answer to the last
/// request, so that its own umount(2) waited for ever, and nobody could kill it.
#[test]
fn a_signal_ends_the_mount_and_the_process_every_time() {
    each(|world, transport| {
        for _ in 0..20 {
            let mut process = Command::new(env!("CARGO_BIN_EXE_nilfs"))
                .args(["mount", "--background", "-o", &format!("transport={transport}")])
                .args([&world.image, &world.dir])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            process.stdout.take().unwrap().read_exact(&mut [0; 5]).unwrap();
            signal(Pid::from_child(&process), Signal::TERM);
            assert!(process.wait().unwrap().success());
            assert!(!is_mounted(&world.dir));
        }
        world.nilfs("check IMAGE").output();
    });
}

#[test]
fn requests_wait_while_the_process_is_stopped() {
    each(|world, transport| {
        world.mount(transport);
        let server = world.server();
        stop(server);
        let children: Vec<_> = (0..4)
            .map(|nth| world.shell(&format!("exec cp /proc/version mnt/{nth}")))
            .inspect(wait_until_it_asks)
            .collect();
        signal(server, Signal::CONT);
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{transport}: {}", said(&output));
        }
        let expected = fs::read("/proc/version").unwrap();
        for nth in 0..4 {
            assert_eq!(fs::read(world.dir.join(nth.to_string())).unwrap(), expected);
        }
        world.nilfs("umount DIR").output();
        world.nilfs("check IMAGE").output();
    });
}

#[test]
fn a_program_that_is_killed_while_it_waits_takes_nobody_along() {
    each(|world, transport| {
        world.mount(transport);
        let server = world.server();
        stop(server);
        let mut children: Vec<_> =
            (0..8).map(|_| world.shell("exec stat -f mnt")).inspect(wait_until_it_asks).collect();
        children.iter_mut().for_each(|child| child.kill().unwrap());
        signal(server, Signal::CONT);
        children.iter_mut().for_each(|child| _ = child.wait().unwrap());
        fs::write(world.dir.join("later"), "still served").unwrap();
        world.nilfs("umount DIR").output();
        world.nilfs("check IMAGE").output();
    });
}

#[test]
fn when_the_process_dies_programs_hear_of_it_and_what_was_synced_is_there() {
    each(|world, transport| {
        world.mount(transport);
        fs::write(world.dir.join("synced"), "content").unwrap();
        fs::File::open(world.dir.join("synced")).unwrap().sync_all().unwrap();
        let server = world.server();
        stop(server);
        let children: Vec<_> =
            (0..8).map(|_| world.shell("exec stat -f mnt")).inspect(wait_until_it_asks).collect();
        signal(server, Signal::KILL);
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(!output.status.success(), "{transport}: nobody has answered");
        }
        rustix::mount::unmount(&world.dir, UnmountFlags::DETACH).unwrap();
        world.mount(transport);
        assert_eq!(fs::read(world.dir.join("synced")).unwrap(), b"content");
        world.nilfs("umount DIR").output();
        world.nilfs("check IMAGE").output();
    });
}

/// What the threads that answer requests have had of the processor: how often they were woken or made
/// way, and for how long they ran.
fn spent(process: Pid) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).unwrap();
    let read = |thread: &Path, file| fs::read_to_string(thread.join(file)).unwrap_or_default();
    let mut spent: Vec<_> = threads
        .map(|thread| thread.unwrap().path())
        .filter(|thread| read(thread, "comm").starts_with("fuse-"))
        .map(|thread| {
            let status = read(&thread, "status");
            let switches: Vec<_> =
                status.lines().filter(|line| line.contains("ctxt_switches")).collect();
            let stat = read(&thread, "stat");
            let ticks: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').skip(11).collect();
            format!("{}: {switches:?}, {:?} ticks", thread.display(), &ticks[..2])
        })
        .collect();
    spent.sort();
    spent
}

#[test]
fn a_mount_that_is_asked_nothing_does_nothing() {
    each(|world, transport| {
        world.mount(transport);
        let server = world.server();
        fs::write(world.dir.join("file"), "content").unwrap();
        // The last answer may still be on its way, but not for as long as this takes ten times.
        let is_still = (0..10).any(|_| {
            let before = spent(server);
            assert!(!before.is_empty());
            (0..50).for_each(|_| assert!(Command::new("true").status().unwrap().success()));
            before == spent(server)
        });
        assert!(is_still, "{transport}: {:#?}", spent(server));
        world.nilfs("umount DIR").output();
    });
}

#[test]
fn sixty_four_processes_are_served_at_once() {
    each(|world, transport| {
        world.mount(transport);
        let script = |nth| {
            format!(
                "set -e; mkdir mnt/{nth}; for i in 1 2 3 4 5 6 7 8; do \
                 echo {nth} $i > mnt/{nth}/$i; sync mnt/{nth}/$i; \
                 ln mnt/{nth}/$i mnt/{nth}-$i; mv mnt/{nth}-$i mnt/{nth}/moved-$i; \
                 cat mnt/{nth}/moved-$i; rm mnt/{nth}/$i; done"
            )
        };
        let children: Vec<_> = (0..64).map(|nth| world.shell(&script(nth))).collect();
        for (nth, child) in children.into_iter().enumerate() {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{transport}: {}", said(&output));
            let expected: String = (1..=8).map(|i| format!("{nth} {i}\n")).collect();
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        }
        world.nilfs("umount DIR").output();
        world.nilfs("check IMAGE").output();
    });
}
