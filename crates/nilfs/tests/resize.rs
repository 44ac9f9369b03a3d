//! Giving volumes another size, mounted or not. The superuser and `/dev/fuse` are needed.

mod common {
    pub mod asking;
    pub mod loops;
    pub mod ours;
}

use std::fs;
use std::path::Path;

use common::asking::{json, nilfs, refused, works};
use common::loops::Loop;
use common::ours::{Image, Mounted};
use serde_json::Value;

/// No cleaner that works by itself, and nothing of the system's settings.
const MOUNT: &str = "nogc,pp=0,cleaner-config=/dev/null";

const MIB: u64 = 1 << 20;

/// Segments of 1 MiB.
fn image() -> Image {
    Image::ours("--size 32M -B 256")
}

/// Writes files of 1 MiB each.
fn fill(mounted: &Mounted, names: std::ops::Range<u8>) {
    for name in names {
        fs::write(mounted.join(&name.to_string()), vec![name; MIB as usize]).unwrap();
    }
    mounted.checkpoint();
}

#[track_caller]
fn resize(path: &Path, size: &str) -> Value {
    serde_json::from_str(&works(&["resize", "--json"], path, &[size])).unwrap()
}

fn length(image: &Image) -> u64 {
    fs::metadata(image.path()).unwrap().len()
}

#[test]
fn a_mounted_volume_shrinks_and_grows_and_keeps_its_files() {
    let image = image();
    let mounted = image.mount(MOUNT);
    fill(&mounted, 0..14);
    for name in 0..12 {
        fs::remove_file(mounted.join(&name.to_string())).unwrap();
    }
    works(&["clean"], mounted.root(), &[]);
    let manifest = mounted.manifest("");
    let shrunk = resize(mounted.root(), "16M");
    assert_eq!((&shrunk["segments_before"], &shrunk["segments"]), (&31.into(), &15.into()));
    assert!(shrunk["segments_emptied"].as_u64().unwrap() > 0, "{shrunk}");
    assert_eq!(length(&image), 16 * MIB);
    let printed = works(&["resize", "-v"], &image.path(), &["48M"]);
    assert!(printed.starts_with("47 segments of 1 MiB, 15 before\n"), "{printed}");
    assert_eq!(length(&image), 48 * MIB);
    assert!(mounted.manifest("") == manifest);
    fill(&mounted, 20..40);
    let manifest = mounted.manifest("");
    mounted.unmount();
    image.check();
    let mounted = image.mount("ro");
    assert!(mounted.manifest("") == manifest);
    mounted.unmount();
}

#[test]
fn a_volume_that_is_not_mounted_is_resized_by_the_command_itself() {
    let image = image();
    let mounted = image.mount(MOUNT);
    fill(&mounted, 0..4);
    let manifest = mounted.manifest("");
    mounted.unmount();
    for (size, segments) in [("64M", 63), ("16M", 15)] {
        assert_eq!(resize(&image.path(), size)["segments"], segments);
        image.check();
    }
    // Somebody else has made the image larger.
    fs::File::options().write(true).open(image.path()).unwrap().set_len(40 * MIB).unwrap();
    assert_eq!(works(&["resize"], &image.path(), &[]), "39 segments of 1 MiB, 15 before\n");
    assert_eq!(works(&["resize"], &image.path(), &[]), "39 segments of 1 MiB, as before\n");
    image.check();
    let mounted = image.mount("ro");
    assert!(mounted.manifest("") == manifest);
    mounted.unmount();
}

#[test]
fn what_does_not_fit_is_refused_with_what_is_missing_and_changes_nothing() {
    let image = image();
    let mounted = image.mount(MOUNT);
    fill(&mounted, 0..16);
    let manifest = mounted.manifest("");
    for path in [mounted.root(), &image.path()] {
        let said = refused(&["resize"], path, &["12M"]);
        assert!(said.contains("what is in use does not fit into that size"), "{said}");
        assert!(said.contains(" MiB); nilfs df shows what takes the space"), "{said}");
    }
    let said = refused(&["resize"], mounted.root(), &["1M"]);
    assert!(said.contains("at least 8 segments"), "{said}");
    assert_eq!(json(&["status"], mounted.root())["segments"], 31);
    assert_eq!(length(&image), 32 * MIB);
    fill(&mounted, 16..18);
    fs::remove_file(mounted.join("16")).unwrap();
    fs::remove_file(mounted.join("17")).unwrap();
    assert!(mounted.manifest("").len() == manifest.len());
    mounted.unmount();
    image.check();
}

/// `+SIZE` was once read as `SIZE`, and so made a volume smaller that was to grow.
#[test]
fn a_size_with_a_sign_is_a_difference_to_what_the_volume_has() {
    let image = image();
    for (size, segments) in [("+16M", 47), ("-8M", 39), ("+8M", 47), ("-16777216", 31)] {
        assert_eq!(resize(&image.path(), size)["segments"], segments, "{size}");
    }
    let mounted = image.mount(MOUNT);
    assert_eq!(resize(mounted.root(), "+16M")["segments"], 47);
    assert_eq!(resize(mounted.root(), "-16M")["segments"], 31);
    let said = refused(&["resize"], mounted.root(), &["-1G"]);
    assert!(said.contains("the volume has 32 MiB, less than 1 GiB"), "{said}");
    mounted.unmount();
    assert_eq!(length(&image), 32 * MIB);
    image.check();
}

#[test]
fn a_volume_does_not_outgrow_its_partition_which_can_follow_when_it_shrinks() {
    let image = image();
    let Some(device) = Loop::attach(&image.path()) else {
        eprintln!("skipped: no loop device can be set up");
        return;
    };
    let said = refused(&["resize"], &device.0, &["64M"]);
    assert!(said.contains("the device has 32 MiB (33554432 bytes), not 64 MiB"), "{said}");
    let printed = works(&["resize"], &device.0, &["16M"]);
    let expected = "15 segments of 1 MiB, 31 before\n\
        the partition can be made smaller now, but keep 16777216 bytes of it\n";
    assert_eq!(printed, expected);
    drop(device);
    fs::File::options().write(true).open(image.path()).unwrap().set_len(16 * MIB).unwrap();
    image.check();
}

#[test]
fn a_size_that_is_none_is_a_wrong_command_line() {
    let image = image();
    for size in ["big", "5X", "+-1", "--5", "-x"] {
        let (code, _, said) = nilfs(&["resize", "--"], &image.path(), &[size]);
        assert_eq!(code, Some(2), "{said}");
        assert!(size == "5X" || said.contains("expected a size such as 512M, or +512M"), "{said}");
    }
}
