//! Ordinary programs work on a mounted volume as on any other file system, and find it all again
//! after a remount.

mod common {
    pub mod ours;
}

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::ours::{Image, Mounted};

/// A program, by the name of the Debian package that one installs to have it.
fn program(name: &str, package: &str) -> Command {
    let found = std::env::split_paths("/usr/local/bin:/usr/bin:/bin")
        .any(|directory| directory.join(name).exists());
    assert!(found, "{name} is missing: install Debian's package {package}");
    Command::new(name)
}

/// Runs a program that must succeed.
#[track_caller]
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}\n{stderr}{stdout}");
    stdout
}

/// Unmounts, checks, and mounts again: the kernel has forgotten everything then.
#[track_caller]
fn remount(image: &Image, mounted: Mounted) -> Mounted {
    mounted.unmount();
    image.check();
    image.mount("rw")
}

/// The newest kernel that Debian has packed for those who build their own.
fn kernel_sources() -> PathBuf {
    let found = fs::read_dir("/usr/src").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_tarball = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("linux-source-") && name.contains(".tar.")
    };
    let newest = found.filter(is_tarball).max();
    newest.expect("no kernel in /usr/src: install Debian's package linux-source")
}

/// Content, types, modes, owners, times and links of every file, against the archive.
#[test]
fn tar_unpacks_a_kernel_and_finds_it_as_packed() {
    let sources = kernel_sources();
    let tar = |action: &str, root: &Path| {
        run(program("tar", "tar").arg(action).arg(&sources).arg("-C").arg(root))
    };
    match sources.extension().and_then(OsStr::to_str) {
        Some("bz2") => program("bzip2", "bzip2"),
        _ => program("xz", "xz-utils"),
    };
    let image = Image::ours("--size 4G -b 4096");
    let mounted = image.mount("rw");
    tar("-xf", mounted.root());
    let mounted = remount(&image, mounted);
    assert_eq!(tar("-df", mounted.root()), "");
    mounted.unmount();
}

/// A history of `commits` commits that change some of `files` files each, as `git fast-import`
/// reads it.
fn git_history(commits: usize, files: usize) -> String {
    let mut stream = String::new();
    for commit in 0..commits {
        let message = format!("change {commit}");
        let time = 1_700_000_000 + commit;
        let _ = write!(
            stream,
            "commit refs/heads/main\ncommitter Lab <lab@example.org> {time} +0000\n\
             data {}\n{message}\n",
            message.len()
        );
        for file in (commit % 7..files).step_by(7) {
            let content: String =
                (0..file + 20).map(|line| format!("{file} {commit} {}\n", line * line)).collect();
            let _ = write!(
                stream,
                "M 100644 inline d{}/f{file}\ndata {}\n{content}\n",
                file % 5,
                content.len()
            );
        }
    }
    stream
}

#[test]
fn git_clones_and_finds_every_object_right() {
    let git = |directory: &Path, words: &[&str]| {
        let mut git = program("git", "git");
        git.arg("-C").arg(directory).args(["-c", "user.name=Lab", "-c", "user.email=lab@lab"]);
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        git.args(["-c", "safe.directory=*"]).args(words);
        run(&mut git)
    };
    let host = tempfile::tempdir().unwrap();
    let stream = host.path().join("stream");
    fs::write(&stream, git_history(400, 150)).unwrap();
    let origin = host.path().join("origin");
    git(host.path(), &["init", "-q", "-b", "main", "origin"]);
    let mut import = program("git", "git");
    import.arg("-C").arg(&origin).args(["fast-import", "--quiet"]);
    let imported = import.stdin(fs::File::open(&stream).unwrap()).status().unwrap();
    assert!(imported.success());

    let image = Image::ours("--size 1G -b 1024");
    let mounted = image.mount("rw");
    git(mounted.root(), &["clone", "-q", "--no-local", origin.to_str().unwrap(), "clone"]);
    let clone = mounted.join("clone");
    git(&clone, &["fsck", "--full", "--strict"]);
    fs::write(clone.join("d0/f0"), "changed\n").unwrap();
    git(&clone, &["commit", "-q", "-a", "-m", "here"]);
    git(&clone, &["gc", "-q", "--aggressive", "--prune=now"]);
    let mounted = remount(&image, mounted);
    let clone = mounted.join("clone");
    git(&clone, &["fsck", "--full", "--strict"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    assert_eq!(git(&clone, &["rev-list", "--count", "HEAD"]).trim(), "401");
    let tree = |directory| git(directory, &["rev-parse", "HEAD^{tree}", "HEAD~1^{tree}"]);
    assert_eq!(tree(&clone).lines().nth(1), tree(&origin).lines().next());
    mounted.unmount();
}

/// A program of many files, each of which knows the square of its number.
fn write_project(directory: &Path, files: usize) {
    let mut header = String::from("#pragma once\n");
    let mut main = String::from("#include <stdio.h>\n#include \"all.h\"\nint main(void) {\n");
    main.push_str("    long sum = 0;\n");
    let mut makefile = String::from(
        "CFLAGS = -O1 -MMD\n\
         program: libparts.a main.o\n\t$(CC) -o $@ main.o -L. -lparts\n\
         %.o: %.c\n\t@echo compiling $<\n\t@$(CC) $(CFLAGS) -c -o $@ $<\n\
         -include $(wildcard *.d)\nlibparts.a:",
    );
    for file in 0..files {
        let _ = writeln!(header, "long part{file}(void);");
        let _ = writeln!(main, "    sum += part{file}();");
        let _ = write!(makefile, " part{file}.o");
        let part =
            format!("#include \"all.h\"\nlong part{file}(void) {{ return {file}L * {file}; }}\n");
        fs::write(directory.join(format!("part{file}.c")), part).unwrap();
    }
    makefile.push_str("\n\t$(AR) rcs $@ $^\n");
    main.push_str("    printf(\"%ld\\n\", sum);\n    return 0;\n}\n");
    fs::write(directory.join("all.h"), header).unwrap();
    fs::write(directory.join("main.c"), main).unwrap();
    fs::write(directory.join("Makefile"), makefile).unwrap();
}

#[test]
fn make_builds_a_project_and_later_only_what_changed() {
    const FILES: usize = 30;
    program("gcc", "gcc");
    let image = Image::ours("--size 1G -b 2048");
    let mounted = image.mount("rw");
    let project = mounted.join("project");
    fs::create_dir(&project).unwrap();
    write_project(&project, FILES);
    let compiled = |project: &Path| {
        let said = run(program("make", "make").arg("-C").arg(project).args(["-j2", "CC=gcc"]));
        said.lines().filter(|line| line.starts_with("compiling")).count()
    };
    let sum: usize = (0..FILES).map(|file| file * file).sum();
    assert_eq!(compiled(&project), FILES + 1);
    assert_eq!(run(&mut Command::new(project.join("program"))), format!("{sum}\n"));

    let mounted = remount(&image, mounted);
    let project = mounted.join("project");
    assert_eq!(compiled(&project), 0);
    let changed = "long part7(void) { return 0; }\n";
    fs::write(project.join("part7.c"), changed).unwrap();
    assert_eq!(compiled(&project), 1);
    assert_eq!(run(&mut Command::new(project.join("program"))), format!("{}\n", sum - 49));
    mounted.unmount();
    image.check();
}
