#!/bin/bash
# What Linux did to last-group-1024.img: run as root with the image on $1 and a mount point $2.
# See README.md.
set -e
mount -i -t nilfs2 -o discard "$1" "$2"
cd "$2"
for i in $(seq 40); do : >f"$i"; done; sync
for i in $(seq 30); do echo "$i" >f1; sync; done
# The cleaner frees the first virtual blocks.
printf '%s\n' 'protection_period 0' 'min_clean_segments 0' 'clean_check_interval 1' \
    'selection_policy timestamp' 'nsegments_per_clean 4' 'cleaning_interval 0.1' \
    'mc_cleaning_interval 0.1' 'retry_interval 1' >/tmp/cleaner.conf
nilfs_cleanerd -c /tmp/cleaner.conf "$1" "$2"
for i in 1 2 3 4 5 6; do echo "$i" >x; sync; sleep 1; done
pkill nilfs_cleanerd; sleep 1
# A block that lies before the last one written wants a virtual block that lies before it, too.
for i in $(seq 40); do
    if [ $(($(stat -c %i f"$i") % 8)) = 0 ]; then
        for at in 12 6 0; do
            echo "$i.$at" | dd of=f"$i" bs=1024 seek="$at" conv=notrunc status=none
        done
    fi
done
sync
cd /
umount "$2"
