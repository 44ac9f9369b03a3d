//! Messages to the process that serves a mount, and how requests are counted.

use std::fs::File;
use std::io;
use std::sync::Arc;

use nilfs_fuse::{Caller, Handler, LONGEST, ask};
use rustix::io::Errno;

use crate::support::{Settings, World};

/// A world that sends back what it is sent, with the user in front.
fn echo() -> World {
    let handler: Handler = Arc::new(|caller: Caller, message: &[u8]| {
        assert_eq!(caller.uid, 0);
        message.iter().rev().copied().collect()
    });
    World::with_settings(Settings { control: Some(handler), ..Settings::default() })
}

#[test]
fn a_message_reaches_the_process_through_any_file_or_directory() {
    let world = echo();
    let file = world.file("file", "content");
    let directory = world.directory("directory");
    for path in [world.path(""), file, directory] {
        let node = File::open(&path).unwrap();
        assert_eq!(ask(&node, b"message").unwrap(), b"egassem", "{}", path.display());
        assert_eq!(ask(&node, b"").unwrap(), b"");
    }
}

#[test]
fn the_longest_message_arrives_whole_and_a_longer_one_not_at_all() {
    let world = echo();
    let node = File::open(world.path("")).unwrap();
    let longest: Vec<u8> = (0..LONGEST).map(|nth| nth as u8).collect();
    let mut answer = ask(&node, &longest).unwrap();
    answer.reverse();
    assert!(answer == longest);
    let error = ask(&node, &vec![0; LONGEST + 1]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
}

#[test]
fn an_answer_that_is_too_long_is_an_error_and_not_cut_short() {
    let handler: Handler = Arc::new(|_, _| vec![0; LONGEST + 1]);
    let world = World::with_settings(Settings { control: Some(handler), ..Settings::default() });
    let error = ask(File::open(world.path("")).unwrap(), b"").unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::MSGSIZE));
}

#[test]
fn who_does_not_understand_messages_says_so() {
    let world = World::new();
    for path in [world.path(""), std::env::temp_dir()] {
        let error = ask(File::open(path).unwrap(), b"message").unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::NOTTY));
    }
}
