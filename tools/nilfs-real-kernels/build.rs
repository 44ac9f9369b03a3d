//! Compiles the library that is preloaded into User-Mode Linux (see `src/uml/whole_xstate.c`).

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "src/uml/whole_xstate.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    let out_dir = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts");
    let library = PathBuf::from(out_dir).join("whole_xstate.so");
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(SOURCE)
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("could not compile {SOURCE} with the C compiler `cc`: {other:?}"),
    }
    println!("cargo::rustc-env=WHOLE_XSTATE_LIBRARY={}", library.display());
}
