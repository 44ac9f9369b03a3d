//! Requests are done, which can be read back, or refused, and then nothing has changed.
//! `chattr -p 5`, `touch -a` and most letters of chattr were accepted, and nothing came of them.

use std::ffi::c_long;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, XattrFlags, ioctl_getflags, ioctl_setflags, utimensat,
};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

use crate::support::{World, names, open};

/// A request about a file.
type Request = fn(&Path) -> Result<(), Errno>;

/// Errors that say of a request that it is not done.
const REFUSALS: [Errno; 3] = [Errno::OPNOTSUPP, Errno::INVAL, Errno::NOTTY];

/// Linux's `struct fsxattr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Extended {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

fn extended(path: &Path) -> Extended {
    const GET: Opcode = opcode::read::<Extended>(b'X', 31);
    // SAFETY: FS_IOC_FSGETXATTR writes a struct fsxattr.
    unsafe { ioctl(File::open(path).unwrap(), Getter::<GET, Extended>::new()) }.unwrap()
}

fn set_extended(path: &Path, extended: Extended) -> Result<(), Errno> {
    const SET: Opcode = opcode::write::<Extended>(b'X', 32);
    // SAFETY: FS_IOC_FSSETXATTR reads a struct fsxattr.
    unsafe { ioctl(File::open(path).unwrap(), Setter::<SET, Extended>::new(extended)) }
}

/// All that can be read of a file.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    content: Option<Vec<u8>>,
    flags: IFlags,
    extended: Extended,
    times: [(i64, i64); 3],
    size_and_blocks: (u64, u64),
    names: Vec<String>,
}

impl Facts {
    fn of(path: &Path) -> Self {
        let metadata = fs::metadata(path).unwrap();
        Self {
            content: fs::read(path).ok(),
            flags: ioctl_getflags(File::open(path).unwrap()).unwrap(),
            extended: extended(path),
            times: [
                (metadata.atime(), metadata.atime_nsec()),
                (metadata.mtime(), metadata.mtime_nsec()),
                (metadata.ctime(), metadata.ctime_nsec()),
            ],
            size_and_blocks: (metadata.size(), metadata.blocks()),
            names: names(path.parent().unwrap()),
        }
    }
}

/// Asks for something about `path`. Either `is_done` finds it done, or it was refused and has changed
/// nothing. Returns whether it was done.
#[track_caller]
fn ask(
    what: &str,
    path: &Path,
    request: impl FnOnce(&Path) -> Result<(), Errno>,
    is_done: impl FnOnce(&Facts) -> bool,
) -> bool {
    let before = Facts::of(path);
    let answer = request(path);
    let after = Facts::of(path);
    match answer {
        Ok(()) => assert!(is_done(&after), "{what} was accepted and not done: {after:?}"),
        Err(errno) => {
            assert!(REFUSALS.contains(&errno), "{what}: {errno}");
            assert_eq!(after, before, "{what} was refused, and has changed something");
        }
    }
    answer.is_ok()
}

/// The extended flags that the kernel takes out of every request: preallocated, and with attributes.
const ONLY_TOLD: u32 = 0x2 | 0x8000_0000;

/// The bits that are accepted by themselves.
fn accepted_bits(mut ask: impl FnMut(u32) -> bool) -> u32 {
    (0..32).map(|bit| 1 << bit).filter(|bit| ask(*bit)).fold(0, |all, bit| all | bit)
}

/// Of those that read back, only the first two have to be heeded by us, as other tests see to. The
/// others are for programs (no dump), or rule out what no file here has: access times, compressed
/// content, shared tails.
#[test]
fn flags_that_would_have_no_effect_are_refused() {
    let heeded = IFlags::IMMUTABLE | IFlags::APPEND;
    let true_of_all = IFlags::NODUMP | IFlags::NOATIME | IFlags::from_bits_retain(0x400 | 0x8000);
    let world = World::new();
    for path in [world.file("file", "content"), world.directory("directory")] {
        let set = |path: &Path, bits| {
            ioctl_setflags(File::open(path).unwrap(), IFlags::from_bits_retain(bits))
        };
        let accepted = accepted_bits(|bit| {
            let request = |path: &Path| set(path, bit);
            let done =
                ask(&format!("flag {bit:#x}"), &path, request, |facts| facts.flags.bits() == bit);
            set(&path, 0).unwrap();
            done
        });
        assert_eq!(IFlags::from_bits_retain(accepted), heeded | true_of_all, "{path:?}");
    }
}

#[test]
fn extended_attributes_of_inodes_are_set_or_refused_field_by_field() {
    let world = World::new();
    for path in [world.file("file", "content"), world.directory("directory")] {
        let accepted = accepted_bits(|bit| {
            let wanted = Extended { flags: bit, ..Extended::default() };
            if bit & ONLY_TOLD != 0 {
                return false;
            }
            // The kernel drops the flags of hints that are zero.
            let hint = |flag, size| if bit & flag != 0 { size } else { 0 };
            let wanted = Extended {
                extent_size: hint(0x800 | 0x1000, 4096),
                cow_extent_size: hint(0x1_0000, 4096),
                ..wanted
            };
            let request = |path: &Path| set_extended(path, wanted);
            let done = ask(&format!("xflag {bit:#x}"), &path, request, |facts| {
                facts.extended.flags == bit
            });
            set_extended(&path, Extended::default()).unwrap();
            done
        });
        assert_eq!(accepted, 0x08 | 0x10 | 0x40 | 0x80, "immutable, append, noatime, nodump");
        let fields = [
            ("project", Extended { project: 5, ..Extended::default() }),
            ("CoW extent size", Extended { cow_extent_size: 4096, ..Extended::default() }),
            ("project and flag", Extended { project: 5, flags: 0x40, ..Extended::default() }),
        ];
        for (what, wanted) in fields {
            let request = |path: &Path| set_extended(path, wanted);
            ask(what, &path, request, |facts| facts.extended == wanted);
        }
    }
}

#[test]
fn times_read_back_as_they_were_set_or_are_refused() {
    const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };
    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW as _ };
    const SOME: Timespec = Timespec { tv_sec: 5, tv_nsec: 7 };
    const OTHER: Timespec = Timespec { tv_sec: 6, tv_nsec: 8 };
    let world = World::new();
    let reads_back = |time: Timespec, before: (i64, i64), after: (i64, i64)| match time {
        OMIT => after == before,
        NOW => after > (1_000_000_000, 0),
        time => after == (time.tv_sec, time.tv_nsec as _),
    };
    for path in [world.file("file", "content"), world.directory("directory")] {
        let set = |times: (Timespec, Timespec)| {
            let times = Timestamps { last_access: times.0, last_modification: times.1 };
            move |path: &Path| utimensat(CWD, path, &times, AtFlags::empty())
        };
        for atime in [NOW, SOME, OTHER] {
            set((SOME, SOME))(&path).unwrap();
            let before = Facts::of(&path).times;
            let done = ask(&format!("atime {atime:?}"), &path, set((atime, OMIT)), |facts| {
                reads_back(atime, before[0], facts.times[0])
                    && reads_back(OMIT, before[1], facts.times[1])
            });
            assert_eq!(done, atime == SOME, "tar restores the one that it has seen");
        }
        // Programs that copy, unpack or lock set both in one call.
        for mtime in [NOW, SOME, OTHER] {
            for atime in [OMIT, NOW, SOME, OTHER] {
                let before = Facts::of(&path).times;
                let done = ask("both times", &path, set((atime, mtime)), |facts| {
                    reads_back(mtime, before[1], facts.times[1])
                });
                assert!(done, "{atime:?}, {mtime:?}");
            }
        }
    }
}

/// A program that allocates wants to be sure of room, and one that punches wants it back.
#[test]
fn fallocate_is_refused_in_each_mode() {
    let world = World::new();
    let path = world.file("file", vec![7; 16384]);
    let modes = (0..8).map(|bit| 1 << bit).chain([0, 3, 0x11]);
    for mode in modes.map(FallocateFlags::from_bits_retain) {
        let request = |path: &Path| {
            let file = open(path, OFlags::empty()).unwrap();
            rustix::fs::fallocate(file, mode, 4096, 1 << 20)
        };
        assert!(!ask(&format!("fallocate {mode:?}"), &path, request, |_| false), "{mode:?}");
    }
}

#[test]
fn each_way_to_rename_is_done_or_refused() {
    let world = World::new();
    let dir = world.directory("dir");
    for flags in (0..6).map(|bit| 1 << bit).chain([3, 6]).map(RenameFlags::from_bits_retain) {
        let (from, to) = (world.file("dir/from", "from"), dir.join("to"));
        fs::write(&to, "to").unwrap();
        let request = |path: &Path| {
            rustix::fs::renameat_with(CWD, path, CWD, &to, flags).map_err(|errno| match errno {
                // The other name is there.
                Errno::EXIST if flags == RenameFlags::NOREPLACE => Errno::INVAL,
                errno => errno,
            })
        };
        let exchanged = |facts: &Facts| {
            flags == RenameFlags::EXCHANGE && facts.content.as_deref() == Some(b"to")
        };
        ask(&format!("rename {flags:?}"), &from, request, exchanged);
    }
}

#[test]
fn attributes_with_names_are_refused_in_each_name_space() {
    let world = World::new();
    let path = world.file("file", "content");
    for name in ["user.a", "trusted.a", "security.a", "system.posix_acl_access", "system.nfs4_acl"]
    {
        let request = |path: &Path| rustix::fs::setxattr(path, name, b"b", XattrFlags::empty());
        assert!(!ask(name, &path, request, |_| false), "{name}");
    }
}

#[test]
fn requests_of_other_file_systems_are_refused() {
    fn send<const NUMBER: Opcode>(path: &Path) -> Result<(), Errno> {
        let file = open(path, OFlags::empty()).unwrap();
        let mut argument = [0; 64];
        argument[0] = file.as_raw_fd() as u64;
        // SAFETY: these requests read at most as many bytes.
        unsafe { ioctl(file, Setter::<NUMBER, [u64; 64]>::new(argument)) }
    }
    let world = World::new();
    let path = world.file("file", "content");
    let requests: [(&str, Request); 4] = [
        ("FS_IOC_SETVERSION", send::<{ opcode::write::<c_long>(b'v', 2) }>),
        ("FS_IOC_SETFSLABEL", send::<{ opcode::write::<[u8; 256]>(0x94, 50) }>),
        ("FITRIM", send::<{ opcode::read_write::<[u64; 3]>(b'X', 121) }>),
        ("FICLONERANGE", send::<{ opcode::write::<[u64; 4]>(0x94, 13) }>),
    ];
    for (what, request) in requests {
        assert!(!ask(what, &path, request, |_| false), "{what}");
    }
}

#[test]
fn files_opened_in_a_special_way_are_what_was_asked_for() {
    let world = World::new();
    let path = world.file("file", vec![7; 8192]);
    let before = fs::metadata(&path).unwrap();
    let unread = open(&path, OFlags::NOATIME).unwrap();
    unread.read_exact_at(&mut [0; 100], 0).unwrap();
    assert_eq!(before.atime_nsec(), fs::metadata(&path).unwrap().atime_nsec());
    // Bytes that go past the cache reach the volume, and bytes in the cache do not hide them.
    let direct = open(&path, OFlags::DIRECT).unwrap();
    let page = vec![9_u8; 8192];
    let aligned = page.as_ptr().align_offset(4096) % 4096;
    direct.write_all_at(&page[aligned..aligned + 4096], 0).unwrap();
    assert_eq!(fs::read(&path).unwrap()[4095..4097], [9, 7]);
    let nameless = open(&world.path(""), OFlags::TMPFILE).unwrap();
    nameless.write_all_at(b"x", 0).unwrap();
    assert_eq!(names(&world.path("")), ["file"]);
    let birth = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::BTIME).unwrap();
    assert_eq!(birth.stx_mask & StatxFlags::BTIME.bits(), 0, "the format has no birth times");
}
