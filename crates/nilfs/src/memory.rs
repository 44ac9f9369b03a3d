//! The memory of this process: the allocator, and how much there may be, which is what the machine
//! has, or what the control groups that the process is in leave to it, if that is less.

use std::ffi::c_long;
use std::fs;
use std::path::{Path, PathBuf};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives the system back what was freed. The allocator does that while it has something to do, but
/// not in a process that has become idle.
pub fn give_back() {
    // SAFETY: this can be called by any thread at any time; it touches only memory that is free.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// The allocator's option that says for how many milliseconds it keeps what was freed, of which the
/// bindings have no name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// How long it may keep that where there is little memory: not at all. By itself it does so for a second,
/// and ten times as long for what large buffers and whole threads leave; in a tenth of that a mount on a fast
/// device frees more than a small container has: pages of changes, buffers, and what a commit needs.
const NO_DELAY: c_long = 0;

/// Bytes that are little memory.
const LITTLE: u64 = 1 << 30;

/// Lets the allocator give back at once what was freed, if this process may not use more than so many bytes.
pub fn get_along_with(available: u64) {
    if available < LITTLE {
        // SAFETY: the allocator reads this option, a number, anew whenever it needs it.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, NO_DELAY) }
    }
}

/// The files that limit the memory of a control group, of both versions of control groups.
const LIMITS: [&str; 3] = ["memory.max", "memory.high", "memory.limit_in_bytes"];

/// Bytes that this process may use in addition to those that it uses already.
pub fn available() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = machine.totalram as u64 * u64::from(machine.mem_unit);
    machine.min(group_limit().unwrap_or(u64::MAX)).saturating_sub(in_use())
}

/// Bytes of memory that this process has.
fn in_use() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let resident = pages.and_then(|pages| pages.split(' ').nth(1)?.parse::<u64>().ok());
    resident.unwrap_or(0) * rustix::param::page_size() as u64
}

/// The lowest limit of the control groups of this process.
fn group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let files = mounts.lines().flat_map(|mount| directories(&groups, mount));
    let files = files.flat_map(|directory| LIMITS.map(|name| directory.join(name)));
    files.filter_map(|file| limit(&fs::read_to_string(file).ok()?)).min()
}

/// What a file says; "max" is no limit.
fn limit(content: &str) -> Option<u64> {
    content.trim().parse().ok()
}

/// The directories of the group that limits memory, and of all groups around it, as far as they can
/// be seen below a mount. `groups` is what `/proc/self/cgroup` says, `mount` a line of
/// `/proc/self/mountinfo`.
fn directories(groups: &str, mount: &str) -> Vec<PathBuf> {
    below_mount(groups, mount).unwrap_or_default()
}

fn below_mount(groups: &str, mount: &str) -> Option<Vec<PathBuf>> {
    let (place, kind) = mount.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, point) = (place.next()?, unescaped(place.next()?));
    let mut kind = kind.split(' ');
    let (kind, options) = (kind.next()?, kind.nth(1)?);
    let version_2 = kind == "cgroup2";
    let version_1 = kind == "cgroup" && options.split(',').any(|option| option == "memory");
    if !version_1 && !version_2 {
        return None;
    }
    let own = groups.lines().find_map(|group| {
        let mut fields = group.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let wanted = match version_2 {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|name| name == "memory"),
        };
        wanted.then_some(path)
    })?;
    // In a container only the part of the tree from its own group on may be mounted.
    let below = Path::new(own).strip_prefix(unescaped(root)).ok()?;
    Some(below.ancestors().map(|group| point.join(group)).collect())
}

/// A path as the kernel writes it in its tables.
fn unescaped(path: &str) -> PathBuf {
    let special = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    special.iter().fold(path.to_owned(), |path, (code, plain)| path.replace(code, plain)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(groups: &str, mount: &str) -> Vec<String> {
        let paths = directories(groups, mount);
        paths.into_iter().map(|path| path.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_own_group_and_all_around_it_count() {
        let mount =
            "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            found("0::/system.slice/nilfs.service\n", mount),
            [
                "/sys/fs/cgroup/system.slice/nilfs.service",
                "/sys/fs/cgroup/system.slice",
                "/sys/fs/cgroup/",
            ]
        );
    }

    #[test]
    fn of_version_1_only_the_controller_for_memory_counts() {
        let groups = "9:pids:/a\n4:cpu,memory:/b/c\n0::/\n";
        let memory = "31 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory";
        let pids = "32 23 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids";
        let expected =
            ["/sys/fs/cgroup/memory/b/c", "/sys/fs/cgroup/memory/b", "/sys/fs/cgroup/memory/"];
        assert_eq!(found(groups, memory), expected);
        assert_eq!(found(groups, pids), [""; 0]);
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_tree() {
        let mount = "31 23 0:28 /docker/1234 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        let own = "4:memory:/docker/1234/inner\n";
        assert_eq!(found(own, mount), ["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory/"]);
        assert_eq!(found("4:memory:/elsewhere\n", mount), [""; 0]);
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!((limit("max\n"), limit("67108864\n"), limit("")), (None, Some(64 << 20), None));
    }

    #[test]
    fn the_allocator_keeps_nothing_that_was_freed_where_there_is_little_memory() {
        // SAFETY: this only reads a number.
        let delay = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        get_along_with(LITTLE);
        assert_eq!(delay(), 1000, "the option is not the one that was meant");
        get_along_with(LITTLE - 1);
        assert_eq!(delay(), NO_DELAY);
    }

    #[test]
    fn a_process_may_use_something_but_not_more_than_there_is() {
        let machine = rustix::system::sysinfo();
        let machine = machine.totalram as u64 * u64::from(machine.mem_unit);
        assert!((1..machine).contains(&available()));
        assert!(in_use() > 0);
    }
}
