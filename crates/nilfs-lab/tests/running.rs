//! Runs on this machine, as small as they can be. They need root, loop devices, FUSE, ext2 in the
//! kernel and our program; without them there is nothing to run on, and the tests say so.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nilfs_lab::file_systems;
use nilfs_lab::model::preset;
use nilfs_lab::results::{Cell, CellResult, Clock, Measured, Results};
use nilfs_lab::run::{self, Choice, Event, Plan, Suite, Where};
use nilfs_lab::workloads::Source;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};

const EXT2_MAGIC: u64 = 0xef53;
const FUSE_MAGIC: u64 = 0x6573_5546;

/// Leftovers are looked for on the whole machine, so there is one run at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn plan(directory: &Path, workloads: &[&str], file_systems: &[&str]) -> Plan {
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
    let choice = Choice {
        workloads: words(workloads),
        devices: words(&["microsd-2012"]),
        file_systems: words(file_systems),
    };
    let nilfs = our_program();
    Plan {
        suite: None,
        tables: choice.tables(Suite::find("quick").unwrap(), &nilfs).unwrap(),
        scale: 1.0 / 256.0,
        runs: 1,
        place: Where::Host,
        clock: Some(Clock::Device),
        directory: directory.to_owned(),
        nilfs,
        keep_traces: false,
    }
}

/// Built in the same profile as the lab, as `make lab` does it.
fn our_program() -> PathBuf {
    nilfs_real_kernels::programs(&["nilfs"]).unwrap().join("nilfs")
}

fn can_run() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("not root: nothing can be mounted on this machine, nothing is tested");
    }
    root
}

fn measured<'a>(results: &'a Results, step: &str, file_system: &str) -> &'a Measured {
    let fits = |cell: &&Cell| cell.step == step && cell.file_system == file_system;
    match &results.cells.iter().find(fits).expect(step).outcome {
        CellResult::Measured(measured) => measured,
        CellResult::Failed(reason) => panic!("{step} on {file_system}: {reason}"),
    }
}

/// Mounts and loop devices that have to do with a directory.
fn leftovers(directory: &Path) -> Vec<String> {
    let name = directory.to_string_lossy().into_owned();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let loops = Command::new("losetup").args(["--list", "--noheadings"]).output().unwrap();
    let loops = String::from_utf8_lossy(&loops.stdout).into_owned();
    let ours = |line: &&str| line.contains(&name);
    mounts.lines().chain(loops.lines()).filter(ours).map(ToOwned::to_owned).collect()
}

#[test]
fn a_run_measures_with_the_file_systems_it_names_and_leaves_nothing_behind() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(directory.path(), &["big-file", "gentoo-tree"], &["ext2", "nilfs"]);
    let results = run::run(&plan, &mut |_| {}).unwrap();
    assert_eq!(results.cells.len(), 8);
    for (file_system, magic) in [("ext2", EXT2_MAGIC), ("nilfs", FUSE_MAGIC)] {
        for step in ["write", "read", "copy", "overwrite"] {
            let found = measured(&results, step, file_system);
            assert_eq!(found.magic, magic, "{step} on {file_system}");
            assert!(found.median > 0.0 && found.runs.len() == 1, "{step} on {file_system}");
        }
        // 4 GiB by 256, and little else.
        let bytes = measured(&results, "write", file_system).traffic.written.bytes;
        assert!((16 << 20..20 << 20).contains(&bytes), "{file_system} wrote {bytes} bytes");
        let bytes = measured(&results, "read", file_system).traffic.read.bytes;
        assert!(bytes >= 16 << 20, "{file_system} read {bytes} bytes of the device");
        let limit = measured(&results, "write", file_system).limit.unwrap();
        assert!(measured(&results, "write", file_system).median >= limit, "faster than the device");
    }
    assert!(results.devices["microsd-2012"].sequential_write > 0.0);
    // As large as the preset says that a card's driver asks for.
    let written = measured(&results, "write", "ext2").traffic.written;
    assert!(written.requests * 524_288 >= written.bytes, "larger requests than the original's");
    assert_eq!(results.pictures.len(), 4, "a picture for each workload on each file system");
    assert!(results.versions.contains_key("mke2fs") && results.versions.contains_key("nilfs"));
    assert_eq!(leftovers(directory.path()), [""; 0]);
    assert!(!directory.path().join("work").exists());
    let saved = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
    let saved: Results = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved.cells.len(), 8);
}

#[test]
fn an_interrupted_run_goes_on_with_what_is_missing() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let first = run::run(&plan(directory.path(), &["dd-sync"], &["ext2"]), &mut |_| {}).unwrap();
    let before = measured(&first, "4k", "ext2").clone();

    let wider = plan(directory.path(), &["dd-sync"], &["ext2", "ext4"]);
    let mut done = 0;
    let mut started = Vec::new();
    let results = run::run(&wider, &mut |event| match event {
        Event::Begins(beginning) => done = beginning.done,
        Event::Job { file_system, .. } => started.push(file_system.name.clone()),
        Event::Done { .. } => {}
    });
    let results = results.unwrap();
    assert_eq!((done, started), (1, vec!["ext4".to_owned()]));
    assert_eq!(measured(&results, "4k", "ext2").runs, before.runs);
    measured(&results, "4k", "ext4");

    let other = Plan { scale: 1.0 / 128.0, ..plan(directory.path(), &["dd-sync"], &["ext2"]) };
    let error = run::run(&other, &mut |_| {}).unwrap_err();
    assert!(format!("{error:#}").contains("its scale is"), "{error:#}");
}

/// Ctrl-C used to leave results.json and nothing to read.
#[test]
fn an_interrupted_run_ends_with_a_report_of_what_there_is() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("results");
    let lab = || {
        let mut lab = Command::new(env!("CARGO_BIN_EXE_nilfs-lab"));
        lab.args(["run", "--where", "host", "--clock", "device", "--scale", "1/256"])
            .args(["--workload", "dd-sync,big-file", "--device", "microsd-2012"])
            .args(["--fs", "ext2,ext4", "--out"])
            .arg(&out)
            .env("TMPDIR", directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        lab
    };
    let mut running = lab().spawn().unwrap();
    let mut said = BufReader::new(running.stderr.take().unwrap()).lines().map(Result::unwrap);
    said.find(|line| line.starts_with("[2/4]")).expect("no second measurement");
    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    let ended = running.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(128 + 2));
    let printed = String::from_utf8(ended.stdout).unwrap();
    assert!(printed.contains("Interrupted: "), "{printed}");
    assert!(printed.contains(&format!("{}/report.html", out.display())), "{printed}");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Interrupted: "), "the page does not say that figures are missing");
    let results = Results::load(&out).unwrap().unwrap();
    assert!(results.missing > 0 && !results.cells.is_empty());
    assert_eq!(results.cells.len() + results.missing, 10);
    assert_eq!(leftovers(directory.path()), [""; 0]);
    assert!(!out.join("work").exists());

    let ended = lab().output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(0), "{said}");
    assert!(said.contains("of the measurements are done already"), "{said}");
    let results = Results::load(&out).unwrap().unwrap();
    assert_eq!((results.missing, results.cells.len()), (0, 10));
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(!page.contains("Interrupted: "));
}

/// The file system on the device was blamed, and the run went on.
#[test]
fn a_full_disk_ends_the_run_and_is_no_fault_of_a_file_system() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let small = directory.path();
    mount("small", small, "tmpfs", MountFlags::empty(), Some(c"size=560M")).unwrap();
    let mut jobs = 0;
    let ended = run::run(&plan(small, &["big-file"], &["ext2", "ext4"]), &mut |event| {
        if let Event::Job { .. } = event {
            jobs += 1;
            if jobs == 2 {
                let mut filler = File::create(small.join("filler")).unwrap();
                while filler.write_all(&[1; 1 << 20]).is_ok() {}
                // Enough for scripts and results, and not for a file system.
                filler.set_len(filler.metadata().unwrap().len() - (1 << 20)).unwrap();
            }
        }
    });
    let saved = Results::load(small);
    unmount(small, UnmountFlags::empty()).unwrap();
    let error = format!("{:#}", ended.unwrap_err());
    assert!(error.contains("image could not be") && error.contains("No space left"), "{error}");
    let saved = saved.unwrap().unwrap();
    measured(&saved, "write", "ext2");
    assert!(saved.cells.iter().all(|cell| cell.file_system == "ext2"), "ext4 is blamed");
}

#[test]
fn who_cannot_take_part_has_a_reason_instead_of_a_figure() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    // A workload whose program is not there: what is missing, and where it is to be had.
    let mut plan = plan(directory.path(), &["dd-sync"], &["ext2", "ext4"]);
    for system in &mut plan.tables[0].file_systems {
        if system.name == "ext2" {
            system.needs =
                &[file_systems::Program { name: "mkfs.nowhere", package: "nowhere-progs" }];
        }
    }
    // And a file system that no kernel has, which is said before anything is measured.
    let mut unknown = file_systems::find("ext3", &plan.nilfs).unwrap();
    unknown.kind = "nosuchfs";
    plan.tables[0].file_systems.push(unknown);
    let mut left_out = Vec::new();
    let results = run::run(&plan, &mut |event| {
        if let Event::Begins(beginning) = event {
            let names =
                beginning.left_out.iter().map(|(name, why)| (name.to_string(), why.clone()));
            left_out.extend(names);
        }
    });
    let results = results.unwrap();
    let [(name, why)] = &left_out[..] else { panic!("{left_out:?}") };
    assert!(name == "ext3" && why.contains("has no nosuchfs"), "{left_out:?}");
    let mut reasons = BTreeMap::new();
    for cell in &results.cells {
        if let CellResult::Failed(reason) = &cell.outcome {
            reasons.insert((cell.file_system.as_str(), cell.step.as_str()), reason.as_str());
        }
    }
    assert_eq!(reasons.len(), 6, "{reasons:?}");
    for ((file_system, _), reason) in reasons {
        let missing = "mkfs.nowhere is missing: apt install nowhere-progs";
        assert_eq!(reason, if file_system == "ext3" { why } else { missing });
        assert_ne!(file_system, "ext4");
    }
    measured(&results, "4k", "ext4");
    assert_eq!(leftovers(directory.path()), [""; 0]);
}

#[test]
fn latencies_have_an_order_and_all_that_is_delivered_reaches_the_device() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let mut plan =
        plan(directory.path(), &["packages", "fsync-beside-writer", "mail-spool"], &["ext4"]);
    for table in &mut plan.tables {
        table.device = preset::find("nvme").unwrap();
    }
    // Without it, there are no latencies.
    plan.clock = Some(Clock::Paced);
    let results = run::run(&plan, &mut |_| {}).unwrap();
    let figure = |step: &str| measured(&results, step, "ext4").median;
    let latencies = ["fsync-p50", "fsync-p99", "fsync-max"].map(figure);
    assert!(latencies[0] > 0.0 && latencies.is_sorted(), "{latencies:?}");
    assert!(figure("film") > 0.0);
    let packages = Source::Packages.bytes(plan.scale) as f64 / 1e6;
    for step in ["install-written", "upgrade-written"] {
        assert!(figure(step) >= packages, "{step}: {} of {packages} MB", figure(step));
    }
    let messages = 512.0 * 4096.0 / 1e6;
    for step in ["deliver-written", "deliver-8-written", "deliver-64-written"] {
        assert!(figure(step) >= messages, "{step}: {} of {messages} MB", figure(step));
    }
}

/// Both used to be passed over, or to end in a panic.
#[test]
fn a_full_standard_output_is_an_error_and_a_closed_one_is_not() {
    let lab = |shell: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", shell, env!("CARGO_BIN_EXE_nilfs-lab")]).stderr(Stdio::piped());
        let ended = command.output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let (status, said) = lab("\"$0\" list >/dev/full");
    assert_eq!(status, Some(1));
    assert!(said.contains("cannot write to standard output: No space left"), "{said}");
    assert_eq!(lab("{ \"$0\" list; echo $? >&2; } | true"), (Some(0), "0\n".to_owned()));
    assert_eq!(lab("\"$0\" run --suite none 2>/dev/full").0, Some(2));
}
