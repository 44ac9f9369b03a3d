//! The words behind `-o`.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nilfs_engine::{CleanerOptions, MountOptions, OnError, Order};
use nilfs_fuse::{KernelOptions, Settings};
use nilfs_ondisk::Cno;

use super::words;
use crate::config::{self, CleanerSettings};
use crate::exit::{Failure, Status};
use crate::memory;

/// What the help says of them.
pub const HELP: &str = "\
Mount options, after -o and separated by commas:
  ro, rw                 read-only, or read and write (default)
  cp=N                   mount checkpoint N; any checkpoint, also beside a writable mount; needs ro
  remount                with ro or rw: make a mount read-only, or writable again; nothing else can
                         be changed
  norecovery             do not look for what was written after the last checkpoint; needs ro
  order=relaxed|strict   a sync of a file makes that file durable (relaxed, the default), or all
                         older changes on the volume, in a checkpoint (strict)
  errors=remount-ro|continue|panic
                         what to do when damage is found (default: remount-ro)
  barrier, nobarrier     flush the device's cache (default), or trust it
  discard, nodiscard     tell the device of freed segments, or not (default)
  dirty=SIZE             memory for changes not yet written, such as 512M (default: an eighth of
                         what the process may use, but at most 1G)
  cache=SIZE             memory for what can be read again: blocks of metadata, inodes, names
                         (default: an eighth of what the process may use, but at most 96M)
  nogc                   do not clean unless told to (nilfs clean)
  pp=PERIOD              protection period: younger checkpoints are kept as long as there is room
                         (default: 1h)
  protection=soft|hard   when the volume gets full inside the protection period: give up the oldest
                         checkpoints (default), or refuse to write
  policy=timestamp|greedy|cost-benefit
                         which segments are cleaned first
  cleaner-config=FILE    settings of the cleaner, instead of those in /etc/nilfs_cleanerd.conf and
                         /etc/nilfs.toml; in the format of the latter if its name ends with .toml;
                         the signal HUP lets a mount in the background read them again
  metrics=ADDRESS:PORT   offer metrics to Prometheus, on an address of this machine alone, such as
                         127.0.0.1:9321
  writeback              let the kernel keep small writes back: faster, but a full volume may
                         be noticed only after a write has succeeded
  allow_other, noallow_other
                         give other users access, as permissions allow; the default is
                         allow_other for the superuser, noallow_other for everybody else
  fuseblk, nofuseblk     let the kernel take it for the mount of a block device, so that umount(8)
                         and sync wait for what is to be written; the default is fuseblk for the
                         superuser, if it can be had and the mount is not read-only
  subtype=NAME           show the type of the mount as fuse.NAME; nothing after the = shows fuse
                         (default: nilfs)
  nonempty               mount over a directory that has content
  dev, nodev, suid, nosuid, exec, noexec, sync, async
                         as in mount(8)
Accepted without effect: default_permissions (always on), atime options (NILFS2 keeps no access
times), and the words for mount(8) itself, such as user, noauto, nofail, _netdev, x-….";

/// Bounds of what a mount allows itself unasked, in bytes. What does not fit into its cache is mostly
/// in the system's.
const LEAST_MEMORY: u64 = 1 << 20;
const MOST_DIRTY: u64 = 1 << 30;
const MOST_CACHE: u64 = 96 << 20;

/// How to mount.
pub struct Options {
    /// For the engine.
    pub engine: MountOptions,
    /// For the kernel.
    pub kernel: KernelOptions,
    /// For the front end between them.
    pub settings: Settings,
    /// A mount that is not `fuseblk` will not do.
    pub must_be_block: bool,
    /// The directory may have content.
    pub nonempty: bool,
    /// Where metrics are offered.
    pub metrics: Option<SocketAddr>,
    /// Where the cleaner's settings come from.
    pub cleaner: CleanerSource,
    /// The words themselves.
    words: Vec<String>,
}

/// What a mount was asked for, to which a remount must keep.
#[derive(Debug)]
pub struct Asked {
    words: Vec<String>,
    kernel: KernelOptions,
}

/// Where the cleaner's settings come from: files, which can be read again, and words, which win.
#[derive(Debug, Default)]
pub struct CleanerSource {
    words: CleanerSettings,
    /// The file to be read instead of the system's.
    file: Option<PathBuf>,
}

impl CleanerSource {
    /// The settings, and what was wrong with the files. `file` is read instead of what is read
    /// otherwise.
    ///
    /// # Errors
    /// The file that was named cannot be read.
    pub fn load(
        &self,
        file: Option<&Path>,
    ) -> anyhow::Result<(CleanerOptions, Vec<config::Warning>)> {
        let loaded = config::load(file.or(self.file.as_deref()))?;
        Ok((self.words.over(loaded.options()), loaded.warnings))
    }
}

impl Options {
    /// Reads lists of words; of contradicting words the last counts.
    ///
    /// # Errors
    /// An unknown word, a wrong value, or words that do not go together.
    pub fn parse(lists: &[String], superuser: bool) -> Result<Self, Failure> {
        let mut options = Self {
            engine: default_memory(memory::available()),
            kernel: KernelOptions {
                block: superuser,
                allow_other: superuser,
                ..KernelOptions::default()
            },
            settings: Settings::default(),
            must_be_block: false,
            nonempty: false,
            metrics: None,
            cleaner: CleanerSource::default(),
            words: words(lists).map(str::to_owned).collect(),
        };
        for word in words(lists) {
            match word.split_once('=') {
                Some((name, value)) => options.set(word, name, value)?,
                None => options.switch(word)?,
            }
        }
        options.check(superuser)?;
        Ok(options)
    }

    /// What a remount has to keep to.
    pub fn asked(&self) -> Asked {
        Asked { words: self.words.clone(), kernel: self.kernel.clone() }
    }

    /// Takes over the cleaner's settings from files, where the words say nothing. Gives what was
    /// wrong with the files.
    ///
    /// # Errors
    /// The file that was named cannot be read.
    pub fn read_config(&mut self) -> anyhow::Result<Vec<config::Warning>> {
        let (options, warnings) = self.cleaner.load(None)?;
        self.engine.cleaner = options;
        Ok(warnings)
    }

    fn switch(&mut self, word: &str) -> Result<(), Failure> {
        match word {
            "ro" => self.kernel.read_only = true,
            "rw" | "defaults" => self.kernel.read_only = false,
            "norecovery" => self.engine.recovery = false,
            "barrier" => self.engine.barrier = true,
            "nobarrier" => self.engine.barrier = false,
            "discard" => self.engine.discard = true,
            "nodiscard" => self.engine.discard = false,
            "nogc" => self.cleaner.words.enabled = Some(false),
            "writeback" => self.settings.writeback = true,
            "nonempty" => self.nonempty = true,
            "fuseblk" => (self.must_be_block, self.kernel.block) = (true, true),
            "nofuseblk" => (self.must_be_block, self.kernel.block) = (false, false),
            "default_permissions" => {}
            _ if switch_kernel(&mut self.kernel, word) => {}
            _ if is_about_atime(word) || is_for_mount(word) => {}
            _ => return Err(refusal(word, word)),
        }
        Ok(())
    }

    fn set(&mut self, word: &str, name: &str, value: &str) -> Result<(), Failure> {
        match name {
            "cp" => self.engine.checkpoint = Some(Cno(checkpoint(word, value)?)),
            "order" => {
                self.engine.order =
                    one_of(word, value, &[("relaxed", Order::Relaxed), ("strict", Order::Strict)])?;
            }
            "errors" => {
                self.engine.on_error = one_of(
                    word,
                    value,
                    &[
                        ("remount-ro", OnError::RemountReadOnly),
                        ("continue", OnError::Continue),
                        ("panic", OnError::Panic),
                    ],
                )?;
            }
            "pp" => {
                let period = config::interval(value).map_err(|_| wrong(word, config::PERIOD))?;
                self.cleaner.words.protection_period = Some(period);
            }
            "protection" => {
                let protection = config::protection(value);
                self.cleaner.words.protection =
                    Some(protection.map_err(|_| wrong(word, "soft or hard"))?);
            }
            "policy" => {
                let policy = config::policy(value);
                let expected = "timestamp, greedy or cost-benefit";
                self.cleaner.words.policy = Some(policy.map_err(|_| wrong(word, expected))?);
            }
            "cleaner-config" => {
                // It may be read again when the process has left the current directory.
                let file = std::path::absolute(value).map_err(|_| wrong(word, "a file"))?;
                self.cleaner.file = Some(file);
            }
            "metrics" => self.metrics = Some(loopback(word, value)?),
            "dirty" => self.engine.dirty_limit = size(word, value)?,
            "cache" => self.engine.cache_limit = size(word, value)?,
            "subtype" => self.kernel.subtype = subtype(word, value)?,
            _ if is_for_mount(name) => {}
            _ => return Err(refusal(word, name)),
        }
        Ok(())
    }

    /// Fails if words do not go together, and lets the engine know of `ro`.
    fn check(&mut self, superuser: bool) -> Result<(), Failure> {
        let read_only = self.kernel.read_only;
        if self.must_be_block && !superuser {
            return Err(usage("option fuseblk is for the superuser alone"));
        }
        if self.must_be_block && read_only {
            return Err(usage("option fuseblk needs rw: nothing is written by a read-only mount"));
        }
        // Several read-only mounts can share a device, which the kernel would not allow.
        self.kernel.block &= !read_only;
        if self.engine.checkpoint.is_some() && !read_only {
            return Err(usage("option cp needs ro: a checkpoint of the past cannot be changed"));
        }
        if !self.engine.recovery && !read_only {
            return Err(usage(
                "option norecovery needs ro: without recovery nothing can be written",
            ));
        }
        self.engine.read_only = read_only;
        Ok(())
    }
}

impl Asked {
    /// Whether a remount with these words makes the mount read-only; `None` if they leave that as it
    /// is.
    ///
    /// # Errors
    /// The words ask for something else that is not so already.
    pub fn remounted(&self, lists: &[String]) -> Result<Option<bool>, Failure> {
        let other = words(lists).find(|word| !is_access(word) && !self.holds(word));
        match other {
            Some(word) => Err(usage(format!(
                "a remount cannot change {word}, only ro and rw; unmount the volume and mount it again"
            ))),
            None => Ok(access(lists)),
        }
    }

    /// Whether a word changes nothing. mount(8) adds all that it finds in fstab and in the kernel's
    /// table of mounts.
    fn holds(&self, word: &str) -> bool {
        let mut kernel = self.kernel.clone();
        let name = word.split('=').next().unwrap_or(word);
        let is_of_kernel = ["user_id", "group_id", "max_read", "blksize", "seclabel"];
        self.words.iter().any(|given| given == word)
            || ["remount", "defaults", "default_permissions"].contains(&word)
            || is_of_kernel.contains(&name)
            || is_about_atime(word)
            || is_for_mount(name)
            || (switch_kernel(&mut kernel, word) && kernel == self.kernel)
    }
}

/// The words of several lists.
fn words(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty())
}

/// Whether a mount is to be changed, and not made.
pub fn is_remount(lists: &[String]) -> bool {
    words(lists).any(|word| word == "remount")
}

/// Whether it shall be read-only, as the last word about it says.
pub fn access(lists: &[String]) -> Option<bool> {
    words(lists).filter(|word| is_access(word)).last().map(|word| word == "ro")
}

fn is_access(word: &str) -> bool {
    matches!(word, "ro" | "rw")
}

/// Takes over a word that only the kernel cares about. False if it is not one.
fn switch_kernel(kernel: &mut KernelOptions, word: &str) -> bool {
    match word {
        "allow_other" => kernel.allow_other = true,
        "noallow_other" => kernel.allow_other = false,
        "dev" => kernel.nodev = false,
        "nodev" => kernel.nodev = true,
        "suid" => kernel.nosuid = false,
        "nosuid" => kernel.nosuid = true,
        "exec" => kernel.noexec = false,
        "noexec" => kernel.noexec = true,
        "sync" => kernel.sync = true,
        "async" => kernel.sync = false,
        _ => return false,
    }
    true
}

/// An address that only this machine can reach.
fn loopback(word: &str, value: &str) -> Result<SocketAddr, Failure> {
    let address = SocketAddr::from_str(value).ok().filter(|address| address.ip().is_loopback());
    address.ok_or_else(|| wrong(word, "an address of this machine alone, such as 127.0.0.1:9321"))
}

/// What a mount allows itself of `available` bytes of memory. Changes can take several times their
/// own memory while a commit makes metadata of them, and the cleaner's step as much as changes may.
fn default_memory(available: u64) -> MountOptions {
    let share = available / 8;
    MountOptions {
        dirty_limit: share.clamp(LEAST_MEMORY, MOST_DIRTY),
        cache_limit: share.clamp(LEAST_MEMORY, MOST_CACHE),
        ..MountOptions::default()
    }
}

/// Words about access times, which the format does not have.
fn is_about_atime(word: &str) -> bool {
    let word = word.strip_prefix("no").unwrap_or(word);
    matches!(word, "atime" | "diratime" | "relatime" | "strictatime" | "lazytime")
}

/// Words for mount(8) and systemd, which pass them on all the same.
fn is_for_mount(word: &str) -> bool {
    let names = ["auto", "noauto", "nofail", "_netdev", "comment", "silent", "loud"];
    let people = ["user", "users", "nouser", "nousers", "owner", "noowner", "group", "nogroup"];
    names.contains(&word)
        || people.contains(&word)
        || word.starts_with("x-")
        || word.starts_with("X-")
}

/// Why a word is not accepted.
fn refusal(word: &str, name: &str) -> Failure {
    match name {
        "dirsync" => usage("option dirsync is not supported; sync is"),
        _ => {
            let meant = words::nearest(name).map(|meant| format!("; did you mean {meant}?"));
            let meant = meant.as_deref().unwrap_or(";");
            usage(format!("unknown option {word}{meant} see nilfs mount --help"))
        }
    }
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(Status::Usage, message)
}

fn wrong(word: &str, expected: impl Display) -> Failure {
    usage(format!("option {word}: expected {expected}"))
}

fn one_of<T: Copy>(word: &str, value: &str, known: &[(&str, T)]) -> Result<T, Failure> {
    known.iter().find(|(name, _)| *name == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        wrong(word, names.join(" or "))
    })
}

/// A checkpoint number with the prefixes of C, as mount.nilfs2 takes it.
fn checkpoint(word: &str, value: &str) -> Result<u64, Failure> {
    let number = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if value.starts_with('0') => u64::from_str_radix(value, 8),
        None => u64::from_str(value),
    };
    number.ok().filter(|cno| *cno >= 1).ok_or_else(|| wrong(word, "a checkpoint number from 1 on"))
}

/// A name that the kernel shows as it is, or none.
fn subtype(word: &str, value: &str) -> Result<String, Failure> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match value.bytes().all(is_fit) {
        true => Ok(value.to_owned()),
        false => Err(wrong(word, "letters, digits, - and _")),
    }
}

/// A number of bytes, but none at all is too few.
fn size(word: &str, value: &str) -> Result<u64, Failure> {
    let bytes = crate::size::parse(value).ok().filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| wrong(word, "a size such as 512M"))
}

#[cfg(test)]
mod tests {
    use nilfs_engine::Policy;

    use super::*;

    fn parse(list: &str) -> Result<Options, String> {
        Options::parse(&[list.to_owned()], false).map_err(|failure| failure.to_string())
    }

    fn refused(list: &str) -> String {
        parse(list).err().unwrap()
    }

    #[test]
    fn what_mount_8_passes_from_fstab_is_accepted() {
        let list = "rw,nosuid,nodev,noexec,relatime,user,noauto,nofail,_netdev,x-systemd.automount";
        let options = parse(list).unwrap();
        assert!(options.kernel.nosuid && options.kernel.nodev && options.kernel.noexec);
        assert!(!options.kernel.read_only && !options.engine.read_only);
    }

    #[test]
    fn the_last_of_contradicting_words_counts() {
        assert!(parse("ro,rw,ro").unwrap().engine.read_only);
        assert!(parse("nobarrier,barrier").unwrap().engine.barrier);
    }

    #[test]
    fn values_are_taken() {
        let options = parse("ro,cp=0x10,order=strict,errors=panic,dirty=512M,cache=2G").unwrap();
        assert_eq!(options.engine.checkpoint, Some(Cno(16)));
        assert_eq!(options.engine.order, Order::Strict);
        assert_eq!(options.engine.on_error, OnError::Panic);
        assert_eq!(options.engine.dirty_limit, 512 << 20);
        assert_eq!(options.engine.cache_limit, 2 << 30);
    }

    #[test]
    fn what_a_mount_allows_itself_follows_the_memory() {
        let of = |available: u64| {
            let options = default_memory(available);
            (options.dirty_limit >> 20, options.cache_limit >> 20)
        };
        assert_eq!(of(0), (1, 1));
        assert_eq!(of(48 << 20), (6, 6));
        assert_eq!(of(1 << 30), (128, 96));
        assert_eq!(of(64 << 30), (1024, 96));
    }

    #[test]
    fn words_about_the_cleaner_win_over_files() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cleaner.toml");
        std::fs::write(&file, "[cleaner]\nprotection_period = 5\nnsegments_per_clean = 7\n")
            .unwrap();
        let list =
            format!("nogc,pp=60,protection=hard,policy=greedy,cleaner-config={}", file.display());
        let mut options = parse(&list).unwrap();
        assert_eq!(options.read_config().unwrap(), []);
        let cleaner = options.engine.cleaner;
        assert_eq!((cleaner.enabled, cleaner.protection.as_secs()), (false, 60));
        assert!(cleaner.hard_protection);
        let file = parse("pp=1h30m").unwrap().cleaner.words.protection_period;
        assert_eq!(file.unwrap().as_secs(), 5400);
        assert_eq!((cleaner.policy, cleaner.segments_per_step), (Policy::Greedy, 7));
    }

    #[test]
    fn metrics_are_for_this_machine_alone() {
        assert!(parse("metrics=127.0.0.1:9321").is_ok());
        assert!(parse("metrics=[::1]:9321").is_ok());
        for list in ["metrics=0.0.0.0:9321", "metrics=192.168.1.1:80", "metrics=9321"] {
            assert!(refused(list).contains("expected an address of this machine alone"), "{list}");
        }
    }

    #[test]
    fn wrong_values_are_refused_with_what_is_expected() {
        assert_eq!(refused("order=loose"), "option order=loose: expected relaxed or strict");
        assert_eq!(refused("ro,cp=0"), "option cp=0: expected a checkpoint number from 1 on");
        assert_eq!(refused("dirty=lots"), "option dirty=lots: expected a size such as 512M");
        assert_eq!(refused("dirty=0"), "option dirty=0: expected a size such as 512M");
        assert_eq!(refused("cache=much"), "option cache=much: expected a size such as 512M");
        let expected = "option policy=newest: expected timestamp, greedy or cost-benefit";
        assert_eq!(refused("policy=newest"), expected);
        assert_eq!(refused("protection=no"), "option protection=no: expected soft or hard");
        assert_eq!(refused("pp=soon"), "option pp=soon: expected seconds, or a time such as 1h30m");
        assert_eq!(refused("ro,cp=0xg"), "option cp=0xg: expected a checkpoint number from 1 on");
    }

    #[test]
    fn a_checkpoint_cannot_be_mounted_for_writing() {
        assert!(refused("cp=5").starts_with("option cp needs ro"));
        assert!(refused("cp=5,rw").starts_with("option cp needs ro"));
        assert!(refused("norecovery").starts_with("option norecovery needs ro"));
    }

    #[test]
    fn only_a_writable_mount_of_the_superuser_is_a_mount_of_a_block_device() {
        let block = |list: &str, superuser| {
            let options = Options::parse(&[list.to_owned()], superuser);
            options.map(|options| options.kernel.block).map_err(|failure| failure.to_string())
        };
        assert_eq!((block("", true), block("", false)), (Ok(true), Ok(false)));
        assert_eq!((block("nofuseblk", true), block("ro", true)), (Ok(false), Ok(false)));
        assert!(block("fuseblk", false).unwrap_err().ends_with("for the superuser alone"));
        assert!(block("fuseblk,ro", true).unwrap_err().starts_with("option fuseblk needs rw"));
    }

    #[test]
    fn the_type_of_a_mount_can_be_named() {
        assert_eq!(parse("subtype=other").unwrap().kernel.subtype, "other");
        assert_eq!(parse("subtype=").unwrap().kernel.subtype, "");
        let expected = "option subtype=a/b: expected letters, digits, - and _";
        assert_eq!(refused("subtype=a/b"), expected);
    }

    #[test]
    fn what_is_unknown_or_not_yet_there_is_refused_and_not_ignored() {
        assert!(refused("frobnicate").starts_with("unknown option frobnicate"));
        assert!(refused("color=red").starts_with("unknown option color=red"));
        let said = "unknown option nobarier; did you mean nobarrier? see nilfs mount --help";
        assert_eq!(refused("nobarier"), said);
    }

    #[test]
    fn a_remount_is_about_ro_and_rw_alone() {
        let asked = parse("rw,nosuid,pp=60,nogc,allow_other").unwrap().asked();
        let of =
            |list: &str| asked.remounted(&[list.to_owned()]).map_err(|failure| failure.to_string());
        assert_eq!(of("remount,ro"), Ok(Some(true)));
        assert_eq!(of("ro,remount,rw"), Ok(Some(false)));
        // As mount(8) puts it together from the table of mounts, and from fstab.
        let table = "rw,nosuid,noatime,user_id=0,group_id=0,default_permissions,allow_other";
        assert_eq!(of(&format!("{table},remount,ro")), Ok(Some(true)));
        assert_eq!(of("defaults,nofail,x-a.b,pp=60,nogc,remount"), Ok(None));
        for word in ["pp=61", "suid", "noexec", "sync", "cp=3", "discard", "frobnicate"] {
            let said = of(&format!("remount,ro,{word}")).unwrap_err();
            assert!(said.starts_with(&format!("a remount cannot change {word}, only")), "{said}");
        }
    }

    #[test]
    fn only_the_superuser_shares_a_mount_unasked() {
        let shared = |list: &str, superuser| {
            Options::parse(&[list.to_owned()], superuser).ok().unwrap().kernel.allow_other
        };
        assert!(shared("", true) && !shared("", false));
        assert!(shared("allow_other", false) && !shared("noallow_other", true));
    }
}
