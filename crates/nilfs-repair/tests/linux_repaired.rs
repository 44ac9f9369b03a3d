//! What a repair calls sound, Linux takes for sound. Volumes are damaged at random and repaired; if no
//! error is left, Linux mounts them, shows the same files as we do, and writes to them without a
//! complaint, and the checker finds nothing wrong with what Linux has made of them.
//!
//! A failure names the seed: `NILFS_REPAIR_SEED` plays it again, `NILFS_REPAIR_ROUNDS` makes more of them.

mod support;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nilfs_check::Options;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{FileType, Volume};
use nilfs_real_kernels::Uml;
use rand::SeedableRng;
use rand::rngs::StdRng;
use support::{
    BLOCK_SIZES, File, Image, Patient, UUID, checked, content_of, damage_visibly, lived, number,
};

/// Damaged copies of each volume.
const ROUNDS: u64 = 12;

/// The content of files that are shorter than this is compared; of a longer one the beginning is read.
const COMPARED: u64 = 4 << 20;

/// Many volumes are mounted twice, in a guest whose system calls are slow.
const MOST_TIME: Duration = Duration::from_secs(3600);

/// Says what is in each volume, reads all of it, and writes to it, unless the damage has made the root
/// directory one that nobody may change.
const SCRIPT: &str = r#"
    look_and_write() {
        mount_nilfs
        mkdir "${IMAGE%.img}"
        cd "$MNT"
        find . -mindepth 1 -printf '%y %n %s %P\0' >"$IMAGE.list"
        find . -type f -size -${COMPARED}c -print0 | xargs -0r cp --parents -t "${IMAGE%.img}"
        find . -type f -size +$((COMPARED - 1))c -exec head -c $COMPARED {} \; >/dev/null
        cd /
        if mkdir "$MNT/written by Linux"; then
            head -c 300000 /dev/urandom >"$MNT/written by Linux/file"
            sync
            echo more >>"$MNT/written by Linux/file"
        fi
        umount_nilfs
    }
    each_image "$IMAGES" look_and_write"#;

/// The volume without its damage, if no error is left after the repair.
fn repaired(image: Image) -> Option<Vec<u8>> {
    let patient = Patient::new(image);
    let plan = nilfs_repair::plan(&patient.device, &Options::default(), UUID).ok()?;
    if plan.can_be_applied() {
        plan.apply(&*patient.device, &mut |_| {}).unwrap();
    }
    checked(&patient.bytes()).is_ok_and(|report| report.is_consistent()).then(|| patient.bytes())
}

/// Type, links, size and content by path.
type Shown = BTreeMap<String, (char, u16, u64, Vec<u8>)>;

fn shown_by_linux(image: &Path) -> Shown {
    let list = fs::read(image.with_extension("img.list")).unwrap();
    let files = list.split(|byte| *byte == 0).filter(|it| !it.is_empty()).map(|file| {
        let mut words = file.splitn(4, |byte| *byte == b' ');
        let mut next = || words.next().unwrap();
        let mut word = || String::from_utf8(next().to_vec()).unwrap();
        let kind = word().chars().next().unwrap();
        let (links, size) = (word().parse().unwrap(), word().parse().unwrap());
        let path = next();
        let content = match kind {
            'f' if size < COMPARED => {
                fs::read(image.with_extension("").join(OsStr::from_bytes(path))).unwrap()
            }
            _ => Vec::new(),
        };
        (format!("/{}", String::from_utf8_lossy(path)), (kind, links, size, content))
    });
    files.collect()
}

fn shown_by_us(bytes: &[u8]) -> Shown {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(bytes.to_vec()));
    let files = content_of(&Volume::open(device).unwrap(), None);
    let letter = |file_type| match file_type {
        FileType::Regular => 'f',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
    };
    let of_file = |(path, (kind, links, size, mut bytes)): (String, File)| {
        bytes.truncate(if size < COMPARED { bytes.len() } else { 0 });
        (path, (letter(kind), links, size, bytes))
    };
    files.into_iter().map(of_file).collect()
}

/// Fails with what differs, but not with kilobytes of content.
#[track_caller]
fn assert_same(what: &str, linux: &Shown, ours: &Shown) {
    for path in linux.keys().chain(ours.keys()) {
        let brief = |shown: &Shown| shown.get(path).map(|file| (file.0, file.1, file.2));
        assert_eq!(brief(linux), brief(ours), "{what}: {path}");
        assert!(linux[path].3 == ours[path].3, "{what}: the content of {path}");
    }
}

#[test]
fn linux_agrees_that_a_repaired_volume_is_sound() {
    let first = number("NILFS_REPAIR_SEED", rand::random::<u32>().into());
    println!("NILFS_REPAIR_SEED={first}");
    let directory = tempfile::tempdir().unwrap();
    let mut given = Vec::new();
    let (mut made, mut changed) = (0, 0);
    for block_size in BLOCK_SIZES {
        for (origin, sound) in [("Linux", Image::by_linux(block_size)), ("us", lived(block_size))] {
            for seed in first..first + number("NILFS_REPAIR_ROUNDS", ROUNDS) {
                let mut image = sound.clone();
                damage_visibly(&mut image, &mut StdRng::seed_from_u64(seed));
                made += 1;
                let damaged = image.bytes.clone();
                let Some(bytes) = repaired(image) else { continue };
                changed += u32::from(bytes != damaged);
                let nth = given.len();
                let path = directory.path().join(format!("{nth:05}.img"));
                fs::write(&path, &bytes).unwrap();
                let what = format!(
                    "{nth}: block size {block_size}, made by {origin}, NILFS_REPAIR_SEED={seed}"
                );
                given.push((what, path, shown_by_us(&bytes)));
            }
        }
    }
    // The names of the kernel's log are those of the images.
    let names: String = given.iter().map(|(what, ..)| format!("{what}\n")).collect();
    let guest = Uml::new(&given[0].1)
        .env("IMAGES", directory.path())
        .env("COMPARED", COMPARED.to_string())
        .timeout(MOST_TIME);
    let ended = guest.script(SCRIPT).run().unwrap();
    let complaints = ended.kernel_log.complaints_besides_recovery();
    assert!(complaints.is_empty(), "{complaints:#?}, {:#?}\n{names}", ended.kernel_log.lines());
    ended.succeeded().unwrap_or_else(|error| panic!("{error}\n{names}"));
    for (what, path, ours) in &given {
        assert_same(what, &shown_by_linux(path), ours);
        let report = checked(&fs::read(path).unwrap()).unwrap();
        assert!(report.is_consistent(), "{what}, after Linux has written: {report}");
    }
    println!("{made} volumes were damaged, {changed} repaired, and {} given to Linux", given.len());
    assert!(2 * changed > made, "most volumes can be repaired");
}
