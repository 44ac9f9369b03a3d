//! Our mounts under another Linux than the host's: 6.1 waits at umount(2) as newer kernels do, but
//! passes no sync on.

use nilfs_real_kernels::Uml;

use crate::ours::Image;

const SCRIPT: &str = r#"
insmod "/usr/lib/uml/modules/$(uname -r)/kernel/fs/fuse/fuse.ko"
"$NILFS" mount "$DEV" "$MNT"
grep -q " $MNT fuseblk.nilfs " /proc/mounts
head -c 12M /dev/zero >"$MNT/file"
sync -f "$MNT"
umount -i "$MNT"
flock -n "$DEV" "$NILFS" info "$DEV"
"#;

#[test]
fn an_older_kernel_waits_at_umount_too() {
    let image = Image::ours("-B 256 --size 64M");
    let guest = Uml::new(image.path()).env("NILFS", env!("CARGO_BIN_EXE_nilfs")).script(SCRIPT);
    let result = guest.run().unwrap().succeeded().unwrap();
    assert!(result.stdout.contains("state              clean\n"), "{}", result.stdout);
    image.check();
}
