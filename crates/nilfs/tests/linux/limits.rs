//! A mount in a control group of version 2 with little memory and few processes, under a Linux that
//! has these controllers in version 2, as nearly all systems do today.

use nilfs_real_kernels::Uml;

use crate::ours::Image;

const SCRIPT: &str = r#"
insmod "/usr/lib/uml/modules/$(uname -r)/kernel/fs/fuse/fuse.ko"
mount -t cgroup2 none /sys/fs/cgroup
echo '+memory +pids' >/sys/fs/cgroup/cgroup.subtree_control
group=/sys/fs/cgroup/nilfs/inner
mkdir -p "$group"
echo '+memory +pids' >/sys/fs/cgroup/nilfs/cgroup.subtree_control
# The outer group is the narrower one for memory.
echo 64M >/sys/fs/cgroup/nilfs/memory.max
echo 256M >"$group/memory.max"
mount_in_group() { (echo "$BASHPID" >"$group/cgroup.procs"; exec "$NILFS" mount -o pp=0 "$DEV" "$MNT"); }
echo 4 >"$group/pids.max"
! mount_in_group
echo 16 >"$group/pids.max"
mount_in_group
head -c 80M /dev/urandom >"$MNT/large"
write() {
    local nth
    mkdir "$MNT/$1"
    for nth in $(seq 250); do
        echo "$1 $nth" >"$MNT/$1/$nth"
        [ $((nth % 50)) != 0 ] || sync "$MNT/$1/$nth"
    done
    head -c 16M /dev/urandom | dd of="$MNT/large" bs=64k seek=$(($1 * 128)) conv=notrunc,fsync status=none
}
for writer in 1 2 3 4; do write $writer & done
wait %1 %2 %3 %4
written=$(cksum <"$MNT/large")
umount "$MNT"
grep ^oom_kill "$group/memory.events"
"$NILFS" mount "$DEV" "$MNT"
[ "$(cksum <"$MNT/large")" = "$written" ]
[ "$(cat "$MNT"/[1234]/* | wc -l)" = 1000 ]
umount "$MNT"
"#;

#[test]
fn heavy_load_in_a_group_of_version_2() {
    let image = Image::ours("--size 400M");
    let guest = Uml::new(image.path()).env("NILFS", env!("CARGO_BIN_EXE_nilfs")).script(SCRIPT);
    let result = guest.run().unwrap().succeeded().unwrap();
    assert!(result.stderr.contains("the cgroup's pids.max allows no more"), "{}", result.stderr);
    assert_eq!(result.stdout, "oom_kill 0\n", "{}", result.stderr);
    image.check();
}
