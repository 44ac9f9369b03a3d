//! `scripts/install` makes the links by which the command is called by its other names.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install");

/// Runs the script for a root directory of its own. Returns what it printed.
#[track_caller]
fn script(what: &str, root: &Path) -> String {
    let output = Command::new(SCRIPT)
        .arg(what)
        .arg(root)
        .args(["/usr/local", "/usr/sbin"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn install(root: &Path) -> String {
    script(env!("CARGO_BIN_EXE_nilfs"), root)
}

#[test]
fn links_are_where_the_programs_of_nilfs_utils_are() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    install(root);
    let links = [
        "usr/local/bin/lscp",
        "usr/local/bin/dumpseg",
        "usr/sbin/fsck.nilfs2",
        "usr/sbin/fsck.fuse.nilfs",
        "usr/sbin/mkfs.nilfs2",
        "usr/sbin/mount.nilfs2",
        "usr/sbin/mount.fuse.nilfs",
        "usr/sbin/umount.fuseblk.nilfs",
        "usr/sbin/nilfs-resize",
        "usr/sbin/nilfs_cleanerd",
    ];
    let files = [
        "usr/local/share/man/man1/nilfs.1",
        "usr/local/share/man/man1/nilfs-clean.1",
        "usr/local/share/man/man1/lscp.1",
        "usr/local/share/man/man5/nilfs.toml.5",
        "usr/local/share/man/man8/nilfs-clean.8",
        "usr/local/share/man/man8/mount.fuse.nilfs.8",
        "usr/local/share/bash-completion/completions/nilfs",
        "usr/local/share/zsh/site-functions/_nilfs",
        // fish does not look below /usr/local.
        "usr/share/fish/vendor_completions.d/nilfs.fish",
    ];
    for file in files {
        assert!(root.join(file).is_file(), "{file} is not there");
    }
    for link in links {
        let target = fs::read_link(root.join(link)).expect(link);
        assert_eq!(target, Path::new("/usr/local/bin/nilfs"), "{link}");
    }
    // A second time is like the first.
    assert!(!install(root).contains("other programs"));
    script("--remove", root);
    for link in links {
        assert!(root.join(link).symlink_metadata().is_err(), "{link} is still there");
    }
    for file in files {
        assert!(!root.join(file).exists(), "{file} is still there");
    }
}

#[test]
fn the_lab_and_the_examples_are_installed_too() {
    let built = tempfile::tempdir().unwrap();
    let nilfs = built.path().join("nilfs");
    fs::copy(env!("CARGO_BIN_EXE_nilfs"), &nilfs).unwrap();
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let files = [
        "usr/local/bin/nilfs-lab",
        "usr/local/share/doc/nilfs/examples/nilfs@.service",
        "usr/local/share/doc/nilfs/examples/nilfs-uring.conf",
    ];

    let said = script(nilfs.to_str().unwrap(), root);
    assert!(said.starts_with("nilfs is installed"), "{said}");
    assert!(!root.join(files[0]).exists(), "nobody has built it");
    fs::write(built.path().join("nilfs-lab"), "the lab").unwrap();
    let said = script(nilfs.to_str().unwrap(), root);
    assert!(said.starts_with("nilfs and nilfs-lab are installed"), "{said}");
    files.iter().for_each(|file| assert!(root.join(file).exists(), "{file}"));
    script("--remove", root);
    let left = Command::new("find").arg(root).args(["-not", "-type", "d"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "", "left behind");
}

#[test]
fn programs_of_others_are_neither_replaced_nor_hidden_nor_removed() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    for dir in ["usr/bin", "usr/sbin"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    // As by the package nilfs-tools; its lscp would come after one in /usr/local/bin.
    fs::write(root.join("usr/bin/lscp"), "theirs").unwrap();
    fs::write(root.join("usr/sbin/mkfs.nilfs2"), "theirs").unwrap();
    symlink("/elsewhere", root.join("usr/sbin/umount.nilfs2")).unwrap();

    let said = install(root);
    assert!(said.contains("not as umount.nilfs2 mkfs.nilfs2 lscp:"), "{said}");
    assert!(!root.join("usr/local/bin/lscp").exists());
    assert!(root.join("usr/local/bin/lssu").symlink_metadata().is_ok(), "the others are links");
    let man = root.join("usr/local/share/man");
    assert!(!man.join("man1/lscp.1").exists() && !man.join("man8/mkfs.nilfs2.8").exists());
    assert!(man.join("man1/lssu.1").exists() && man.join("man1/nilfs-mkfs.1").exists());
    script("--remove", root);
    for theirs in ["usr/bin/lscp", "usr/sbin/mkfs.nilfs2"] {
        assert_eq!(fs::read_to_string(root.join(theirs)).unwrap(), "theirs");
    }
    assert!(root.join("usr/sbin/umount.nilfs2").symlink_metadata().is_ok());
}
