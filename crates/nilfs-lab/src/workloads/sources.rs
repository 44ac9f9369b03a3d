//! What workloads copy, clone and unpack: made once on this machine, from a fixed seed or from
//! what the distribution has, and then put into memory wherever a workload runs.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::pieces;

/// Material for a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `gentoo`: categories, packages, and very small files in them.
    GentooTree,
    /// `repository`: a git repository of a program in C with a makefile.
    GitRepository,
    /// `kernel.tar`: Linux' source, or a part of it in which the libraries for tools can be built.
    KernelPart,
    /// `inserts.sql`: a table and its rows.
    Inserts,
    /// `packages`: Debian packages.
    Packages,
}

const SEED: u64 = 0x6e69_6c66_7332;

impl Source {
    /// Its name in the scratch directory.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::GentooTree => "gentoo",
            Self::GitRepository => "repository",
            Self::KernelPart => "kernel.tar",
            Self::Inserts => "inserts.sql",
            Self::Packages => "packages",
        }
    }

    /// How large it is at a scale, more or less.
    #[must_use]
    pub fn bytes(self, scale: f64) -> u64 {
        match self {
            Self::GentooTree => gentoo_files(scale).iter().map(|file| file.bytes as u64).sum(),
            Self::GitRepository => c_files(scale) * C_FILE_BYTES,
            Self::KernelPart => kernel_parts(scale).iter().map(|(_, bytes)| bytes).sum(),
            Self::Inserts => inserts(scale) * 200,
            Self::Packages => package_files(scale).iter().map(|(_, bytes)| *bytes).sum(),
        }
    }

    /// Makes it below a directory, unless it is there from another time, and says where.
    ///
    /// # Errors
    /// A program or an archive that it is made with is missing or fails, or the disk is full.
    pub fn prepare(self, directory: &Path, scale: f64) -> Result<PathBuf> {
        let path = directory.join(self.name());
        if path.exists() {
            return Ok(path);
        }
        let partial = directory.join(format!("{}.partial", self.name()));
        remove(&partial)?;
        let made = match self {
            Self::GentooTree => gentoo_tree(&partial, scale),
            Self::GitRepository => git_repository(&partial, scale),
            Self::KernelPart => kernel_part(&partial, scale),
            Self::Inserts => write(&partial, &insert_script(scale)),
            Self::Packages => packages(&partial, scale),
        };
        made.with_context(|| format!("cannot prepare {}", self.name()))?;
        fs::rename(&partial, &path).with_context(|| format!("cannot name {}", path.display()))?;
        Ok(path)
    }
}

fn remove(path: &Path) -> Result<()> {
    let removed = match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

/// A file of the tree of very small ones.
pub(super) struct SmallFile {
    directory: u64,
    number: u64,
    bytes: usize,
}

/// Packages of the original tree, without the categories above them.
const PACKAGES: u64 = 1000;
const CATEGORIES: u64 = 18;
const SMALL_FILES: u64 = 4499;

/// Package descriptions of some hundred bytes, with a few longer changelogs among them.
pub(super) fn gentoo_files(scale: f64) -> Vec<SmallFile> {
    let mut random = StdRng::seed_from_u64(SEED);
    let packages = pieces(PACKAGES, scale, 4);
    let file = |number| {
        let longest = if number % 5 == 0 { 4000 } else { 1200 };
        SmallFile { directory: number % packages, number, bytes: random.random_range(150..longest) }
    };
    (0..pieces(SMALL_FILES, scale, 18)).map(file).collect()
}

fn gentoo_tree(path: &Path, scale: f64) -> Result<()> {
    let packages = pieces(PACKAGES, scale, 4);
    // With the root of the tree, they make the 1 019 directories of the original.
    let package = |number: u64| {
        path.join(format!("category-{:02}", number % CATEGORIES)).join(format!("package-{number}"))
    };
    for number in 0..packages {
        make_directory(&package(number))?;
    }
    for file in gentoo_files(scale) {
        let line = format!("# file {} of a package\nDESCRIPTION=\"small\"\n", file.number);
        let content: String = line.chars().cycle().take(file.bytes).collect();
        let name = format!("package-{}.ebuild", file.number);
        write(&package(file.directory).join(name), &content)?;
    }
    Ok(())
}

const C_FILE_BYTES: u64 = 9000;

/// How many files the program in the repository has.
pub(super) fn c_files(scale: f64) -> u64 {
    pieces(1200, scale, 16)
}

fn git_repository(path: &Path, scale: f64) -> Result<()> {
    let count = c_files(scale);
    for number in 0..count {
        let directory = path.join(format!("part-{:02}", number / 40));
        make_directory(&directory)?;
        write(&directory.join(format!("unit{number}.c")), &c_file(number))?;
    }
    let mut main = String::from("int main(void)\n{\n\tint sum = 0;\n");
    let mut declarations = String::new();
    for number in 0..count {
        let _ = writeln!(declarations, "int unit{number}(int);");
        let _ = writeln!(main, "\tsum += unit{number}(sum);");
    }
    write(&path.join("main.c"), &format!("{declarations}\n{main}\treturn sum == 42;\n}}\n"))?;
    write(&path.join("Makefile"), MAKEFILE)?;
    let git = |arguments: &[&str]| run(git_command(path).args(arguments));
    git(&["init", "-q"])?;
    git(&["add", "."])?;
    git(&["commit", "-q", "-m", "A program in many files"])
}

const MAKEFILE: &str = "\
OBJECTS := $(patsubst %.c,%.o,main.c $(wildcard part-*/*.c))

program: $(OBJECTS)
	$(CC) -o $@ $^

%.o: %.c
	$(CC) -g -O1 -c -o $@ $<

clean:
	rm -f program $(OBJECTS)
";

/// Functions with enough in them to be about as long as files of real programs are.
fn c_file(number: u64) -> String {
    let mut random = StdRng::seed_from_u64(SEED ^ number);
    let mut text = format!("/* Unit {number}. */\n\n");
    let mut calls = String::new();
    let mut function = 0;
    while (text.len() as u64) < C_FILE_BYTES {
        let (a, b): (u16, u16) = (random.random(), random.random());
        let _ = write!(
            text,
            "static int step{function}(int value)\n{{\n\tint i, sum = {a};\n\n\
             \tfor (i = 0; i < value % {b} + 3; i++)\n\
             \t\tsum = (sum * 31 + i * value) ^ (sum >> 3);\n\treturn sum;\n}}\n\n"
        );
        let _ = writeln!(calls, "\tvalue += step{function}(value);");
        function += 1;
    }
    let _ = write!(text, "int unit{number}(int value)\n{{\n{calls}\treturn value;\n}}\n");
    text
}

/// Git as it is without the user's settings, so that everybody makes the same repository.
fn git_command(directory: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .envs(["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"].map(|name| (name, "Lab")))
        .envs(["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"].map(|name| (name, "lab@localhost")))
        .envs(["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"].map(|name| (name, "1262304000 +0000")));
    git
}

/// All of Linux' source in bytes.
const KERNEL_BYTES: f64 = 1.29e9;

/// What building needs, then the rest in an order in which the parts grow; bytes of Linux 6.1.
const KERNEL_PARTS: [(&str, u64); 18] = [
    ("Makefile", 74_000),
    ("tools/build", 67_000),
    ("tools/scripts", 14_000),
    ("tools/arch", 483_000),
    ("tools/include", 1_171_000),
    ("tools/lib", 1_900_000),
    ("block", 1_872_000),
    ("scripts", 2_725_000),
    ("mm", 5_071_000),
    ("lib", 6_685_000),
    ("kernel", 11_836_000),
    ("net", 32_760_000),
    ("include", 38_438_000),
    ("Documentation", 41_792_000),
    ("fs", 42_186_000),
    ("sound", 42_986_000),
    ("arch", 105_046_000),
    ("drivers", 910_057_000),
];

/// Without these the libraries for tools cannot be built.
const KERNEL_LEAST: usize = 6;

fn kernel_parts(scale: f64) -> &'static [(&'static str, u64)] {
    let mut room = KERNEL_BYTES * scale;
    let fits = |(_, bytes): &&(&str, u64)| {
        room -= *bytes as f64;
        room >= 0.0
    };
    let count = KERNEL_PARTS.iter().take_while(fits).count();
    &KERNEL_PARTS[..count.max(KERNEL_LEAST)]
}

/// The distribution's archive of Linux' source, the newest if there are several.
fn kernel_archive() -> Result<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/usr/src").context("cannot look into /usr/src")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(stem) = name.strip_suffix(".tar.xz").filter(|s| s.starts_with("linux-source-"))
        {
            found.push((entry.path(), stem.to_owned()));
        }
    }
    found.sort();
    match found.pop() {
        Some(newest) => Ok(newest),
        None => bail!(
            "there is no /usr/src/linux-source-*.tar.xz: Debian's package linux-source has it"
        ),
    }
}

fn kernel_part(path: &Path, scale: f64) -> Result<()> {
    let (archive, top) = kernel_archive()?;
    let unpacked = path.with_extension("unpacked");
    remove(&unpacked)?;
    make_directory(&unpacked)?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xf").arg(archive).arg("-C").arg(&unpacked).arg("--no-same-owner");
    for (part, _) in kernel_parts(scale) {
        unpack.arg(format!("{top}/{part}"));
    }
    run(&mut unpack)?;
    run(Command::new("tar").arg("-cf").arg(path).arg("-C").arg(&unpacked).arg(top))?;
    remove(&unpacked)
}

/// How many rows are inserted.
pub(super) fn inserts(scale: f64) -> u64 {
    pieces(4000, scale, 32)
}

fn insert_script(scale: f64) -> String {
    let mut text = String::from(
        "CREATE TABLE message (id INTEGER PRIMARY KEY, sender TEXT, sent INTEGER, body TEXT);\n\
         CREATE INDEX message_sender ON message (sender);\n",
    );
    let mut random = StdRng::seed_from_u64(SEED);
    for number in 0..inserts(scale) {
        let sender: u16 = random.random_range(0..500);
        let body = "words ".repeat(random.random_range(4..40));
        let _ = writeln!(
            text,
            "INSERT INTO message (sender, sent, body) VALUES ('s{sender}', {number}, '{body}');"
        );
    }
    text
}

/// How many files a package has.
const PACKAGE_FILES: usize = 32;

/// The files of all packages: the number of the package, and bytes. Most files of a system have a
/// few KB, and some a hundred times as much.
pub(super) fn package_files(scale: f64) -> Vec<(u64, u64)> {
    let mut random = StdRng::seed_from_u64(SEED);
    let numbers = (0..pieces(160, scale, 4)).flat_map(|number| [number; PACKAGE_FILES]);
    let bytes = move || 10f64.powf(random.random_range(2.3..5.3)) as u64;
    numbers.zip(std::iter::repeat_with(bytes)).collect()
}

fn packages(path: &Path, scale: f64) -> Result<()> {
    make_directory(path)?;
    for files in package_files(scale).chunks(PACKAGE_FILES) {
        let number = files[0].0;
        let tree = path.join(format!("tree-{number}"));
        let control = format!(
            "Package: lab-{number}\nVersion: 1\nArchitecture: all\nMaintainer: Lab <lab@localhost>\n\
             Description: files\n"
        );
        let content = tree.join(format!("usr/share/lab-{number}"));
        make_directory(&tree.join("DEBIAN"))?;
        make_directory(&content)?;
        write(&tree.join("DEBIAN/control"), &control)?;
        for (at, (_, bytes)) in files.iter().enumerate() {
            let text: String =
                "a line of a file in a package\n".chars().cycle().take(*bytes as usize).collect();
            write(&content.join(format!("file-{at}")), &text)?;
        }
        let package = path.join(format!("lab-{number}.deb"));
        // Not compressed: unpacking is to cost the file system, not the processor.
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "-Znone", "--build"]).arg(&tree).arg(package);
        run(&mut build)?;
        remove(&tree)?;
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.trim().lines().last().unwrap_or("it said nothing");
    anyhow::ensure!(output.status.success(), "{program}: {}: {reason}", output.status);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_gentoo_tree_has_the_directories_and_files_of_the_original() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Source::GentooTree.prepare(directory.path(), 1.0).unwrap();
        let (mut directories, mut files, mut bytes) = (0, 0, 0);
        let mut open = vec![tree];
        while let Some(path) = open.pop() {
            directories += 1;
            for entry in fs::read_dir(path).unwrap() {
                let entry = entry.unwrap();
                match entry.metadata().unwrap() {
                    metadata if metadata.is_dir() => open.push(entry.path()),
                    metadata => {
                        files += 1;
                        bytes += metadata.len();
                    }
                }
            }
        }
        assert_eq!((directories, files), (1019, 4499));
        assert_eq!(bytes, Source::GentooTree.bytes(1.0));
    }

    #[test]
    fn the_program_in_the_repository_can_be_built() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Source::GitRepository.prepare(directory.path(), 1.0 / 256.0).unwrap();
        run(Command::new("make").arg("-s").arg("-C").arg(&tree)).unwrap();
        assert!(tree.join("program").exists());
        run(Command::new("make").arg("-s").arg("-C").arg(&tree).arg("clean")).unwrap();
        let status = git_command(&tree).args(["status", "--porcelain"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&status.stdout), "");
    }
}
