//! What an fsync has written, and Linux: it keeps away from what it cannot recover, and recovers what
//! it can; when we have recovered or unmounted the volume, it has nothing to say against it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nilfs_real_kernels::{NilfsUtils, Uml};

use crate::ours::{Image, assert_same};
use crate::past::in_linux;

/// A volume on which nothing makes a checkpoint but who asks for one.
fn volume(block_size: u32) -> Image {
    let image = Image::ours(&format!("--size 128M -b {block_size} -B 1024"));
    image.nilfs(&["tune", "--interval", "3600"]);
    image
}

fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

fn write_and_sync(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    sync(path);
}

/// Whether Linux must leave the volume alone.
fn needs_us(image: &Image) -> bool {
    image.nilfs(&["info"]).contains("roll_forward")
}

#[test]
fn linux_leaves_alone_what_only_we_can_recover_until_we_have() {
    for block_size in [4096, 1024] {
        let image = volume(block_size);
        let mounted = image.mount("rw,nogc");
        fs::create_dir(mounted.join("tree")).unwrap();
        write_and_sync(&mounted.join("tree/old"), b"in the checkpoint");
        mounted.checkpoint();
        write_and_sync(&mounted.join("tree/new"), &[7; 10_000]);
        fs::rename(mounted.join("tree/old"), mounted.join("tree/renamed")).unwrap();
        sync(&mounted.join("tree"));
        let expected = mounted.manifest("tree");
        mounted.kill();
        assert!(needs_us(&image));

        let before = fs::read(image.path()).unwrap();
        let script = "
            mount_nilfs && echo mounted
            mount_nilfs ro && echo mounted read-only
            mount_nilfs ro,norecovery; ls $MNT/tree; umount_nilfs";
        let script = format!("set +e; {script}");
        let verdict = Uml::new(image.path()).script(script).run().unwrap().succeeded().unwrap();
        assert_eq!(verdict.stdout, "old\n", "{verdict}");
        let log = verdict.kernel_log.lines().join("\n");
        assert!(log.contains("unsupported optional features (4000000000000000)"), "{log}");
        assert!(fs::read(image.path()).unwrap() == before, "Linux has written");

        let said = image.nilfs(&["recover"]);
        assert!(said.contains("rolled forward 2 logs after checkpoint 2: 3 names"), "{said}");
        image.check();
        let script = "mount_nilfs; manifest $MNT/tree; umount_nilfs";
        let verdict = Uml::new(image.path()).script(script).run().unwrap();
        let theirs = verdict.without_complaint().unwrap().stdout.parse().unwrap();
        assert_same("seen by Linux", &expected, &theirs);
        image.check();
    }
}

/// Where a page of flash is one block, logs of names alone have holes.
#[test]
fn linux_shows_the_last_checkpoint_whatever_lies_in_the_holes_of_logs() {
    let image = volume(4096);
    let unused = OpenOptions::new().write(true).open(image.path()).unwrap();
    unused.write_all_at(&vec![0xa5; 100 << 20], 1 << 20).unwrap();
    let mounted = image.mount("rw,nogc,flash-page=4K");
    for nth in 0..5 {
        fs::create_dir(mounted.join(&format!("{nth}"))).unwrap();
        sync(&mounted.join(""));
        mounted.checkpoint();
    }
    fs::create_dir(mounted.join("after the last checkpoint")).unwrap();
    sync(&mounted.join(""));
    mounted.kill();
    assert!(needs_us(&image));
    let script = "mount_nilfs ro,norecovery; ls $MNT; umount_nilfs";
    let verdict = Uml::new(image.path()).script(script).run().unwrap().succeeded().unwrap();
    assert_eq!(verdict.stdout, "0\n1\n2\n3\n4\n", "{verdict}");
    image.nilfs(&["recover"]);
    let script = "mount_nilfs; ls $MNT; umount_nilfs";
    let verdict = Uml::new(image.path()).script(script).run().unwrap();
    let listed = verdict.without_complaint().unwrap().stdout;
    assert_eq!(listed, "0\n1\n2\n3\n4\nafter the last checkpoint\n");
    image.check();
}

#[test]
fn with_checkpoints_instead_of_logs_linux_recovers_by_itself() {
    for block_size in [4096, 1024] {
        let image = volume(block_size);
        let mounted = image.mount("rw,nogc,fsync=checkpoint");
        fs::create_dir(mounted.join("tree")).unwrap();
        for nth in 0..10_u8 {
            let path = mounted.join("tree/file");
            let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
            file.write_all(&[nth; 3000]).unwrap();
            file.sync_all().unwrap();
            file.write_all_at(b"overwritten", 100).unwrap();
            file.sync_all().unwrap();
            write_and_sync(&mounted.join(&format!("tree/{nth}")), b"another");
        }
        let expected = mounted.manifest("tree");
        mounted.kill();
        assert!(!needs_us(&image));
        let script = "mount_nilfs; manifest $MNT/tree; umount_nilfs";
        let verdict = Uml::new(image.path()).script(script).run().unwrap();
        let theirs = verdict.without_complaint_besides_recovery().unwrap();
        assert_same("recovered by Linux", &expected, &theirs.stdout.parse().unwrap());
        image.check();
    }
}

/// A hole within the size of a file needs no record, because Linux can fill it as well.
#[test]
fn linux_rolls_forward_holes_that_were_filled() {
    for block_size in [4096, 1024] {
        let image = volume(block_size);
        let mounted = image.mount("rw,nogc");
        let path = mounted.join("file");
        fs::write(&path, b"not empty").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        // Far enough for a tree of two levels.
        file.set_len(4_000_000).unwrap();
        mounted.checkpoint();
        let before = image.nilfs(&["checkpoints", "--json"]);
        for nth in 0..30_u8 {
            file.write_all_at(&[b'a' + nth % 26; 5000], 20_000 + u64::from(nth) * 100_000).unwrap();
            file.sync_all().unwrap();
        }
        let content = fs::read(&path).unwrap();
        drop(file);
        mounted.kill();
        assert_eq!(image.nilfs(&["checkpoints", "--json"]), before, "an fsync made a checkpoint");
        assert!(!needs_us(&image));
        let copy = image.beside("seen");
        let script = "mount_nilfs; cat $MNT/file >$COPY; umount_nilfs; sync $COPY";
        let uml = Uml::new(image.path()).env("COPY", &copy).script(script);
        uml.run().unwrap().without_complaint_besides_recovery().unwrap();
        assert!(fs::read(copy).unwrap() == content, "blocks of {block_size}: recovered by Linux");
        image.check();
    }
}

/// Logs with records stay where they are when a checkpoint has come after them: tools read them, and
/// the cleaner goes through the segments. Among these are logs without blocks of files, which have an
/// empty block after their summary.
#[test]
fn linux_and_its_tools_step_over_logs_with_records() {
    for (block_size, page) in [(4096, "4K"), (4096, "16K"), (1024, "1K")] {
        let image = volume(block_size);
        let mounted = image.mount(&format!("rw,nogc,flash-page={page}"));
        fs::create_dir(mounted.join("tree")).unwrap();
        write_and_sync(&mounted.join("tree/log"), b"");
        for round in 0..6 {
            for nth in 0..40 {
                let mut log =
                    OpenOptions::new().append(true).open(mounted.join("tree/log")).unwrap();
                log.write_all(&[b'x'; 90]).unwrap();
                log.sync_all().unwrap();
                write_and_sync(&mounted.join(&format!("tree/{round}-{nth}")), b"small");
            }
            write_and_sync(&mounted.join("large"), &vec![round; 1_500_000]);
            mounted.checkpoint();
            fs::remove_file(mounted.join("large")).unwrap();
        }
        let expected = mounted.manifest("tree");
        mounted.unmount();
        assert!(!needs_us(&image));
        image.check();

        let utils = NilfsUtils::read(&image.path()).unwrap();
        assert_eq!(utils.complaints(), [""; 0]);
        let dumped = utils.dumpseg.stdout.matches("partial segment:").count();
        assert!(dumped > 480, "dumpseg shows {dumped} logs of 480 fsyncs and more");
        let said = in_linux(&image, "lssu -l $DEV >/dev/null; clean; echo cleaned");
        assert!(said.ends_with("cleaned\n"), "{said}");
        image.check();
        let mounted = image.mount("ro");
        assert_same("cleaned by Linux", &expected, &mounted.manifest("tree"));
        mounted.unmount();
    }
}
