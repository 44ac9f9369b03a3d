//! What is measured: a table, one function per row. To add a row, write its function in the file
//! of its family (or a new file) and name it in [`ALL`].
//!
//! A workload prepares what it needs, then times only its own work with [`Stage::timed`].

mod database;
mod kernel_source;
mod large_file;
mod mount_reads;
mod mount_time;
mod program;
mod real_work;
mod small_files;
mod sync_write;
mod tree;

use std::fmt;

use anyhow::Result;

pub use self::tree::generate as make_tree;

use crate::file_systems::OURS;
use crate::stage::{Sample, Stage};

/// A row of the table.
pub struct Workload {
    /// The name in the table and in `--workload`.
    pub name: &'static str,
    /// What is done, in words.
    pub what: &'static str,
    /// What an amount of its samples counts.
    pub unit: Unit,
    /// The one file system that it makes sense on, or all.
    pub only: Option<&'static str>,
    /// Runs it once.
    pub run: fn(&mut Stage<'_>) -> Result<Sample>,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes; shown as MiB per second.
    Bytes,
    /// Operations, of the kind named; shown as operations per second.
    Operations(&'static str),
    /// The whole, once; shown as the time that it takes.
    Once,
}

/// The error of a workload that cannot run on this machine, through nobody's fault.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// The rows, in the order of the table.
pub const ALL: &[Workload] = &[
    Workload {
        name: "seq-write",
        what: "write a large file in 1 MiB pieces, fsync",
        unit: Unit::Bytes,
        only: None,
        run: large_file::write,
    },
    Workload {
        name: "seq-read",
        what: "read it back, cold",
        unit: Unit::Bytes,
        only: None,
        run: large_file::read,
    },
    Workload {
        name: "random-overwrite",
        what: "overwrite all its 4 KiB blocks in random order, fsync",
        unit: Unit::Operations("writes"),
        only: None,
        run: large_file::overwrite,
    },
    Workload {
        name: "sync-append-1",
        what: "append 4 KiB, fsync each; 1 thread",
        unit: Unit::Operations("writes"),
        only: None,
        run: sync_write::append_1,
    },
    Workload {
        name: "sync-append-8",
        what: "the same, 8 threads with a file each",
        unit: Unit::Operations("writes"),
        only: None,
        run: sync_write::append_8,
    },
    Workload {
        name: "sync-random-1",
        what: "overwrite 4 KiB at random, fsync each; 1 thread",
        unit: Unit::Operations("writes"),
        only: None,
        run: sync_write::random_1,
    },
    Workload {
        name: "sync-random-8",
        what: "the same, 8 threads with a file each",
        unit: Unit::Operations("writes"),
        only: None,
        run: sync_write::random_8,
    },
    Workload {
        name: "create",
        what: "create small files of 1 KiB, 500 to a directory; sync",
        unit: Unit::Operations("files"),
        only: None,
        run: small_files::create,
    },
    Workload {
        name: "stat",
        what: "stat them in random order, cold",
        unit: Unit::Operations("files"),
        only: None,
        run: small_files::stat,
    },
    Workload {
        name: "unlink",
        what: "unlink them; sync",
        unit: Unit::Operations("files"),
        only: None,
        run: small_files::unlink,
    },
    Workload {
        name: "tree-copy",
        what: "cp -a of a tree of small files; sync",
        unit: Unit::Operations("entries"),
        only: None,
        run: tree::copy,
    },
    Workload {
        name: "tree-recopy",
        what: "the same again, over the first copy",
        unit: Unit::Operations("entries"),
        only: None,
        run: tree::recopy,
    },
    Workload {
        name: "kernel-unpack",
        what: "tar -x of the Linux source, nothing synced",
        unit: Unit::Operations("entries"),
        only: None,
        run: kernel_source::unpack,
    },
    Workload {
        name: "kernel-remove",
        what: "rm -r of it, nothing synced",
        unit: Unit::Operations("entries"),
        only: None,
        run: kernel_source::remove,
    },
    Workload {
        name: "git",
        what: "git init, add, commit, clone, status and gc of a tree of small files; sync",
        unit: Unit::Once,
        only: None,
        run: real_work::git,
    },
    Workload {
        name: "rsync",
        what: "rsync -a of such a tree, with nothing to do",
        unit: Unit::Operations("entries"),
        only: None,
        run: real_work::rsync,
    },
    Workload {
        name: "sqlite",
        what: "SQLite: rows inserted together and one by one, indexed, changed, deleted; vacuum",
        unit: Unit::Once,
        only: None,
        run: database::sqlite,
    },
    Workload {
        name: "build",
        what: "make of a program of many C files, from nothing; sync",
        unit: Unit::Once,
        only: None,
        run: program::build,
    },
    Workload {
        name: "mount-clean",
        what: "mount a 64 GiB volume with many checkpoints, cold",
        unit: Unit::Once,
        only: Some(OURS),
        run: mount_time::clean,
    },
    Workload {
        name: "mount-crash",
        what: "the same after a crash",
        unit: Unit::Once,
        only: Some(OURS),
        run: mount_time::crashed,
    },
];
