//! What a manual page says beyond the help text: a summary for the other names of the command, and
//! examples, exit status, environment, files and related pages.

use super::page::Page;
use super::text::Block;

/// A list of terms and what they mean.
type List = &'static [(&'static str, &'static str)];

/// What there is to add to a page.
#[derive(Debug, Clone, Copy)]
pub struct Notes {
    /// The line for NAME, for a page that has none from the command line's definition.
    pub summary: &'static str,
    /// Paragraphs for DESCRIPTION.
    pub description: &'static [&'static str],
    examples: List,
    exit_status: List,
    environment: List,
    files: List,
    see_also: &'static [&'static str],
}

const NOTHING: Notes = Notes {
    summary: "",
    description: &[],
    examples: &[],
    exit_status: &[],
    environment: &[],
    files: MOUNTS,
    see_also: &["nilfs(1)"],
};

/// The files of a command that asks the process that serves a mount.
const MOUNTS: List = &[("/proc/self/mountinfo", "The mounts among which a volume is looked for.")];

/// The files of a command that also works on volumes that are not mounted.
const SETTINGS: List = &[
    ("/etc/nilfs.toml", "Settings of the cleaner; see nilfs.toml(5)."),
    ("/etc/nilfs_cleanerd.conf", "The same in the format of nilfs-utils."),
    ("/proc/self/mountinfo", "The mounts among which a volume is looked for."),
];

const MOUNT_FILES: List = &[
    ("/dev/fuse", "The kernel's side of a mount."),
    ("/etc/fstab", "Mounts of the type fuse.nilfs can be listed here."),
    ("/etc/fuse.conf", "user_allow_other lets ordinary users give others access."),
    ("/etc/nilfs.toml", "Settings of the cleaner; see nilfs.toml(5)."),
    ("/etc/nilfs_cleanerd.conf", "The same in the format of nilfs-utils."),
];

const SETTINGS_FILES: List = &[
    ("/etc/nilfs.toml", "Read after the other file, over which it wins."),
    ("/etc/nilfs_cleanerd.conf", "Comes with nilfs-utils."),
];

const NO_COLOR: (&str, &str) = ("NO_COLOR", "No colours on a terminal, if it is set.");
const TZ: (&str, &str) = ("TZ", "The time zone in which times are shown.");
const TMPDIR: (&str, &str) = (
    "TMPDIR",
    "The directory in which what a repair would write is kept until then. Without it, that is \
     /var/tmp.",
);
const NILFS_LOG: (&str, &str) =
    ("NILFS_LOG", "What a mount writes to its log: error, warn, info (default), debug or trace.");

const DONE_OR_FAILED: List = &[("0", "Done."), ("1", "Failed, or the command line is wrong.")];

const AS_MOUNT: List = &[
    ("0", "Done."),
    ("1", "The command line is wrong."),
    ("32", "The volume could not be mounted or unmounted."),
];

/// What the programs with names of nilfs-utils have in common.
const PROGRAM: Notes = Notes {
    description: &[
        "This is nilfs(1) under the name of a program of nilfs-utils. DEVICE is a device or image, \
         mounted or not. NODE is any file or directory of a volume that nilfs has mounted. Without \
         either, the volume of the current directory is meant, or else the only one that is mounted.",
    ],
    exit_status: DONE_OR_FAILED,
    ..NOTHING
};

impl Notes {
    /// Returns those for a page, by its name and section, as in `nilfs(1)`. A page that is not
    /// listed refers to `nilfs(1)` alone.
    pub fn of(reference: &str) -> Self {
        NOTES.iter().find(|(known, _)| *known == reference).map_or(NOTHING, |(_, notes)| *notes)
    }

    /// Adds all but summary and description to a page.
    pub fn add_to(&self, page: &mut Page) {
        let items = |list: List| {
            let item = |(term, text): &(&str, &str)| Block::Item((*term).into(), (*text).into());
            list.iter().map(item).collect()
        };
        page.add("EXAMPLES", items(self.examples));
        page.add("EXIT STATUS", items(self.exit_status));
        page.add("ENVIRONMENT", items(self.environment));
        page.add("FILES", items(self.files));
        page.see_also.extend(self.see_also.iter().map(|page| (*page).to_owned()));
    }
}

const NOTES: &[(&str, Notes)] = &[
    (
        "nilfs(1)",
        Notes {
            environment: &[NILFS_LOG, NO_COLOR, TZ],
            files: MOUNT_FILES,
            see_also: &["mount.fuse.nilfs(8)", "nilfs.toml(5)", "nilfs_cleanerd.conf(5)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-mount(1)",
        Notes {
            environment: &[NILFS_LOG],
            files: MOUNT_FILES,
            see_also: &[
                "nilfs(1)",
                "nilfs-status(1)",
                "nilfs-umount(1)",
                "nilfs.toml(5)",
                "mount.fuse.nilfs(8)",
                "fstab(5)",
                "fusermount3(1)",
            ],
            ..NOTHING
        },
    ),
    (
        "nilfs-umount(1)",
        Notes { see_also: &["nilfs(1)", "nilfs-mount(1)", "umount(8)"], ..NOTHING },
    ),
    (
        "nilfs-mkfs(1)",
        Notes {
            files: &[("/dev/disk/by-label", "Where a device with a label appears.")],
            see_also: &[
                "nilfs(1)",
                "nilfs-mount(1)",
                "nilfs-tune(1)",
                "mkfs.nilfs2(8)",
                "wipefs(8)",
            ],
            ..NOTHING
        },
    ),
    (
        "nilfs-tune(1)",
        Notes { see_also: &["nilfs(1)", "nilfs-info(1)", "nilfs-tune(8)"], ..NOTHING },
    ),
    (
        "nilfs-info(1)",
        Notes { environment: &[TZ], see_also: &["nilfs(1)", "nilfs-df(1)"], ..NOTHING },
    ),
    (
        "nilfs-ls(1)",
        Notes {
            environment: &[TZ],
            see_also: &["nilfs(1)", "nilfs-cat(1)", "nilfs-cp(1)", "nilfs-stat(1)"],
            ..NOTHING
        },
    ),
    ("nilfs-cat(1)", Notes { see_also: &["nilfs(1)", "nilfs-cp(1)", "nilfs-ls(1)"], ..NOTHING }),
    (
        "nilfs-stat(1)",
        Notes { environment: &[TZ], see_also: &["nilfs(1)", "nilfs-ls(1)"], ..NOTHING },
    ),
    (
        "nilfs-cp(1)",
        Notes { see_also: &["nilfs(1)", "nilfs-cat(1)", "nilfs-ls(1)", "cp(1)"], ..NOTHING },
    ),
    (
        "nilfs-diff(1)",
        Notes {
            environment: &[TZ],
            see_also: &["nilfs(1)", "nilfs-log(1)", "nilfs-checkpoints(1)", "diff(1)", "patch(1)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-log(1)",
        Notes {
            environment: &[TZ],
            see_also: &["nilfs(1)", "nilfs-diff(1)", "nilfs-checkpoints(1)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-restore(1)",
        Notes {
            see_also: &["nilfs(1)", "nilfs-cp(1)", "nilfs-diff(1)", "nilfs-log(1)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-purge(1)",
        Notes {
            environment: &[TZ],
            see_also: &["nilfs(1)", "nilfs-log(1)", "nilfs-checkpoints(1)", "nilfs-trim(1)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-rollback(1)",
        Notes {
            environment: &[TZ],
            see_also: &["nilfs(1)", "nilfs-diff(1)", "nilfs-restore(1)", "nilfs-snapshot(1)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-image(1)",
        Notes { see_also: &["nilfs(1)", "nilfs-check(1)", "nilfs-salvage(1)"], ..NOTHING },
    ),
    (
        "nilfs-salvage(1)",
        Notes {
            environment: &[TZ],
            see_also: &["nilfs(1)", "nilfs-check(1)", "nilfs-cp(1)", "nilfs-recover(1)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-scrub(1)",
        Notes { see_also: &["nilfs(1)", "nilfs-fsck(1)", "nilfs-salvage(1)"], ..NOTHING },
    ),
    (
        "nilfs-undelete(1)",
        Notes {
            environment: &[TZ],
            see_also: &["nilfs(1)", "nilfs-log(1)", "nilfs-restore(1)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-status(1)",
        Notes {
            environment: &[NO_COLOR, TZ],
            see_also: &["nilfs(1)", "nilfs-clean(1)", "nilfs-df(1)", "nilfs-metrics(1)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-df(1)",
        Notes {
            environment: &[TZ],
            files: SETTINGS,
            see_also: &["nilfs(1)", "nilfs-clean(1)", "nilfs-status(1)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-clean(1)",
        Notes {
            files: SETTINGS,
            see_also: &[
                "nilfs(1)",
                "nilfs-df(1)",
                "nilfs-status(1)",
                "nilfs.toml(5)",
                "nilfs-clean(8)",
            ],
            ..NOTHING
        },
    ),
    (
        "nilfs-checkpoints(1)",
        Notes {
            environment: &[TZ],
            files: SETTINGS,
            see_also: &["nilfs(1)", "nilfs-snapshot(1)", "lscp(1)", "rmcp(8)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-snapshot(1)",
        Notes {
            files: SETTINGS,
            see_also: &["nilfs(1)", "nilfs-checkpoints(1)", "chcp(8)", "mkcp(8)"],
            ..NOTHING
        },
    ),
    ("nilfs-sync(1)", Notes { see_also: &["nilfs(1)", "nilfs-snapshot(1)", "sync(1)"], ..NOTHING }),
    (
        "nilfs-trim(1)",
        Notes { files: SETTINGS, see_also: &["nilfs(1)", "nilfs-mount(1)"], ..NOTHING },
    ),
    (
        "nilfs-resize(1)",
        Notes {
            files: SETTINGS,
            see_also: &["nilfs(1)", "nilfs-clean(1)", "nilfs-df(1)", "nilfs-resize(8)"],
            ..NOTHING
        },
    ),
    ("nilfs-metrics(1)", Notes { see_also: &["nilfs(1)", "nilfs-status(1)"], ..NOTHING }),
    (
        "nilfs-segments(1)",
        Notes {
            environment: &[TZ],
            see_also: &["nilfs(1)", "nilfs-dump(1)", "lssu(1)"],
            ..NOTHING
        },
    ),
    (
        "nilfs-dump(1)",
        Notes {
            environment: &[TZ],
            see_also: &["nilfs(1)", "nilfs-segments(1)", "dumpseg(8)"],
            ..NOTHING
        },
    ),
    (
        "lscp(1)",
        Notes {
            summary: "list the checkpoints of a NILFS2 volume",
            examples: &[
                ("lscp /mnt", "All checkpoints of a mounted volume."),
                ("lscp -s disk.img", "The snapshots in an image."),
            ],
            see_also: &["nilfs(1)", "nilfs-checkpoints(1)", "chcp(8)", "mkcp(8)", "rmcp(8)"],
            ..PROGRAM
        },
    ),
    (
        "lssu(1)",
        Notes {
            summary: "list the segments of a NILFS2 volume",
            examples: &[("lssu -l /mnt", "With the blocks that are still needed.")],
            see_also: &["nilfs(1)", "nilfs-segments(1)", "dumpseg(8)"],
            ..PROGRAM
        },
    ),
    (
        "mkcp(8)",
        Notes {
            summary: "make a checkpoint of a NILFS2 volume",
            examples: &[("mkcp -s -p /mnt", "Make a snapshot, and print its number.")],
            see_also: &["nilfs(1)", "nilfs-snapshot(1)", "chcp(8)", "lscp(1)", "rmcp(8)"],
            ..PROGRAM
        },
    ),
    (
        "chcp(8)",
        Notes {
            summary: "make snapshots of checkpoints of a NILFS2 volume, or checkpoints of snapshots",
            examples: &[
                ("chcp ss /mnt 17", "Keep checkpoint 17."),
                ("chcp cp /mnt 17", "Let go of it."),
            ],
            see_also: &["nilfs(1)", "nilfs-snapshot(1)", "lscp(1)", "mkcp(8)", "rmcp(8)"],
            ..PROGRAM
        },
    ),
    (
        "rmcp(8)",
        Notes {
            summary: "delete checkpoints of a NILFS2 volume",
            examples: &[("rmcp /mnt ..17", "Delete all up to 17, except snapshots.")],
            see_also: &["nilfs(1)", "nilfs-checkpoints(1)", "chcp(8)", "lscp(1)", "mkcp(8)"],
            ..PROGRAM
        },
    ),
    (
        "dumpseg(8)",
        Notes {
            summary: "show the logs of segments of a NILFS2 volume",
            examples: &[("dumpseg disk.img 0", "What is in the first segment of an image.")],
            see_also: &["nilfs(1)", "nilfs-dump(1)", "lssu(1)"],
            ..PROGRAM
        },
    ),
    (
        "mkfs.nilfs2(8)",
        Notes {
            summary: "make a NILFS2 volume",
            examples: &[("mkfs.nilfs2 -L data /dev/sdb1", "Make a volume that is called data.")],
            description: &["This is nilfs(1) under the name of a program of nilfs-utils."],
            files: &[("/dev/disk/by-label", "Where a device with a label appears.")],
            see_also: &["nilfs(1)", "nilfs-mkfs(1)", "nilfs-tune(8)", "mount.nilfs2(8)"],
            ..PROGRAM
        },
    ),
    (
        "fsck.nilfs2(8)",
        Notes {
            summary: "check and repair a NILFS2 volume",
            description: &[
                "This is nilfs-fsck(1) with the options and exit codes that fsck(8) expects. With -a \
                 or -p, a volume whose superblocks are whole and lead to a checkpoint is taken for \
                 sound, unless -f is given. With -n, the volume may be mounted by nilfs and in use; else \
                 that fails.",
                "The exit code is the sum of 1 (something was repaired), 4 (errors are left), 8 (it \
                 failed) and 16 (the command line is wrong).",
            ],
            examples: &[
                ("fsck.nilfs2 -n /dev/sdb1", "Check a volume, and write nothing."),
                ("fsck -t nilfs2 -p /dev/sdb1", "Repair what can be repaired without loss."),
            ],
            environment: &[TMPDIR],
            see_also: &["nilfs(1)", "nilfs-fsck(1)", "fsck(8)"],
            ..PROGRAM
        },
    ),
    (
        "fsck.fuse.nilfs(8)",
        Notes {
            summary: "check and repair a NILFS2 volume, for lines of the type fuse.nilfs in fstab(5)",
            description: &[
                "fsck(8) calls this program for the type fuse.nilfs, so that the sixth field of a line \
                 in /etc/fstab has its meaning. It does what fsck.nilfs2(8) does.",
            ],
            examples: &[
                ("/dev/sdb1 /srv/data fuse.nilfs defaults,nofail 0 2", "A line for /etc/fstab."),
                ("fsck /srv/data", "Check the volume of that line."),
            ],
            environment: &[TMPDIR],
            see_also: &["nilfs-fsck(1)", "fsck.nilfs2(8)", "mount.fuse.nilfs(8)", "fsck(8)"],
            ..PROGRAM
        },
    ),
    (
        "fsck.fuseblk.nilfs(8)",
        Notes {
            summary: "check and repair a NILFS2 volume, for lines of the type fuseblk.nilfs in fstab(5)",
            description: &[
                "fsck(8) calls this program for the type fuseblk.nilfs, which lines copied from \
                 /etc/mtab have. It does what fsck.nilfs2(8) does.",
            ],
            examples: &[("fsck -t fuseblk.nilfs -p /dev/sdb1", "Repair what is safe to repair.")],
            environment: &[TMPDIR],
            see_also: &["nilfs-fsck(1)", "fsck.nilfs2(8)", "mount.fuseblk.nilfs(8)", "fsck(8)"],
            ..PROGRAM
        },
    ),
    (
        "nilfs-fsck(1)",
        Notes {
            environment: &[TMPDIR, TZ],
            see_also: &["nilfs(1)", "nilfs-check(1)", "fsck.nilfs2(8)", "fsck(8)"],
            ..NOTHING
        },
    ),
    (
        "mount.nilfs2(8)",
        Notes {
            summary: "mount a NILFS2 volume through nilfs, as a helper of mount(8)",
            description: &[
                "mount(8) calls this program for the type nilfs2. The volume is served by nilfs(1), \
                 not by the kernel, so the mount is of the type fuse.nilfs.",
            ],
            examples: &[("mount -t nilfs2 /dev/sdb1 /mnt", "Mount a device.")],
            exit_status: AS_MOUNT,
            files: MOUNT_FILES,
            see_also: &[
                "nilfs(1)",
                "nilfs-mount(1)",
                "mount.fuse.nilfs(8)",
                "umount.nilfs2(8)",
                "nilfs.toml(5)",
                "mount(8)",
            ],
            ..PROGRAM
        },
    ),
    (
        "umount.nilfs2(8)",
        Notes {
            summary: "unmount a NILFS2 volume that nilfs serves, as a helper of umount(8)",
            description: &[
                "Returns when everything is on the device and the volume is marked clean.",
            ],
            examples: &[("umount.nilfs2 /mnt", "Unmount a volume.")],
            exit_status: AS_MOUNT,
            see_also: &["nilfs(1)", "nilfs-umount(1)", "mount.nilfs2(8)", "umount(8)"],
            ..PROGRAM
        },
    ),
    (
        "mount.fuseblk.nilfs(8)",
        Notes {
            summary: "mount a NILFS2 volume, as a helper of mount(8)",
            description: &[
                "mount(8) calls this program for the type fuseblk.nilfs, which /etc/mtab and lines \
                 copied from it have. It does what mount.fuse.nilfs(8) does.",
            ],
            examples: &[("mount -t fuseblk.nilfs /dev/sdb1 /mnt", "Mount a device.")],
            exit_status: AS_MOUNT,
            see_also: &["nilfs-mount(1)", "mount.fuse.nilfs(8)", "mount(8)"],
            ..PROGRAM
        },
    ),
    (
        "umount.fuse.nilfs(8)",
        Notes {
            summary: "unmount a NILFS2 volume that nilfs serves, as a helper of umount(8)",
            description: &[
                "umount(8) calls this program for mounts of the type fuse.nilfs. It returns when \
                 everything is on the device, and says what could not be written.",
            ],
            examples: &[("umount /mnt", "Unmount a volume.")],
            exit_status: AS_MOUNT,
            see_also: &["nilfs-umount(1)", "mount.fuse.nilfs(8)", "umount(8)"],
            ..PROGRAM
        },
    ),
    (
        "umount.fuseblk.nilfs(8)",
        Notes {
            summary: "unmount a NILFS2 volume that nilfs serves, as a helper of umount(8)",
            description: &[
                "umount(8) calls this program for mounts of the type fuseblk.nilfs. It returns when \
                 everything is on the device, and says what could not be written.",
            ],
            examples: &[("umount /mnt", "Unmount a volume.")],
            exit_status: AS_MOUNT,
            see_also: &["nilfs-umount(1)", "mount.fuseblk.nilfs(8)", "umount(8)"],
            ..PROGRAM
        },
    ),
    (
        "mount.fuse.nilfs(8)",
        Notes {
            summary: "mount a NILFS2 volume, as a helper of mount(8)",
            description: &[
                "mount(8) calls this program for the type fuse.nilfs, and for lines in /etc/fstab of \
                 that type. It does what nilfs-mount(1) does.",
            ],
            examples: &[
                ("mount -t fuse.nilfs /dev/sdb1 /mnt", "Mount a device."),
                ("mount -t fuse.nilfs -o ro,cp=17 disk.img /old", "Mount checkpoint 17."),
                ("/dev/sdb1 /srv/data fuse.nilfs defaults,nofail 0 2", "A line for /etc/fstab."),
            ],
            exit_status: AS_MOUNT,
            files: MOUNT_FILES,
            see_also: &["nilfs(1)", "nilfs-mount(1)", "nilfs.toml(5)", "fstab(5)", "mount(8)"],
            ..PROGRAM
        },
    ),
    (
        "nilfs-clean(8)",
        Notes {
            summary: "give orders to the cleaner of a NILFS2 volume",
            examples: &[
                (
                    "nilfs-clean -p 0 /mnt",
                    "Give back what only checkpoints keep, snapshots excepted.",
                ),
                ("nilfs-clean -l /mnt", "Print what the cleaner is doing."),
            ],
            files: SETTINGS,
            see_also: &[
                "nilfs(1)",
                "nilfs-clean(1)",
                "nilfs_cleanerd(8)",
                "nilfs_cleanerd.conf(5)",
            ],
            ..PROGRAM
        },
    ),
    (
        "nilfs-resize(8)",
        Notes {
            summary: "give a NILFS2 volume another size",
            examples: &[("nilfs-resize -y /dev/sdb1 200G", "Make it 200 GiB without a question.")],
            files: SETTINGS,
            see_also: &["nilfs(1)", "nilfs-resize(1)", "nilfs-clean(8)"],
            ..PROGRAM
        },
    ),
    (
        "nilfs-tune(8)",
        Notes {
            summary: "show or change settings of a NILFS2 volume that is not mounted",
            examples: &[("nilfs-tune -L photos /dev/sdb1", "Give a volume a label.")],
            description: &["This is nilfs(1) under the name of a program of nilfs-utils."],
            see_also: &["nilfs(1)", "nilfs-info(1)", "nilfs-tune(1)", "mkfs.nilfs2(8)"],
            ..PROGRAM
        },
    ),
    (
        "nilfs_cleanerd(8)",
        Notes {
            summary: "nothing: the process that serves a volume cleans it",
            examples: &[(
                "nilfs-clean -s /mnt",
                "Let the cleaner rest, since no daemon can be ended.",
            )],
            description: &["This is nilfs(1) under the name of a program of nilfs-utils."],
            files: SETTINGS,
            see_also: &["nilfs(1)", "nilfs-clean(8)", "nilfs_cleanerd.conf(5)"],
            ..PROGRAM
        },
    ),
    (
        "nilfs.toml(5)",
        Notes {
            files: SETTINGS_FILES,
            see_also: &["nilfs(1)", "nilfs-clean(1)", "nilfs-mount(1)", "nilfs_cleanerd.conf(5)"],
            ..NOTHING
        },
    ),
    (
        "nilfs_cleanerd.conf(5)",
        Notes {
            files: SETTINGS_FILES,
            see_also: &["nilfs(1)", "nilfs-clean(8)", "nilfs_cleanerd(8)", "nilfs.toml(5)"],
            ..NOTHING
        },
    ),
];
