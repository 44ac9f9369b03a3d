# Read by the bash that runs a test's script in the guest; the exported variables precede it.

# mount_nilfs [OPTIONS]: mounts the image on $MNT, without the helper that would start a cleaner.
mount_nilfs() { mount -i -t nilfs2 -o "${1:-rw}" "$DEV" "$MNT"; }

# umount_nilfs: unmounts it again.
umount_nilfs() { umount "$MNT"; }

# each_image DIRECTORY FUNCTION: calls the function for each *.img of a directory, with $DEV as a device
# of it and $IMAGE as its path, which the kernel's log has before what is said about it.
each_image() {
    insmod "/usr/lib/uml/modules/$(uname -r)/kernel/drivers/block/loop.ko"
    for IMAGE in "$1"/*.img; do
        echo "$IMAGE" >/dev/kmsg
        DEV=$(losetup --show -f "$IMAGE")
        "$2"
        losetup -d "$DEV"
    done
}
