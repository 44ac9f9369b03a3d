//! `nilfs list`: what is mounted, as the kernel's table tells it. A mount that is asked something is in
//! use meanwhile, and could not be unmounted, so that is done on request alone.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nilfs_engine::Cno;
use nilfs_fuse::Mounted;
use serde::Serialize;

use crate::administration::{Administration, is_believable};
use crate::control::Client;
use crate::output::{self, Column, Rows, printable};

/// List the volumes that are mounted
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs list
  nilfs list --json | jq -r '.[].directory'

ACCESS is ro or rw, USER the user who serves the mount. CHECKPOINT is the one of the past that was
mounted with cp=. With --long it is what each read-only mount shows, with its name if it has one; of
the mounts of other users only the superuser's are asked for that.")]
pub struct Args {
    /// Ask each read-only mount which checkpoint it shows; it is in use for that moment
    #[arg(short, long)]
    long: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Record {
    device: String,
    directory: String,
    access: &'static str,
    /// The one that is shown, as far as that is known without asking, or is answered.
    checkpoint: Option<u64>,
    /// The name of that, if it is a snapshot that has one, and if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    uid: Option<u32>,
}

/// Prints them.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mounts = Mounted::all().into_iter().filter(Mounted::is_nilfs);
    let records: Vec<_> = mounts.map(|mounted| Record::of(&mounted, args.long)).collect();
    if args.json { output::json(&records) } else { print(&records) }
}

impl Record {
    fn of(mounted: &Mounted, asked: bool) -> Self {
        let name = |path: &Path| printable(path.as_os_str().as_bytes());
        let answer = if asked { shown(mounted) } else { None };
        let checkpoint = answer.or(mounted.checkpoint.map(Cno));
        Self {
            device: name(&mounted.source),
            directory: name(&mounted.dir),
            access: if mounted.is_read_only() { "ro" } else { "rw" },
            checkpoint: checkpoint.map(|cno| cno.0),
            name: answer.and_then(|cno| name_of(mounted, cno)),
            uid: mounted.owner(),
        }
    }
}

/// The checkpoint that a read-only mount shows. A process of somebody else could leave us waiting.
fn shown(mounted: &Mounted) -> Option<Cno> {
    if !mounted.is_read_only() || !is_believable(mounted) {
        return None;
    }
    Client::new(&mounted.dir).status().ok().map(|status| status.cno)
}

/// The name of a snapshot, if the process that serves the mount knows one.
fn name_of(mounted: &Mounted, cno: Cno) -> Option<String> {
    let notes = Client::new(&mounted.dir).notes().ok()?;
    let note = notes.into_iter().find(|note| note.cno == cno)?;
    note.name.map(String::from)
}

fn print(records: &[Record]) -> anyhow::Result<()> {
    let mut rows = Rows::new(&[
        Column::Text("DEVICE"),
        Column::Text("DIRECTORY"),
        Column::Text("ACCESS"),
        Column::Number("CHECKPOINT"),
        Column::Number("USER"),
    ]);
    let or_dash = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
    for record in records {
        rows.push([
            record.device.clone(),
            record.directory.clone(),
            record.access.to_owned(),
            or_dash(record.checkpoint.map(|cno| match &record.name {
                Some(name) => format!("{cno} {name}"),
                None => cno.to_string(),
            })),
            or_dash(record.uid.map(|uid| uid.to_string())),
        ]);
    }
    rows.print()
}
