//! An image that is attached to a loop device belongs to whoever has that device.

use std::path::PathBuf;
use std::process::Command;

use nilfs_device::{Access, FileDevice, Holder, OpenError};

/// A loop device, detached at the end.
struct Loop(PathBuf);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn an_image_on_a_loop_device_can_be_read_but_not_written() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tested: only root can set up a loop device");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("with a space.img");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    assert!(FileDevice::open(&image, Access::ReadWrite).is_ok());

    let setup = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().unwrap();
    if !setup.status.success() {
        eprintln!("not tested: {}", String::from_utf8_lossy(&setup.stderr));
        return;
    }
    let device = Loop(String::from_utf8(setup.stdout).unwrap().trim().into());
    let second_name = directory.path().join("second name");
    std::fs::hard_link(&image, &second_name).unwrap();
    for name in [&image, &second_name] {
        let error = FileDevice::open(name, Access::ReadWrite).unwrap_err();
        assert!(
            matches!(&error, OpenError::Busy { holder: Holder::Loop(found), .. } if *found == device.0),
            "{error}"
        );
        for access in [Access::ReadOnly, Access::Inspect] {
            assert!(FileDevice::open(name, access).is_ok());
        }
    }
    // The volume is used through the loop device then.
    assert!(FileDevice::open(&device.0, Access::ReadWrite).is_ok());
}
