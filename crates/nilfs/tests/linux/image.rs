//! Linux mounts the image of a volume's metadata, with and without scrambled names, and finds every file
//! there, with its attributes.

use std::fs;

use nilfs_real_kernels::Uml;

use crate::ours::Image;

/// What can be seen without names and content. Links are followed: they lead where they led.
const SCRIPT: &str = r#"
mount_nilfs
cd $MNT
find . ! -name . -printf '%i %y %m %n %s %b %T@ %d\n' | sort
find . -type l -exec stat -L -c 'leads to %i' {} + | sort
echo "longest name $(find . -printf '%f\n' | wc -L)"
rm -r -- ./*
touch new
cd /
umount_nilfs
"#;

fn seen(image: &Image) -> String {
    let result = Uml::new(image.path()).script(SCRIPT).run().unwrap().without_complaint().unwrap();
    image.check();
    result.stdout
}

#[test]
fn linux_mounts_the_image_of_a_volume_and_writes_to_it() {
    let volume = Image::ours("--size 64M -B 256");
    let mounted = volume.mount("nogc,cleaner-config=/dev/null");
    for dir in ["first", "first/second", "first/second/third directory"] {
        fs::create_dir(mounted.join(dir)).unwrap();
        for nth in 0..200 {
            let name = format!("{dir}/{}{nth}", "x".repeat(nth % 40));
            fs::write(mounted.join(&name), vec![7; nth * 100]).unwrap();
        }
        let link = mounted.join(&format!("{dir}/link"));
        std::os::unix::fs::symlink("../first/xxx3", link).unwrap();
    }
    for nth in (0..200).step_by(3) {
        let name = format!("first/{}{nth}", "x".repeat(nth % 40));
        if nth > 3 {
            fs::remove_file(mounted.join(&name)).unwrap();
        }
    }
    fs::remove_file(mounted.join("first/second/link")).unwrap();
    fs::remove_file(mounted.join("first/second/third directory/link")).unwrap();
    mounted.unmount();
    let images = [&["image"][..], &["image", "--scramble"]].map(|words| {
        let image = volume.copy();
        fs::remove_file(image.path()).unwrap();
        let made = std::process::Command::new(env!("CARGO_BIN_EXE_nilfs"))
            .args(words)
            .args([volume.path(), image.path()])
            .status();
        assert!(made.unwrap().success());
        image
    });
    let expected = seen(&volume);
    assert!(expected.lines().count() > 400 && expected.contains("leads to"), "{expected}");
    for image in images {
        assert_eq!(seen(&image), expected);
    }
}
