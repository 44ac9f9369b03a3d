//! Talking with `init.sh` through the serial port; that file says how.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::place::Output;

/// No script prints more than this; a longer answer is none.
const MOST_BYTES: usize = 1 << 30;

/// What comes out of the port.
enum Message {
    Ready,
    /// A script has ended, at that moment.
    Ended(Instant, Output),
}

/// The other end of the port.
pub struct Agent {
    scripts: ChildStdin,
    messages: Receiver<Message>,
}

impl Agent {
    /// Listens to a machine that starts.
    pub fn new(scripts: ChildStdin, answers: ChildStdout) -> Self {
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut answers = BufReader::new(answers);
            // The sender goes away at the end, which is how the others learn of it.
            while let Some(message) = receive(&mut answers) {
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        Self { scripts, messages }
    }

    /// Waits until it has started.
    pub fn wait_until_ready(&self, limit: Duration) -> Result<()> {
        match self.messages.recv_timeout(limit) {
            Ok(Message::Ready) => Ok(()),
            Ok(Message::Ended(..)) => bail!("the virtual machine answers before it was asked"),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the virtual machine did not start within {} s", limit.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the virtual machine did not start"),
        }
    }

    /// Runs a script. If it has not ended within the limit, the virtual machine is of no more use.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Output> {
        // dd copies nothing if it is to copy nothing, and waits for it.
        let script = format!("{script}\n");
        let start = Instant::now();
        write!(self.scripts, "{}\n{script}", script.len())
            .and_then(|()| self.scripts.flush())
            .context("the virtual machine takes no scripts")?;
        match self.messages.recv_timeout(limit) {
            Ok(Message::Ended(at, output)) => {
                Ok(Output { elapsed: at.saturating_duration_since(start), ..output })
            }
            Ok(Message::Ready) => bail!("the virtual machine started anew under a script"),
            Err(RecvTimeoutError::Timeout) => {
                bail!("a step did not end within {} minutes", limit.as_secs_f64() / 60.0)
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the virtual machine ended under a script")
            }
        }
    }
}

/// The next message; none at the end, or if what comes is no message.
fn receive(answers: &mut impl BufRead) -> Option<Message> {
    let mut line = String::new();
    answers.read_line(&mut line).ok()?;
    let at = Instant::now();
    let line = line.strip_suffix('\n')?;
    if line == "ready" {
        return Some(Message::Ready);
    }
    let numbers: Vec<usize> =
        line.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let [status, stdout, stderr] = numbers[..] else { return None };
    let stdout = text(answers, stdout)?;
    let stderr = text(answers, stderr)?;
    let status = i32::try_from(status).ok()?;
    Some(Message::Ended(at, Output { status, stdout, stderr, elapsed: Duration::ZERO }))
}

fn text(answers: &mut impl Read, length: usize) -> Option<String> {
    if length > MOST_BYTES {
        return None;
    }
    let mut bytes = vec![0; length];
    answers.read_exact(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_script_that_never_ends_is_given_up() {
        let mut silent = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut agent = Agent::new(silent.stdin.take().unwrap(), silent.stdout.take().unwrap());
        let answer = agent.run("fio", Duration::from_millis(6));
        silent.kill().unwrap();
        silent.wait().unwrap();
        assert_eq!(answer.unwrap_err().to_string(), "a step did not end within 0.0001 minutes");
    }

    #[test]
    fn a_message_is_taken_apart_by_its_lengths() {
        let mut answers = &b"ready\n3 4 2\na\nb\nno0 0 0\nnonsense\n"[..];
        assert!(matches!(receive(&mut answers), Some(Message::Ready)));
        let Some(Message::Ended(_, output)) = receive(&mut answers) else { panic!("no message") };
        assert_eq!((output.status, &*output.stdout, &*output.stderr), (3, "a\nb\n", "no"));
        assert!(matches!(receive(&mut answers), Some(Message::Ended(..))));
        assert!(receive(&mut answers).is_none(), "what is no message ends the conversation");
    }
}
