//! A program of many small files, built from nothing as `make` does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow};

use super::Skip;
use crate::command;
use crate::fixtures::warm;
use crate::stage::{Sample, Stage, settle};

/// Headers that each file includes.
const HEADERS: u64 = 20;

/// Builds it with as many processes as there are cores.
pub fn build(stage: &mut Stage<'_>) -> Result<Sample> {
    if !stage.system.persistent() {
        return Err(anyhow!(Skip("it keeps no content".to_owned())));
    }
    let files = stage.sizes.program_files;
    let source: PathBuf = stage.fixtures.get("program", |path| generate(path, files))?;
    warm(&source)?;
    let root = stage.mount_fresh()?;
    command::run(Command::new("cp").arg("-r").arg(&source).arg(root.join("program")))?;
    settle(&root)?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    stage.timed(1, || {
        let mut make = Command::new("make");
        make.args(["-s", &format!("-j{cores}"), "-C"]).arg(root.join("program"));
        command::run(&mut make)?;
        settle(&root)
    })
}

/// Writes the sources of a program of this many files.
fn generate(dir: &Path, files: u64) -> Result<()> {
    let write = |name: String, text: String| {
        fs::write(dir.join(&name), text).with_context(|| format!("cannot write {name}"))
    };
    fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for header in 0..HEADERS {
        let number = format!(
            "#pragma once\nstatic inline int h{header}(int x) {{ return x + {header}; }}\n"
        );
        write(format!("h{header}.h"), number)?;
    }
    let includes: String =
        (0..HEADERS).map(|header| format!("#include \"h{header}.h\"\n")).collect();
    for file in 0..files {
        let sum: String = (0..HEADERS).map(|header| format!(" + h{header}(x)")).collect();
        write(
            format!("f{file}.c"),
            format!("{includes}int f{file}(int x) {{ return {file}{sum}; }}\n"),
        )?;
    }
    let (declared, called): (String, String) =
        (0..files).map(|file| (format!("int f{file}(int);\n"), format!(" + f{file}(1)"))).unzip();
    write("main.c".into(), format!("{declared}int main(void) {{ return !(0{called}); }}\n"))?;
    let makefile = "objects = $(patsubst %.c,%.o,$(wildcard *.c))\n\
                    program: $(objects)\n\tcc -o $@ $^\n\
                    %.o: %.c $(wildcard *.h)\n\tcc -O1 -c -o $@ $<\n";
    write("Makefile".into(), makefile.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_generated_can_be_built() {
        if Command::new("make").arg("-v").output().is_err() {
            eprintln!("skipped: there is no make");
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("program");
        generate(&dir, 2).unwrap();
        command::run(Command::new("make").arg("-s").arg("-C").arg(&dir)).unwrap();
        assert!(Command::new(dir.join("program")).status().unwrap().success());
    }
}
