//! History is shorter than the protection period only where there is no room for it, and then the log of
//! the mount says so. The superuser and `/dev/fuse` are needed.

mod common {
    pub mod ours;
}

use std::fs::File;
use std::os::unix::fs::FileExt;

use common::ours::Image;

/// Writes a file of 4 MiB anew, as often as it is told, with a checkpoint each time. Returns what the
/// process that serves the volume has warned of.
fn written(times: u8, options: &str) -> String {
    let image = Image::ours("--size 144M");
    let mounted = image.mount(options);
    let file = File::create(mounted.join("file")).unwrap();
    for time in 0..times {
        file.write_all_at(&vec![time + 1; 4 << 20], 0).unwrap();
        mounted.checkpoint();
    }
    drop(file);
    mounted.unmount_after_words()
}

#[test]
fn the_log_says_when_history_becomes_shorter_than_it_was_promised() {
    let said = written(60, "pp=3600");
    let warnings: Vec<_> =
        said.lines().filter(|line| line.contains("inside the protection period")).collect();
    let [warning] = warnings[..] else { panic!("it is said once, and not again at once: {said}") };
    assert!(warning.contains("WARN") && warning.ends_with("instead of 3600 s"), "{said}");

    assert_eq!(written(10, "pp=3600"), "", "there is room");
    assert_eq!(written(60, "pp=0"), "", "nothing was promised");
}
