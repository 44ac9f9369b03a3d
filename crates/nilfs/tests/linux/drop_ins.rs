//! Our tools against the real ones: both look at the same image, and every byte that they print
//! is the same. The real ones need a mounted volume, and have it in a Linux of its own.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nilfs_real_kernels::{LinuxImage, Uml};

use crate::common::tool::tool;
use crate::ours::Image;

/// What is asked of a volume that is mounted read-only, a line each; `IMAGE` stands for the volume.
const MOUNTED: &str = include_str!("../drop_ins/mounted.txt");

/// What is asked of a volume that is not mounted, in this order: some of it changes the volume.
const UNMOUNTED: &str = include_str!("../drop_ins/unmounted.txt");

/// Asks Linux's tools. Their answers are in files named by the number of the question.
const ASK: &str = r#"
nth=0
while read -r question; do
    code=0
    ${question//IMAGE/$DEV} >"$ANSWERS/$nth" 2>"$ANSWERS/stderr" </dev/null || code=$?
    { cat "$ANSWERS/stderr"; echo "exit code $code"; } >>"$ANSWERS/$nth"
    sync "$ANSWERS/$nth"
    nth=$((nth + 1))
done <"$ANSWERS/questions"
"#;

/// Prepares what the tools need to lock the cleaner out.
const LOCKS: &str = "mkdir -p /dev/shm\nmount -t tmpfs shm /dev/shm\n";

/// A rich history: files that change, snapshots, minor checkpoints, a checkpoint that is gone.
const HISTORY: &str = r#"
mount_nilfs
for i in 1 2 3 4 5 6 7 8; do
    dd if=/dev/urandom of="$MNT/f" bs=1k count=300 conv=notrunc status=none
    echo $i >"$MNT/g$i"
    sync
    mkcp "$DEV"
done
mkcp -s "$DEV"
mkcp -s "$DEV"
chcp ss "$DEV" 3 5
chcp cp "$DEV" 5
rm "$MNT/g3"
sync
mkdir "$MNT/dir"
sync
rmcp "$DEV" 4
umount_nilfs
"#;

/// The answers of Linux's tools, in a guest that does `before` and `afterwards`, too.
#[track_caller]
fn theirs(image: &Path, before: &str, questions: &str, afterwards: &str) -> Vec<String> {
    let answers = tempfile::tempdir().unwrap();
    fs::write(answers.path().join("questions"), questions).unwrap();
    Uml::new(image)
        .timeout(Duration::from_secs(900))
        .env("ANSWERS", answers.path())
        .env("TZ", "UTC")
        .script([LOCKS, before, ASK, afterwards].concat())
        .run()
        .unwrap()
        .succeeded()
        .unwrap();
    let answer = |nth: usize| fs::read(answers.path().join(nth.to_string())).unwrap();
    let answers = (0..questions.lines().count()).map(answer);
    answers.map(|answer| comparable(&answer, Path::new("/dev/ubda"))).collect()
}

/// The answers of our tools.
fn ours(image: &Path, questions: &str) -> Vec<String> {
    let answer = |question: &str| {
        let mut words = question.split(' ').map(|word| match word {
            "IMAGE" => image.to_str().unwrap(),
            word => word,
        });
        let outcome = tool(words.next().unwrap(), words);
        let code = outcome.code.unwrap();
        let answer = format!("{}{}exit code {code}\n", outcome.stdout, outcome.stderr);
        comparable(answer.as_bytes(), image)
    };
    questions.lines().map(answer).collect()
}

/// An answer without what tells whose it is.
fn comparable(answer: &[u8], image: &Path) -> String {
    let answer = String::from_utf8_lossy(answer).replace(image.to_str().unwrap(), "IMAGE");
    // Up to 2.2.9 this one greets.
    let lines = answer.lines().filter(|line| !line.starts_with("nilfs-tune 2."));
    let lines = lines.map(|line| line.split_once(" (nilfs").map_or(line, |(program, _)| program));
    lines.collect::<Vec<_>>().join("\n")
}

/// Fails with all questions to which our answer is another one.
#[track_caller]
fn assert_same(questions: &str, theirs: Vec<String>, ours: Vec<String>) {
    let answers = questions.lines().zip(theirs.into_iter().zip(ours));
    let differing: Vec<_> = answers.filter(|(_, (theirs, ours))| theirs != ours).collect();
    assert!(differing.is_empty(), "questions, their answers and ours: {differing:#?}");
}

#[track_caller]
fn compare_mounted(image: &Path, before: &str) {
    let before = format!("{before}\nmount_nilfs ro\n");
    let theirs = theirs(image, &before, MOUNTED, "umount_nilfs\n");
    assert_same(MOUNTED, theirs, ours(image, MOUNTED));
}

#[test]
fn on_a_volume_of_linux_they_print_the_same() {
    for block_size in [1024, 4096] {
        let made = LinuxImage::of_size(64 << 20).block_size(block_size).blocks_per_segment(128);
        let image = Image::of_linux(&made);
        compare_mounted(&image.path(), HISTORY);
    }
}

/// What our tools did to a volume of ours, the real ones see as ours do.
#[test]
fn on_a_volume_of_ours_they_print_the_same() {
    let image = Image::ours("--size 64M -b 1024 -B 128");
    let path = image.path();
    let path = path.to_str().unwrap();
    let mounted = image.mount("rw,nogc");
    for round in 0..8_u8 {
        fs::write(mounted.join("f"), vec![round; 300 << 10]).unwrap();
        fs::write(mounted.join(&format!("g{round}")), [round]).unwrap();
        tool("mkcp", [path]).output();
    }
    tool("mkcp", ["-s", path]).output();
    tool("chcp", ["ss", path, "3", "5"]).output();
    mounted.unmount();
    tool("chcp", ["cp", path, "5"]).output();
    tool("rmcp", [path, "4"]).output();
    tool("nilfs-clean", ["-p", "0", "-S", "2/0", path]).output();
    image.check();
    compare_mounted(&image.path(), "");
}

/// Whatever is asked of them: they say the same, and leave the same bytes.
#[test]
fn on_a_volume_that_is_not_mounted_they_say_and_do_the_same() {
    let image = Image::ours("--size 64M -b 1024 -B 128");
    let copy = image.copy();
    let theirs = theirs(&image.path(), "", UNMOUNTED, "");
    assert_same(UNMOUNTED, theirs, ours(&copy.path(), UNMOUNTED));
    assert!(fs::read(image.path()).unwrap() == fs::read(copy.path()).unwrap());
    copy.check();
}

/// Bytes of mkfs.nilfs2, whichever of them has made the volume, are compared in `mkfs.rs`; here is
/// that the option letters mean the same.
#[test]
fn linux_mounts_what_mkfs_made_by_its_options() {
    let image = Image::ours("--size 64M -B 128");
    let path = image.path();
    let line =
        ["-f", "-q", "-b", "2048", "-B", "64", "-m", "9", "-L", "by options", "-P", "1234567890"];
    tool("mkfs.nilfs2", line.iter().copied().chain([path.to_str().unwrap()])).output();
    let guest =
        Uml::new(&path).script("mount_nilfs ro; umount_nilfs; nilfs-tune -l $DEV").env("TZ", "UTC");
    let list = guest.run().unwrap().without_complaint().unwrap().stdout;
    for line in [
        "Filesystem volume name:\t  by options",
        "Block size:\t\t  2048",
        "Filesystem created:\t  Fri Feb 13 23:31:30 2009",
        "# of blocks per segment:  64",
        "Reserved segments %:\t  9",
    ] {
        assert!(list.lines().any(|found| found == line), "{line} in {list}");
    }
}

/// A volume that Linux itself has mounted is left alone, unless the user insists where nilfs-utils
/// allow it; and it can be unmounted.
#[test]
fn a_mount_of_linux_itself_is_respected() {
    let image = Image::ours("--size 64M -b 1024 -B 128");
    let tools = tempfile::tempdir().unwrap();
    for name in ["nilfs-tune", "mkfs.nilfs2", "mkcp", "mount.nilfs2", "umount.nilfs2"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nilfs"), tools.path().join(name)).unwrap();
    }
    let script = r#"
        PATH=$TOOLS:$PATH
        mount_nilfs
        for refused in "nilfs-tune -L no" "mkfs.nilfs2 -f" mkcp; do
            if $refused "$DEV" 2>/dev/null; then echo "$refused was not refused"; fi
        done
        status=0
        mount.nilfs2 "$DEV" "$MNT" || status=$?
        echo "mount.nilfs2: $status"
        nilfs-tune -f -L yes "$DEV"
        umount.nilfs2 "$MNT"
        mountpoint -q "$MNT" || echo unmounted
    "#;
    let result = Uml::new(image.path()).env("TOOLS", tools.path()).script(script).run().unwrap();
    let result = result.succeeded().unwrap();
    assert_eq!(result.stdout, "mount.nilfs2: 32\nunmounted\n");
    assert!(result.stderr.contains("multiple rw-mount is not allowed"), "{}", result.stderr);
    let list = tool("nilfs-tune", ["-l".as_ref(), image.path().as_os_str()]).output();
    assert!(list.contains("volume name:\t  yes\n"), "{list}");
    image.check();
}

/// Linux and nilfs-utils carry along what we keep in the superblocks, whatever they write there.
#[test]
fn a_resize_by_either_is_told_and_done_alike_and_keeps_our_totals() {
    let image = Image::ours("--size 64M -b 1024 -B 128");
    let mounted = image.mount("rw,nogc");
    fs::write(mounted.join("f"), vec![1; 1 << 20]).unwrap();
    mounted.unmount();
    let totals = |image: &Image| {
        let mounted = image.mount("ro");
        let mut nilfs = Command::new(env!("CARGO_BIN_EXE_nilfs"));
        let status = nilfs.args(["status", "--json"]).arg(mounted.root()).output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        mounted.unmount();
        status["lifetime"].clone()
    };
    let before = totals(&image);
    assert_eq!(before["user_bytes"], 1 << 20);
    let sizes = ["", "40M", "40M", ""];
    let ours = image.copy();
    let path = ours.path();
    let words = |size| ["-y", "-v", path.to_str().unwrap()].into_iter().chain(Some(size));
    let said = sizes.map(|size| {
        let outcome = tool("nilfs-resize", words(size).filter(|word| !word.is_empty()));
        // An image file is as large as its volume; a device stays as it is.
        fs::File::options().write(true).open(&path).unwrap().set_len(64 << 20).unwrap();
        outcome.stderr
    });
    ours.check();

    let script = r#"
        mount -t tmpfs shm /dev/shm || { mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm; }
        mount_nilfs
        for size in "" 40M 40M ""; do
            nilfs-resize -y -v "$DEV" $size 2>&1
            echo "next"
        done
        dd if=/dev/urandom of="$MNT/linux" bs=1k count=500 status=none
        sync
        umount_nilfs
        nilfs-tune -L renamed "$DEV" 2>/dev/null
    "#;
    let result = Uml::new(image.path()).timeout(Duration::from_secs(600)).script(script).run();
    let result = result.unwrap().succeeded().unwrap();
    let theirs = result.stdout.replace("/dev/ubda", path.to_str().unwrap());
    assert_eq!(theirs.split("next\n").take(sizes.len()).collect::<Vec<_>>(), said);
    assert_eq!(totals(&image), before);
    image.check();
}
