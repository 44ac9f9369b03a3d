//! Where the messages of a mount go: to the terminal in the foreground, to the system's log or a
//! file in the background. The threads that leave a message serve the volume, so whether it
//! arrives must not matter to them, and none of them may have to wait for its reader.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Mutex;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::exit::without_error_numbers;

/// Filters messages, in the syntax of `tracing_subscriber::EnvFilter`.
const FILTER_VARIABLE: &str = "NILFS_LOG";

const DEFAULT_FILTER: &str = "info";

/// Sends messages to `file`, to the terminal, or to the system's log.
///
/// # Errors
/// The file cannot be opened.
pub fn start(file: Option<&Path>, foreground: bool) -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let format = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        // It would go to standard error, and panic if that fails.
        .log_internal_errors(false);
    if let Some(file) = file {
        let opened = File::options().create(true).append(true).open(file);
        let file = opened.with_context(|| format!("cannot open the log {}", file.display()))?;
        format.with_ansi(false).with_writer(InWords(Mutex::new(file))).init();
    } else if foreground {
        let colours = io::stderr().is_terminal();
        let format = format.without_time().with_ansi(colours);
        format.with_writer(InWords(|| Terminal)).init();
    } else {
        let format = format.without_time().with_ansi(false).with_level(false);
        format.with_writer(InWords(Syslog::open())).init();
    }
    Ok(())
}

/// Messages without the numbers of the system's errors, whose words they have.
struct InWords<T>(T);

impl<'a, T: MakeWriter<'a>> MakeWriter<'a> for InWords<T> {
    type Writer = InWords<T::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        InWords(self.0.make_writer())
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        InWords(self.0.make_writer_for(metadata))
    }
}

impl<T: Write> Write for InWords<T> {
    /// The formatter writes each message in one piece.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        self.0.write_all(without_error_numbers(&String::from_utf8_lossy(message)).as_bytes())?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Standard error. A message is dropped while nobody reads what is there already: a pipe is full,
/// or a terminal has been stopped.
struct Terminal;

impl Write for Terminal {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr();
        let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
        if poll(&mut ready, Some(&Timespec::default())) == Ok(1) {
            let _ = stderr.write_all(message);
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The socket on which syslogd and journald listen.
const SYSLOG: &str = "/dev/log";

/// Where root can leave a message for `dmesg` if neither of them runs.
const KERNEL_LOG: &str = "/dev/kmsg";

/// `LOG_DAEMON`, already shifted beyond the three bits of the level.
const FACILITY: u8 = 3 << 3;

/// The system's log. Without one there is nobody to tell.
enum Syslog {
    Daemon(UnixDatagram),
    Kernel(File),
    Nobody,
}

impl Syslog {
    fn open() -> Self {
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.connect(SYSLOG)?;
            socket.set_nonblocking(true)?;
            io::Result::Ok(socket)
        };
        let kernel = || File::options().write(true).open(KERNEL_LOG);
        connect().map(Self::Daemon).or_else(|_| kernel().map(Self::Kernel)).unwrap_or(Self::Nobody)
    }

    /// Leaves a message.
    fn send(&self, message: &[u8]) {
        match self {
            Self::Daemon(socket) => _ = socket.send(message),
            // It shows only whole lines, each written at once.
            Self::Kernel(file) => _ = (&*file).write(&[message, b"\n"].concat()),
            Self::Nobody => {}
        }
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { log: self, level: 6 }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line<'a> {
        let level = match *metadata.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        Line { log: self, level }
    }
}

/// One message on its way to the system's log.
struct Line<'a> {
    log: &'a Syslog,
    level: u8,
}

impl Write for Line<'_> {
    /// The log wants each message in one piece.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let mut line =
            format!("<{}>nilfs[{}]: ", FACILITY | self.level, std::process::id()).into_bytes();
        line.extend_from_slice(message.trim_ascii_end());
        self.log.send(&line);
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
