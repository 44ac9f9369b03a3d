//! The device goes away under a mounted volume, and comes back. Meanwhile, every request to it fails:
//! programs are told so, `nilfs status` answers, and unmounting ends. Afterwards, everything is there of
//! which somebody was told that it is durable. The superuser and `/dev/fuse` are needed.

mod common {
    pub mod ours;
}

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use common::ours::{Image, Mounted};
use nilfs_lab::export::{Export, ExportOptions};

/// Bytes of a file: more than a log of small changes has.
const FILE_BYTES: usize = 50_000;

/// Programs try that often to write while there is no device.
const ATTEMPTS: usize = 50;

/// The content of each file that was synced.
type Durable = BTreeMap<String, Vec<u8>>;

fn content(nth: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at / 7 + nth * 31) as u8).collect()
}

/// Writes a file aside and puts it in its place; all of it is durable if that succeeds.
fn replace(root: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let aside = root.join("aside");
    let mut file = File::create(&aside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(aside, root.join(name))?;
    File::open(root)?.sync_all()
}

/// Works for as long as that succeeds, and no longer than the given steps. Returns the error, if there
/// was one.
fn work(root: &Path, durable: &mut Durable, steps: std::ops::Range<usize>) -> Option<io::Error> {
    steps.into_iter().find_map(|nth| {
        let (name, bytes) = (format!("file{}", nth % 7), content(nth));
        let done = replace(root, &name, &bytes);
        // Whether it is there if it was not said, nobody knows.
        durable.remove(&name);
        done.map(|()| durable.insert(name, bytes)).err()
    })
}

#[test]
fn what_was_synced_is_there_when_the_device_is_back() {
    let image = Image::ours("--size 48M -B 128");
    let export = Export::start(ExportOptions {
        image: image.path(),
        bytes: fs::metadata(image.path()).unwrap().len(),
        model: None,
        pace: false,
        queue_depth: 64,
        keep_data: None,
    });
    let export = export.unwrap();
    let mut durable = Durable::new();
    for round in 0..3 {
        let mounted = Mounted::of(export.path(), "rw,pp=0");
        for (name, bytes) in &durable {
            let found = fs::read(mounted.join(name)).unwrap();
            assert!(found == *bytes, "{name} is not what was synced, in round {round}");
        }
        let first = round * 1000;
        let failed = work(mounted.root(), &mut durable, first..first + 20);
        assert!(failed.is_none(), "there is a device: {failed:?}");
        assert!(!durable.is_empty());

        export.power().cut();
        let mut after = durable.clone();
        let failed = work(mounted.root(), &mut after, first + 20..first + 20 + ATTEMPTS);
        assert!(failed.is_some(), "nothing was written, but everybody was told that it was");
        for nth in 0..ATTEMPTS {
            let _ = replace(mounted.root(), "storm", &content(nth));
            let _ = fs::read(mounted.join(&format!("file{}", nth % 7)));
        }
        let status = mounted.nilfs(&["status"]);
        let said = String::from_utf8_lossy(&status.stdout);
        assert!(said.contains("read-only after an error"), "{status:?}");
        let umount = mounted.nilfs(&["umount"]);
        assert_eq!(umount.status.code(), Some(1), "it says what is lost: {umount:?}");
        mounted.wait();
        export.power().restore();
        // What was replaced meanwhile, or not, is what it was.
        durable.retain(|name, bytes| after.get(name) == Some(bytes));
    }
    let mounted = Mounted::of(export.path(), "rw");
    for (name, bytes) in &durable {
        assert!(fs::read(mounted.join(name)).unwrap() == *bytes, "{name} is not what was synced");
    }
    mounted.unmount();
    export.end().unwrap();
    image.check();
}
