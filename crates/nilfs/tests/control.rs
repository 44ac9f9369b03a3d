//! Administering volumes: while they are mounted, by asking the process that serves them, and while
//! they are not. The superuser and `/dev/fuse` are needed.

mod common {
    pub mod asking;
    pub mod ours;
}

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::asking::{json, nilfs, refused, works};
use common::ours::{GLANCE, Image, Mounted};
use serde_json::Value;

const NOBODY: u32 = 65534;

/// No cleaner that works by itself, a checkpoint for each fsync, and nothing of the system's settings.
const MOUNT: &str = "nogc,pp=0,fsync=checkpoint,cleaner-config=/dev/null";

fn image() -> Image {
    Image::ours("--size 32M -B 256")
}

/// Numbers of snapshots.
#[track_caller]
fn snapshots(path: &Path) -> Vec<u64> {
    let list = json(&["snapshot", "list"], path);
    list.as_array().unwrap().iter().map(|one| one["checkpoint"].as_u64().unwrap()).collect()
}

#[track_caller]
fn create_snapshot(path: &Path) -> u64 {
    works(&["snapshot", "create"], path, &[]).trim().parse().unwrap()
}

const MIB: usize = 1 << 20;

/// Writes a file and makes a checkpoint of it.
fn write(mounted: &Mounted, name: &str, byte: u8) {
    write_large(mounted, name, &vec![byte; MIB]);
}

fn write_large(mounted: &Mounted, name: &str, content: &[u8]) {
    let mut file = fs::File::create(mounted.join(name)).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_mounted_volume_is_found_by_what_is_on_it_and_by_its_device() {
    let image = image();
    let mounted = image.mount(MOUNT);
    fs::create_dir(mounted.join("directory")).unwrap();
    fs::write(mounted.join("directory/file"), "content").unwrap();
    works(&["clean", "--suspend"], mounted.root(), &[]);
    let beside = image.beside("link");
    std::os::unix::fs::symlink(image.path(), &beside).unwrap();
    let places = ["", "directory", "directory/file"].map(|name| mounted.join(name));
    for path in places.into_iter().chain([image.path(), beside]) {
        let status = json(&["status"], &path);
        assert_eq!(status["cleaner"]["state"], "suspended", "{}", path.display());
    }
    mounted.unmount();
}

#[test]
fn an_image_on_a_mounted_volume_is_itself_and_not_the_mount() {
    let outer = Image::ours("--size 64M -B 256");
    let mounted = outer.mount(MOUNT);
    let inner = mounted.join("inner.img");
    works(&["mkfs", "--size", "32M", "-B", "256"], &inner, &[]);
    let snapshot = create_snapshot(&inner);
    assert_eq!((snapshots(&inner), snapshots(mounted.root())), (vec![snapshot], vec![]));
    mounted.unmount();
}

#[test]
fn a_snapshot_shows_the_moment_at_which_it_was_made() {
    let image = image();
    let mounted = image.mount(MOUNT);
    fs::write(mounted.join("kept"), "as it was").unwrap();
    let snapshot = create_snapshot(mounted.root());
    fs::write(mounted.join("kept"), "changed since").unwrap();
    assert_eq!(snapshots(mounted.root()), [snapshot]);
    mounted.unmount();
    image.check();
    assert_eq!(snapshots(&image.path()), [snapshot]);
    let past = image.mount(&format!("ro,cp={snapshot}"));
    assert_eq!(fs::read_to_string(past.join("kept")).unwrap(), "as it was");
    past.unmount();
}

#[test]
fn a_snapshot_outlives_cleaning_until_it_is_deleted() {
    let image = image();
    let mounted = image.mount(MOUNT);
    write_large(&mounted, "file", &[1; 4 * MIB]);
    let snapshot = create_snapshot(mounted.root());
    fs::remove_file(mounted.join("file")).unwrap();
    works(&["clean"], mounted.root(), &[]);
    let kept = json(&["df"], mounted.root());
    let at_least_the_file = |bytes: &Value| bytes.as_u64().unwrap() >= 4 * MIB as u64;
    assert!(at_least_the_file(&kept["snapshot_bytes"]), "{kept}");
    assert_eq!(kept["snapshots"][0]["checkpoint"], snapshot);
    assert!(at_least_the_file(&kept["snapshots"][0]["exclusive_bytes"]), "{kept}");
    works(&["snapshot", "delete"], mounted.root(), &[&snapshot.to_string()]);
    works(&["clean"], mounted.root(), &[]);
    let freed = json(&["df"], mounted.root());
    assert_eq!(freed["snapshot_bytes"], 0, "{freed}");
    assert!(free(&freed) > free(&kept), "{kept} {freed}");
    mounted.unmount();
    image.check();
}

fn free(df: &Value) -> u64 {
    df["free_bytes"].as_u64().unwrap()
}

#[test]
fn all_space_is_accounted_for() {
    let image = image();
    let mounted = image.mount(MOUNT);
    for byte in 0..5 {
        write(&mounted, "file", byte);
    }
    create_snapshot(mounted.root());
    let df = json(&["df"], mounted.root());
    let bytes = |name: &str| df[format!("{name}_bytes")].as_u64().unwrap();
    let parts = ["live", "snapshot", "protected", "reclaimable", "free"].map(bytes);
    assert_eq!(parts.iter().sum::<u64>(), bytes("total"), "{df}");
    assert!(bytes("live") >= 1 << 20 && bytes("reserved") <= bytes("free"), "{df}");
    mounted.unmount();
}

#[test]
fn a_run_of_the_cleaner_gives_space_back_and_leaves_files_alone() {
    let image = image();
    let mounted = image.mount(MOUNT);
    for byte in 0..8 {
        write(&mounted, "rewritten", byte);
    }
    write(&mounted, "kept", 9);
    let manifest = mounted.manifest("");
    let before = json(&["status"], mounted.root());
    let run = json(&["clean"], mounted.root());
    let after = json(&["status"], mounted.root());
    let clean = |status: &Value| status["clean_segments"].as_u64().unwrap();
    assert!(run["segments_cleaned"].as_u64().unwrap() > 0, "{run}");
    assert!(clean(&after) > clean(&before), "{before} {after}");
    assert_eq!(after["cleaner"]["segments_freed"], run["segments_cleaned"]);
    assert!(mounted.manifest("") == manifest);
    mounted.unmount();
    image.check();
}

#[test]
fn the_protection_period_of_a_run_keeps_what_is_young() {
    let image = image();
    let mounted = image.mount(MOUNT);
    write_large(&mounted, "file", &[1; 4 * MIB]);
    fs::remove_file(mounted.join("file")).unwrap();
    works(&["clean", "-p", "1h"], mounted.root(), &[]);
    let kept = json(&["df"], mounted.root());
    works(&["clean", "-p", "0"], mounted.root(), &[]);
    let freed = json(&["df"], mounted.root());
    assert!(free(&freed) >= free(&kept) + 2 * MIB as u64, "{kept} {freed}");
    mounted.unmount();
    image.check();
}

#[test]
fn checkpoints_are_deleted_by_ranges_but_no_snapshot_and_not_the_newest() {
    let image = image();
    let mounted = image.mount(MOUNT);
    for byte in 0..8 {
        write(&mounted, "file", byte);
    }
    works(&["snapshot", "create"], mounted.root(), &["4"]);
    let said = refused(&["checkpoints", "delete"], mounted.root(), &["4"]);
    assert!(said.contains("checkpoint 4 is a snapshot"), "{said}");
    let said = refused(&["checkpoints", "delete"], mounted.root(), &["999"]);
    assert!(said.contains("there is no checkpoint 999"), "{said}");
    let printed = works(&["checkpoints", "delete"], mounted.root(), &["2", "3..5", "..1"]);
    assert_eq!(printed, "4 checkpoints deleted\n4 stays, it is a snapshot\n");
    let left: Vec<u64> = {
        let list = json(&["checkpoints"], mounted.root());
        list.as_array().unwrap().iter().map(|one| one["checkpoint"].as_u64().unwrap()).collect()
    };
    assert_eq!(left[..3], [4, 6, 7]);
    let newest = left.last().unwrap().to_string();
    let said = refused(&["checkpoints", "delete"], mounted.root(), &[&newest]);
    assert!(said.contains("is the newest, which stays"), "{said}");
    mounted.unmount();
    image.check();
}

#[test]
fn others_may_look_but_not_touch() {
    let image = image();
    let mounted = image.mount(&format!("allow_other,{MOUNT}"));
    fs::set_permissions(image.path().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(mounted.root(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(image.path(), fs::Permissions::from_mode(0o644)).unwrap();
    // The build directory need not be open to everybody. A copy by this process could not be run
    // while a process that another test has just started still has it open.
    let program = image.beside("nilfs");
    let copied =
        Command::new("cp").args([Path::new(env!("CARGO_BIN_EXE_nilfs")), &program]).status();
    assert!(copied.unwrap().success());
    let as_nobody = |words: &[&str], more: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).arg(mounted.root()).args(more).uid(NOBODY).gid(NOBODY);
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for words in ["status", "df", "metrics"] {
        assert_eq!(as_nobody(&[words], &[]), (Some(0), String::new()), "{words}");
    }
    for (words, more) in [
        (&["clean"][..], &[][..]),
        (&["clean", "--suspend"], &[]),
        (&["snapshot", "create"], &[]),
        (&["snapshot", "create"], &["1"]),
        (&["snapshot", "keep", "--daily", "1"], &[]),
        (&["checkpoints", "delete"], &["1"]),
        (&["trim"], &[]),
        (&["resize"], &["16M"]),
    ] {
        let (code, said) = as_nobody(words, more);
        assert_eq!(code, Some(1), "{words:?}");
        assert!(said.contains("only the superuser and the owner of the mount"), "{said}");
    }
    let status = json(&["status"], mounted.root());
    assert_eq!(
        (&status["newest_checkpoint"], &status["cleaner"]["state"]),
        (&1.into(), &"off".into())
    );
    // A sync is for everybody.
    assert_eq!(as_nobody(&["sync"], &[]), (Some(0), String::new()));
    mounted.unmount();
}

#[test]
fn a_volume_that_is_not_mounted_is_administered_by_the_command_itself() {
    let image = image();
    let path = image.path();
    let mounted = image.mount(MOUNT);
    for byte in 0..8 {
        write(&mounted, "file", byte);
    }
    let manifest = mounted.manifest("");
    mounted.unmount();
    let snapshot = create_snapshot(&path);
    assert_eq!(snapshots(&path), [snapshot]);
    works(&["checkpoints", "delete"], &path, &["1..3"]);
    assert!(json(&["clean", "-p", "0"], &path)["segments_cleaned"].as_u64().unwrap() > 0);
    works(&["snapshot", "delete"], &path, &[&snapshot.to_string()]);
    assert!(json(&["trim"], &path)["trimmed_bytes"].as_u64().unwrap() > 0);
    image.check();
    let before = fs::read(&path).unwrap();
    assert!(free(&json(&["df"], &path)) > 0);
    assert!(fs::read(&path).unwrap() == before);
    let mounted = image.mount("ro");
    assert!(mounted.manifest("") == manifest);
    mounted.unmount();
}

#[test]
fn what_only_a_mount_can_answer_is_refused_without_one() {
    let image = image();
    for words in [&["status"][..], &["metrics"], &["clean", "--suspend"], &["clean", "--stop"]] {
        let said = refused(words, &image.path(), &[]);
        assert!(said.contains("is not mounted by nilfs"), "{said}");
    }
    let (code, _, said) = nilfs(&["status"], Path::new("/proc"), &[]);
    assert_eq!(code, Some(4));
    assert!(said.contains("/proc is a directory, not a block device"), "{said}");
}

#[test]
fn a_read_only_mount_refuses_changes_with_the_reason() {
    let image = image();
    let mounted = image.mount("ro");
    assert_eq!(json(&["status"], mounted.root())["cleaner"]["state"], "off");
    for (words, more) in [
        (&["clean"][..], &[][..]),
        (&["snapshot", "create"], &[]),
        (&["checkpoints", "delete"], &["1"]),
        (&["resize"], &["16M"]),
    ] {
        let said = refused(words, mounted.root(), more);
        assert!(said.contains("it is mounted read-only"), "{said}");
    }
    mounted.unmount();
}

#[test]
fn a_process_that_was_killed_is_named_as_the_cause() {
    let image = image();
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    let command = command.args(["mount", "--foreground"]).args([&image.path(), &dir]);
    let mut process = command.stderr(Stdio::null()).spawn().unwrap();
    while json_if_any(&dir).is_none() {
        std::thread::sleep(GLANCE);
    }
    process.kill().unwrap();
    process.wait().unwrap();
    let said = refused(&["status"], &dir, &[]);
    assert!(said.contains("the process that served") && said.contains("is gone"), "{said}");
    works(&["umount"], &dir, &[]);
}

/// The status of a mount, once it has one.
fn json_if_any(dir: &Path) -> Option<Value> {
    let (_, printed, _) = nilfs(&["status", "--json"], dir, &[]);
    serde_json::from_str(&printed).ok()
}

/// sync(1) does not reach every mount, and an fsync makes no checkpoint.
#[test]
fn a_sync_makes_a_checkpoint_of_what_was_written() {
    let image = image();
    let mounted = image.mount(MOUNT);
    let sync = || works(&["sync"], mounted.root(), &[]).trim().to_owned();
    write(&mounted, "file", b'1');
    let before = sync();
    assert_eq!(sync(), before, "nothing has changed");
    write(&mounted, "file", b'2');
    let after = sync();
    assert_ne!(after, before);
    let at = |cno: &str| works(&["cat", "--at", cno], mounted.root(), &["file"]).into_bytes()[0];
    assert_eq!((at(&before), at(&after)), (b'1', b'2'));
    mounted.unmount();
}

/// A port that nobody has, as far as one can know.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_count_what_programs_do() {
    let image = image();
    let port = free_port();
    let mounted = image.mount(&format!("{MOUNT},metrics=127.0.0.1:{port}"));
    write(&mounted, "file", 1);
    assert!(get(port, "/").starts_with("HTTP/1.0 404"));
    let fetched = get(port, "/metrics");
    let printed = works(&["metrics"], mounted.root(), &[]);
    for text in [&fetched, &printed] {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.trim().parse::<f64>().unwrap()
        };
        assert_eq!(value("nilfs_operation_duration_seconds_count{operation=\"fsync\"}"), 1.0);
        assert!(value("nilfs_operation_duration_seconds_sum{operation=\"fsync\"}") > 0.0);
        let all = "nilfs_operation_duration_seconds_bucket{le=\"+Inf\",operation=\"create\"}";
        assert_eq!(value(all), 1.0);
        assert_eq!(value("nilfs_operation_errors_total{operation=\"write\"}"), 0.0);
        assert_eq!(value("nilfs_user_bytes_total"), f64::from(1 << 20));
        assert!(value("nilfs_log_bytes_total") > f64::from(1 << 20));
        let kinds = ["checkpoint_data", "checkpoint_metadata", "data_sync", "cleaner_log"];
        let by_kind = kinds.map(|kind| value(&format!("nilfs_{kind}_bytes_total")));
        assert_eq!(by_kind.iter().sum::<f64>(), value("nilfs_log_bytes_total"));
        assert_eq!(by_kind[0], f64::from(1 << 20));
        assert!(by_kind[1] > 0.0 && value("nilfs_cache_hits_total") > 0.0);
        assert!(text.trim_end().ends_with("# EOF"));
    }
    let metrics = json(&["metrics"], mounted.root());
    assert_eq!(metrics["user_bytes"], 1 << 20);
    mounted.unmount();
}

#[test]
fn totals_over_the_life_of_a_volume_outlast_the_mount() {
    let image = image();
    let totals = |mounted: &Mounted| {
        let status = json(&["status"], mounted.root());
        let of = |name: &str| status["lifetime"][name].as_u64().unwrap();
        ["user_bytes", "written_bytes", "segments_freed"].map(of)
    };
    let mounted = image.mount(MOUNT);
    assert_eq!(totals(&mounted)[0], 0);
    for byte in 0..4 {
        write(&mounted, "file", byte);
    }
    works(&["clean"], mounted.root(), &[]);
    let first = totals(&mounted);
    assert_eq!(first[0], 4 * MIB as u64);
    assert!(first[1] > first[0] && first[2] > 0, "{first:?}");
    mounted.unmount();

    works(&["tune", "-L", "label"], &image.path(), &[]);
    let mounted = image.mount(MOUNT);
    let second = totals(&mounted);
    assert!(second[0] == first[0] && second[1] >= first[1] && second[2] == first[2], "{second:?}");
    write(&mounted, "file", 9);
    assert_eq!(totals(&mounted)[0], 5 * MIB as u64);
    assert_eq!(json(&["metrics"], mounted.root())["lifetime_user_bytes"], 5 << 20);
    let status = works(&["status"], mounted.root(), &[]);
    assert!(status.contains("written, amplification"), "{status}");
    mounted.unmount();
    image.check();
}

#[test]
fn a_port_that_somebody_has_is_a_reason_not_to_mount() {
    let image = image();
    let before = fs::read(image.path()).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let option = format!("metrics={}", taken.local_addr().unwrap());
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let said = refused(&["mount", "-o", &option], &image.path(), &[dir.to_str().unwrap()]);
    assert!(said.contains("cannot offer metrics at 127.0.0.1:"), "{said}");
    assert!(fs::read(image.path()).unwrap() == before);
}
