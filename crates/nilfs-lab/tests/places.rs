//! Both places do what scripts ask, bring every byte to the device's file, and leave nothing
//! behind: no mount, no loop device, no process, no directory.
//!
//! What needs root is left out without it; the virtual machine is always tested.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nilfs_lab::cleanup;
use nilfs_lab::export::{Export, ExportOptions};
use nilfs_lab::file_systems;
use nilfs_lab::place::{self, Place, Session};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const DEVICE_BYTES: u64 = 128 << 20;
/// Tells the test that is started anew as a program of its own what to do.
const ROLE: &str = "NILFS_LAB_TEST_ROLE";
const DIRECTORY: &str = "NILFS_LAB_TEST_DIRECTORY";

struct World {
    dir: TempDir,
    device: Option<Export>,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("nilfs-places-").tempdir().unwrap();
        Self { dir, device: None }
    }

    /// A device of its own with an image of that size, served from below the directory.
    fn with_device(bytes: u64) -> Self {
        let mut world = Self::new();
        world.device = Some(export(&world.image(), bytes));
        world
    }

    fn device(&self) -> &Export {
        self.device.as_ref().unwrap()
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn work_dir(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    fn bytes_at(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut image = File::open(self.image()).unwrap();
        image.seek(SeekFrom::Start(offset)).unwrap();
        let mut bytes = vec![0; length];
        image.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Nothing on this machine has to do with the directory any more.
    fn assert_released(&self) {
        let dir = self.dir.path().to_str().unwrap();
        let files = self.device.iter().map(Export::path).chain([self.dir.path()]);
        for file in files {
            let left = loop_devices_of(file.to_str().unwrap());
            assert_eq!(left, Vec::<String>::new(), "loop devices are left");
        }
        assert_eq!(processes_of(dir), Vec::<String>::new(), "processes are left");
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let device = self.device.as_ref().map(|device| device.path().parent().unwrap());
        let is_device = |line: &str| device.is_some_and(|at| line.contains(at.to_str().unwrap()));
        let left = mounts.lines().filter(|line| line.contains(dir) && !is_device(line));
        assert_eq!(left.collect::<Vec<_>>(), [""; 0], "mounts are left");
        let sessions: Vec<_> = fs::read_dir(self.work_dir()).map_or(Vec::new(), |entries| {
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.starts_with("session-")).collect()
        });
        assert_eq!(sessions, Vec::<String>::new(), "directories are left");
    }
}

fn loop_devices_of(dir: &str) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
    let files = devices.filter_map(|path| fs::read_to_string(path.join("loop/backing_file")).ok());
    files.filter(|file| file.contains(dir)).collect()
}

/// Command lines that name the directory, of other processes.
fn processes_of(dir: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap());
    let others = entries.filter(|entry| entry.file_name().to_string_lossy() != own);
    let lines = others.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(dir)).collect()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Requests that the devices here have under way.
const QUEUE_DEPTH: u16 = 16;

fn export(image: &Path, bytes: u64) -> Export {
    let image = image.to_owned();
    let options = ExportOptions {
        image,
        bytes,
        model: None,
        pace: false,
        queue_depth: QUEUE_DEPTH,
        keep_data: None,
    };
    Export::start(options).unwrap()
}

/// The part of the promises that is the same everywhere.
fn check_session(place: &dyn Place, world: &World) {
    let mut session = place.attach(world.device()).unwrap();
    statuses_and_texts_come_back(&mut *session);
    this_machines_files_are_there(&mut *session);
    let (device, directory) = (session.device().to_owned(), session.directory().to_owned());
    let scratch = session.scratch().to_owned();

    let kind = ok(&mut *session, &format!("stat -f -c %T '{scratch}'"));
    assert_eq!(kind, "tmpfs\n");
    let bytes = ok(&mut *session, &format!("blockdev --getsize64 {device}"));
    assert_eq!(bytes.trim(), DEVICE_BYTES.to_string());

    // Straight to the device: what is flushed is in the file.
    let text = "written to the device";
    let write = format!(
        "printf %s '{text}' >'{scratch}/text'; \
         dd if='{scratch}/text' of={device} bs=4096 seek=5 conv=notrunc,fsync status=none"
    );
    ok(&mut *session, &write);
    assert_eq!(world.bytes_at(5 * 4096, text.len()), text.as_bytes());

    // A discarded block takes no room in the file any more.
    ok(&mut *session, &format!("blkdiscard -f -o 20480 -l 4096 {device}"));
    assert_eq!(world.bytes_at(5 * 4096, text.len()), vec![0; text.len()]);

    ok(&mut *session, &format!("mke2fs -q -t ext4 {device}; mount {device} '{directory}'"));
    ok(&mut *session, &format!("cd '{directory}'; echo kept >kept; sync -f kept; echo lost >lost"));
    // The power is cut, while somebody works there.
    ok(&mut *session, &format!("cd '{directory}'; sleep 1000 >/dev/null 2>&1 &"));
    session.end().unwrap();
    world.assert_released();

    let mut session = place.attach(world.device()).unwrap();
    let device = session.device().to_owned();
    let directory = session.directory().to_owned();
    ok(&mut *session, &format!("mount {device} '{directory}'"));
    let files = ok(&mut *session, &format!("cd '{directory}'; ls -d kept lost 2>&1 || true"));
    assert!(files.ends_with("kept\n"), "{files}");
    assert!(files.contains("cannot access 'lost'"), "the power was not cut: {files}");
    ok(&mut *session, &format!("umount '{directory}'"));
    drop(session);
    world.assert_released();
}

fn statuses_and_texts_come_back(session: &mut dyn Session) {
    let output = session.run("echo out; echo complaint >&2; exit 7").unwrap();
    let answer = (output.status, &*output.stdout, &*output.stderr);
    assert_eq!(answer, (7, "out\n", "complaint\n"));
    assert!(output.elapsed.as_nanos() > 0);
    assert_eq!(session.run("false\necho not reached").unwrap().stdout, "", "sh -e");
    assert_eq!(session.run("kill -9 $$").unwrap().status, 128 + 9);
    assert_eq!(session.run("read -r nothing; echo reached").unwrap().status, 1, "no input");
    assert_eq!(session.run("").unwrap().status, 0);
    let long = format!("echo {}", "long ".repeat(60_000));
    assert_eq!(session.run(&long).unwrap().stdout.len(), 5 * 60_000);
    assert_eq!(session.run("id -u").unwrap().stdout, "0\n");
}

fn this_machines_files_are_there(session: &mut dyn Session) {
    let own = std::env::current_exe().unwrap();
    let length = fs::metadata(&own).unwrap().len();
    let seen = ok(session, &format!("stat -c %s '{}'", own.display()));
    assert_eq!(seen.trim(), length.to_string());
    let listed = ok(session, &format!("'{}' --list", own.display()));
    assert!(listed.contains("this_machine_does_what_scripts_ask"), "it runs there: {listed}");
}

fn ok(session: &mut dyn Session, script: &str) -> String {
    let output = session.run(script).unwrap();
    assert_eq!(output.status, 0, "{script}: {}", output.stderr);
    output.stdout
}

#[test]
fn this_machine_does_what_scripts_ask() {
    let world = World::with_device(DEVICE_BYTES);
    if !is_root() {
        let refusal = place::host(&world.work_dir()).unwrap_err().to_string();
        assert!(refusal.contains("root") && refusal.contains("--where vm"), "{refusal}");
        return;
    }
    let host = place::host(&world.work_dir()).unwrap();
    assert_eq!(host.surroundings().place, "host");
    check_session(&host, &world);
}

#[test]
fn a_virtual_machine_does_what_scripts_ask() {
    let world = World::with_device(DEVICE_BYTES);
    let vm = place::vm(&world.work_dir()).unwrap();
    assert_eq!(vm.surroundings().place, "vm");
    check_session(&vm, &world);
}

#[test]
fn a_kernel_says_what_it_cannot_mount() {
    let world = World::new();
    let vm = place::vm(&world.work_dir()).unwrap();
    for kind in ["ext2", "ext3", "ext4", "btrfs", "nilfs2", "f2fs", "vfat", "fuse", "fuse.nilfs"] {
        assert_eq!(vm.can_mount(kind), Ok(()), "{kind}");
    }
    assert!(vm.can_mount("nosuchfs").unwrap_err().contains("has no nosuchfs"));
    if !is_root() {
        return;
    }
    let host = place::host(&world.work_dir()).unwrap();
    let refusal = host.can_mount("nosuchfs").unwrap_err();
    let kernel = &host.surroundings().kernel;
    assert!(refusal.contains("has no nosuchfs") && refusal.contains(kernel), "{refusal}");
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    let has_f2fs = known.lines().any(|line| line.trim() == "f2fs");
    if has_f2fs || !Path::new("/lib/modules").exists() {
        assert_eq!(host.can_mount("f2fs").is_ok(), has_f2fs);
    }
}

/// A program that is interrupted while file systems are mounted in both places.
#[test]
fn an_interrupted_program_leaves_nothing() {
    let world = World::new();
    let mut program = start_as("interrupted", world.dir.path(), Command::new(this_test()));
    let mut printed = BufReader::new(program.stdout.take().unwrap());
    wait_for(&mut printed, "at work");
    kill_process(Pid::from_child(&program), Signal::INT).unwrap();
    assert_eq!(program.wait().unwrap().code(), Some(128 + 2));
    world.assert_released();
}

/// Killed, it cannot clean up; but its virtual machine sees that nobody is there.
#[test]
fn a_virtual_machine_ends_with_its_program() {
    let world = World::new();
    let mut program = start_as("killed", world.dir.path(), Command::new(this_test()));
    let mut printed = BufReader::new(program.stdout.take().unwrap());
    wait_for(&mut printed, "at work");
    let dir = world.dir.path().to_str().unwrap();
    assert_ne!(processes_of(dir), Vec::<String>::new());
    program.kill().unwrap();
    program.wait().unwrap();
    for _ in 0..1200 {
        if processes_of(dir).is_empty() {
            unmount_below(dir);
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it still runs after a minute");
}

/// Ends what a program that was killed has left.
fn unmount_below(dir: &str) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for place in places.filter(|place| place.starts_with(dir)) {
        let unmounted = Command::new("fusermount3").args(["-u", "-z", "--", place]).status();
        assert!(unmounted.unwrap().success(), "{place} is left");
    }
}

/// Each is made by its own mkfs, and gives back what was written before it was unmounted.
#[test]
fn every_file_system_works_in_the_virtual_machine() {
    let world = World::with_device(512 << 20);
    let vm = place::vm(&world.work_dir()).unwrap();
    let mut session = vm.attach(world.device()).unwrap();
    let (device, directory) = (session.device().to_owned(), session.directory().to_owned());
    // The rest waits in the guest's scheduler, which puts it in order.
    let depth = ok(&mut *session, "cat /sys/module/virtio_blk/parameters/queue_depth");
    assert_eq!(depth.trim(), QUEUE_DEPTH.to_string());
    let ours = this_test().with_file_name("../nilfs");
    for system in file_systems::all(&ours) {
        if system.base_name() == file_systems::OURS && !ours.exists() {
            println!("left out: our own, because {} is not built", ours.display());
            continue;
        }
        assert_eq!(vm.can_mount(system.kind), Ok(()), "{}", system.name);
        let mount = system.mount(&device, &directory, true);
        let unmount = system.unmount(&directory);
        ok(&mut *session, &format!("{}\n{mount}", system.format(&device)));
        let magic = ok(&mut *session, &format!("stat -f -c %t '{directory}'"));
        assert_eq!(u64::from_str_radix(magic.trim(), 16).unwrap(), system.magic, "{}", system.name);
        let write = "dd if=/dev/urandom of=big bs=1M count=20 conv=fsync status=none; \
                     mkdir small; cp /etc/*.conf small; cat big small/* | md5sum";
        let written = ok(&mut *session, &format!("cd '{directory}'\n{write}\ncd /\n{unmount}"));
        let read = format!("{mount}\ncd '{directory}'\ncat big small/* | md5sum\ncd /\n{unmount}");
        assert_eq!(ok(&mut *session, &read), written, "{}", system.name);
        println!("{}: {}", system.name, written.trim());
    }
    session.end().unwrap();
    world.assert_released();
}

#[test]
fn a_virtual_machine_that_fails_is_quoted() {
    let world = World::with_device(DEVICE_BYTES);
    let vm = place::vm(&world.work_dir()).unwrap();
    let mut session = vm.attach(world.device()).unwrap();
    let error = session.run("echo c >/proc/sysrq-trigger").unwrap_err().to_string();
    assert!(error.contains("ended under a script: QEMU has ended"), "{error}");
    assert!(error.contains("Kernel panic"), "{error}");
    drop(session);
    world.assert_released();
}

#[test]
fn what_is_missing_is_named_with_what_to_install() {
    let world = World::new();
    let empty = world.dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let mut program = Command::new(this_test());
    program.env("NILFS_LAB_KERNEL", &empty);
    let refusal = refusal_of(program, &world);
    assert!(refusal.contains("NILFS_LAB_KERNEL: there is no kernel"), "{refusal}");
    if !is_root() {
        return;
    }
    // In a mount namespace of its own, QEMU is hidden, and then all kernels are.
    let qemu = "/usr/bin/qemu-system-x86_64";
    let hide = format!("mount --bind /dev/null {qemu}");
    let refusal = refusal_of(in_own_namespace(&hide), &world);
    assert!(refusal.contains("install the package qemu-system-x86"), "{refusal}");
    let hide = format!("mount --bind '{}' /boot", empty.display());
    let mut program = in_own_namespace(&hide);
    program.env("XDG_CACHE_HOME", &empty);
    let refusal = refusal_of(program, &world);
    assert!(refusal.contains("install linux-image-amd64"), "{refusal}");
}

fn in_own_namespace(prepare: &str) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("{prepare} && exec \"$0\" \"$@\"");
    command.args(["--mount", "sh", "-e", "-c", &script]).arg(this_test());
    command
}

fn refusal_of(program: Command, world: &World) -> String {
    let mut program = start_as("refused", world.dir.path(), program);
    let mut printed = BufReader::new(program.stdout.take().unwrap());
    let refusal = wait_for(&mut printed, "refused: ");
    assert!(program.wait().unwrap().success());
    refusal
}

fn this_test() -> PathBuf {
    std::env::current_exe().unwrap()
}

fn start_as(role: &str, dir: &Path, mut program: Command) -> Child {
    program
        .args(["--exact", "a_program_of_its_own", "--ignored", "--nocapture"])
        .env(ROLE, role)
        .env(DIRECTORY, dir)
        // Where its devices are served, so that they are looked for.
        .env("TMPDIR", dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for a line that holds a text, and returns it.
fn wait_for(printed: &mut impl BufRead, text: &str) -> String {
    let mut line = String::new();
    while printed.read_line(&mut line).unwrap() > 0 {
        if line.contains(text) {
            return line;
        }
        line.clear();
    }
    panic!("the program ended without \"{text}\"");
}

/// Not a test by itself: others start it, as what they do would end the test.
#[test]
#[ignore = "a part of other tests"]
fn a_program_of_its_own() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    cleanup::on_signals(|| ()).unwrap();
    let work_dir = dir.join("work");
    let vm = match place::vm(&work_dir) {
        Ok(vm) => vm,
        Err(error) => return println!("refused: {error:#}"),
    };
    assert_ne!(role, "refused", "nothing was missing");
    let devices = ["vm", "host"].map(|name| export(&dir.join(name), DEVICE_BYTES));
    let mut sessions: Vec<Box<dyn Session>> = vec![vm.attach(&devices[0]).unwrap()];
    if is_root() && role == "interrupted" {
        sessions.push(place::host(&work_dir).unwrap().attach(&devices[1]).unwrap());
    }
    for session in &mut sessions {
        let (device, directory) = (session.device().to_owned(), session.directory().to_owned());
        ok(&mut **session, &format!("mke2fs -q {device}; mount {device} '{directory}'"));
    }
    println!("at work");
    let last = sessions.last_mut().unwrap();
    let directory = last.directory().to_owned();
    let _ = last.run(&format!("cd '{directory}'; while :; do date >file; done"));
}
