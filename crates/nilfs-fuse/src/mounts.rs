//! The table of mounts that the kernel keeps.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The type of our mounts.
pub(crate) const FILE_SYSTEM: &str = "fuse.nilfs";

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

    /// Whether it is a volume that we serve.
    #[must_use]
    pub fn is_nilfs(&self) -> bool {
        self.file_system == FILE_SYSTEM
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
    let source = words.next()?.into();
    options.push(',');
    options.push_str(&words.next()?.to_string_lossy());
    Some(Mounted { device, dir, root, file_system, source, options })
}

/// Undoes the table's `\ooo` for blanks and backslashes.
fn unescape(word: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, behind)) = rest.split_first() {
        let digits =
            behind.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match digits {
            Some(digits) if byte == b'\\' => {
                plain.push(digits.iter().fold(0_u8, |code, d| code.wrapping_mul(8) | (d - b'0')));
                rest = &behind[3..];
            }
            _ => {
                plain.push(byte);
                rest = behind;
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
    fn the_owner_of_a_mount_is_who_serves_it() {
        let owner = |line: &[u8]| parse(line).unwrap().owner();
        assert_eq!(
            owner(b"36 35 0:45 / /mnt rw - fuse.nilfs img rw,user_id=1000,group_id=5"),
            Some(1000)
        );
        assert_eq!(owner(b"36 35 8:1 / /mnt rw - nilfs2 /dev/sda1 rw"), None);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(Mounted::on(Path::new("/")).is_some());
    }
}
