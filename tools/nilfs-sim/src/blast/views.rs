//! The ways to look at a volume, and to repair it, that a user has.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nilfs_check::{CheckError, Options, Report};
use nilfs_device::Device;
use nilfs_engine::scrub::Selection;
use nilfs_engine::scrub_device;
use nilfs_engine::tree::Extent;
use nilfs_engine::{Cno, FileType, Filesystem, Ino, ReadOnlyOptions, ReadOnlyVolume};
use nilfs_repair::{AsRepaired, Observer, Plan, RepairError, Risk, UndoDevice, apply_undo, plan};
use serde_json::Value;

use super::damage::Patient;
use super::picture::{PANIC, Picture, Seen, guarded};
use super::samples::options;

/// Bytes that are read of a file at most: more than any file of a sample has.
const MOST_CONTENT: u64 = 64 << 20;

/// The identity that a volume gets if its own is lost.
const UUID: [u8; 16] = *b"repaired volume!";

/// Result of a mount.
#[derive(Debug, Clone)]
pub enum Shown {
    /// Nothing, and this is said.
    Refused(String),
    /// The files of this checkpoint, with what was synced after it.
    Files(Cno, Picture),
}

impl Shown {
    /// The checkpoint, and the files.
    #[must_use]
    pub fn files(&self) -> Option<(Cno, &Picture)> {
        match self {
            Self::Refused(_) => None,
            Self::Files(cno, picture) => Some((*cno, picture)),
        }
    }
}

/// A mount that writes.
#[must_use]
pub fn mount(device: Arc<dyn Device>) -> Shown {
    let mounted = guarded(|| Filesystem::mount(device, options()));
    let shown = mounted.map(|fs| {
        let cno = fs.status().cno;
        let picture = Picture::take(&*fs);
        // Whether it can be unmounted is no matter: what it shows is.
        drop(guarded(|| fs.unmount()));
        (cno, picture)
    });
    match shown {
        Ok((cno, picture)) => Shown::Files(cno, picture),
        Err(why) => Shown::Refused(why),
    }
}

/// A mount that only reads, in rescue mode or not.
#[must_use]
pub fn look(device: Arc<dyn Device>, rescue: bool) -> Shown {
    let options = ReadOnlyOptions { rescue, ..ReadOnlyOptions::default() };
    let mounted = guarded(|| {
        let device = match rescue {
            true => AsRepaired::new(device, &Observer::default()).device,
            false => device,
        };
        ReadOnlyVolume::mount(device, options)
    });
    match mounted {
        Ok(volume) => Shown::Files(volume.shown().cno(), Picture::take(&volume)),
        Err(why) => Shown::Refused(why),
    }
}

/// Result of fsck.
pub struct Fsck {
    /// Report of a check.
    pub before: Result<Report, String>,
    /// Files that the findings name.
    pub named: Vec<Vec<u8>>,
    /// Whether it can repair something.
    pub repairs: bool,
    /// Why it cannot, though it would.
    pub obstacle: Option<String>,
    /// Whether it says that nothing is lost by that.
    pub is_safe: bool,
    /// The repairs and what stays, in words.
    pub told: Vec<String>,
    /// Volume afterwards.
    pub after: Option<Repaired>,
}

/// A volume after a repair.
pub struct Repaired {
    /// Report of a check then that reads the content of files.
    pub report: Result<Report, String>,
    /// Parts of files that a scrub names then, as damaged or as not known to be what was written.
    pub known: BTreeMap<Ino, Vec<Extent>>,
    /// Result of a mount.
    pub shown: Shown,
    /// Error when it was undone.
    pub undone: Result<(), String>,
}

/// Has a volume repaired, as `nilfs fsck -y` does, with `--scrub` or without.
///
/// # Errors
/// fsck ends without a plan: what it says.
pub fn fsck(patient: &Patient, scrub: bool) -> Result<Fsck, String> {
    let bed = patient.device();
    let device: Arc<dyn Device> = bed.clone();
    let options = Options { read_content: scrub, threads: 1, ..Options::default() };
    let made = in_words(|| plan(&device, &options, UUID))?;
    let mut fsck = told(&made);
    if fsck.repairs {
        let is_undone = || {
            let mut now = bed.below().snapshot();
            // What could not be read cannot be restored.
            for range in &patient.unreadable {
                let range = range.start as usize..range.end as usize;
                now[range.clone()].copy_from_slice(&patient.content[range]);
            }
            now == patient.content
        };
        fsck.after = Some(repaired(&made, &device, is_undone));
    }
    Ok(fsck)
}

fn in_words<T>(call: impl FnOnce() -> Result<T, RepairError>) -> Result<T, String> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    result.map_err(|_| PANIC.to_owned())?.map_err(|error| error.to_string())
}

fn check(device: &dyn Device) -> Result<Report, String> {
    let options = Options { threads: 1, ..Options::default() };
    let check = || nilfs_check::check(device, &options);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    let result = result.map_err(|_| PANIC.to_owned())?;
    result.map_err(|error: CheckError| error.to_string())
}

fn told(plan: &Plan) -> Fsck {
    let before = match &plan.before {
        Ok(report) => Ok(report.clone()),
        Err(error) => Err(error.to_string()),
    };
    let findings = plan.before.iter().flat_map(|report| &report.findings);
    let named = findings.filter_map(|finding| plan.path_of(finding)).map(<[u8]>::to_vec).collect();
    let repairs = plan.repairs.iter().map(|repair| format!("{:?}: {repair}", repair.risk));
    let kept = plan.kept.iter().chain(&plan.doubtful);
    let kept = kept.map(|kept| format!("kept: {}: {}", kept.fault, kept.why));
    Fsck {
        before,
        named,
        repairs: plan.can_be_applied(),
        obstacle: plan.obstacle.as_ref().map(ToString::to_string),
        is_safe: plan.risk() == Risk::Safe,
        told: repairs.chain(kept).collect(),
        after: None,
    }
}

fn repaired(plan: &Plan, device: &Arc<dyn Device>, is_undone: impl Fn() -> bool) -> Repaired {
    let file = tempfile::tempfile_in(memory());
    let applied = file.and_then(|file| {
        let undoing = UndoDevice::new(Arc::clone(device), file.try_clone()?, plan.uuid)?;
        plan.apply(&undoing, &mut |_| {})?;
        Ok(file)
    });
    let file = match applied {
        Ok(file) => file,
        Err(error) => {
            let why = format!("the repair failed: {error}");
            let undone = Err(why.clone());
            let (report, shown) = (Err(why.clone()), Shown::Refused(why));
            return Repaired { report, known: BTreeMap::new(), shown, undone };
        }
    };
    let report = check(&**device);
    let known = scrubbed(device);
    // The mount writes elsewhere, so that all is as the repair left it when it is undone.
    let view = nilfs_device::CopyOnWriteDevice::new(Arc::clone(device), Default::default());
    let shown = mount(Arc::new(view));
    let undone = match apply_undo(file, &**device) {
        Err(error) => Err(error.to_string()),
        Ok(_) if !is_undone() => Err("some bytes are not as they were".to_owned()),
        Ok(_) => Ok(()),
    };
    Repaired { report, known, shown, undone }
}

/// Parts of the files of the newest checkpoint that a scrub names.
fn scrubbed(device: &Arc<dyn Device>) -> BTreeMap<Ino, Vec<Extent>> {
    let scrub = || scrub_device(device, &Selection::default(), &mut |_| ControlFlow::Continue(()));
    let scrubbed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(scrub));
    // What cannot be scrubbed names nothing.
    let damage = scrubbed.ok().and_then(Result::ok).map(|it| it.damage).unwrap_or_default();
    let mut known = BTreeMap::<Ino, Vec<Extent>>::new();
    for need in damage.into_iter().flat_map(|it| it.needs).filter(|it| it.is_current) {
        if let Some(ino) = need.ino {
            known.entry(ino).or_default().extend(need.data);
        }
    }
    known
}

/// A directory in memory for what needs files.
#[must_use]
pub fn memory() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() }
}

/// Result of `nilfs salvage`.
#[derive(Debug)]
pub struct Salvaged {
    /// Its exit code; `None` if a signal has ended it.
    pub exit: Option<i32>,
    /// Its message.
    pub message: String,
    /// The checkpoint that it has taken.
    pub cno: Cno,
    /// State of each file, in its words.
    pub states: BTreeMap<Vec<u8>, String>,
    /// Files that it has copied. Files have the numbers that they had.
    pub files: Picture,
}

/// Has `program` salvage a volume. Files are recognised by their paths.
///
/// # Errors
/// The files that this takes cannot be made.
pub fn salvage(program: &Path, patient: &Patient, was: &Picture) -> std::io::Result<Salvaged> {
    let dir = tempfile::tempdir_in(memory())?;
    let [image, map, to] = ["image", "map", "to"].map(|name| dir.path().join(name));
    fs::write(&image, &patient.content)?;
    let mut command = Command::new(program);
    command.args(["salvage", "--json", "--all"]).arg(&image).arg("--to").arg(&to);
    if !patient.unreadable.is_empty() {
        fs::write(&map, map_of(patient))?;
        command.arg("--map").arg(&map);
    }
    let output = command.output()?;
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let states = json["files"].as_array().into_iter().flatten().filter_map(|file| {
        let path = file["path"].as_str()?.as_bytes().to_vec();
        Some((path, file["state"].as_str()?.to_owned()))
    });
    let states = states.collect();
    let mut files = Picture::default();
    add_directory(&to, (&[], &[]), was, &mut files)?;
    Ok(Salvaged {
        exit: output.status.code(),
        message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        cno: Cno(json["checkpoint"].as_u64().unwrap_or_default()),
        states,
        files,
    })
}

/// The map file of ddrescue for what can be read.
fn map_of(patient: &Patient) -> String {
    let mut map = "0x0 + 1\n".to_owned();
    let mut at = 0;
    for bad in &patient.unreadable {
        map += &format!("{at:#x} {:#x} +\n", bad.start - at);
        map += &format!("{:#x} {:#x} -\n", bad.start, bad.end - bad.start);
        at = bad.end;
    }
    map + &format!("{at:#x} {:#x} +\n", patient.content.len() as u64 - at)
}

/// Returns the content of a file, as far as it may be that of a sample: a damaged size can be any.
fn beginning(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MOST_CONTENT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Adds what was copied to `dir`, which has the path `path`; `former` is the one that it had on the volume.
fn add_directory(
    dir: &Path,
    (path, former): (&[u8], &[u8]),
    was: &Picture,
    to: &mut Picture,
) -> std::io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(dir) else { return Ok(()) };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    // What has no name is called by its number.
    let number = name.strip_prefix(b"#").and_then(|digits| str::from_utf8(digits).ok());
    let number = number.and_then(|digits| digits.parse().ok()).map(Ino);
    let former = match number {
        Some(ino) => was.files.iter().find(|(_, file)| file.ino == ino).map_or(former, |it| it.0),
        None => former,
    };
    let ino = number.or_else(|| was.files.get(former).map(|it| it.ino)).unwrap_or_default();
    let kind =
        FileType::from_mode((metadata.mode() & 0o170_000) as u16).unwrap_or(FileType::Regular);
    let bytes = match kind {
        FileType::Symlink => fs::read_link(dir)?.as_os_str().as_bytes().to_vec(),
        FileType::Regular => beginning(dir)?,
        _ => Vec::new(),
    };
    let mtime = nilfs_engine::Timestamp {
        seconds: metadata.mtime(),
        nanoseconds: metadata.mtime_nsec() as u32,
    };
    let mtime = (kind != FileType::Directory).then_some(mtime);
    let mode = match was.files.get(former) {
        // Links have none outside of the volume.
        Some(file) if kind == FileType::Symlink => file.mode,
        _ => metadata.mode() as u16 & 0o7777,
    };
    let seen = Seen { ino, kind, mode, mtime, bytes, unreadable: Vec::new() };
    to.files.insert(path.to_vec(), seen);
    if kind != FileType::Directory {
        return Ok(());
    }
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let below = |path: &[u8]| match path {
            [] => name.as_bytes().to_vec(),
            _ => [path, b"/", name.as_bytes()].concat(),
        };
        add_directory(&dir.join(&name), (&below(path), &below(former)), was, to)?;
    }
    Ok(())
}
