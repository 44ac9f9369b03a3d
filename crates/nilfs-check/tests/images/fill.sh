#!/bin/bash
# What Linux did to the images in this directory: run as root with the image on $1, a mount point $2
# and "yes" as $3 if the cleaner shall run at the end. See README.md.
set -e
mount -i -t nilfs2 -o discard "$1" "$2"
cd "$2"
mkdir -p many deep/er/est
for i in $(seq 40); do echo "$i" >"many/a name of some thirty bytes $i"; done
mkfifo fifo; mknod null c 1 3; ln -s "many/a name of some thirty bytes 7" symlink
sync
yes tree | head -c 210000 >tree; yes shrunk | head -c 30000 >shrunk
yes sparse | dd of=sparse bs=1024 count=1 seek=5000 status=none
sync
mkcp -s "$1"
for i in $(seq 1 2 40); do rm "many/a name of some thirty bytes $i"; done
ln "many/a name of some thirty bytes 2" hardlink
sync
echo one >small; sync
echo two >>small; mv deep/er/est moved; sync
truncate -s 100000 tree; truncate -s 3000 shrunk; sync
rm small; yes new | head -c 9000 >direct; sync
mkcp -s "$1"
rmcp "$1" 2
for i in 1 2 3 4 5 6; do yes "$i" | head -c 2000 >"many/late $i"; sync; done
if [ "$3" = yes ]; then
    printf '%s\n' 'protection_period 0' 'min_clean_segments 0' 'clean_check_interval 1' \
        'selection_policy timestamp' 'nsegments_per_clean 4' 'cleaning_interval 0.1' \
        'mc_cleaning_interval 0.1' 'retry_interval 1' >/tmp/cleaner.conf
    nilfs_cleanerd -c /tmp/cleaner.conf "$1" "$2"
    for i in 1 2 3; do echo "$i" >"many/cleaned $i"; sync; sleep 1; done
    pkill nilfs_cleanerd; sleep 1
fi
lscp "$1"; lssu -l "$1"
cd /
umount "$2"
