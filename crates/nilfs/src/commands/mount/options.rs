//! The words after `-o`: what they say of a mount, and of a remount.

mod complete;
mod definitions;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nilfs_engine::{CleanerOptions, Cno, MountOptions, ReadOnlyOptions};
use nilfs_fuse::{KernelOptions, PastAccess, PastSettings, Transport, When};

use crate::config::{self, Loaded};
use crate::definition::{self, Problem};
use crate::exit::{Failure, Status};
use crate::memory;
use crate::retention::Retention;
use crate::scrubbing::Schedule;

pub use complete::complete;
use definitions::{OPTIONS, RELATIME, advice, is_from_kernel, is_ignored};
pub use definitions::{help, table};

/// Bounds of what a mount allows itself unasked, in bytes. What does not fit into its cache is
/// mostly in the system's.
const LEAST_MEMORY: u64 = 1 << 20;
const MOST_DIRTY: u64 = 1 << 30;
const MOST_CACHE: u64 = 96 << 20;

/// How to mount.
#[derive(Clone, PartialEq)]
pub struct Options {
    /// For the engine, if the mount can be written.
    pub engine: MountOptions,
    /// The checkpoint to show; `None`: the newest.
    pub checkpoint: Option<When>,
    /// Whether what was synced after the newest checkpoint is looked for.
    recovery: bool,
    /// Whether the volume may be broken.
    pub rescue: bool,
    /// For the kernel.
    pub kernel: KernelOptions,
    /// Whether it is to be a mount of the type `fuseblk`, if anybody has said so.
    fuseblk: Option<bool>,
    /// The kernel may keep small writes back.
    pub writeback: bool,
    /// Which way requests take.
    pub transport: Transport,
    /// Bytes that requests may take.
    pub request_memory: u64,
    /// Who may look into the past of directories.
    past: Option<PastAccess>,
    past_name: String,
    past_hold: Duration,
    /// Where metrics are offered.
    pub metrics: Option<SocketAddr>,
    /// Which checkpoints are kept as snapshots.
    pub keep: Retention,
    /// When the volume is scrubbed.
    pub scrub: Schedule,
    /// Where the settings of the cleaner and of retention come from.
    pub cleaner: CleanerSource,
    /// Access times were asked for as Linux keeps them unasked.
    relatime: bool,
    /// Whether the superuser mounts.
    superuser: bool,
}

/// Where the settings of the cleaner and of retention come from: files, which can be read again, and
/// words, which win.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanerSource {
    /// Settings that words name, with their values.
    words: BTreeMap<&'static str, String>,
    /// The rule of retention that a word names.
    keep: Option<Retention>,
    /// The file to be read instead of the system's.
    file: Option<PathBuf>,
}

impl CleanerSource {
    /// The settings, and what was wrong with the files. `file` is read instead of what is read
    /// otherwise.
    ///
    /// # Errors
    /// The file that was named cannot be read.
    pub fn load(&self, file: Option<&Path>) -> anyhow::Result<Loaded> {
        let mut loaded = config::load(file.or(self.file.as_deref()))?;
        for (name, value) in &self.words {
            config::set(&mut loaded.cleaner, name, value).map_err(anyhow::Error::msg)?;
        }
        loaded.keep = self.keep.unwrap_or(loaded.keep);
        Ok(loaded)
    }

    /// Takes the rule of retention from a word. An error says what was expected.
    fn keep(&mut self, value: &str) -> Result<(), String> {
        self.keep = Some(value.parse()?);
        Ok(())
    }

    /// Takes a setting from a word. An error says what was expected.
    fn set(&mut self, name: &'static str, value: &str) -> Result<(), String> {
        let mut tried = CleanerOptions::default();
        match definition::set(config::SETTINGS, &mut tried, name, Some(value)) {
            Ok(()) => {
                self.words.insert(name, value.to_owned());
                Ok(())
            }
            Err(Problem::Value(expected)) => Err(expected),
            Err(Problem::Unknown(_)) => unreachable!("{name} is not a setting"),
        }
    }
}

impl Options {
    /// Reads lists of words; of contradicting words the last counts.
    ///
    /// # Errors
    /// An unknown word, a wrong value, or words that do not go together.
    pub fn parse(lists: &[String], superuser: bool) -> Result<Self, Failure> {
        let share = share_of(memory::available());
        let mut options = Self {
            engine: default_memory(share),
            checkpoint: None,
            recovery: true,
            rescue: false,
            kernel: KernelOptions { allow_other: superuser, ..KernelOptions::default() },
            fuseblk: None,
            writeback: false,
            transport: Transport::Auto,
            request_memory: share,
            past: Some(PastAccess::Owner),
            past_name: PastSettings::default().name,
            past_hold: PastSettings::default().hold,
            metrics: None,
            keep: Retention::default(),
            scrub: Schedule::default(),
            cleaner: CleanerSource::default(),
            relatime: false,
            superuser,
        };
        for word in words(lists) {
            options.obey(word)?;
        }
        definition::check(OPTIONS, &options)
            .map_err(|missing| usage(format!("option {missing}")))?;
        // Several read-only mounts can share a device, which the kernel would not allow.
        options.kernel.block = options.fuseblk.unwrap_or(superuser) && !options.kernel.read_only;
        Ok(options)
    }

    /// How directories show their past, if they do.
    pub fn past(&self) -> Option<PastSettings> {
        let name = self.past_name.clone();
        self.past.map(|access| PastSettings { name, access, hold: self.past_hold })
    }

    /// For the engine, if the mount cannot be written. `checkpoint` is the one to show.
    pub fn read_only(&self, checkpoint: Option<Cno>) -> ReadOnlyOptions {
        ReadOnlyOptions {
            checkpoint,
            recovery: self.recovery,
            rescue: self.rescue,
            cache_limit: self.engine.cache_limit,
            verify: self.engine.verify,
            cleaner: self.engine.cleaner,
            ..ReadOnlyOptions::default()
        }
    }

    /// A word that has no effect, although that is not what it asks for.
    pub fn warning(&self) -> Option<&'static str> {
        self.relatime.then_some(RELATIME)
    }

    /// Whether a mount that is not `fuseblk` will not do.
    pub fn must_be_block(&self) -> bool {
        self.fuseblk == Some(true)
    }

    /// Takes over the settings of the cleaner and of retention from files, where the words say nothing. Returns what was
    /// wrong with the files.
    ///
    /// # Errors
    /// The file that was named cannot be read.
    pub fn read_config(&mut self) -> anyhow::Result<Vec<config::Warning>> {
        let loaded = self.cleaner.load(None)?;
        (self.engine.cleaner, self.keep) = (loaded.cleaner, loaded.keep);
        Ok(loaded.warnings)
    }

    /// Whether a remount with these words makes the mount read-only; `None` if they leave that as
    /// it is.
    ///
    /// # Errors
    /// The words ask for something else that is not so already. mount(8) adds all that it finds in
    /// fstab and in the kernel's table of mounts, so what is so already does no harm.
    pub fn remounted(&self, lists: &[String]) -> Result<Option<bool>, Failure> {
        for word in words(lists).filter(|word| !is_access(word) && !is_from_kernel(word)) {
            let mut changed = self.clone();
            changed.obey(word)?;
            if changed != *self {
                return Err(usage(format!(
                    "a remount cannot change {word}, only ro and rw; unmount the volume and mount \
                     it again"
                )));
            }
        }
        Ok(access(lists))
    }

    fn obey(&mut self, word: &str) -> Result<(), Failure> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match definition::set(OPTIONS, self, name, value) {
            Err(Problem::Unknown(meant)) => {
                if let Some(advice) = advice(name) {
                    return Err(usage(format!("option {name} is not supported: {advice}")));
                }
                if is_ignored(name) {
                    return Ok(());
                }
                let meant = meant.map(|meant| format!("; did you mean {meant}?"));
                let meant = meant.as_deref().unwrap_or(";");
                Err(usage(format!("unknown option {word}{meant} see nilfs mount --help")))
            }
            Err(Problem::Value(expected)) => Err(usage(format!("option {word}: {expected}"))),
            Ok(()) => Ok(()),
        }
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

/// The words that say nothing of that.
pub fn without_access(lists: &[String]) -> Vec<String> {
    words(lists).filter(|word| !is_access(word)).map(str::to_owned).collect()
}

fn is_access(word: &str) -> bool {
    matches!(word, "ro" | "rw")
}

/// Share of `available` bytes of memory that a mount allows itself for changes, for its cache, and for
/// requests. Changes can take several times their own memory while a commit makes metadata of them, the
/// cleaner's step as much as changes may, and the allocator leaves gaps between what dozens of threads have
/// taken.
fn share_of(available: u64) -> u64 {
    (available / 10).max(LEAST_MEMORY)
}

fn default_memory(share: u64) -> MountOptions {
    MountOptions {
        dirty_limit: share.min(MOST_DIRTY),
        cache_limit: share.min(MOST_CACHE),
        ..MountOptions::default()
    }
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(Status::Usage, message)
}

#[cfg(test)]
mod tests {
    use nilfs_engine::{OnError, Order, Policy};

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
        assert!(!options.kernel.read_only);
    }

    #[test]
    fn the_last_word_decides_about_writing() {
        let of =
            |lists: &[&str]| access(&lists.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!((of(&["rw,noatime", "ro"]), of(&["ro,cp=5"])), (Some(true), Some(true)));
        assert_eq!((of(&["ro", "rw"]), of(&["errors=remount-ro"])), (Some(false), None));
    }

    #[test]
    fn the_last_of_contradicting_words_counts() {
        assert!(parse("ro,rw,ro").unwrap().kernel.read_only);
        assert!(parse("nobarrier,barrier").unwrap().engine.barrier);
    }

    #[test]
    fn values_are_taken() {
        let options = parse("ro,cp=0x10,order=strict,errors=panic,dirty=512M,cache=2G").unwrap();
        assert_eq!(options.checkpoint, Some(Cno(16).into()));
        assert_eq!(options.engine.order, Order::Strict);
        assert_eq!(options.engine.on_error, OnError::Panic);
        assert_eq!(options.engine.dirty_limit, 512 << 20);
        assert_eq!(options.engine.cache_limit, 2 << 30);
    }

    #[test]
    fn what_a_mount_allows_itself_follows_the_memory() {
        let of = |available: u64| {
            let options = default_memory(share_of(available));
            (options.dirty_limit >> 20, options.cache_limit >> 20)
        };
        assert_eq!(of(0), (1, 1));
        assert_eq!(of(50 << 20), (5, 5));
        assert_eq!(of(1 << 30), (102, 96));
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
        let cleaner_of_pp = parse("pp=1h30m").unwrap().cleaner.load(None).unwrap().cleaner;
        assert_eq!(cleaner_of_pp.protection.as_secs(), 5400);
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
        assert!(refused("ro,cp=0").starts_with("option cp=0: expected a checkpoint number, "));
        assert_eq!(refused("dirty=lots"), "option dirty=lots: expected a size such as 512M");
        assert_eq!(refused("dirty=0"), "option dirty=0: expected a size such as 512M");
        assert_eq!(refused("cache=much"), "option cache=much: expected a size such as 512M");
        let expected = "option policy=newest: expected timestamp, greedy or cost-benefit";
        assert_eq!(refused("policy=newest"), expected);
        assert_eq!(refused("protection=no"), "option protection=no: expected soft or hard");
        assert_eq!(refused("pp=soon"), "option pp=soon: expected seconds, or a time such as 1h30m");
        assert!(refused("ro,cp=0xg").starts_with("option cp=0xg: expected a checkpoint number"));
        assert_eq!(refused("past-name=a/b"), "option past-name=a/b: expected a name of a file");
        let expected = "option past-hold=long: expected seconds, or a time such as 1h30m";
        assert_eq!(refused("past-hold=long"), expected);
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
        for (list, superuser) in [("fuseblk", false), ("fuseblk,ro", true)] {
            let said = block(list, superuser).unwrap_err();
            assert!(said.starts_with("option fuseblk needs rw and the superuser: "), "{said}");
        }
        assert_eq!(block("fuseblk,nofuseblk", false), Ok(false));
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
    fn what_is_asked_for_is_done_or_refused_with_what_to_write() {
        for word in ["atime", "diratime", "strictatime"] {
            let said = format!(
                "option {word} is not supported: NILFS2 keeps no access times; write noatime, or nothing"
            );
            assert_eq!(refused(word), said);
        }
        assert!(refused("lazytime").contains("leave it out"));
        for word in ["X-mount.mkdir=0700", "x-mount.mkdir", "X-mount.idmap=/proc/1/ns/user"] {
            assert!(refused(word).contains("only mount(8) knows it; type mount -t"), "{word}");
        }
        // How much memory there is may change from one to the next.
        let for_kernel = |list| parse(list).unwrap().kernel;
        for word in ["noatime", "nodiratime", "norelatime", "nostrictatime", "nolazytime"] {
            assert!(for_kernel(word) == for_kernel(""), "{word} is so in any case");
        }
        let warned = |list| parse(list).unwrap().warning().is_some();
        assert!(warned("relatime") && warned("noatime,relatime"));
        assert!(!warned("relatime,noatime") && !warned("relatime,norelatime"));
    }

    #[test]
    fn a_remount_is_about_ro_and_rw_alone() {
        let mounted = parse("rw,nosuid,pp=60,nogc,allow_other").unwrap();
        let of = |list: &str| {
            mounted.remounted(&[list.to_owned()]).map_err(|failure| failure.to_string())
        };
        assert_eq!(of("remount,ro"), Ok(Some(true)));
        assert_eq!(of("ro,remount,rw"), Ok(Some(false)));
        // As mount(8) puts it together from the table of mounts, and from fstab.
        let table = "rw,nosuid,noatime,user_id=0,group_id=0,default_permissions,allow_other";
        assert_eq!(of(&format!("{table},remount,ro")), Ok(Some(true)));
        assert_eq!(of("defaults,nofail,x-a.b,pp=60,nogc,remount"), Ok(None));
        assert_eq!(of("remount,ro,barrier,pp=60"), Ok(Some(true)), "what is so already");
        for word in ["pp=61", "suid", "noexec", "sync", "cp=3", "discard", "dirty=1K"] {
            let said = of(&format!("remount,ro,{word}")).unwrap_err();
            assert!(said.starts_with(&format!("a remount cannot change {word}, only")), "{said}");
        }
        assert!(of("remount,ro,frobnicate").unwrap_err().starts_with("unknown option frobnicate"));
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
