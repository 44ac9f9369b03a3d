//! Content of a device or image: before it is overwritten, and where a volume was expected and there is
//! none.
//!
//! wipefs(8) is asked, which finds every file system, partition table and RAID member on a device,
//! however many there are; a list of our own would be shorter and older. Where it is not installed,
//! anything but zeros at the place of a superblock counts. Files in which others are packed, such as
//! compressed ones, are no business of wipefs, so these are known here.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};
use nilfs_check::Foreign;
use nilfs_device::{Access, Device, FileDevice};
use nilfs_engine::Error;
use nilfs_ondisk::ByteCount;
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::superblock::{MAGIC, RawSuperblock, SUPERBLOCK_SIZE, Superblock};
use nilfs_repair::RepairError;
use serde::Deserialize;

use crate::exit::{self, Failure, Status};
use crate::output::printable;

/// Where wipefs may be; the directories of an ordinary user's PATH leave its usual place out.
const WIPEFS: [&str; 3] = ["wipefs", "/usr/sbin/wipefs", "/sbin/wipefs"];
/// What it calls the kind of a volume of ours.
const NILFS2: &str = "nilfs2";

/// Something that a device or image holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The name that wipefs has for the kind; `None` if nothing is known but that it is there.
    pub kind: Option<String>,
    /// Whether it is a partition table.
    pub is_table: bool,
    /// What it is, in words.
    pub description: String,
    /// Where its first mark is, in bytes from the start of the device.
    pub offset: u64,
}

/// A result of opening the volume on a device or image.
pub trait OnVolume<T> {
    /// Puts the path before what failed. Where there is no volume that can be used, the error says what
    /// there is instead, and what can be done.
    ///
    /// # Errors
    /// Errors of the result.
    fn on_volume(self, path: &Path) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OnVolume<T> for Result<T, E> {
    fn on_volume(self, path: &Path) -> anyhow::Result<T> {
        self.map_err(|error| explained(path, error.into()))
    }
}

/// Error that [`OnVolume::on_volume`] makes of another one.
pub fn explained(path: &Path, error: anyhow::Error) -> anyhow::Error {
    let shown = path.display();
    let advice = match error.downcast_ref::<Error>() {
        Some(Error::NotAVolume(_)) => {
            let message = format!("{shown}: {}", instead(path));
            return Failure::new(Status::NotAVolume, message).into();
        }
        Some(Error::NoSuperblock(_)) => match other_than_volume(path) {
            Some(Other { what, .. }) => {
                let message = format!(
                    "{shown}: it holds {what}, and logs of a NILFS2 volume that was there before; nilfs \
                     salvage copies the files of that out"
                );
                return Failure::new(Status::NotAVolume, message).into();
            }
            None => String::new(),
        },
        Some(Error::Truncated(_)) => "nilfs salvage copies out what is there".to_owned(),
        Some(error) if error.is_damage() => match displaced(path) {
            Some(why) => why.to_string(),
            None => {
                "nilfs fsck -n says what can be repaired, nilfs salvage copies the files out, and \
                     nilfs mount -o ro,rescue shows them"
                    .to_owned()
            }
        },
        _ => String::new(),
    };
    match &advice[..] {
        "" => error.context(shown.to_string()),
        advice => {
            let message = format!("{shown}: {}; {advice}", exit::sentence(&error));
            Failure::new(exit::status_of(&error), message).into()
        }
    }
}

/// Text about a device or image that is no volume, and what to do.
fn instead(path: &Path) -> String {
    match what_else(path) {
        Some(known) => known,
        None if is_blank(path) => {
            "not a NILFS2 volume: it begins with nothing but zeros; nilfs mkfs makes a \
             volume, and nilfs fsck -n looks for one that was there"
                .to_owned()
        }
        None => "not a NILFS2 volume: it has no superblock of one; if there was a volume, nilfs fsck -n \
                 looks for what is left of it"
            .to_owned(),
    }
}

/// Text about a device or image that has been looked through for what is left of a volume.
pub fn nothing_left(path: &Path) -> String {
    what_else(path).unwrap_or_else(|| {
        "not a NILFS2 volume: there is neither a superblock nor a log of one on it; nilfs mkfs makes a \
         new one"
            .to_owned()
    })
}

/// Text about a device or image on which there are no logs of a volume, if it is known what there is
/// instead, and what to do about it.
fn what_else(path: &Path) -> Option<String> {
    let size = size_of(path);
    if size == Some(0) {
        let advice = "nilfs mkfs --size SIZE makes a volume in a new file";
        return Some(format!("not a NILFS2 volume: it is empty; {advice}"));
    }
    if let Some(Other { what, advice }) = other_than_volume(path) {
        return Some(format!("not a NILFS2 volume: it holds {what}; {advice}"));
    }
    if let Some(size) = size.filter(|size| secondary_superblock(*size).is_none()) {
        return Some(format!("not a NILFS2 volume: {} is too small for one", ByteCount(size)));
    }
    has_superblock(path).then(|| {
        "a superblock is all that is left of the NILFS2 volume: no log of it can be found; restore the \
         files from a backup, or nilfs mkfs makes a new volume"
            .to_owned()
    })
}

/// Whether a device or image has a valid superblock of a volume.
fn has_superblock(path: &Path) -> bool {
    let (Ok(file), Some(size)) = (File::open(path), size_of(path)) else { return false };
    let mut places = std::iter::once(PRIMARY_SUPERBLOCK).chain(secondary_superblock(size));
    let mut bytes = [0; SUPERBLOCK_SIZE];
    places.any(|place| {
        file.read_exact_at(&mut bytes, place).is_ok() && Superblock::parse(&bytes, size).is_ok()
    })
}

/// Returns why nothing may be written to a damaged volume, as far as that can be told: something else is
/// where its primary superblock was.
fn displaced(path: &Path) -> Option<RepairError> {
    let device = FileDevice::open(path, Access::Inspect).ok()?;
    nilfs_repair::displaced(&device, || foreign(path))
}

/// The bytes of a device or image, if it can be read.
fn size_of(path: &Path) -> Option<u64> {
    File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))).ok()
}

/// Something that is where a volume was expected.
struct Other {
    what: String,
    /// Advice for the user.
    advice: String,
}

/// A kind of file in which another one is packed.
struct Packing {
    offset: u64,
    magic: &'static [u8],
    name: &'static str,
    /// The program that unpacks it.
    unpacks: &'static str,
}

const fn packing(
    offset: u64,
    magic: &'static [u8],
    name: &'static str,
    unpacks: &'static str,
) -> Packing {
    Packing { offset, magic, name, unpacks }
}

/// The kinds in which images are handed on.
const PACKINGS: [Packing; 11] = [
    packing(0, b"\x1f\x8b\x08", "gzip", "gunzip -k"),
    packing(0, b"\xfd7zXZ\0", "xz", "unxz -k"),
    packing(0, b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    packing(0, b"BZh", "bzip2", "bunzip2 -k"),
    packing(0, b"\x04\x22\x4d\x18", "lz4", "unlz4"),
    packing(0, b"PK\x03\x04", "zip", "unzip"),
    packing(257, b"ustar", "tar", "tar -xSf"),
    packing(0, b"QFI\xfb", "qcow2", CONVERT),
    packing(0, b"KDMV", "vmdk", CONVERT),
    packing(0, b"vhdxfile", "vhdx", CONVERT),
    packing(64, b"\x7f\x10\xda\xbe", "vdi", CONVERT),
];
const CONVERT: &str = "qemu-img convert -O raw";

/// Finds what a device or image holds instead of a volume, as far as that can be told.
fn other_than_volume(path: &Path) -> Option<Other> {
    if let Some(packing) = packing_of(path) {
        let Packing { name, unpacks, .. } = packing;
        let what = format!("data in the format {name}");
        return Some(Other { what, advice: format!("unpack it first, as with {unpacks}") });
    }
    let mut found = find(path).ok()?;
    found.retain(|it| it.kind.as_deref() != Some(NILFS2) && it.kind.is_some());
    let advice = advice_about(found.first()?.kind.as_deref()?);
    Some(Other { what: list(&found), advice })
}

fn packing_of(path: &Path) -> Option<&'static Packing> {
    let file = File::open(path).ok()?;
    let is_there = |packing: &&Packing| {
        let mut bytes = vec![0; packing.magic.len()];
        file.read_exact_at(&mut bytes, packing.offset).is_ok() && bytes == packing.magic
    };
    PACKINGS.iter().find(is_there)
}

/// Advice about a kind of signature, by the name that wipefs has for it.
fn advice_about(kind: &str) -> String {
    match kind {
        "dos" | "gpt" | "PMBR" => {
            "name one of the partitions; for those in a file, losetup --show -fP FILE makes devices"
        }
        "crypto_LUKS" => "cryptsetup open DEVICE NAME opens it as /dev/mapper/NAME; name that",
        "LVM2_member" => "name one of the logical volumes on it, as lvs lists them",
        "linux_raid_member" => "name the RAID of which it is a part, such as /dev/md0",
        "swap" => "it is the system's memory on disk, and has no files",
        file_system => return format!("mount -t {file_system} is for that"),
    }
    .to_owned()
}

/// Whether there are only zeros where a volume begins.
fn is_blank(path: &Path) -> bool {
    let mut bytes = [0; BLANK_BYTES];
    let read = File::open(path).and_then(|file| file.read_at(&mut bytes, 0));
    read.is_ok_and(|count| count > 0) && bytes.iter().all(|byte| *byte == 0)
}

/// Bytes that say whether a device is blank.
const BLANK_BYTES: usize = 64 << 10;

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
    let others = found.into_iter().filter(|it| it.kind.as_deref() != Some(NILFS2));
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
            None => found.push(Signature { kind: Some(kind), is_table, description, offset }),
        }
    }
    // It is there to guard the other table.
    if found.iter().any(|it| it.kind.as_deref() == Some("gpt")) {
        found.retain(|it| it.kind.as_deref() != Some("PMBR"));
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
    Ok(vec![Signature { kind, is_table: false, description, offset }])
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
            {"offset": "0x200", "type": "gpt", "label": null, "usage": "partition-table"},
            {"offset": "0x1fe", "type": "PMBR", "label": null, "usage": "partition-table"}]}"#;
        let found = describe(listing).unwrap();
        let words: Vec<_> = found.iter().map(|it| (&it.description[..], it.offset)).collect();
        let gpt = ("a partition table (gpt)", 0x200);
        assert_eq!(words, [("vfat data", 0), ("a NILFS2 volume labelled lab", 0x406), gpt]);
        assert_eq!(list(&found[1..]), "a NILFS2 volume labelled lab and a partition table (gpt)");
        assert_eq!(found[2].kind.as_deref(), Some("gpt"));
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
        assert_eq!((other.kind, other.offset), (None, 1024));
        file.as_file().write_all_at(&MAGIC.to_le_bytes(), 1024 + 6).unwrap();
        let ours = found(&file).remove(0);
        assert_eq!(ours.kind.as_deref(), Some(NILFS2));
    }
}
