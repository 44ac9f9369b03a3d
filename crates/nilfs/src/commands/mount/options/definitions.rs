//! Every option of a mount. An entry of [`OPTIONS`] is all that an option needs: parsing, help,
//! manual, completions and what a remount refuses follow from it; a test says which row
//! docs/mounting.md has to have.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use nilfs_engine::{FsyncBy, OnError, Order, Verify};
use nilfs_fuse::{NotAMoment, PastAccess, Transport, When};
use nilfs_ondisk::dirent::NAME_MAX;
use nilfs_ondisk::{ByteCount, Cno};

use super::Options;
use crate::config;
use crate::definition::{self, Definition, flag, one_of, text};

/// An option, or several of which the last counts.
type MountOption = Definition<Options>;

/// All options, in the order in which they are explained.
pub const OPTIONS: &[MountOption] = &[
    MountOption::new(
        &[flag("ro", |it| it.kernel.read_only = true), flag("rw", |it| it.kernel.read_only = false)],
        "read-only, or read and write",
    )
    .default("`rw`"),
    MountOption::new(
        &[text("cp", "WHEN", |it, value| {
            it.checkpoint = Some(checkpoint(value)?);
            Ok(())
        })],
        "show a checkpoint instead of the newest, by its number or any moment, such as `yesterday`; not \
         only snapshots can be shown, and also while the present is mounted",
    )
    .needs(
        "`ro`",
        |it| it.checkpoint.is_none() || it.kernel.read_only,
        "a checkpoint of the past cannot be changed",
    )
    .more("[naming a moment](checkpoints.md#naming-a-moment)"),
    MountOption::new(
        // What it means is decided before words are obeyed.
        &[flag("remount", |_| ())],
        "make the mount on a directory read-only with `ro`, or writable again with `rw`; nothing else \
         can be changed",
    )
    .more("[read-only for a while](#read-only-for-a-while)"),
    MountOption::new(
        &[flag("norecovery", |it| it.recovery = false)],
        "do not look for what was synced after the newest checkpoint",
    )
    .needs(
        "`ro`",
        |it| it.recovery || it.kernel.read_only,
        "without recovery nothing can be written",
    ),
    MountOption::new(
        &[flag("rescue", |it| it.rescue = true)],
        "mount a broken volume: by its logs if no superblock leads to a checkpoint, and around what is \
         damaged; with `cp=`, by the number of a checkpoint",
    )
    .needs(
        "`ro`",
        |it| !it.rescue || it.kernel.read_only,
        "a broken volume cannot be changed",
    )
    .more("[broken volumes](broken-volumes.md#mounting-it)"),
    MountOption::new(
        &[one_of(
            "order",
            &[
                ("relaxed", |it| it.engine.order = Order::Relaxed),
                ("strict", |it| it.engine.order = Order::Strict),
            ],
        )],
        "whether a sync of one file makes that file durable, or all older changes on the volume, in a \
         checkpoint",
    )
    .default("`relaxed`")
    .more("[crash safety](crash-safety.md)"),
    MountOption::new(
        &[one_of(
            "fsync",
            &[
                ("log", |it| it.engine.fsync = FsyncBy::Log),
                ("checkpoint", |it| it.engine.fsync = FsyncBy::Checkpoint),
            ],
        )],
        "what an fsync writes of new files, names and sizes: a small log that only this program can \
         read after a crash, or a checkpoint, from which Linux can go on as well",
    )
    .default("`log`")
    .more("[crash safety](crash-safety.md#linux)"),
    MountOption::new(
        &[one_of(
            "errors",
            &[
                ("remount-ro", |it| it.engine.on_error = OnError::RemountReadOnly),
                ("continue", |it| it.engine.on_error = OnError::Continue),
                ("panic", |it| it.engine.on_error = OnError::Panic),
            ],
        )],
        "when the volume turns out to be damaged or the device fails: stop writing and go on reading, \
         go on, or end the process",
    )
    .default("`remount-ro`"),
    MountOption::new(
        &[one_of(
            "verify",
            &[
                ("metadata", |it| it.engine.verify = Verify::Metadata),
                ("all", |it| it.engine.verify = Verify::All),
                ("none", |it| it.engine.verify = Verify::None),
            ],
        )],
        "which blocks are checked against their checksums when they are read from the device: those of \
         metadata, also the content of files, or none; a wrong one is as an unreadable one, `EIO`",
    )
    .default("`metadata`")
    .more("[checksums of blocks](crash-safety.md#checksums-of-blocks)"),
    MountOption::new(
        &[
            flag("barrier", |it| it.engine.barrier = true),
            flag("nobarrier", |it| it.engine.barrier = false),
        ],
        "flush the device's cache where durability asks for it, or trust it blindly",
    )
    .default("`barrier`"),
    MountOption::new(
        &[
            flag("discard", |it| it.engine.discard = true),
            flag("nodiscard", |it| it.engine.discard = false),
        ],
        "tell the device about segments that became free, or not; `nilfs trim` does it once",
    )
    .default("`nodiscard`"),
    MountOption::new(
        &[text("flash-page", "SIZE", |it, value| {
            let bytes = size(value)?;
            let sound = bytes.is_power_of_two() && (512..=1 << 20).contains(&bytes);
            it.engine.flash_page = ByteCount(bytes);
            if sound { Ok(()) } else { Err("expected a power of two from 512 to 1M".into()) }
        })],
        "what the device programs at once: the log of an fsync ends where it does, because what is \
         programmed twice costs more than what is left empty",
    )
    .default("`16K`"),
    MountOption::new(
        &[text("dirty", "SIZE", |it, value| {
            it.engine.dirty_limit = size(value)?;
            Ok(())
        })],
        "memory for changes that are not on the device yet, such as `512M`",
    )
    .default("a tenth of what the process may use, at most 1G")
    .more("[memory](#memory)"),
    MountOption::new(
        &[text("cache", "SIZE", |it, value| {
            it.engine.cache_limit = size(value)?;
            Ok(())
        })],
        "memory for what can be read again: blocks of metadata, inodes, the names of directories",
    )
    .default("a tenth of what the process may use, at most 96M"),
    MountOption::new(
        &[flag("nogc", |it| {
            it.cleaner.words.insert("enabled", "false".to_owned());
        })],
        "no cleaning but what `nilfs clean` asks for",
    ),
    MountOption::new(
        &[text("pp", "PERIOD", |it, value| it.cleaner.set("protection_period", value))],
        "protection period, in seconds or with units, such as `90m` or `1h30m`: younger checkpoints \
         are kept as long as there is room",
    )
    .default("`1h`")
    .more("[cleaning](cleaning.md)"),
    MountOption::new(
        &[text("protection", "soft|hard", |it, value| it.cleaner.set("protection", value))],
        "when the volume gets full inside that period: give up the oldest checkpoints, or refuse to \
         write",
    )
    .default("`soft`"),
    MountOption::new(
        &[text("policy", "timestamp|greedy|cost-benefit", |it, value| {
            it.cleaner.set("policy", value)
        })],
        "which segments are cleaned first",
    )
    .default("`cost-benefit`")
    .more("[cleaning](cleaning.md#settings)"),
    MountOption::new(
        &[text("cleaner-config", "FILE", |it, value| {
            // It may be read again when the process has left the current directory.
            it.cleaner.file = Some(std::path::absolute(value).map_err(|_| "expected a file")?);
            Ok(())
        })],
        "settings of the cleaner, instead of those in `/etc/nilfs_cleanerd.conf` and \
         `/etc/nilfs.toml`; in the format of the latter if its name ends with `.toml`; the signal HUP \
         lets a mount in the background read them again",
    )
    .more("[cleaning](cleaning.md#settings)"),
    MountOption::new(
        &[text("keep", "RULE", |it, value| it.cleaner.keep(value))],
        "make snapshots of the newest checkpoint of each of the last hours, days, weeks and months, as \
         many as RULE says, such as `hourly:24+daily:14+weekly:8+monthly:12`, and let go of them \
         again; at each full hour",
    )
    .more("[keeping by a rule](checkpoints.md#keeping-by-a-rule)"),
    MountOption::new(
        &[text("scrub", "PERIOD", |it, value| {
            it.scrub.every = Some(period(value)?);
            Ok(())
        })],
        "scrub the volume in the background, so long after the last scrub: `weekly`, `monthly`, or a \
         period such as `10d`; one that an unmount has interrupted goes on",
    )
    .needs(
        "`rw`",
        |it| it.scrub.every.is_none() || !it.kernel.read_only,
        "`nilfs scrub` reads what is mounted read-only",
    )
    .more("[scrubbing](checking.md#scrubbing)"),
    MountOption::new(
        &[text("scrub-rate", "SIZE", |it, value| {
            it.scrub.rate = Some(size(value)?);
            Ok(())
        })],
        "how much such a scrub reads in a second at most",
    )
    .default("`20M`"),
    MountOption::new(
        &[text("metrics", "ADDRESS:PORT", |it, value| {
            it.metrics = Some(loopback(value)?);
            Ok(())
        })],
        "offer metrics to Prometheus, on an address of this machine alone, such as `127.0.0.1:9321`",
    )
    .more("[metrics](cleaning.md#metrics)"),
    MountOption::new(
        &[flag("writeback", |it| it.writeback = true)],
        "let the kernel keep small writes back: faster, but a full volume may be noticed only after a \
         write has succeeded, as it is with mappings",
    )
    .more("[when the disk is full](cleaning.md#when-the-disk-is-full)"),
    MountOption::new(
        &[one_of(
            "transport",
            &[
                ("auto", |it| it.transport = Transport::Auto),
                ("uring", |it| it.transport = Transport::Uring),
                ("dev", |it| it.transport = Transport::Device),
            ],
        )],
        "how requests come from the kernel: through io_uring, which takes Linux 6.14 and its switch, or \
         through `/dev/fuse`; `auto` takes io_uring where it is to be had",
    )
    .default("`auto`")
    .more("[transport](#transport)"),
    MountOption::new(
        &[one_of(
            "past",
            &[
                ("all", |it| it.past = Some(PastAccess::All)),
                ("owner", |it| it.past = Some(PastAccess::Owner)),
                ("root", |it| it.past = Some(PastAccess::Root)),
                ("off", |it| it.past = None),
            ],
        )],
        "show what each directory was at every checkpoint, in `.checkpoints` within it: to everybody \
         who may enter the directory now, as far as the permissions of then allow it; to the superuser \
         and the user that mounts; to the superuser alone; or to nobody",
    )
    .default("`owner`")
    .more("[the past of a directory](checkpoints.md#the-past-of-a-directory)"),
    MountOption::new(
        &[text("past-name", "NAME", |it, value| {
            it.past_name = past_name(value)?;
            Ok(())
        })],
        "call it NAME instead of `.checkpoints`",
    )
    .default("`.checkpoints`"),
    MountOption::new(
        &[text("past-hold", "PERIOD", |it, value| {
            it.past_hold = config::interval(value)?;
            Ok(())
        })],
        "how long a checkpoint is kept after somebody has looked at it there, in seconds or with units, \
         such as `90m`",
    )
    .default("`10m`")
    .more("[the past of a directory](checkpoints.md#the-past-of-a-directory)"),
    MountOption::new(
        &[
            flag("allow_other", |it| it.kernel.allow_other = true),
            flag("noallow_other", |it| it.kernel.allow_other = false),
        ],
        "give other users access, as permissions allow, or not",
    )
    .default("`allow_other` for the superuser, `noallow_other` for everybody else"),
    MountOption::new(
        &[
            flag("fuseblk", |it| it.fuseblk = Some(true)),
            flag("nofuseblk", |it| it.fuseblk = Some(false)),
        ],
        "let the kernel take it for the mount of a block device, so that umount(8) and sync wait for \
         what is to be written, or not",
    )
    .needs(
        "`rw` and the superuser",
        |it| it.fuseblk != Some(true) || it.superuser && !it.kernel.read_only,
        "nothing is written by a read-only mount, and only the superuser mounts block devices",
    )
    .default("`fuseblk` for the superuser, if it can be had and the mount is not read-only")
    .more("[what umount and sync wait for](#what-umount-and-sync-wait-for)"),
    MountOption::new(
        &[text("subtype", "NAME", |it, value| {
            it.kernel.subtype = subtype(value)?;
            Ok(())
        })],
        "show the type of the mount as `fuse.NAME` or `fuseblk.NAME`; with nothing after the `=` as \
         `fuse` or `fuseblk`",
    )
    .default("`nilfs`"),
    MountOption::new(
        &[
            flag("dev", |it| it.kernel.nodev = false),
            flag("nodev", |it| it.kernel.nodev = true),
            flag("suid", |it| it.kernel.nosuid = false),
            flag("nosuid", |it| it.kernel.nosuid = true),
            flag("exec", |it| it.kernel.noexec = false),
            flag("noexec", |it| it.kernel.noexec = true),
            flag("sync", |it| it.kernel.sync = true),
            flag("async", |it| it.kernel.sync = false),
            flag("dirsync", |it| it.kernel.dirsync = true),
        ],
        "as in mount(8)",
    ),
    MountOption::new(
        &[
            flag("noatime", |it| it.relatime = false),
            flag("nodiratime", |_| ()),
            flag("norelatime", |it| it.relatime = false),
            flag("nostrictatime", |_| ()),
            flag("nolazytime", |_| ()),
            flag("relatime", |it| it.relatime = true),
        ],
        "keep no access times, which is so in any case; `relatime` is accepted with a warning",
    )
    .default("`noatime`")
    .more("[access times](#access-times)"),
];

/// What the help says of all of them.
pub fn help() -> String {
    format!(
        "Mount options, after -o and separated by commas:\n{}{IGNORED_HELP}",
        definition::help(OPTIONS)
    )
}

/// The table of docs/mounting.md.
pub fn table() -> String {
    definition::option_table(OPTIONS)
}

const IGNORED_HELP: &str = "\
Accepted without effect: defaults, default_permissions and nonempty (always on), and the
words for mount(8) itself, such as user, noauto, nofail, _netdev, x-….";

/// Words for mount(8) and systemd, which pass them on all the same; after a name there may be a
/// value.
const FOR_MOUNT: [&str; 16] = [
    "defaults", "auto", "noauto", "nofail", "_netdev", "comment", "silent", "loud", "user",
    "users", "nouser", "nousers", "owner", "noowner", "group", "nogroup",
];

/// Words of mount(8) that are not obeyed, with advice; a name that ends with `*` is a beginning.
const NOT_DONE: [(&str, &str); 6] = [
    ("atime", NO_ACCESS_TIMES),
    ("diratime", NO_ACCESS_TIMES),
    ("strictatime", NO_ACCESS_TIMES),
    ("lazytime", "times are written with all other changes; leave it out"),
    ("X-mount.*", ONLY_MOUNT_8),
    ("x-mount.*", ONLY_MOUNT_8),
];

const NO_ACCESS_TIMES: &str = "NILFS2 keeps no access times; write noatime, or nothing";

const ONLY_MOUNT_8: &str =
    "only mount(8) knows it; type mount -t fuse.nilfs in place of nilfs mount";

/// A warning about `relatime`, which is what Linux does unasked, and stands in many lines of fstab.
pub(super) const RELATIME: &str = "option relatime has no effect: NILFS2 keeps no access times; what \
                                   programs are shown is the time of the last change";

/// What the kernel's table of mounts says of a mount, and mount(8) repeats in a remount.
const FROM_KERNEL: [&str; 6] =
    ["user_id", "group_id", "max_read", "blksize", "seclabel", "noatime"];

/// Whether a word changes nothing, whatever its value.
pub(super) fn is_ignored(name: &str) -> bool {
    matches!(name, "default_permissions" | "nonempty")
        || FOR_MOUNT.contains(&name)
        || name.starts_with("x-")
        || name.starts_with("X-")
}

/// Advice about a word that asks for what is not done.
pub(super) fn advice(name: &str) -> Option<&'static str> {
    let is_meant = |known: &str| match known.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == known,
    };
    NOT_DONE.iter().find(|(known, _)| is_meant(known)).map(|(_, advice)| *advice)
}

/// Whether a word is one that only the kernel says.
pub(super) fn is_from_kernel(word: &str) -> bool {
    FROM_KERNEL.contains(&word.split('=').next().unwrap_or(word))
}

/// An address that only this machine can reach.
fn loopback(value: &str) -> Result<SocketAddr, String> {
    let address = SocketAddr::from_str(value).ok().filter(|address| address.ip().is_loopback());
    address.ok_or_else(|| {
        "expected an address of this machine alone, such as 127.0.0.1:9321".to_owned()
    })
}

/// A moment, or a checkpoint number with the prefixes of C, as mount.nilfs2 takes it.
fn checkpoint(value: &str) -> Result<When, String> {
    let number = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => u64::from_str_radix(value, if value.starts_with('0') { 8 } else { 10 }),
    };
    match number {
        Ok(number @ 1..) => Ok(Cno(number).into()),
        _ => value.parse().map_err(|error: NotAMoment| error.to_string()),
    }
}

/// The time between two scrubs.
fn period(value: &str) -> Result<Duration, String> {
    const DAY: u64 = 24 * 3600;
    let days = match value {
        "daily" => Some(1),
        "weekly" => Some(7),
        "monthly" => Some(30),
        _ => value.strip_suffix('d').and_then(|days| days.parse().ok()),
    };
    let period = match days {
        Some(days) => Ok(Duration::from_secs(DAY.saturating_mul(days))),
        None => config::interval(value),
    };
    let expected = || "expected daily, weekly, monthly, or a period such as 10d".to_owned();
    period.ok().filter(|it| !it.is_zero()).ok_or_else(expected)
}

/// A name that a file can have.
fn past_name(value: &str) -> Result<String, String> {
    let is_name = !matches!(value, "" | "." | "..") && !value.contains(['/', '\0']);
    match is_name && value.len() <= NAME_MAX {
        true => Ok(value.to_owned()),
        false => Err("expected a name of a file".to_owned()),
    }
}

/// A name that the kernel shows as it is, or none.
fn subtype(value: &str) -> Result<String, String> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match value.bytes().all(is_fit) {
        true => Ok(value.to_owned()),
        false => Err("expected letters, digits, - and _".to_owned()),
    }
}

/// A number of bytes, but none at all is too few.
fn size(value: &str) -> Result<u64, String> {
    let bytes = crate::size::parse(value).ok().filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "expected a size such as 512M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_option() {
        let page = include_str!("../../../../../../docs/mounting.md");
        definition::assert_documented("docs/mounting.md", page, &table());
    }

    /// Some take their values from elsewhere.
    #[test]
    fn every_value_that_is_listed_is_accepted() {
        for word in definition::completions(OPTIONS).filter(|word| !word.ends_with('=')) {
            let is_accepted = |access| Options::parse(&[format!("{access},{word}")], true).is_ok();
            assert!(is_accepted("rw") || is_accepted("ro"), "{word}");
        }
    }
}
