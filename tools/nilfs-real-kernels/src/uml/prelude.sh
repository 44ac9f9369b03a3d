# Read by the bash that runs a test's script in the guest; the exported variables precede it.

# mount_nilfs [OPTIONS]: mounts the image on $MNT, without the helper that would start a cleaner.
mount_nilfs() { mount -i -t nilfs2 -o "${1:-rw}" "$DEV" "$MNT"; }

# umount_nilfs: unmounts it again.
umount_nilfs() { umount "$MNT"; }
