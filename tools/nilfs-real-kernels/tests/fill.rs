//! The same seed makes the same tree on any file system, and its manifest sees every change.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use nilfs_real_kernels::{Fill, Manifest};

fn filled(directory: &Path, fill: Fill) -> Manifest {
    fill.populate(directory).unwrap();
    Manifest::of(directory).unwrap()
}

#[test]
fn a_seed_makes_the_same_tree_twice_and_changes_it_in_the_same_way() {
    let fill = Fill { seed: 1, scale: 1 };
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let populated = filled(one.path(), fill);
    assert_eq!(Manifest::diff(&populated, &filled(other.path(), fill)), [""; 0]);

    fill.modify(one.path()).unwrap();
    fill.modify(other.path()).unwrap();
    let modified = Manifest::of(one.path()).unwrap();
    assert_eq!(Manifest::diff(&modified, &Manifest::of(other.path()).unwrap()), [""; 0]);
    assert!(Manifest::diff(&populated, &modified).len() > 500);
}

#[test]
fn another_seed_makes_another_tree() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = filled(one.path(), Fill { seed: 1, scale: 1 });
    let second = filled(other.path(), Fill { seed: 2, scale: 1 });
    assert!(!Manifest::diff(&first, &second).is_empty());
}

#[test]
fn the_tree_holds_what_it_promises() {
    let directory = tempfile::tempdir().unwrap();
    let manifest = filled(directory.path(), Fill { seed: 7, scale: 2 }).to_string();
    assert_eq!(fs::read_dir(directory.path().join("large")).unwrap().count(), 2000);
    for kind in ["directory", "file", "symlink", "fifo", "socket", "char-device", "block-device"] {
        assert!(manifest.contains(&format!(" type={kind} ")), "no {kind}");
    }
    let scattered = fs::metadata(directory.path().join("maps/scattered")).unwrap();
    assert!(scattered.blocks() * 512 >= 2048 * 512);
    assert!(manifest.contains(" nlink=201 "));
    assert!(manifest.lines().any(|line| line.contains(" mtime=-")));
}

#[test]
fn a_manifest_survives_its_text_form() {
    let directory = tempfile::tempdir().unwrap();
    let manifest = filled(directory.path(), Fill { seed: 3, scale: 1 });
    assert_eq!(manifest.to_string().parse::<Manifest>().unwrap(), manifest);
    assert!("a b\n".parse::<Manifest>().is_err());
}

#[test]
fn every_kind_of_change_is_named_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("file"), "content").unwrap();
    fs::hard_link(path("file"), path("link")).unwrap();
    symlink("target", path("symlink")).unwrap();
    fs::write(path("gone"), "").unwrap();
    let before = Manifest::of(directory.path()).unwrap();

    let file = fs::File::options().write(true).open(path("file")).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"C", 0).unwrap();
    fs::set_permissions(path("file"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(path("symlink")).unwrap();
    symlink("elsewhere", path("symlink")).unwrap();
    fs::remove_file(path("gone")).unwrap();
    fs::write(path("new"), "").unwrap();
    let after = Manifest::of(directory.path()).unwrap();

    let differences = Manifest::diff(&before, &after);
    for expected in [
        "file: content is ",
        "file: mode is 0644 and 0600",
        "file: mtime is ",
        "link: content is ",
        "symlink: target is target and elsewhere",
        "gone: only in the first",
        "new: only in the second",
    ] {
        assert!(
            differences.iter().any(|difference| difference.starts_with(expected)),
            "{expected:?} is not among {differences:#?}"
        );
    }
}
