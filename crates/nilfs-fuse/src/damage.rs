//! Damage of files, of which the log tells by path. An error knows the number of the file, from which nothing
//! leads to a name but a walk through the directories. So a thread walks, once for all that has come up
//! meanwhile, and no request waits for it. It walks through the files as they are shown, with no lock of
//! ours, so a path is that of now: one of them, if the file has several, and none if it was deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nilfs_engine::{FileType, Files};
use nilfs_ondisk::Ino;
use parking_lot::Mutex;

/// Directories that are still looked through when the mount ends: an unmount must not take long for that.
const MOST_AT_END: usize = 1000;

/// Messages about files, until the log has them.
pub(crate) struct Damage {
    files: Arc<dyn Files>,
    state: Mutex<State>,
    /// Whether the mount ends.
    ends: AtomicBool,
}

#[derive(Default)]
struct State {
    untold: Untold,
    is_walking: bool,
    /// The thread that walks, or was the last to do so.
    walker: Option<JoinHandle<()>>,
}

type Untold = BTreeMap<Ino, Vec<String>>;

impl Damage {
    pub fn new(files: Arc<dyn Files>) -> Arc<Self> {
        Arc::new(Self { files, state: Mutex::default(), ends: AtomicBool::new(false) })
    }

    /// Tells the log of damage that was met in a file, in a moment.
    pub fn tell(self: &Arc<Self>, ino: Ino, message: String) {
        let mut state = self.state.lock();
        state.untold.entry(ino).or_default().push(message);
        if std::mem::replace(&mut state.is_walking, true) {
            return;
        }
        if let Some(done) = state.walker.take() {
            // It has nothing left to do but to end.
            let _ = done.join();
        }
        let this = Arc::clone(self);
        let walk = move || {
            while let Some(untold) = this.next() {
                this.in_words(untold).iter().for_each(|message| tracing::error!("{message}"));
            }
        };
        match thread::Builder::new().name("damage".to_owned()).spawn(walk) {
            Ok(walker) => state.walker = Some(walker),
            // Without a thread, the number has to do: it is in the message.
            Err(_) => {
                state.is_walking = false;
                let untold = std::mem::take(&mut state.untold).into_values().flatten();
                untold.for_each(|message| tracing::error!("{message}"));
            }
        }
    }

    /// Waits until the log knows everything.
    pub fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
        let walker = self.state.lock().walker.take();
        // A panic has ended the process.
        let _ = walker.map(JoinHandle::join);
    }

    /// Takes the messages that have come up. Without any, the thread ends.
    fn next(&self) -> Option<Untold> {
        let mut state = self.state.lock();
        state.is_walking = !state.untold.is_empty();
        state.is_walking.then(|| std::mem::take(&mut state.untold))
    }

    /// Puts paths before messages.
    fn in_words(&self, untold: Untold) -> Vec<String> {
        let paths = self.paths(untold.keys().copied().collect());
        let of_file = |(ino, messages): (Ino, Vec<String>)| {
            let path = paths
                .get(&ino)
                .map(|path| String::from_utf8_lossy(path).escape_debug().to_string());
            let before = path.map_or_else(String::new, |path| format!("{path}: "));
            messages.into_iter().map(move |message| format!("{before}{message}"))
        };
        untold.into_iter().flat_map(of_file).collect()
    }

    /// Finds a path of each of these files, relative to the root directory, as far as names lead to them.
    fn paths(&self, mut wanted: BTreeSet<Ino>) -> BTreeMap<Ino, Vec<u8>> {
        let mut paths = BTreeMap::new();
        if wanted.remove(&Ino::ROOT) {
            paths.insert(Ino::ROOT, b"/".to_vec());
        }
        let mut directories = vec![(Ino::ROOT, Vec::new())];
        // On a damaged volume a directory may have two names.
        let mut entered = BTreeSet::from([Ino::ROOT]);
        let mut left_at_end = MOST_AT_END;
        while let Some((dir, above)) = directories.pop().filter(|_| !wanted.is_empty()) {
            if self.ends.load(Ordering::Relaxed) {
                let Some(left) = left_at_end.checked_sub(1) else { break };
                left_at_end = left;
            }
            // As far as it can be read.
            let _ = self.files.read_dir(dir, 0, &mut |entry| {
                if matches!(entry.name, b"." | b"..") {
                    return true;
                }
                let path = || [&above[..], entry.name].concat();
                if wanted.remove(&entry.ino) {
                    paths.insert(entry.ino, path());
                }
                let may_be_directory = entry.file_type.is_none_or(|it| it == FileType::Directory);
                if may_be_directory && entered.insert(entry.ino) {
                    directories.push((entry.ino, [&path()[..], b"/"].concat()));
                }
                !wanted.is_empty()
            });
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use nilfs_device::MemoryDevice;
    use nilfs_engine::mkfs::{Parameters, format};
    use nilfs_engine::{DeviceCode, Filesystem, MountOptions, NewInode};
    use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};

    use super::*;

    /// The log had the number of the file alone.
    #[test]
    fn the_log_hears_of_a_damaged_file_by_its_path_of_now() {
        let device = MemoryDevice::new(32 << 20);
        let parameters =
            Parameters { blocks_per_segment: 256, ..Parameters::new([7; 16], 1, 1_700_000_000) };
        format(&device, &parameters).unwrap();
        let fs = Filesystem::mount(Arc::new(device), MountOptions::default()).unwrap();
        let new = |mode| NewInode { mode, uid: 0, gid: 0, rdev: DeviceCode::default() };
        let root = fs.root().unwrap().inode;
        let mut dir = root.clone();
        for name in [&b"above"[..], b"dir"] {
            dir = fs.create(&dir, name, &new(S_IFDIR | 0o755)).unwrap().inode;
        }
        let file = |name: &[u8]| fs.create(&dir, name, &new(S_IFREG | 0o644)).unwrap().inode;
        let (linked, deleted) = (file(b"fi\nle"), file(b"deleted"));
        fs.link(&linked, &root, b"other name").unwrap();
        fs.commit().unwrap();
        fs.unlink(&dir, b"deleted").unwrap();
        let damage = Damage::new(fs.clone());
        let told = |files: &[Ino]| {
            damage.in_words(files.iter().map(|ino| (*ino, vec!["bad".to_owned()])).collect())
        };
        assert_eq!(told(&[dir.ino()]), ["above/dir: bad"]);
        assert_eq!(told(&[root.ino()]), ["/: bad"]);
        let one_name = told(&[linked.ino()]);
        assert!(
            [["above/dir/fi\\nle: bad"], ["other name: bad"]].iter().any(|it| one_name == *it),
            "{one_name:?}"
        );
        assert_eq!(told(&[deleted.ino()]), ["bad"]);
        fs.unlink(&root, b"other name").unwrap();
        assert_eq!(told(&[linked.ino(), dir.ino()]).len(), 2);
        assert_eq!(told(&[linked.ino()]), ["above/dir/fi\\nle: bad"]);
        // What is told until the end is told, and the next one finds a thread again.
        for _ in 0..3 {
            damage.tell(linked.ino(), "one".to_owned());
            damage.tell(deleted.ino(), "another".to_owned());
        }
        damage.end();
        assert!(damage.state.lock().untold.is_empty() && !damage.state.lock().is_walking);
    }
}
