//! `nilfs-tune`: what `nilfs tune` does, in other words.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use nilfs_device::{Access, Device, FileDevice, OpenError};
use nilfs_engine::Volume;
use nilfs_engine::mkfs::LABEL_MAX;
use nilfs_ondisk::geometry::PRIMARY_SUPERBLOCK;
use nilfs_ondisk::superblock::{
    FEATURE_BLOCK_COUNT, RawSuperblock, STATE_ERROR, STATE_RESIZE, STATE_VALID, SUPERBLOCK_SIZE,
    Superblock,
};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::words::{Word, Words};
use super::{Ended, FAILED, Tool, number, volume};
use crate::administration;
use crate::commands::tune::{Changes, FeatureSwitch, open_to_change};
use crate::output::{self, printable, say};

pub(super) const TOOL: Tool = Tool {
    name: "nilfs-tune",
    usage: "\
Usage: nilfs-tune [-fl] [-i INTERVAL] [-L LABEL] [-m BLOCKS] [-O [^]FEATURE[,...]] [-U UUID] DEVICE
Show or change settings of a NILFS2 volume that is not mounted.

  -f   although Linux has it mounted; never while nilfs serves it
  -h   this help
  -i   seconds between checkpoints
  -l   show the superblock
  -L   label
  -m   changed blocks between checkpoints
  -O   features: block_count, ^block_count, none
  -U   identity
  -V   the version
",
    long: &[],
    complaint: "nilfs-tune: ",
    run,
};

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let (mut list, mut force) = (false, false);
    let mut changes = Changes::default();
    let mut device = None;
    while let Some(word) = words.next()? {
        match word {
            Word::Option('f') => force = true,
            Word::Option('l') => list = true,
            Word::Option('i') => changes.interval = Some(short(&words.value()?)),
            Word::Option('m') => changes.block_max = Some(short(&words.value()?)),
            Word::Option('L') => changes.label = Some(label(words.value()?)),
            Word::Option('O') => {
                let list = words.value()?;
                changes.features = features(&list)
                    .ok_or_else(|| anyhow!("cannot parse features: {}", list.to_string_lossy()))?;
            }
            Word::Option('U') => changes.uuid = Some(uuid(&words.value()?)?),
            Word::Option(letter) => return Err(words.invalid(letter)),
            // Of several, the last counts.
            Word::Operand(operand) => device = Some(PathBuf::from(operand)),
        }
    }
    let Some(path) = device.as_deref() else {
        output::utter(words.tool().usage);
        return Err(Ended(FAILED).into());
    };
    fs::metadata(path).map_err(|error| {
        anyhow!("cannot open device {}: {}", path.display(), volume::why(&error.into()))
    })?;
    if !changes.are_none() {
        change(path, &changes, force)?;
    }
    if list {
        print(superblock(path)?.raw())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// As C does it: what does not fit is cut off.
fn short(word: &OsStr) -> u32 {
    number::leading(word) as u32
}

/// A label as far as there is room for it.
pub(super) fn label(word: OsString) -> OsString {
    let mut bytes = word.into_vec();
    bytes.truncate(LABEL_MAX);
    OsString::from_vec(bytes)
}

fn uuid(word: &OsStr) -> anyhow::Result<Uuid> {
    let uuid = word.to_str().filter(|word| word.len() == Hyphenated::LENGTH);
    let uuid = uuid.and_then(|word| Uuid::try_parse(word).ok());
    uuid.ok_or_else(|| anyhow!("Invalid UUID format"))
}

/// Features of a list, which may have empty places and capital letters; or nothing if one of them
/// is unknown.
pub(super) fn features(word: &OsStr) -> Option<Vec<FeatureSwitch>> {
    let word = word.to_str()?.to_ascii_lowercase();
    let names = word.split(',').filter(|name| !name.is_empty());
    names.map(FeatureSwitch::parse).collect::<Result<_, _>>().ok()
}

fn change(path: &Path, changes: &Changes, force: bool) -> anyhow::Result<()> {
    if !force && administration::mount_of(path)?.is_some() {
        say!(
            "ERROR: {} is currently mounted.  Aborting execution.\n\
             Running nilfs-tune on a mounted file system may cause SEVERE damage.\n\
             You can use the \"-f\" option to force this operation.",
            path.display()
        );
        return Err(Ended(FAILED).into());
    }
    changes.apply(&open_to_change(path, force)?)
}

/// The first copy, whether or not it is the one that counts; the other if there is no first.
fn superblock(path: &Path) -> anyhow::Result<Superblock> {
    let cannot = || anyhow!("{}: cannot open NILFS", path.display());
    let device = match FileDevice::open(path, Access::Inspect) {
        Err(OpenError::WrongKind { .. }) => return Err(cannot()),
        device => device?,
    };
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let first = match device.read_at(PRIMARY_SUPERBLOCK, &mut bytes) {
        Ok(()) => Superblock::parse(&bytes, device.size()).ok(),
        Err(_) => None,
    };
    match first {
        Some(superblock) => Ok(superblock),
        None => Ok(Volume::superblocks(&device).map_err(|_| cannot())?.best),
    }
}

fn print(raw: &RawSuperblock) -> anyhow::Result<()> {
    let label = crate::commands::info::label(raw);
    let label = if label.is_empty() { "(none)".to_owned() } else { printable(label) };
    let time = |seconds: u64| ctime(seconds as i64);
    let (uid, gid) = (raw.s_def_resuid.get(), raw.s_def_resgid.get());
    let rows: [(&str, String); 34] = [
        ("Filesystem volume name:\t  ", label),
        ("Filesystem UUID:\t  ", Uuid::from_bytes(raw.s_uuid).to_string()),
        ("Filesystem magic number:  ", format!("{:#06x}", raw.s_magic.get())),
        (
            "Filesystem revision #:\t  ",
            format!("{}.{}", raw.s_rev_level.get(), raw.s_minor_rev_level.get()),
        ),
        ("Filesystem features:      ", feature_names(raw)),
        ("Filesystem state:\t  ", state(raw.s_state.get())),
        ("Filesystem OS type:\t  ", os(raw.s_creator_os.get())),
        ("Block size:\t\t  ", (1024_u64 << raw.s_log_block_size.get().min(53)).to_string()),
        ("Filesystem created:\t  ", time(raw.s_ctime.get())),
        ("Last mount time:\t  ", time(raw.s_mtime.get())),
        ("Last write time:\t  ", time(raw.s_wtime.get())),
        ("Mount count:\t\t  ", raw.s_mnt_count.get().to_string()),
        ("Maximum mount count:\t  ", raw.s_max_mnt_count.get().to_string()),
        ("Reserve blocks uid:\t  ", format!("{uid} (user {})", name("/etc/passwd", uid))),
        ("Reserve blocks gid:\t  ", format!("{gid} (group {})", name("/etc/group", gid))),
        ("First inode:\t\t  ", raw.s_first_ino.get().to_string()),
        ("Inode size:\t\t  ", raw.s_inode_size.get().to_string()),
        ("DAT entry size:\t\t  ", raw.s_dat_entry_size.get().to_string()),
        ("Checkpoint size:\t  ", raw.s_checkpoint_size.get().to_string()),
        ("Segment usage size:\t  ", raw.s_segment_usage_size.get().to_string()),
        ("Number of segments:\t  ", raw.s_nsegments.get().to_string()),
        ("Device size:\t\t  ", raw.s_dev_size.get().to_string()),
        ("First data block:\t  ", raw.s_first_data_block.get().to_string()),
        ("# of blocks per segment:  ", raw.s_blocks_per_segment.get().to_string()),
        ("Reserved segments %:\t  ", raw.s_r_segments_percentage.get().to_string()),
        ("Last checkpoint #:\t  ", raw.s_last_cno.get().to_string()),
        ("Last block address:\t  ", raw.s_last_pseg.get().to_string()),
        ("Last sequence #:\t  ", raw.s_last_seq.get().to_string()),
        ("Free blocks count:\t  ", raw.s_free_blocks_count.get().to_string()),
        ("Commit interval:\t  ", raw.s_c_interval.get().to_string()),
        ("# of blks to create seg:  ", raw.s_c_block_max.get().to_string()),
        ("CRC seed:\t\t  ", format!("{:#010x}", raw.s_crc_seed.get())),
        ("CRC check sum:\t\t  ", format!("{:#010x}", raw.s_sum.get())),
        ("CRC check data size:\t  ", format!("{:#010x}", raw.s_bytes.get())),
    ];
    let mut out = io::BufWriter::new(output::out());
    for (label, value) in rows {
        writeln!(out, "{label}{value}")?;
    }
    Ok(out.flush()?)
}

fn state(bits: u16) -> String {
    let mut text = if bits & STATE_VALID != 0 { "valid" } else { "invalid or mounted" }.to_owned();
    for (bit, word) in [(STATE_ERROR, ",error"), (STATE_RESIZE, ",resize")] {
        if bits & bit != 0 {
            text.push_str(word);
        }
    }
    text
}

fn os(creator: u32) -> String {
    if creator == 0 { "Linux" } else { "Unknown" }.to_owned()
}

/// The names of feature bits; unknown ones by their class and number.
fn feature_names(raw: &RawSuperblock) -> String {
    let classes = [
        ('C', raw.s_feature_compat.get()),
        ('R', raw.s_feature_compat_ro.get()),
        ('I', raw.s_feature_incompat.get()),
    ];
    let mut names = Vec::new();
    for (class, bits) in classes {
        for bit in (0..64).filter(|bit| bits & (1 << bit) != 0) {
            names.push(match class {
                'R' if 1 << bit == FEATURE_BLOCK_COUNT => "block_count".to_owned(),
                _ => format!("FEATURE_{class}{bit}"),
            });
        }
    }
    if names.is_empty() { "(none)".to_owned() } else { names.join(" ") }
}

/// A time as ctime(3) writes it.
fn ctime(seconds: i64) -> String {
    match jiff::Timestamp::from_second(seconds) {
        Ok(time) => {
            let time = time.to_zoned(jiff::tz::TimeZone::system());
            time.strftime("%a %b %e %H:%M:%S %Y").to_string()
        }
        Err(_) => format!("@{seconds}"),
    }
}

/// The name that a number has in /etc/passwd or /etc/group.
fn name(file: &str, number: u16) -> String {
    let number = number.to_string();
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut entries = text.lines().map(|line| line.split(':'));
    let found = entries.find_map(|mut words| {
        let name = words.next()?;
        (words.nth(1)? == number).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| "unknown".to_owned())
}
