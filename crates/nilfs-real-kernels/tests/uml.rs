//! A real Linux works on an image and tells how it went.

use nilfs_real_kernels::{Error, Uml};
use std::time::Duration;

#[test]
fn t() {
    let i = std::path::Path::new("/work/scratch/kernels/a.img");
    let v = Uml::new(i)
        .script("mount_nilfs; df $MNT; which fill; umount_nilfs; false")
        .run()
        .unwrap();
    println!("{v}");
    println!("{:?}", v.nilfs_complaints());
    let e = Uml::new(i)
        .timeout(Duration::from_secs(2))
        .script("sleep 10")
        .run()
        .unwrap_err();
    println!("{e}");
}
