//! The first file tree of the virtual machine: busybox, the kernel's modules, and `init.sh`.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::kernel::Kernel;
use crate::command;

const INIT: &str = include_str!("init.sh");

const DIRECTORIES: [&str; 8] = ["bin", "sbin", "dev", "proc", "sys", "host", "memory", "root"];

/// What `init.sh` uses of busybox.
const COMMANDS: [&str; 11] = [
    "sh", "mount", "mkdir", "cat", "dd", "chroot", "stat", "poweroff", "hostname", "echo",
    "modprobe",
];

/// The archive, and what can be said of its modules.
#[derive(Debug)]
pub struct Initramfs {
    /// The cpio archive.
    pub archive: PathBuf,
    /// Lines of `modules.alias`, and what the kernel itself has.
    aliases: String,
    built_in: Vec<u8>,
}

impl Initramfs {
    /// Makes the archive in a directory.
    pub fn build(kernel: &Kernel, dir: &Path) -> Result<Self> {
        let tree = tempfile::Builder::new()
            .prefix("initramfs-")
            .tempdir_in(dir)
            .with_context(|| format!("cannot make a directory in {}", dir.display()))?;
        let modules = tree.path().join("lib/modules").join(&kernel.release);
        fill(tree.path(), &modules, kernel)
            .with_context(|| format!("cannot make {}", tree.path().display()))?;
        command::run(Command::new("depmod").arg("-b").arg(tree.path()).arg(&kernel.release))?;
        let archive = dir.join("initramfs");
        pack(tree.path(), &archive)?;
        let path = modules.join("modules.alias");
        let aliases =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let built_in = fs::read(kernel.modules.join("modules.builtin.modinfo")).unwrap_or_default();
        Ok(Self { archive, aliases, built_in })
    }

    /// Whether there is a module for a type of file system, or the kernel has it anyway.
    pub fn has_file_system(&self, kind: &str) -> bool {
        let module = format!("alias fs-{kind} ");
        let built_in = format!(".alias=fs-{kind}\0");
        self.aliases.lines().any(|line| line.starts_with(&module))
            || self.built_in.windows(built_in.len()).any(|bytes| bytes == built_in.as_bytes())
    }
}

fn fill(tree: &Path, modules: &Path, kernel: &Kernel) -> Result<()> {
    for directory in DIRECTORIES {
        fs::create_dir(tree.join(directory))?;
    }
    fs::copy(static_busybox()?, tree.join("bin/busybox"))?;
    for name in COMMANDS {
        symlink("busybox", tree.join("bin").join(name))?;
    }
    // Here the kernel looks for it when somebody mounts what it does not know yet.
    symlink("../bin/busybox", tree.join("sbin/modprobe"))?;
    fs::write(tree.join("init"), INIT)?;
    fs::set_permissions(tree.join("init"), PermissionsExt::from_mode(0o755))?;

    let chosen = kernel.choose_modules()?;
    fs::write(tree.join("modules"), chosen.names.join("\n"))?;
    for file in &chosen.files {
        copy_module(&kernel.modules.join(file), modules, file)?;
    }
    for list in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        if kernel.modules.join(list).exists() {
            fs::copy(kernel.modules.join(list), modules.join(list))?;
        }
    }
    Ok(())
}

/// Copies a module, decompressed, because busybox does not know every compression.
fn copy_module(from: &Path, modules: &Path, file: &str) -> Result<()> {
    let (name, program) = match file.rsplit_once('.') {
        Some((name, "xz")) => (name, Some("xz")),
        Some((name, "zst")) => (name, Some("zstd")),
        Some((name, "gz")) => (name, Some("gzip")),
        _ => (file, None),
    };
    let to = modules.join(name);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    match program {
        None => {
            fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
        Some(program) => fs::write(&to, command::run(Command::new(program).arg("-dc").arg(from))?)?,
    }
    Ok(())
}

/// A busybox that needs no libraries.
fn static_busybox() -> Result<PathBuf> {
    const ADVICE: &str = "please install the package busybox-static";
    let Some(path) = command::find("busybox") else { bail!("busybox is missing: {ADVICE}") };
    let program = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    // The name of the dynamic loader is at the start of a program that needs one.
    let start = &program[..program.len().min(4096)];
    let loader = b"/ld-";
    ensure!(
        !start.windows(loader.len()).any(|bytes| bytes == loader),
        "{} needs libraries: {ADVICE}",
        path.display()
    );
    Ok(path)
}

/// Makes a cpio archive of a tree, in which everything belongs to root.
fn pack(tree: &Path, archive: &Path) -> Result<()> {
    let names = command::run(Command::new("find").arg(".").current_dir(tree))?;
    let output =
        File::create(archive).with_context(|| format!("cannot make {}", archive.display()))?;
    let mut cpio = Command::new("cpio")
        .args(["--create", "--format=newc", "--owner=+0:+0", "--quiet"])
        .current_dir(tree)
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run cpio: please install the package cpio")?;
    let written = match cpio.stdin.take() {
        Some(mut stdin) => stdin.write_all(&names),
        None => Ok(()),
    };
    command::check("cpio", cpio.wait_with_output().context("cannot wait for cpio")?)?;
    written.context("cpio does not take the list of files")
}
