#!/bin/sh
# Process 1 of the virtual machine. It puts the host's files, which cannot be changed, under a
# layer in memory, and then runs the scripts that come through the serial port named "agent".
#
# A script comes as a line with its length in bytes, then itself. What goes back is a line with
# exit status, length of its output, length of its messages, then both.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LC_ALL=C

mount -t devtmpfs dev /dev
exec </dev/null >/dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys
# All modules at once: none shall be loaded while a mount is timed.
for module in $(cat /modules); do
    modprobe "$module" || echo "init: no module $module"
done

mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /host || poweroff -f
mount -t tmpfs memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work root /root ||
    poweroff -f
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/shm /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t devpts pts /root/dev/pts
# mkfs.nilfs2 looks there whether the device is mounted; a host without systemd may have none.
[ -e /root/etc/mtab ] || ln -s ../proc/mounts /root/etc/mtab
mkdir -p /root/lab/mount /root/lab/scratch
mount -t tmpfs -o size=75% scratch /root/lab/scratch

# What a flash device says of itself.
echo 0 >/sys/block/vda/queue/rotational

for port in /sys/class/virtio-ports/*; do
    [ "$(cat "$port/name")" = agent ] && exec 3<>"/dev/${port##*/}"
done
# $1: the bytes of the script.
run_script() {
    if [ "$(stat -c %s /root/lab/script)" = "$1" ]; then
        chroot /root /bin/sh -e /lab/script </dev/null >/memory/stdout 2>/memory/stderr 3>&-
        status=$?
    else
        # Part of a script may be a script that succeeds.
        : >/memory/stdout
        echo 'the script has not arrived whole in the virtual machine' >/memory/stderr
        status=1
    fi
    echo "$status $(stat -c %s /memory/stdout) $(stat -c %s /memory/stderr)" >&3
    cat /memory/stdout /memory/stderr >&3
}

serve() {
    echo ready >&3
    while read -r bytes <&3; do
        dd bs="$bytes" count=1 iflag=fullblock <&3 >/root/lab/script 2>/dev/null
        # While it works the next line is read, which ends when nobody is at the other end any more.
        run_script "$bytes" &
    done
}

serve &
# Daemons are children of process 1 in the end. While it waits it also takes note of their deaths:
# umount.nilfs2 asks for ten seconds whether the cleaner it has ended is really gone.
wait
# Nothing is written (-n): it is a power cut.
poweroff -n -f
