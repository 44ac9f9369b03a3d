//! A Linux kernel of a distribution for the virtual machine: installed, or only unpacked.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;

/// Names a directory with another kernel's `boot` and `lib/modules`.
const VARIABLE: &str = "NILFS_LAB_KERNEL";

/// What the virtual machine cannot do without.
const ESSENTIAL: [&str; 6] =
    ["virtio_pci", "virtio_blk", "virtio_console", "9p", "9pnet_virtio", "overlay"];

/// File systems, and what they ask for by other names than those of modules.
const WANTED: [&str; 17] = [
    "fuse",
    "crc32c_generic",
    "crc32c_intel",
    "crc32_generic",
    "crc32_pclmul",
    "xxhash_generic",
    "blake2b_generic",
    "sha256_generic",
    "nls_cp437",
    "nls_ascii",
    "nls_iso8859_1",
    "nls_utf8",
    "ext4",
    "btrfs",
    "nilfs2",
    "f2fs",
    "vfat",
];

/// A kernel with its modules.
#[derive(Debug)]
pub struct Kernel {
    /// Its release: "6.1.0-56-amd64".
    pub release: String,
    /// What QEMU starts.
    pub image: PathBuf,
    /// Where its modules are.
    pub modules: PathBuf,
}

impl Kernel {
    /// The newest of those that are there: one that the user names, else one that is installed,
    /// else one that was unpacked for us.
    pub fn find() -> Result<Self> {
        if let Some(tree) = std::env::var_os(VARIABLE) {
            let tree = PathBuf::from(tree);
            return Self::newest_in(&tree).with_context(|| {
                format!("{VARIABLE}: there is no kernel with its modules in {}", tree.display())
            });
        }
        let unpacked = unpacked_dir();
        if let Some(kernel) = Self::newest_in(Path::new("/")) {
            return Ok(kernel);
        }
        if let Some(kernel) = unpacked.as_deref().and_then(Self::newest_in) {
            return Ok(kernel);
        }
        let unpacked = unpacked
            .map_or("~/.cache/nilfs-lab/kernel".into(), |path| path.to_string_lossy().into_owned());
        bail!(
            "there is no kernel for the virtual machine: neither is one installed that can be read \
             (/boot/vmlinuz-* with /lib/modules/*) nor is one unpacked in {unpacked}. Please run \
             `scripts/need lab`, which fetches and unpacks the package that Debian's \
             linux-image-amd64 depends on, or install linux-image-amd64"
        );
    }

    fn newest_in(tree: &Path) -> Option<Self> {
        let entries = fs::read_dir(tree.join("boot")).ok()?;
        let kernels = entries.flatten().filter_map(|entry| {
            let release = entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned();
            // Some distributions let only root read it.
            File::open(entry.path()).ok()?;
            let modules = ["lib/modules", "usr/lib/modules"]
                .map(|parent| tree.join(parent).join(&release))
                .into_iter()
                .find(|modules| modules.join("kernel").is_dir())?;
            Some(Self { release, image: entry.path(), modules })
        });
        kernels.max_by(|a, b| by_version(&a.release, &b.release))
    }

    /// Which of its modules the virtual machine gets, and which files these are, compressed or not,
    /// with those that they depend on.
    pub fn choose_modules(&self) -> Result<Chosen> {
        let dependencies = self.dependencies()?;
        let built_in = fs::read_to_string(self.modules.join("modules.builtin")).unwrap_or_default();
        let built_in: BTreeSet<String> = built_in.lines().map(module_name).collect();
        let mut chosen = Chosen { names: Vec::new(), files: BTreeSet::new() };
        for name in ESSENTIAL.iter().chain(&WANTED) {
            match dependencies.get(*name) {
                Some(files) => {
                    chosen.names.push((*name).to_owned());
                    chosen.files.extend(files.iter().cloned());
                }
                None if built_in.contains(*name) || !ESSENTIAL.contains(name) => {}
                None => bail!("the kernel {} has no module {name}", self.release),
            }
        }
        Ok(chosen)
    }

    /// By a module's name its file and those of the modules it needs, below the directory of
    /// modules.
    fn dependencies(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let path = self.modules.join("modules.dep");
        if !path.exists() {
            self.find_dependencies()?;
        }
        let list =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(parse_dependencies(&list))
    }

    /// A package that was only unpacked comes without that list.
    fn find_dependencies(&self) -> Result<()> {
        let tree = self.modules.ancestors().nth(3).context("a kernel without a tree")?;
        command::run(Command::new("depmod").arg("-b").arg(tree).arg(&self.release))
            .context("cannot find out which kernel module needs which")
            .map(drop)
    }
}

/// Modules for the virtual machine.
#[derive(Debug)]
pub struct Chosen {
    /// What to load, by name.
    pub names: Vec<String>,
    /// The files, below the directory of modules.
    pub files: BTreeSet<String>,
}

/// Where `scripts/need lab` unpacks a kernel.
fn unpacked_dir() -> Option<PathBuf> {
    let cache =
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("nilfs-lab/kernel"))
}

/// Lines such as "kernel/fs/a.ko: kernel/lib/b.ko kernel/lib/c.ko".
fn parse_dependencies(list: &str) -> BTreeMap<String, Vec<String>> {
    let entries = list.lines().filter_map(|line| {
        let (file, needed) = line.split_once(':')?;
        let files = std::iter::once(file).chain(needed.split_whitespace());
        Some((module_name(file), files.map(str::to_owned).collect()))
    });
    entries.collect()
}

/// The name of the module in a file: "kernel/fs/nls/nls_iso8859-1.ko.xz" has "nls_iso8859_1".
fn module_name(file: &str) -> String {
    let file = file.rsplit('/').next().unwrap_or(file);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

/// 6.1.0-9 comes before 6.1.0-56.
fn by_version(a: &str, b: &str) -> Ordering {
    let numbers = |release: &str| -> Vec<u64> {
        release
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|digits| digits.parse().ok())
            .collect()
    };
    numbers(a).cmp(&numbers(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_kernels_are_greater() {
        assert_eq!(by_version("6.1.0-9-amd64", "6.1.0-56-amd64"), Ordering::Less);
        assert_eq!(by_version("6.12.1", "6.1.0-56-amd64"), Ordering::Greater);
    }

    #[test]
    fn a_module_comes_with_all_it_needs() {
        let list =
            "kernel/fs/fat/vfat.ko.xz: kernel/fs/fat/fat.ko.xz\nkernel/fs/nls/nls_iso8859-1.ko:\n";
        let found = parse_dependencies(list);
        assert_eq!(found["vfat"], ["kernel/fs/fat/vfat.ko.xz", "kernel/fs/fat/fat.ko.xz"]);
        assert_eq!(found["nls_iso8859_1"], ["kernel/fs/nls/nls_iso8859-1.ko"]);
    }
}
