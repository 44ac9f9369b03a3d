#!/bin/bash
# Process 1 of the guest. It stands in a directory of the host's file tree beside prelude.sh (the
# functions and variables that a script may use) and script.sh (what the test wants done), and leaves
# stdout, stderr and, last of all, status there.
dir=${0%/*}
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sysfs /sys
insmod "/usr/lib/uml/modules/$(uname -r)/kernel/fs/nilfs2/nilfs2.ko"
# Ends the guest if the test that started it is gone.
(sleep "$watchdog_seconds" && echo o >/proc/sysrq-trigger) &
BASH_ENV=$dir/prelude.sh bash -eu -o pipefail "$dir/script.sh" >"$dir/stdout" 2>"$dir/stderr"
echo $? >"$dir/status"
# hostfs writes late: what is not synced now is lost when the guest stops.
sync "$dir/stdout" "$dir/stderr" "$dir/status"
echo o >/proc/sysrq-trigger
sleep infinity
