//! Other names of the command: mount(8) finds its helper for `-t fuse.nilfs` as a program of a
//! fixed name. A link of that name to `nilfs` is enough.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The name under which mount(8) calls us: `mount.fuse.nilfs DEVICE DIR [-sfnv] [-o OPTIONS]`.
const MOUNT_HELPER: &str = "mount.fuse.nilfs";

/// The arguments as `nilfs` would have been given them.
pub fn translate(arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments.first().and_then(|name| Path::new(name).file_name());
    if name != Some(OsStr::new(MOUNT_HELPER)) {
        return arguments;
    }
    let mut translated: Vec<OsString> = vec!["nilfs".into(), "mount".into()];
    let mut rest = arguments.into_iter().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            // Words to mount(8) itself, which it passes on: sloppy, no mtab, verbose.
            Some("-s" | "-n" | "-v") => {}
            // The type and the namespace have brought mount(8) here.
            Some("-t" | "-N") => {
                rest.next();
            }
            _ => translated.push(argument),
        }
    }
    translated
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> String {
        let words = translate(line.split(' ').map(OsString::from).collect());
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn a_call_by_mount_8_becomes_nilfs_mount() {
        assert_eq!(
            translated("/sbin/mount.fuse.nilfs /dev/sdb1 /mnt -n -o rw,noatime -t fuse.nilfs"),
            "nilfs mount /dev/sdb1 /mnt -o rw,noatime"
        );
    }

    #[test]
    fn any_other_name_is_nilfs() {
        assert_eq!(translated("/usr/bin/nilfs ls -s x.img"), "/usr/bin/nilfs ls -s x.img");
    }
}
