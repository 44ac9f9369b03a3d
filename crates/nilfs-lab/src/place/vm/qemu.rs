//! A running QEMU.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;

use super::VmOptions;
use super::kernel::Kernel;
use crate::cleanup::{Pending, Undo, set_up};
use crate::command;
use crate::export::Export;

/// The program.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// All that software emulation can do, but for what makes the guest slower: `rep movsb` goes byte
/// by byte there, so the kernel must not think that it is fast; protection from ourselves and
/// deeper page tables cost and bring nothing.
const PROCESSOR: &str = "max,-erms,-fsrm,-smap,-smep,-umip,-la57";

/// The guest's processors poll when they have nothing to do. An emulated processor that sleeps wakes up
/// late, by up to a tick of the clock (4 ms) if this machine is busy; and each request to a file system
/// in user space takes two wake-ups, that of the daemon and that of the program that waits for it.
const IDLE: &str = " idle=poll";

/// How a kernel begins to say that it cannot go on.
const FATAL: [&str; 4] = ["Kernel panic", "BUG: ", "Oops", "Out of memory"];

/// How many lines at the end of the console are quoted in an error.
const QUOTED_LINES: usize = 8;

/// How long QEMU may take from closing its pipes to its end.
const END_LIMIT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A virtual machine that runs. Dropped, it is killed.
pub struct Qemu {
    /// Killing goes through this, so that it is done once.
    _pending: Pending,
    child: Arc<Mutex<Child>>,
    console: PathBuf,
    messages: PathBuf,
}

impl Qemu {
    /// Starts it. What comes back with it are the two ends of the agent's serial port.
    pub fn start(
        options: &VmOptions,
        kernel: &Kernel,
        initramfs: &Path,
        device: &Export,
        logs: &Path,
    ) -> Result<(Self, ChildStdin, ChildStdout)> {
        let console = logs.join("console.log");
        let messages = logs.join("qemu.log");
        // What the machine before this one said is not to be taken for this one's.
        fs::write(&console, "").with_context(|| format!("cannot write {}", console.display()))?;
        let stderr = File::create(&messages)
            .with_context(|| format!("cannot make {}", messages.display()))?;
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments(options, kernel, initramfs, device, &console))
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // A group of its own: Ctrl-C is for us, and we end it.
            .process_group(0);
        let (child, pending) = set_up(|| {
            let child = command.spawn().with_context(|| format!("cannot run {PROGRAM}"))?;
            let child = Arc::new(Mutex::new(child));
            Ok((Arc::clone(&child), Undo::Kill(child)))
        })?;
        let ports = {
            let mut child = child.lock();
            child.stdin.take().zip(child.stdout.take())
        };
        let (stdin, stdout) = ports.context("QEMU has no pipes")?;
        Ok((Self { _pending: pending, child, console, messages }, stdin, stdout))
    }

    /// What can be said when it does not answer: whether it still runs, what QEMU and the console
    /// say.
    pub fn last_words(&self) -> String {
        let state = match self.ended() {
            Some(status) => format!("QEMU has ended ({status})"),
            None => "QEMU still runs".to_owned(),
        };
        let read = |path: &Path| {
            let said = fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&said).into_owned()
        };
        format!(
            "{state}: {}. From {}: {}",
            command::last_lines(&read(&self.messages), QUOTED_LINES),
            self.console.display(),
            quote_console(&read(&self.console))
        )
    }

    /// How it ended. Its pipes are closed a little before it has.
    fn ended(&self) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            let status = self.child.lock().try_wait().ok().flatten();
            if status.is_some() || start.elapsed() > END_LIMIT {
                return status;
            }
            sleep(POLL_INTERVAL);
        }
    }
}

/// What the guest's kernel died of stands before pages of registers; without that, the end.
fn quote_console(said: &str) -> String {
    let fatal = said.lines().find(|line| FATAL.iter().any(|word| line.contains(word)));
    fatal.map_or_else(|| command::last_lines(said, QUOTED_LINES), |line| line.trim().to_owned())
}

fn arguments(
    options: &VmOptions,
    kernel: &Kernel,
    initramfs: &Path,
    device: &Export,
    console: &Path,
) -> Vec<String> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut arguments = words(
        "-nodefaults -no-user-config -display none -no-reboot -machine pc -accel tcg,thread=multi \
         -rtc base=utc",
    );
    arguments.extend(words(&format!(
        "-cpu {PROCESSOR} -m {} -smp {}",
        options.memory_mib, options.processors
    )));
    arguments.extend(["-kernel".to_owned(), kernel.image.to_string_lossy().into_owned()]);
    arguments.extend(["-initrd".to_owned(), initramfs.to_string_lossy().into_owned()]);
    // A panic ends QEMU, because a reboot does.
    arguments.extend([
        "-append".to_owned(),
        format!(
            "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check \
             cryptomgr.notests virtio_blk.queue_depth={}{IDLE}",
            device.queue_depth()
        ),
    ]);
    arguments.extend(["-chardev".to_owned(), file_of("file,id=console,path=", console)]);
    arguments.extend(words("-serial chardev:console"));
    // The files of this machine, which the guest cannot change.
    arguments.extend(words(
        "-virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
         -device virtio-serial-pci -chardev stdio,id=agent,signal=off \
         -device virtserialport,chardev=agent,name=agent",
    ));
    // No cache in between, one queue, nothing merged, and no threads of QEMU that overtake each
    // other: requests arrive as the guest's kernel sends them. Cards and sticks have no command that
    // writes zeros, so the guest has none either.
    let disk = "if=none,id=disk,format=raw,cache=none,aio=native,discard=unmap,\
                detect-zeroes=off,file=";
    arguments.extend(["-drive".to_owned(), file_of(disk, device.path())]);
    arguments.extend(words(
        "-device virtio-blk-pci,drive=disk,serial=nilfs-lab,num-queues=1,request-merging=off,\
         discard=on,write-zeroes=off",
    ));
    arguments
}

/// An option of QEMU with a path at its end, in which a comma has to be doubled.
fn file_of(option: &str, path: &Path) -> String {
    format!("{option}{}", path.to_string_lossy().replace(',', ",,"))
}
