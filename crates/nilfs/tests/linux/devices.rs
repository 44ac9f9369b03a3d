//! Volumes on what the device mapper makes, under a Linux that has it: found by their names, and
//! written by one mount at a time, whichever way leads to the bytes.

use nilfs_real_kernels::{ScriptResult, Uml};

use crate::ours::Image;

/// What the scripts have in common. `busy COMMAND` wants the exit code of a device in use.
const BEGIN: &str = r#"
modules="/usr/lib/uml/modules/$(uname -r)/kernel"
insmod "$modules/fs/fuse/fuse.ko"
insmod "$modules/drivers/block/loop.ko"
insmod "$modules/drivers/md/dm-mod.ko"
map() { dmsetup create "$1" --noudevsync --noudevrules --table "$2"; dmsetup mknodes; }
whole() { map "$1" "0 $(blockdev --getsz "$2") linear $2 ${3:-0}"; }
busy() { local code=0; "$@" || code=$?; [ "$code" = 5 ]; }
mkdir -p /tmp/other; mount -t tmpfs none /tmp/other; mkdir /tmp/other/mnt
other=/tmp/other/mnt
"#;

fn run(script: &str) -> (Image, ScriptResult) {
    let image = Image::ours("-B 256 --size 64M --label mapped");
    let script = format!("{BEGIN}{script}");
    let guest = Uml::new(image.path()).env("NILFS", env!("CARGO_BIN_EXE_nilfs")).script(script);
    let result = guest.run().unwrap().succeeded().unwrap();
    (image, result)
}

#[test]
fn a_device_of_the_device_mapper_is_a_device_like_others() {
    let (image, result) = run(r#"
whole one "$DEV"
"$NILFS" mount /dev/mapper/one "$MNT"
echo written >"$MNT/file"
busy "$NILFS" mount "$DEV" "$other"
busy "$NILFS" mkfs -f "$DEV"
busy "$NILFS" mount /dev/dm-0 "$other"
"$NILFS" umount /dev/dm-0
"$NILFS" mount LABEL=mapped "$MNT"
"$NILFS" umount LABEL=mapped
dmsetup remove one
"$NILFS" mount "$DEV" "$MNT"
! whole one "$DEV"
cat "$MNT/file"
umount "$MNT"
"#);
    assert_eq!(result.stdout, "written\n");
    let below = "/dev/ubda is in use by /dev/mapper/one, which lies on it\n";
    assert_eq!(result.stderr.matches(below).count(), 2, "{}", result.stderr);
    let again = "/dev/dm-0 is in use by the mount on ";
    assert_eq!(result.stderr.matches(again).count(), 1, "{}", result.stderr);
    image.check();
}

/// udev makes these names, which escape what is not fit for a path.
#[test]
fn a_partition_is_found_by_its_name_and_its_uuid() {
    let (image, result) = run(r#"
whole one "$DEV"
mkdir -p /dev/disk/by-partlabel /dev/disk/by-partuuid
ln -s ../../dm-0 '/dev/disk/by-partlabel/my\x20data'
ln -s ../../dm-0 /dev/disk/by-partuuid/0a1b2c3d-01
for name in 'PARTLABEL=my data' PARTUUID=0a1b2c3d-01; do
    "$NILFS" mount "$name" "$MNT"
    echo "$name" >>"$MNT/file"
    "$NILFS" umount "$name"
done
"$NILFS" cat /dev/mapper/one file
"#);
    assert_eq!(result.stdout, "PARTLABEL=my data\nPARTUUID=0a1b2c3d-01\n");
    image.check();
}

#[test]
fn an_image_has_one_writer_past_a_loop_device_and_the_device_mapper() {
    run(r#"
image=/tmp/other/image
"$NILFS" mkfs -B 256 --size 64M $image
loop=$(losetup -f --show $image)
whole one "$loop"
"$NILFS" mount /dev/mapper/one "$MNT"
second=$(losetup -f --show $image)
for device in $image "$loop" "$second"; do
    busy "$NILFS" mount "$device" "$other"
    busy "$NILFS" mkfs -f "$device"
done
"$NILFS" umount "$MNT"
dmsetup remove one
"$NILFS" mount "$second" "$MNT"
whole one "$loop"
busy "$NILFS" mount /dev/mapper/one "$other"
"$NILFS" umount "$MNT"

dmsetup remove one
losetup -d "$loop" "$second"
"$NILFS" mount $image "$MNT"
loop=$(losetup -f --show $image)
whole one "$loop"
busy "$NILFS" mount /dev/mapper/one "$other"
busy "$NILFS" mkfs -f /dev/mapper/one
"$NILFS" umount "$MNT"
dmsetup remove one
losetup -d "$loop"
"$NILFS" check $image
"#);
}
