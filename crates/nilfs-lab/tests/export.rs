//! The exported device, used by the kernel of this machine as a disk, and what it records.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use nilfs_lab::cleanup::{Pending, Undo, on_signals, register};
use nilfs_lab::export::{Export, ExportOptions, rebuild};
use nilfs_lab::model::{Limits, Model, Wear};
use nilfs_lab::trace::{DeviceRequest, Kind, Mark, Trace, TraceError, Traffic};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fdatasync};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;

/// Takes the same time for everything, and counts bytes.
#[derive(Default)]
struct Steady {
    time: Duration,
    host_bytes: u64,
}

impl Model for Steady {
    fn serve(&mut self, request: &DeviceRequest) -> Duration {
        self.host_bytes += if request.kind == Kind::Write { request.bytes } else { 0 };
        self.time
    }

    fn wear(&self) -> Wear {
        Wear { host_bytes: self.host_bytes, ..Wear::default() }
    }

    fn limits(&self, _request_bytes: u64) -> Limits {
        Limits::default()
    }
}

struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn options(&self, bytes: u64) -> ExportOptions {
        let (image, keep_data) = (self.file("image"), Some(self.file("kept")));
        ExportOptions { image, bytes, model: None, pace: false, queue_depth: 64, keep_data }
    }

    /// The image made anew from what was recorded.
    fn rebuilt(&self, trace: &Trace) -> Vec<u8> {
        let path = self.file("rebuilt");
        rebuild(trace, &self.file("kept"), &path).unwrap();
        fs::read(path).unwrap()
    }
}

fn open_direct(path: &Path, more: OFlags) -> File {
    let flags = (OFlags::DIRECT | more).bits() as i32;
    File::options().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// 1 MiB from a page boundary on: FUSE carries 256 pages, so other buffers are split.
fn page_aligned(buffer: &mut [u8]) -> &mut [u8] {
    let start = buffer.as_ptr().align_offset(PAGE);
    &mut buffer[start..start + MIB as usize]
}

/// Kinds, offsets and lengths, without the times.
fn outline(requests: &[DeviceRequest]) -> Vec<(Kind, u64, u64)> {
    requests.iter().map(|request| (request.kind, request.offset, request.bytes)).collect()
}

fn is_mounted(dir: &Path) -> bool {
    fs::read_to_string("/proc/self/mounts").unwrap().contains(dir.to_str().unwrap())
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// A loop device over a file, taken away at the end of the test in any case.
struct Loop {
    path: String,
    _pending: Pending,
}

impl Loop {
    fn over(file: &Path) -> Self {
        let args = ["--find", "--show", "--direct-io=on", file.to_str().unwrap()];
        let path = run("losetup", &args).trim().to_owned();
        let _pending = register(Undo::Detach(path.clone().into()));
        Self { path, _pending }
    }
}

/// Whether this test can use loop devices.
fn has_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

#[test]
fn requests_arrive_whole_and_in_order() {
    let bench = Bench::new();
    let export = Export::start(bench.options(8 * MIB)).unwrap();
    let file = open_direct(export.path(), OFlags::empty());
    let mut buffer = vec![0; MIB as usize + PAGE];
    let data = page_aligned(&mut buffer);
    data.iter_mut().zip((0..251).cycle()).for_each(|(byte, value)| *byte = value);
    file.write_all_at(data, 2 * MIB).unwrap();
    file.write_all_at(&data[..4096], 8 * MIB - 4096).unwrap();
    fdatasync(&file).unwrap();
    let mut buffer = vec![0; MIB as usize + PAGE];
    let back = page_aligned(&mut buffer);
    file.read_exact_at(back, 2 * MIB).unwrap();
    assert!(back == data, "read what was written");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, hole, 2 * MIB, 65536).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 3 * MIB - 4096, MIB + 4096).unwrap();
    open_direct(export.path(), OFlags::DSYNC).write_all_at(&data[..512], 512).unwrap();
    drop(file);
    let trace = export.end().unwrap();
    let expected = [
        (Kind::Write, 2 * MIB, MIB),
        (Kind::Write, 8 * MIB - 4096, 4096),
        (Kind::Flush, 0, 0),
        (Kind::Read, 2 * MIB, MIB),
        (Kind::Discard, 2 * MIB, 65536),
        (Kind::Write, 3 * MIB - 4096, MIB),
        (Kind::Write, 4 * MIB - 4096, 4096),
        (Kind::Write, 512, 512),
        (Kind::Flush, 0, 0),
    ];
    assert_eq!(outline(&trace.requests), expected);
    assert!(trace.requests.is_sorted_by_key(|request| request.at));
    assert!(bench.rebuilt(&trace) == fs::read(bench.file("image")).unwrap());
}

#[test]
fn the_file_is_a_disk_that_neither_grows_nor_shrinks() {
    let bench = Bench::new();
    let export = Export::start(bench.options(MIB)).unwrap();
    let file = File::options().write(true).truncate(true).open(export.path()).unwrap();
    assert_eq!(file.metadata().unwrap().len(), MIB);
    file.write_all_at(b"x", MIB).unwrap_err();
    assert_eq!(file.write_at(&[7; 1024], MIB - 512).unwrap(), 512);
    drop(file);
    assert_eq!(fs::read(export.path()).unwrap().len() as u64, MIB);
    export.end().unwrap();
}

#[test]
fn ext4_on_a_loop_device_works_and_its_trace_rebuilds_the_image() {
    if !has_root() {
        return;
    }
    let bench = Bench::new();
    let export = Export::start(bench.options(64 * MIB)).unwrap();
    let disk = Loop::over(export.path());
    run("mkfs.ext4", &["-q", &disk.path]);
    let dir = bench.file("mounted");
    fs::create_dir(&dir).unwrap();
    let mounted = register(Undo::Unmount(dir.clone()));
    run("mount", &["-t", "ext4", &disk.path, dir.to_str().unwrap()]);
    export.mark("writes begin");
    fs::write(dir.join("large"), vec![0xA5; 8 * MIB as usize]).unwrap();
    for number in 0..100 {
        fs::write(dir.join(format!("small {number}")), format!("{number}\n")).unwrap();
    }
    run("sync", &["-f", dir.to_str().unwrap()]);
    export.mark("writes end");
    fs::remove_file(dir.join("large")).unwrap();
    run("fstrim", &[dir.to_str().unwrap()]);
    export.mark("trimmed");
    run("umount", &[dir.to_str().unwrap()]);
    mounted.cancel();
    run("e2fsck", &["-fn", &disk.path]);
    drop(disk);
    let trace = export.end().unwrap();

    let writes = Traffic::of(trace.phase("writes begin", "writes end").unwrap());
    assert!(writes.written.bytes >= 8 * MIB, "{writes:?}");
    assert!(
        writes.written.bytes / writes.written.requests > 64 << 10,
        "whole requests: {writes:?}"
    );
    assert!(writes.flushes > 0, "{writes:?}");
    let trimmed = Traffic::of(trace.phase("writes end", "trimmed").unwrap());
    assert!(trimmed.discarded.bytes > 8 * MIB, "{trimmed:?}");

    trace.save(&bench.file("trace")).unwrap();
    assert!(Trace::load(&bench.file("trace")).unwrap() == trace);
    let image = fs::read(bench.file("image")).unwrap();
    assert!(bench.rebuilt(&trace) == image, "the rebuilt image is another one");
}

#[test]
fn a_paced_device_takes_at_least_the_time_of_its_model() {
    let bench = Bench::new();
    let time = Duration::from_millis(3);
    let model = Some(Box::new(Steady { time, host_bytes: 0 }) as Box<dyn Model>);
    let export = Export::start(ExportOptions { model, pace: true, ..bench.options(MIB) }).unwrap();
    let before = export.mark("before");
    let start = Instant::now();
    // A device is serial, however many ask at once.
    scope(|scope| {
        for thread in 0..4 {
            let path = export.path();
            scope.spawn(move || {
                let file = File::options().read(true).write(true).open(path).unwrap();
                for number in 0..4 {
                    let request = Instant::now();
                    file.write_all_at(&[1; 512], (thread * 4 + number) * 512).unwrap();
                    assert!(request.elapsed() >= time, "one request");
                }
            });
        }
    });
    assert!(start.elapsed() >= time * 16, "all requests");
    let after = export.mark("after");
    assert_eq!(after.requests - before.requests, 16);
    assert_eq!(after.busy - before.busy, time * 16);
    assert_eq!(after.wear.host_bytes, 16 * 512);
    assert_eq!(export.requests(before.requests..after.requests + 5).len(), 16);
    export.end().unwrap();
}

#[test]
fn an_export_that_is_dropped_leaves_nothing_behind_though_its_file_is_open() {
    if !has_root() {
        return;
    }
    let bench = Bench::new();
    // Answers that are due in an hour do not delay the end.
    let time = Duration::from_secs(3600);
    let model = Some(Box::new(Steady { time, host_bytes: 0 }) as Box<dyn Model>);
    let export = Export::start(ExportOptions { model, pace: true, ..bench.options(MIB) }).unwrap();
    let dir = export.path().parent().unwrap().to_owned();
    assert!(is_mounted(&dir));
    let file = File::open(export.path()).unwrap();
    let waiting = std::thread::spawn(move || file.read_at(&mut [0; 512], 0));
    while export.requests(0..1).is_empty() {
        sleep(Duration::from_millis(1));
    }
    drop(export);
    waiting.join().unwrap().unwrap_err();
    assert!(!is_mounted(&dir) && !dir.exists());
}

/// What is written after a power cut must not survive it, and is no part of the recording.
#[test]
fn a_device_without_power_refuses_everything_until_it_is_back() {
    let bench = Bench::new();
    let export = Export::start(bench.options(MIB)).unwrap();
    let file = File::options().read(true).write(true).open(export.path()).unwrap();
    let mut page = [7; 4096];
    file.write_all_at(&page, 0).unwrap();
    let before = export.mark("before");
    export.power().cut();
    assert!(file.write_all_at(&page, 4096).is_err());
    assert!(file.read_exact_at(&mut page, 0).is_err());
    assert!(file.sync_data().is_err());
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(fallocate(&file, hole, 0, 4096).is_err());
    assert_eq!(export.mark("after").requests, before.requests);
    export.power().restore();
    file.read_exact_at(&mut page, 0).unwrap();
    assert!(page == [7; 4096], "the hole was punched");
    file.read_exact_at(&mut page, 4096).unwrap();
    assert!(page == [0; 4096], "written without power");
    drop(file);
    export.end().unwrap();
}

#[test]
fn an_image_has_one_export() {
    let bench = Bench::new();
    let export = Export::start(bench.options(MIB)).unwrap();
    let error = Export::start(bench.options(MIB)).map(drop).unwrap_err();
    assert!(format!("{error:#}").contains("is in use"), "{error:#}");
    export.end().unwrap();
    Export::start(bench.options(MIB)).unwrap().end().unwrap();
}

#[test]
fn options_without_sense_are_refused() {
    let bench = Bench::new();
    for bytes in [0, 1000] {
        let error = Export::start(bench.options(bytes)).map(drop).unwrap_err();
        assert!(error.to_string().contains("multiple of 512"), "{error:#}");
    }
    let error = Export::start(ExportOptions { pace: true, ..bench.options(MIB) }).map(drop);
    assert!(error.unwrap_err().to_string().contains("no pace"));
}

/// Run by [`a_signal_takes_the_export_away`].
#[test]
#[ignore = "waits for a signal"]
fn exports_until_a_signal_comes() {
    let Some(image) = std::env::var_os("EXPORTED_IMAGE") else { return };
    on_signals(|| ()).unwrap();
    let image = image.into();
    let options = ExportOptions {
        image,
        bytes: MIB,
        model: None,
        pace: false,
        queue_depth: 64,
        keep_data: None,
    };
    let export = Export::start(options).unwrap();
    println!("\nexported {}", export.path().display());
    sleep(Duration::from_secs(600));
}

#[test]
fn a_signal_takes_the_export_away() {
    let bench = Bench::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "exports_until_a_signal_comes", "--ignored", "--nocapture"])
        .env("EXPORTED_IMAGE", bench.file("image"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let path = lines.find_map(|line| Some(PathBuf::from(line.strip_prefix("exported ")?))).unwrap();
    let dir = path.parent().unwrap();
    assert!(is_mounted(dir));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!is_mounted(dir) && !dir.exists());
}

fn sample() -> Trace {
    let kinds = [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard];
    let requests: Vec<DeviceRequest> = (0..20)
        .map(|i| DeviceRequest {
            kind: kinds[i % 4],
            offset: i as u64 * 4096,
            bytes: if i % 4 == 2 { 0 } else { 4096 << (i % 3) },
            at: Duration::from_nanos(1_000_000_007 * i as u64),
        })
        .collect();
    let mark = |before, name: &str| Mark {
        before,
        at: Duration::from_nanos(before as u64 * 1_000_000_007),
        name: name.to_owned(),
    };
    let marks = vec![mark(0, "begin"), mark(5, "ünicode \"quoted\""), mark(20, "end")];
    Trace { device_bytes: MIB, requests, marks }
}

#[test]
fn a_trace_reloads_equal() {
    let bench = Bench::new();
    for trace in [sample(), Trace::default()] {
        trace.save(&bench.file("trace")).unwrap();
        assert_eq!(Trace::load(&bench.file("trace")).unwrap(), trace);
    }
}

#[test]
fn a_damaged_trace_is_an_error_that_names_the_file() {
    let bench = Bench::new();
    let path = bench.file("trace");
    sample().save(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let refuse = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).unwrap();
        let error = Trace::load(&path).expect_err(what);
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    };
    for length in 0..whole.len() {
        refuse(&whole[..length], &format!("{length} bytes of it"));
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        refuse(&damaged, &format!("byte {at} changed"));
    }
    refuse(&[&whole[..], b"more"].concat(), "more than it");
    refuse(&[0; 4096], "zeros");
    assert!(matches!(Trace::load(bench.dir.path()), Err(TraceError::NotATrace { .. })));
}

#[test]
fn a_trace_that_could_not_have_been_is_refused() {
    let bench = Bench::new();
    let path = bench.file("trace");
    let mut beyond = sample();
    beyond.requests[3].offset = MIB - 1;
    let mut overflowing = sample();
    overflowing.requests[3].offset = u64::MAX;
    let mut misplaced = sample();
    misplaced.marks[2].before = 21;
    let mut disordered = sample();
    disordered.marks.swap(0, 1);
    for trace in [beyond, overflowing, misplaced, disordered] {
        trace.save(&path).unwrap();
        assert!(matches!(Trace::load(&path), Err(TraceError::Damaged { .. })));
    }
}

#[test]
fn a_phase_lies_between_its_marks() {
    let mut trace = sample();
    let phase = trace.phase("begin", "ünicode \"quoted\"").unwrap();
    assert_eq!(phase, &trace.requests[..5]);
    assert!(trace.phase("end", "begin").is_none(), "the other way round");
    assert!(trace.phase("begin", "nothing").is_none());
    // A step that is done twice ends where it first ends.
    trace.marks.push(Mark { name: "end".to_owned(), ..trace.marks[2].clone() });
    trace.marks[2].before = 7;
    assert_eq!(trace.phase("begin", "end").unwrap().len(), 7);
}

#[test]
fn kept_data_of_another_trace_are_refused() {
    let bench = Bench::new();
    let export = Export::start(bench.options(MIB)).unwrap();
    fs::write(export.path(), [1; 4096]).unwrap();
    let mut trace = export.end().unwrap();
    trace.requests.pop();
    let error = rebuild(&trace, &bench.file("kept"), &bench.file("rebuilt")).unwrap_err();
    assert!(error.to_string().contains("do not belong together"), "{error:#}");
}
