//! What is already on a device that is about to be overwritten.
//!
//! wipefs(8) is asked, which finds every file system, partition table and RAID member on a device,
//! however many there are; a list of our own would be shorter and older. Where it is not installed,
//! anything but zeros at the place of a superblock counts.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};
use nilfs_check::Foreign;
use nilfs_device::Device;
use nilfs_ondisk::geometry::PRIMARY_SUPERBLOCK;
use nilfs_ondisk::superblock::{MAGIC, RawSuperblock, SUPERBLOCK_SIZE};
use serde::Deserialize;

use crate::exit::{Failure, Status};
use crate::output::printable;

/// Where wipefs may be; the directories of an ordinary user's PATH leave its usual place out.
const WIPEFS: [&str; 3] = ["wipefs", "/usr/sbin/wipefs", "/sbin/wipefs"];
/// What it calls the kind of a volume of ours.
const NILFS2: &str = "nilfs2";

/// Something that a device or image holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The name that wipefs has for the kind of file system, if it is one.
    pub file_system: Option<String>,
    /// What it is, in words.
    pub description: String,
    /// Where its first mark is, in bytes from the start of the device.
    pub offset: u64,
}

/// What wipefs prints.
#[derive(Deserialize)]
struct Listing {
    signatures: Vec<Listed>,
}

/// A mark. Many kinds have several.
#[derive(Deserialize)]
struct Listed {
    offset: String,
    #[serde(rename = "type")]
    kind: String,
    label: Option<String>,
    usage: Option<String>,
}

/// Returns what a device or image holds, each thing once; nothing if it seems to be empty.
pub fn find(path: &Path) -> anyhow::Result<Vec<Signature>> {
    for program in WIPEFS {
        match ask_wipefs(program, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found.context("wipefs failed")?,
        }
    }
    Ok(at_superblock(path)?)
}

/// Returns what a device or image holds besides a volume of ours. Where wipefs fails, perhaps at a bad
/// sector, that is what can be told without it.
pub fn foreign(path: &Path) -> Vec<Foreign> {
    let found = find(path).or_else(|_| at_superblock(path)).unwrap_or_default();
    let others = found.into_iter().filter(|it| it.file_system.as_deref() != Some(NILFS2));
    others.map(|it| Foreign { what: it.description, offset: it.offset }).collect()
}

/// Fails if something else has taken the place of the primary superblock of a volume: whoever has put it
/// there may have given the volume up, and what is written to the volume may damage it.
pub fn refuse_displaced(path: &Path, device: &dyn Device) -> Result<(), Failure> {
    match nilfs_repair::displaced(device, || foreign(path)) {
        None => Ok(()),
        Some(why) => Err(Failure::new(Status::NotAVolume, format!("{}: {why}", path.display()))),
    }
}

/// Several things in words.
pub fn list(found: &[Signature]) -> String {
    let words: Vec<_> = found.iter().map(|it| &it.description[..]).collect();
    words.join(" and ")
}

fn ask_wipefs(program: &str, path: &Path) -> io::Result<anyhow::Result<Vec<Signature>>> {
    let output = Command::new(program)
        .args(["--no-act", "--json", "--output", "OFFSET,TYPE,LABEL,USAGE", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .output()?;
    Ok(match output.status.success() {
        true => describe(&output.stdout),
        false => Err(anyhow!("{}", String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    })
}

/// Words for what wipefs lists.
fn describe(listing: &[u8]) -> anyhow::Result<Vec<Signature>> {
    // It prints nothing at all where there is nothing.
    if listing.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let mut found: Vec<Signature> = Vec::new();
    for Listed { offset, kind, label, usage } in
        serde_json::from_slice::<Listing>(listing)?.signatures
    {
        let Some(offset) =
            offset.strip_prefix("0x").and_then(|it| u64::from_str_radix(it, 16).ok())
        else {
            bail!("it names the place {offset}, which is no number");
        };
        let label = label
            .map_or(String::new(), |label| format!(" labelled {}", printable(label.as_bytes())));
        let is_table = usage.as_deref() == Some("partition-table");
        let description = match &kind[..] {
            NILFS2 => format!("a NILFS2 volume{label}"),
            kind if is_table => format!("a partition table ({kind})"),
            kind => format!("{kind} data{label}"),
        };
        match found.iter_mut().find(|it| it.description == description) {
            Some(known) => known.offset = known.offset.min(offset),
            None => {
                let file_system = Some(kind).filter(|_| !is_table);
                found.push(Signature { file_system, description, offset });
            }
        }
    }
    Ok(found)
}

/// What is at the place of a superblock, as far as that can be told without knowing any other kind.
fn at_superblock(path: &Path) -> io::Result<Vec<Signature>> {
    let file = File::open(path)?;
    let mut bytes = [0; SUPERBLOCK_SIZE];
    match file.read_exact_at(&mut bytes, PRIMARY_SUPERBLOCK) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Vec::new()),
        read => read?,
    }
    if bytes == [0; SUPERBLOCK_SIZE] {
        return Ok(Vec::new());
    }
    let is_ours = bytes[offset_of!(RawSuperblock, s_magic)..].starts_with(&MAGIC.to_le_bytes());
    let (kind, description) = match is_ours {
        true => (Some(NILFS2.to_owned()), "a NILFS2 volume"),
        false => (None, "data of an unknown kind"),
    };
    let (description, offset) = (description.to_owned(), PRIMARY_SUPERBLOCK);
    Ok(vec![Signature { file_system: kind, description, offset }])
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_wipefs_lists_is_put_into_words_each_thing_once() {
        let listing = br#"{"signatures": [
            {"offset": "0x36", "type": "vfat", "label": null, "usage": "filesystem"},
            {"offset": "0x0", "type": "vfat", "label": null, "usage": "filesystem"},
            {"offset": "0x406", "type": "nilfs2", "label": "lab", "usage": "filesystem"},
            {"offset": "0x200", "type": "gpt", "label": null, "usage": "partition-table"}]}"#;
        let found = describe(listing).unwrap();
        let words: Vec<_> = found.iter().map(|it| (&it.description[..], it.offset)).collect();
        let gpt = ("a partition table (gpt)", 0x200);
        assert_eq!(words, [("vfat data", 0), ("a NILFS2 volume labelled lab", 0x406), gpt]);
        assert_eq!(list(&found[1..]), "a NILFS2 volume labelled lab and a partition table (gpt)");
        assert_eq!(found[2].file_system, None);
        assert_eq!(describe(b"").unwrap(), []);
    }

    #[test]
    fn without_wipefs_only_zeros_at_the_place_of_a_superblock_are_empty() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let found = |file: &tempfile::NamedTempFile| at_superblock(file.path()).unwrap();
        assert_eq!(found(&file), []);
        file.as_file().set_len(1 << 20).unwrap();
        assert_eq!(found(&file), []);
        file.write_all(&[b'x'; 1080]).unwrap();
        let other = found(&file).remove(0);
        assert_eq!((other.file_system, other.offset), (None, 1024));
        file.as_file().write_all_at(&MAGIC.to_le_bytes(), 1024 + 6).unwrap();
        let ours = found(&file).remove(0);
        assert_eq!(ours.file_system.as_deref(), Some(NILFS2));
    }
}
