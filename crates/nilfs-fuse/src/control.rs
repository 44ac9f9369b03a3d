//! Messages between a command and the process that serves a mount, through the mount itself.
//!
//! An ioctl on any file or directory of the mount carries one message there and one back. What
//! they say only the sender and the answering handler have to know.
//!
//! ```text
//! 0      4                 4 + length          MESSAGE_SIZE
//! | length | bytes of the message | anything          |
//! ```
//!
//! The kernel passes an ioctl on to a FUSE server only with the number of bytes that its number
//! names, so that every message has room for the longest; 14 bits say how many bytes that are.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::ioctl::{Opcode, Updater, opcode};

use crate::serve::Caller;

/// Answers messages. Only the kernel's word says who the caller is.
pub type Handler = Arc<dyn Fn(Caller, &[u8]) -> Vec<u8> + Send + Sync>;

/// Bytes of the longest message, in both directions.
pub const LONGEST: usize = MESSAGE_SIZE - size_of::<u32>();

/// Bytes that travel: as many as the number of an ioctl can say, but for a multiple of 4.
const MESSAGE_SIZE: usize = 16380;

/// Numbers from 0x80 to 0x8f belong to NILFS2 in the Linux kernel.
pub(crate) const NUMBER: Opcode = opcode::read_write::<[u8; MESSAGE_SIZE]>(b'n', 0xa0);

/// Sends a message to the process that serves the mount on which `node` is open, and returns its
/// answer.
///
/// # Errors
/// The message is too long. `ENOTTY` if nobody there understands messages, `ENOTCONN` if the
/// process is gone, and whatever else the kernel says.
pub fn ask(node: impl AsFd, message: &[u8]) -> io::Result<Vec<u8>> {
    let mut buffer = [0; MESSAGE_SIZE];
    let framed = frame(message).filter(|framed| framed.len() <= buffer.len());
    let framed = framed.ok_or(io::ErrorKind::FileTooLarge)?;
    buffer[..framed.len()].copy_from_slice(&framed);
    // SAFETY: the number says that the kernel reads and writes MESSAGE_SIZE bytes, which the
    // buffer has.
    unsafe {
        let exchange = Updater::<NUMBER, [u8; MESSAGE_SIZE]>::new(&mut buffer);
        rustix::ioctl::ioctl(node, exchange)?;
    }
    unframed(&buffer).map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A message as it travels.
pub(crate) fn frame(message: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(message.len()).ok()?;
    Some([&length.to_ne_bytes(), message].concat())
}

/// The message in what has travelled.
pub(crate) fn unframed(framed: &[u8]) -> Option<&[u8]> {
    let (length, rest) = framed.split_first_chunk()?;
    rest.get(..u32::from_ne_bytes(*length) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_says_what_travels() {
        assert_eq!(NUMBER, 0xc000_0000 | (MESSAGE_SIZE as u32) << 16 | u32::from(b'n') << 8 | 0xa0);
    }

    #[test]
    fn only_as_much_is_taken_as_has_arrived() {
        let framed = frame(b"message").unwrap();
        assert_eq!(unframed(&framed), Some(&b"message"[..]));
        assert_eq!(unframed(&framed[..8]), None);
        assert_eq!(unframed(&[0xff; 5]), None);
        assert_eq!(unframed(&[]), None);
    }
}
