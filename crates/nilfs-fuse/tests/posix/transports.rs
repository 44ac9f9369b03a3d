//! All other tests use `/dev/fuse`; this one runs them once more through io_uring.

use std::process::Command;

use crate::support::TRANSPORT;
use crate::switch::Switch;

#[test]
fn what_holds_through_dev_fuse_holds_through_io_uring() {
    if std::env::var_os(TRANSPORT).is_some() {
        return;
    }
    let Some(_on) = Switch::on() else { return };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "what_holds_through_dev_fuse_holds_through_io_uring"])
        .env(TRANSPORT, "uring")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
