//! The table of mounts that the kernel keeps.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use nilfs_ondisk::geometry::PRIMARY_SUPERBLOCK;
use nilfs_ondisk::superblock::{MAGIC, RawSuperblock};
use rustix::io::Errno;

use crate::loop_device;

/// The kernel's types of FUSE mounts, see `mountpoint`.
pub(crate) const PLAIN: &str = "fuse";
pub(crate) const BLOCK: &str = "fuseblk";

/// What comes after the dot in the type of our mounts, unless another name was asked for.
pub(crate) const SUBTYPE: &str = "nilfs";

/// What comes after the source of a mount that shows a checkpoint of the past, before its number.
const AT_CHECKPOINT: &str = "@cp=";

/// Whether an error says of a FUSE mount that its process is gone: before the request was made, or
/// while it was on its way.
#[must_use]
pub fn says_nobody_serves(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// Major and minor number of the file system's device, as in `0:45`.
    pub device: String,
    /// Where it is mounted: an absolute path without symbolic links.
    pub dir: PathBuf,
    /// The directory of the file system that is seen there: `/`, unless it is a bind mount.
    pub root: PathBuf,
    /// The type, as in `fuse.nilfs`.
    pub file_system: String,
    /// What was mounted: for us, the device or image.
    pub source: PathBuf,
    /// What the table calls the source: it has the number of a checkpoint of the past with it, or
    /// is a loop device that lends its name.
    pub shown: PathBuf,
    /// The checkpoint of the past that is shown.
    pub checkpoint: Option<u64>,
    /// Words such as `ro` and `nosuid`, separated by commas: those of the mount, then those of the
    /// file system.
    options: String,
}

impl Mounted {
    /// Everything that is mounted, the latest mount last.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
        table.split(|byte| *byte == b'\n').filter_map(parse).collect()
    }

    /// What is mounted on `dir`; of several mounts, the topmost.
    #[must_use]
    pub fn on(dir: &Path) -> Option<Self> {
        Self::all().into_iter().rev().find(|mounted| mounted.dir == dir)
    }

    /// Whether it is a volume that we serve. A mount with another subtype than ours is one if there
    /// is a NILFS2 volume on its source, as far as we may see that.
    #[must_use]
    pub fn is_nilfs(&self) -> bool {
        match fuse_subtype(&self.file_system) {
            Some(SUBTYPE) => true,
            Some(_) => has_volume(&self.source),
            None => false,
        }
    }

    /// Whether nothing can be changed through it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.has("ro")
    }

    /// The user who mounted it and serves it, if it is a FUSE mount. What such a user calls the
    /// source is up to that user.
    #[must_use]
    pub fn owner(&self) -> Option<u32> {
        let mut words = self.options.split(',');
        words.find_map(|word| word.strip_prefix("user_id=")?.parse().ok())
    }

    /// Whether one of its words is this.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.options.split(',').any(|option| option == word)
    }
}

/// The mount that a line of the table describes.
///
/// `id parent major:minor root dir options tags… - type source options`
fn parse(line: &[u8]) -> Option<Mounted> {
    let mut words = line.split(|byte| *byte == b' ').map(unescape);
    let device = words.nth(2)?.into_string().ok()?;
    let (root, dir) = (words.next()?.into(), words.next()?.into());
    let mut options = words.next()?.into_string().ok()?;
    let mut words = words.skip_while(|word| word != "-").skip(1);
    let file_system = words.next()?.into_string().ok()?;
    let shown = PathBuf::from(words.next()?);
    options.push(',');
    options.push_str(&words.next()?.to_string_lossy());
    let (source, checkpoint) = match fuse_subtype(&file_system) {
        Some(_) => source_of(&shown),
        None => (shown.clone(), None),
    };
    Some(Mounted { device, dir, root, file_system, source, shown, checkpoint, options })
}

/// The subtype of a FUSE mount, which may be empty.
fn fuse_subtype(file_system: &str) -> Option<&str> {
    let (kind, subtype) = file_system.split_once('.').unwrap_or((file_system, ""));
    [PLAIN, BLOCK].contains(&kind).then_some(subtype)
}

/// What the table of mounts calls a source of which a checkpoint of the past is shown. FUSE shows
/// no options but those of the kernel.
pub(crate) fn source_at(source: &Path, checkpoint: Option<u64>) -> PathBuf {
    let mut shown = source.as_os_str().to_owned();
    if let Some(number) = checkpoint {
        shown.push(format!("{AT_CHECKPOINT}{number}"));
    }
    shown.into()
}

/// The device or image, and the checkpoint of it, that the table shows.
fn source_of(shown: &Path) -> (PathBuf, Option<u64>) {
    let at_checkpoint = || {
        let shown = shown.as_os_str().as_bytes();
        let sign = AT_CHECKPOINT.as_bytes();
        let at = shown.windows(sign.len()).rposition(|part| part == sign)?;
        let number = str::from_utf8(&shown[at + sign.len()..]).ok()?.parse().ok()?;
        Some((PathBuf::from(OsStr::from_bytes(&shown[..at])), number))
    };
    match at_checkpoint() {
        // A file may have that name.
        Some((source, number)) if !shown.exists() => (source, Some(number)),
        _ => (loop_device::image_of(shown).unwrap_or_else(|| shown.to_owned()), None),
    }
}

/// Whether a device or image has the magic number of a primary superblock.
fn has_volume(source: &Path) -> bool {
    let is_fit = |it: fs::Metadata| it.is_file() || it.file_type().is_block_device();
    if !fs::metadata(source).is_ok_and(is_fit) {
        return false;
    }
    let mut magic = [0; 2];
    let at = PRIMARY_SUPERBLOCK + offset_of!(RawSuperblock, s_magic) as u64;
    fs::File::open(source).is_ok_and(|it| it.read_exact_at(&mut magic, at).is_ok())
        && u16::from_le_bytes(magic) == MAGIC
}

/// Undoes the table's `\ooo` for blanks and backslashes.
fn unescape(word: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match digits {
            Some(digits) if byte == b'\\' => {
                plain.push(digits.iter().fold(0_u8, |code, d| code.wrapping_mul(8) | (d - b'0')));
                rest = &after[3..];
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_and_backslashes_in_names_are_undone() {
        let line = br"36 35 0:45 / /mnt/a\040b rw,noatime shared:1 - fuse.nilfs /dev/sd\134a rw";
        let expected = Mounted {
            device: "0:45".into(),
            dir: "/mnt/a b".into(),
            root: "/".into(),
            file_system: "fuse.nilfs".into(),
            source: r"/dev/sd\a".into(),
            shown: r"/dev/sd\a".into(),
            checkpoint: None,
            options: "rw,noatime,rw".into(),
        };
        assert_eq!(parse(line), Some(expected));
    }

    #[test]
    fn a_mount_is_read_only_by_itself_or_with_its_file_system() {
        let is_read_only = |mount: &str, file_system: &str| {
            let line = format!("36 35 0:45 / /mnt {mount} shared:1 - fuse.nilfs img {file_system}");
            parse(line.as_bytes()).unwrap().is_read_only()
        };
        assert!(is_read_only("ro,noatime", "rw") && is_read_only("rw", "ro,user_id=0"));
        assert!(!is_read_only("rw,nosuid", "rw,errors=remount-ro"));
    }

    #[test]
    fn the_owner_of_a_mount_is_the_user_who_serves_it() {
        let owner = |line: &[u8]| parse(line).unwrap().owner();
        assert_eq!(
            owner(b"36 35 0:45 / /mnt rw - fuse.nilfs img rw,user_id=1000,group_id=5"),
            Some(1000)
        );
        assert_eq!(owner(b"36 35 8:1 / /mnt rw - nilfs2 /dev/sda1 rw"), None);
    }

    #[test]
    fn a_mount_of_the_past_shows_its_checkpoint() {
        let shown = source_at(Path::new("/a@cp=3/b"), Some(17));
        assert_eq!(shown, Path::new("/a@cp=3/b@cp=17"));
        assert_eq!(source_of(&shown), ("/a@cp=3/b".into(), Some(17)));
        assert_eq!(source_of(Path::new("/a@cp=b")), ("/a@cp=b".into(), None));
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image@cp=5");
        fs::write(&image, "").unwrap();
        assert_eq!(source_of(&image), (image.clone(), None), "that is its name");
    }

    #[test]
    fn a_mount_is_ours_by_its_subtype() {
        let line = |kind: &str| format!("36 35 0:45 / /mnt rw - {kind} /dev/none rw");
        let is_nilfs = |kind| parse(line(kind).as_bytes()).unwrap().is_nilfs();
        assert!(is_nilfs("fuse.nilfs") && is_nilfs("fuseblk.nilfs"));
        for other in ["fuse", "fuseblk", "fuse.sshfs", "nilfs2", "fusectl", "ext4.nilfs"] {
            assert!(!is_nilfs(other), "{other}");
        }
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(Mounted::on(Path::new("/")).is_some());
    }
}
