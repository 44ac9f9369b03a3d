# Read by the bash that runs a test's script in the guest; the exported variables precede it.

# mount_nilfs [OPTIONS]: mounts the image on $MNT, without the helper that would start a cleaner.
mount_nilfs() { mount -i -t nilfs2 -o "${1:-rw}" "$DEV" "$MNT"; }

# umount_nilfs: unmounts it again.
umount_nilfs() { umount "$MNT"; }

# each_image DIRECTORY FUNCTION: calls the function once for every *.img in the directory. $IMAGE is the
# path of the image, and $DEV a loop device for it. The path is put into the kernel's log first, so that
# complaints can be told apart.
each_image() {
    insmod "/usr/lib/uml/modules/$(uname -r)/kernel/drivers/block/loop.ko"
    for IMAGE in "$1"/*.img; do
        echo "$IMAGE" >/dev/kmsg
        DEV=$(losetup --show -f "$IMAGE")
        "$2"
        losetup -d "$DEV"
    done
}
