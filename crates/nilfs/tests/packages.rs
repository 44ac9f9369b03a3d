//! The Debian packages: what is in them, that it works where they put it, and that Debian's own
//! checker has nothing to complain of.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::markdown::dead_links;
use tempfile::TempDir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What must be in the package of the command, whatever else is.
const IN_NILFS: &[&str] = &[
    "usr/bin/nilfs",
    "usr/bin/nilfs-lab",
    // systemd checks what udev calls nilfs2 only with a program of that name, even if fstab has another type.
    "usr/sbin/fsck.fuse.nilfs",
    "usr/sbin/fsck.nilfs2",
    "usr/sbin/mount.fuse.nilfs",
    "usr/share/bash-completion/completions/nilfs",
    "usr/share/doc/nilfs/copyright",
    "usr/share/doc/nilfs/README.md",
    "usr/share/doc/nilfs/README.Debian",
    "usr/share/doc/nilfs/docs/mounting.md",
    "usr/share/doc/nilfs/changelog.gz",
    "usr/share/doc/nilfs/examples/nilfs@.service",
    "usr/share/doc/nilfs/examples/nilfs-trim@.timer",
    "usr/share/doc/nilfs/examples/srv-photos.mount",
    "usr/share/fish/vendor_completions.d/nilfs.fish",
    "usr/share/man/man1/nilfs-lab.1.gz",
    "usr/share/man/man1/nilfs.1.gz",
    "usr/share/zsh/site-functions/_nilfs",
];

/// The programs in the package of the other names: all of them, and nothing else.
const COMPAT_PROGRAMS: &[&str] = &[
    "usr/bin/chcp",
    "usr/bin/dumpseg",
    "usr/bin/lscp",
    "usr/bin/lssu",
    "usr/bin/mkcp",
    "usr/bin/rmcp",
    "usr/sbin/mkfs.nilfs2",
    "usr/sbin/mount.nilfs2",
    "usr/sbin/nilfs-clean",
    "usr/sbin/nilfs-resize",
    "usr/sbin/nilfs-tune",
    "usr/sbin/nilfs_cleanerd",
    "usr/sbin/umount.nilfs2",
];

/// The pages that the package is made of, besides those in directories.
const PAGES: [&str; 4] = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"];

/// Packages made of the binary under test.
struct Packages {
    directory: TempDir,
}

impl Packages {
    /// Makes them in a copy of what they are made of; says so and returns nothing if Debian's tools
    /// are not there.
    fn make() -> Option<Self> {
        if Command::new("dh").arg("--version").output().is_err() {
            eprintln!("skipped: debhelper is not installed");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        fs::create_dir(&source).unwrap();
        let parts = ["debian", "docs", "scripts"].into_iter().chain(PAGES);
        let crates = fs::read_dir(Path::new(ROOT).join("crates")).unwrap();
        let names = crates.map(|entry| Path::new("crates").join(entry.unwrap().file_name()));
        let pages = names.map(|name| name.join("README.md"));
        let pages = pages.filter(|page| Path::new(ROOT).join(page).exists());
        run(Command::new("cp")
            .args(["-r", "--parents"])
            .args(parts)
            .args(pages)
            .arg(&source)
            .current_dir(ROOT));
        let nilfs = source.join("nilfs");
        let built = Path::new(env!("CARGO_BIN_EXE_nilfs"));
        fs::copy(built, &nilfs).unwrap();
        // It is there if the whole workspace is tested.
        let lab = Some(built.with_file_name("nilfs-lab")).filter(|lab| lab.exists());
        fs::copy(lab.as_deref().unwrap_or(built), source.join("nilfs-lab")).unwrap();
        let packages = Self { directory };
        run(Command::new("debian/rules")
            .arg("binary")
            .arg(format!("NILFS={}", nilfs.display()))
            .arg(format!("DEB_DIR={}", packages.directory.path().display()))
            .current_dir(&source));
        Some(packages)
    }

    fn path(&self, package: &str) -> PathBuf {
        let start = format!("{package}_");
        let mut files = fs::read_dir(self.directory.path()).unwrap().map(|file| file.unwrap());
        let file = files.find(|file| file.file_name().to_string_lossy().starts_with(&start));
        file.expect(package).path()
    }

    /// The files in one of them.
    fn files(&self, package: &str) -> BTreeSet<String> {
        let list = self.directory.path().join(format!("{package}.files"));
        run(Command::new("dpkg-deb").arg("-x").args([&self.path(package), &list]));
        let found = run(Command::new("find")
            .args(["-not", "-type", "d", "-printf", "%P\n"])
            .current_dir(&list));
        found.lines().map(str::to_owned).collect()
    }
}

/// Runs a command, which must succeed, and returns what it printed.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}{stdout}");
    stdout
}

/// The pages named others by the places that these have in the source, where the packages had none of
/// them: the architecture, the licences, the changelog.
#[test]
fn links_of_the_packaged_pages_lead_somewhere() {
    let Some(packages) = Packages::make() else { return };
    let files = packages.files("nilfs");
    let directory = "usr/share/doc/nilfs/";
    let pages: Vec<PathBuf> = files
        .iter()
        .filter_map(|file| file.strip_prefix(directory))
        .filter(|file| file.ends_with(".md"))
        .map(PathBuf::from)
        .collect();
    assert!(pages.len() > 15, "{pages:?}");
    let root = packages.directory.path().join("nilfs.files").join(directory);
    assert_eq!(dead_links(&root, &pages), [""; 0]);
}

#[test]
fn the_packages_have_everything_and_it_works_where_they_put_it() {
    let Some(packages) = Packages::make() else { return };
    let files = packages.files("nilfs");
    for file in IN_NILFS {
        assert!(files.contains(*file), "{file} is missing in {files:#?}");
    }
    let compat = packages.files("nilfs-tools-compat");
    let is_program = |file: &&String| file.starts_with("usr/bin/") || file.starts_with("usr/sbin/");
    let programs: Vec<&str> = compat.iter().filter(is_program).map(String::as_str).collect();
    assert_eq!(programs, COMPAT_PROGRAMS);
    let both: Vec<_> = files.intersection(&compat).collect();
    assert!(both.is_empty(), "in both packages, so that only one can be installed: {both:?}");

    let root = packages.directory.path().join("root");
    for package in ["nilfs", "nilfs-tools-compat"] {
        run(Command::new("dpkg-deb").arg("-x").args([&packages.path(package), &root]));
    }
    let version = |program: &str| run(Command::new(root.join(program)).arg("-V"));
    let expected = env!("CARGO_PKG_VERSION");
    assert_eq!(version("usr/bin/nilfs"), format!("nilfs {expected}\n"));
    for program in COMPAT_PROGRAMS {
        let name = Path::new(program).file_name().unwrap().to_string_lossy();
        assert_eq!(version(program), format!("{name} (nilfs {expected})\n"));
    }
    let control = run(Command::new("dpkg-deb").arg("-f").arg(packages.path("nilfs")));
    assert!(control.contains(&format!("\nVersion: {expected}\n")), "{control}");

    if Command::new("lintian").arg("--version").output().is_err() {
        eprintln!("skipped: lintian is not installed");
        return;
    }
    run(Command::new("lintian")
        .args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"])
        .args([packages.path("nilfs"), packages.path("nilfs-tools-compat")]));
}
