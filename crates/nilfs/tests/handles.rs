//! File handles, by which an NFS server names files: name_to_handle_at(2) and open_by_handle_at(2)
//! on a mounted volume. The superuser, `/dev/fuse` and perl are needed.

mod common {
    pub mod ours;
}

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use common::ours::{Image, Mounted};

/// Prints the handle of a path: `NUMBER PATH`, the number being that of the system call.
const NAME_TO_HANDLE: &str = r#"
    my $handle = pack("Ii", 128, 0) . "\0" x 128;
    my $mount = pack("i", 0);
    syscall($ARGV[0], -100, $ARGV[1], $handle, $mount, 0) == 0 or die "$!";
    print unpack("H*", substr($handle, 0, 8 + unpack("I", $handle)));
"#;

/// Prints what is in the file with a handle, or why it cannot be opened: `NUMBER ROOT HANDLE`.
const OPEN_BY_HANDLE: &str = r#"
    opendir(my $root, $ARGV[1]) or die "$!";
    my $handle = pack("H*", $ARGV[2]);
    my $fd = syscall($ARGV[0], fileno($root), $handle, 0);
    if ($fd < 0) { print "$!"; exit; }
    open(my $file, "<&=", $fd) or die "$!";
    print <$file>;
"#;

/// The numbers of both system calls.
const CALLS: [&str; 2] = if cfg!(target_arch = "x86_64") { ["303", "304"] } else { ["264", "265"] };

const STALE: &str = "Stale file handle";

#[track_caller]
fn perl(program: &str, arguments: &[&str]) -> String {
    let mut perl = Command::new("perl");
    let output = perl.args(["-e", program]).args(arguments).env("LC_ALL", "C").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn handle_of(path: &Path) -> String {
    perl(NAME_TO_HANDLE, &[CALLS[0], path.to_str().unwrap()])
}

/// What somebody finds who has nothing but the handle.
#[track_caller]
fn found_by(handle: &str, mounted: &Mounted) -> String {
    perl(OPEN_BY_HANDLE, &[CALLS[1], mounted.root().to_str().unwrap(), handle])
}

/// The kernel forgets all files that nobody has open.
fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

fn mounted() -> (Image, Mounted) {
    let image = Image::ours("--size 32M -B 256");
    let mounted = image.mount("cleaner-config=/dev/null");
    (image, mounted)
}

#[test]
fn a_handle_finds_its_file_wherever_it_goes_and_whatever_the_kernel_forgets() {
    let (image, mounted) = mounted();
    fs::create_dir_all(mounted.join("a/b")).unwrap();
    fs::write(mounted.join("a/b/file"), "content").unwrap();
    let handle = handle_of(&mounted.join("a/b/file"));
    assert_eq!(found_by(&handle, &mounted), "content");
    drop_caches();
    assert_eq!(found_by(&handle, &mounted), "content", "not yet committed, and forgotten");
    mounted.checkpoint();
    drop_caches();
    assert_eq!(found_by(&handle, &mounted), "content", "committed, and forgotten");
    fs::rename(mounted.join("a/b/file"), mounted.join("elsewhere")).unwrap();
    fs::remove_dir(mounted.join("a/b")).unwrap();
    drop_caches();
    assert_eq!(found_by(&handle, &mounted), "content", "under another name");
    assert_eq!(handle_of(&mounted.join("elsewhere")), handle, "the handle is always the same");
    mounted.unmount();
    let mounted = image.mount("cleaner-config=/dev/null");
    assert_eq!(found_by(&handle, &mounted), "content", "mounted again");
    mounted.unmount();
}

#[test]
fn the_handle_of_a_file_that_is_gone_is_stale_even_if_its_inode_number_lives_again() {
    let (_image, mounted) = mounted();
    for committed in [false, true] {
        let path = mounted.join("file");
        fs::write(&path, "old").unwrap();
        if committed {
            mounted.checkpoint();
        }
        let (handle, number) = (handle_of(&path), fs::metadata(&path).unwrap().ino());
        fs::remove_file(&path).unwrap();
        assert_eq!(found_by(&handle, &mounted), STALE, "just removed, committed: {committed}");
        drop_caches();
        assert_eq!(found_by(&handle, &mounted), STALE, "forgotten, committed: {committed}");
        mounted.checkpoint();
        assert_eq!(found_by(&handle, &mounted), STALE, "its removal is committed");
        let heir = (0..100).map(|nth| mounted.join(&format!("{committed} {nth}"))).find(|path| {
            fs::write(path, "new").unwrap();
            fs::metadata(path).unwrap().ino() == number
        });
        let heir = heir.expect("inode numbers are used again");
        for _ in 0..2 {
            assert_eq!(found_by(&handle, &mounted), STALE, "its number is used again");
            assert_eq!(found_by(&handle_of(&heir), &mounted), "new");
            mounted.checkpoint();
            drop_caches();
        }
    }
    mounted.unmount();
}
