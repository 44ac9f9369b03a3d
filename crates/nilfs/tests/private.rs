//! Files that are made with bytes of a volume in them are for their owner alone. Once, the undo file of a
//! repair was there for all to read, with blocks of everybody's files in it.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{CommandOutput, Volume, forge_superblocks, volume};

/// Where the number of the newest log's block is in the superblock, and a block that is in no log's place.
const LAST_PSEG: usize = 0x40;
const NO_LOG: [u8; 3] = [5, 0, 0];

/// Command lines that make a file `NEW`.
const MAKERS: [&str; 5] = [
    "mkfs --size 20M -B 256 NEW",
    "image IMAGE NEW",
    "image --scramble IMAGE NEW",
    "fsck -p --undo NEW IMAGE",
    "fsck -y --undo NEW IMAGE",
];

/// A volume that can be repaired.
fn damaged() -> Volume {
    let volume = volume();
    forge_superblocks(&volume.image, LAST_PSEG, &NO_LOG);
    volume
}

/// Runs `nilfs` with a umask that keeps nothing from anybody.
fn with_open_umask(volume: &Volume, line: &str, new: &Path) -> CommandOutput {
    let words = line.split(' ').map(|word| match word {
        "IMAGE" => volume.image.as_os_str(),
        "NEW" => new.as_os_str(),
        word => word.as_ref(),
    });
    let mut sh = Command::new("sh");
    sh.args(["-c", "umask 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_nilfs")]).args(words);
    CommandOutput::of(&sh.stdin(Stdio::null()).output().unwrap())
}

#[test]
fn what_has_bytes_of_a_volume_is_for_its_owner_alone() {
    for line in MAKERS {
        let volume = damaged();
        let new = volume.beside("new");
        let outcome = with_open_umask(&volume, line, &new);
        assert_eq!(outcome.code, Some(0), "{line}: {outcome:?}");
        assert_ne!(fs::metadata(&new).unwrap().len(), 0, "{line}");
        let mode = fs::metadata(&new).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{line}");
    }
}

/// In a directory of all users such as /tmp, the name may be there already.
#[test]
fn what_has_the_name_already_is_not_used() {
    for line in MAKERS {
        for with_link in [true, false] {
            let volume = damaged();
            let (new, theirs) = (volume.beside("new"), volume.beside("theirs"));
            match with_link {
                true => symlink(&theirs, &new).unwrap(),
                false => fs::write(&new, "").unwrap(),
            }
            let before = fs::read(&volume.image).unwrap();
            let outcome = with_open_umask(&volume, line, &new);
            let is_mkfs = line.starts_with("mkfs");
            assert!(is_mkfs || outcome.code == Some(6), "{line}: {outcome:?}");
            assert!(!theirs.exists() && fs::metadata(&new).map_or(0, |it| it.len()) == 0, "{line}");
            assert!(fs::read(&volume.image).unwrap() == before, "{line}: nothing is written");
        }
    }
}
