//! The command under the names of nilfs-utils' programs: options, messages, exit codes, and what
//! becomes of the volume. `drop_ins_linux.rs` compares with the real ones.

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::tool::{tool, tool_with_input};
use common::{CommandOutput, Volume, empty_volume, nilfs, volume};

const TOOLS: [&str; 17] = [
    "chcp",
    "dumpseg",
    "lscp",
    "lssu",
    "mkcp",
    "mkfs.nilfs2",
    "mount.fuse.nilfs",
    "mount.fuseblk.nilfs",
    "mount.nilfs2",
    "nilfs-clean",
    "nilfs-resize",
    "nilfs-tune",
    "nilfs_cleanerd",
    "rmcp",
    "umount.fuse.nilfs",
    "umount.fuseblk.nilfs",
    "umount.nilfs2",
];

/// Runs a line; `IMAGE` among its words stands for the image.
fn run(volume: &Volume, line: &str) -> CommandOutput {
    let mut words = line.split(' ').map(|word| match word {
        "IMAGE" => volume.image.to_str().unwrap(),
        word => word,
    });
    tool(words.next().unwrap(), words)
}

/// What a tool complained of, which must have failed with this code and printed nothing.
#[track_caller]
fn complaint(outcome: CommandOutput, code: i32) -> String {
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(code), ""), "{}", outcome.stderr);
    outcome.stderr
}

/// Numbers and modes of all checkpoints.
fn checkpoints(volume: &Volume) -> Vec<(u64, String)> {
    let list = run(volume, "lscp -a IMAGE").output();
    let rows = list.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.map(|row| (row[0].parse().unwrap(), row[3].to_owned())).collect()
}

#[test]
fn every_tool_knows_its_name_and_its_options() {
    for name in TOOLS {
        assert!(tool(name, ["-V"]).output().starts_with(&format!("{name} (nilfs ")), "{name}");
        assert!(tool(name, ["-h"]).output().starts_with(&format!("Usage: {name} ")), "{name}");
        let said = complaint(tool(name, ["-Z"]), 1);
        assert_eq!(said, format!("{name}: invalid option -- 'Z'\n"));
    }
}

#[test]
fn options_are_read_as_getopt_long_reads_them() {
    let volume = volume();
    let expected = run(&volume, "lscp --all --reverse --lines 2 IMAGE").output();
    assert_eq!(expected.lines().count(), 3);
    for line in [
        "lscp -arn2 IMAGE",
        "lscp -a IMAGE -rn 2",
        "lscp --al --rev --lines=2 -- IMAGE",
        "lscp IMAGE --all -b --r --li 2",
    ] {
        assert_eq!(run(&volume, line).output(), expected, "{line}");
    }
    for (line, message) in [
        ("lscp --frob", "unrecognized option '--frob'"),
        ("lscp --all=3", "option '--all' doesn't allow an argument"),
        ("lscp -i", "option requires an argument -- 'i'"),
        ("lscp --index", "option '--index' requires an argument"),
        (
            "lscp --show",
            "option '--show' is ambiguous; possibilities: '--show-block-count' '--show-increment'",
        ),
        ("lscp a b", "too many arguments"),
    ] {
        assert_eq!(complaint(run(&volume, line), 1), format!("lscp: {message}\n"));
    }
}

#[test]
fn lists_have_the_columns_that_scripts_cut_out() {
    let volume = empty_volume();
    let expected = "                 CNO        DATE     TIME  MODE  FLG      BLKCNT       ICNT
                   1  2023-11-14 22:13:20   cp    -            5          1
";
    assert_eq!(run(&volume, "lscp IMAGE").output(), expected);
    let expected = "              SEGNUM        DATE     TIME STAT     NBLOCKS
                   0  2023-11-14 22:13:20  ad-          12
                   1  ---------- --:--:--  ad-           0
                   2  ---------- --:--:--  ---           0
";
    assert_eq!(run(&volume, "lssu -an3 IMAGE").output(), expected);
    let said = complaint(run(&volume, "lssu -p 3x IMAGE"), 1);
    assert_eq!(said, "lssu: invalid protection period: 3x\n");
}

#[test]
fn segments_that_are_not_there_are_not_dumped() {
    let volume = volume();
    let said = complaint(run(&volume, "dumpseg IMAGE 9999"), 1);
    assert_eq!(said, "dumpseg: failed to read segment: Invalid argument\n");
    let outcome = run(&volume, "dumpseg IMAGE x 1");
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (Some(1), "dumpseg: x: invalid segment number\n")
    );
    assert!(outcome.stdout.starts_with("segment: segnum = 1\n"), "{}", outcome.stdout);
}

#[test]
fn what_cannot_be_opened_is_named_with_the_reason() {
    let volume = volume();
    let said = complaint(run(&volume, "lscp /nowhere"), 1);
    assert_eq!(said, "lscp: cannot open NILFS on /nowhere: No such file or directory\n");
    fs::write(&volume.image, "no volume").unwrap();
    let said = complaint(run(&volume, "mkcp IMAGE"), 1);
    let start = format!("mkcp: cannot open NILFS on {}: not a NILFS2", volume.image.display());
    assert!(said.starts_with(&start), "{said}");
}

#[test]
fn checkpoints_become_snapshots_and_back() {
    let volume = volume();
    let cno = run(&volume, "mkcp -sp IMAGE").output();
    let cno: u64 = cno.trim().parse().unwrap();
    assert!(checkpoints(&volume).contains(&(cno, "ss".into())));
    let said = complaint(run(&volume, &format!("chcp cp IMAGE {cno} 999 x")), 1);
    assert_eq!(said, "chcp: 999: no checkpoint\nchcp: x: invalid checkpoint number\n");
    assert!(checkpoints(&volume).contains(&(cno, "cp".into())));
    for (line, message) in [
        ("chcp", "too few arguments"),
        ("chcp ss", "too few arguments"),
        ("chcp foo 3", "foo: invalid checkpoint mode"),
        ("chcp ss IMAGE 0", "Invalid argument"),
    ] {
        assert_eq!(complaint(run(&volume, line), 1), format!("chcp: {message}\n"));
    }
    volume.nilfs("check IMAGE").output();
}

const HINT: &str = "
To delete snapshot(s), change them into checkpoints with
chcp command before removal.
";

/// The program of nilfs-utils asks the kernel for a sync, which makes no checkpoint of nothing.
#[test]
fn without_a_change_the_newest_checkpoint_is_used_again() {
    let volume = volume();
    let newest = checkpoints(&volume).last().unwrap().0.to_string() + "\n";
    assert_eq!(run(&volume, "mkcp -p IMAGE").output(), newest);
    let dir = tempfile::tempdir().unwrap();
    let [image, dir] = [&volume.image, dir.path()].map(|path: &Path| path.to_str().unwrap());
    tool("mount.nilfs2", [image, dir]).output();
    assert_eq!(tool("mkcp", ["-p", dir]).output(), newest);
    fs::write(format!("{dir}/new"), "new").unwrap();
    let next = tool("mkcp", ["-sp", dir]).output();
    assert_ne!(next, newest);
    // That it has become a snapshot is a change.
    assert_ne!(tool("mkcp", ["-p", dir]).output(), next);
    tool("umount.nilfs2", [dir]).output();
}

/// Nothing is asked, and nothing else complained of, before it is known that nothing can be done.
#[test]
fn what_is_mounted_read_only_is_not_changed() {
    let volume = volume();
    let dir = tempfile::tempdir().unwrap();
    let [image, dir] = [&volume.image, dir.path()].map(|path: &Path| path.to_str().unwrap());
    tool("mount.nilfs2", ["-r", image, dir]).output();
    for line in [
        "mkcp IMAGE",
        "mkcp -s IMAGE",
        "chcp ss IMAGE 2 x",
        "rmcp IMAGE x",
        "rmcp -i IMAGE 2",
        "nilfs-resize IMAGE",
        "nilfs-resize -y IMAGE 1000",
    ] {
        let said = complaint(run(&volume, line), 1);
        let sentence = format!(": cannot open NILFS on {image}: it is mounted read-only\n");
        assert!(said.ends_with(&sentence), "{line}: {said}");
    }
    for line in ["nilfs-clean IMAGE", "nilfs-clean -l IMAGE", "nilfs-clean -c/nowhere IMAGE"] {
        let said = complaint(run(&volume, line), 1);
        let sentence = "Error: no valid nilfs mountpoint found: it is mounted read-only.\n";
        assert_eq!(said, sentence, "{line}");
    }
    tool("umount.nilfs2", [dir]).output();
}

#[test]
fn checkpoints_are_removed_and_snapshots_stay() {
    let volume = volume();
    for _ in 0..4 {
        run(&volume, "mkcp IMAGE").output();
    }
    let first = checkpoints(&volume)[0].0;
    let (kept, last) = (first + 1, first + 2);
    run(&volume, &format!("chcp ss IMAGE {kept}")).output();
    let said = complaint(run(&volume, &format!("rmcp IMAGE {first}..{last} 900..999")), 1);
    let none = "rmcp: no valid checkpoints found in 900..999\n";
    assert_eq!(said, format!("rmcp: {kept}: cannot remove snapshot\n{none}{HINT}"));
    let left = checkpoints(&volume);
    assert_eq!(left[0], (kept, "ss".into()));
    assert!(left.iter().all(|(cno, _)| ![first, last].contains(cno)), "{left:?}");

    run(&volume, &format!("rmcp -f IMAGE {kept} 999")).output();
    for word in ["x", "5..4", "..", "1..3x"] {
        let said = complaint(run(&volume, &format!("rmcp -f IMAGE 999 {word}")), 1);
        assert_eq!(said, format!("rmcp: invalid checkpoint range: {word}\n"));
    }
    assert_eq!(complaint(run(&volume, "rmcp IMAGE 999"), 1), "rmcp: invalid checkpoint: 999\n");
    volume.nilfs("check IMAGE").output();
}

#[test]
fn removing_can_be_asked_about() {
    let volume = volume();
    run(&volume, "mkcp IMAGE").output();
    let first = checkpoints(&volume)[0].0.to_string();
    let image = volume.image.to_str().unwrap();
    for (answer, left) in [("n\n", true), ("", true), ("y\n", false)] {
        let outcome = tool_with_input("rmcp", ["-i", image, &first], answer);
        assert_eq!(outcome.code, Some(0));
        assert_eq!(outcome.stderr, format!("rmcp: remove checkpoint {first}? "));
        assert_eq!(checkpoints(&volume)[0].0.to_string() == first, left, "{answer:?}");
    }
}

#[test]
fn mkfs_speaks_as_it_always_has() {
    let volume = volume();
    let image = volume.image.display();
    let outcome = run(&volume, "mkfs.nilfs2 -f -b 1024 -B 32 -L fresh IMAGE");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    let (version, rest) = outcome.stderr.split_once('\n').unwrap();
    assert!(version.starts_with("mkfs.nilfs2 ("), "{version}");
    let expected = format!(
        "Start writing file system initial data to the device\n       Blocksize:1024  \
         Device:{image}  Device Size:{}\nFile system initialization succeeded !! \n",
        common::VOLUME_SIZE
    );
    assert_eq!(rest, expected);
    let info = volume.nilfs("info IMAGE").output();
    assert!(info.contains("fresh") && info.contains("block_count"), "{info}");
    assert_eq!(run(&volume, "mkfs.nilfs2 -fq -b 1024 -B 32 -O ^block_count IMAGE").output(), "");
    let info = volume.nilfs("info IMAGE").output();
    assert!(info.contains("features           none"), "{info}");
}

#[test]
fn mkfs_refuses_what_is_not_possible() {
    let volume = volume();
    let before = fs::read(&volume.image).unwrap();
    for (line, message) in [
        ("-b 512 IMAGE", "invalid blocksize: 512"),
        ("-B 8 IMAGE", "too few blocks per segment: 8"),
        ("-B 17 IMAGE", "invalid number of blocks per segment: 17"),
        ("-m 0 IMAGE", "too small reserved segments percentage: 0"),
        ("-m -1 IMAGE", "too small reserved segments percentage: -1"),
        ("-b -1 IMAGE", "invalid blocksize: -1"),
        ("-B -1 IMAGE", "too few blocks per segment: -1"),
        ("-m 100 IMAGE", "too large reserved segments percentage: 100"),
        ("-O foo,none IMAGE", "invalid feature set option: foo,none"),
        ("/nowhere", "cannot find /nowhere: No such file or directory"),
        ("/", "device must be a block device or a file"),
        (
            "IMAGE",
            "too small device.\n       device size=2101248 bytes, required size=134221824 bytes.\n\
             \u{20}      Please enlarge the device, or shorten segments with -B option.",
        ),
    ] {
        let said = complaint(run(&volume, &format!("mkfs.nilfs2 -f {line}")), 1);
        let (version, error) = said.split_once('\n').unwrap();
        assert!(version.starts_with("mkfs.nilfs2 ("), "{version}");
        assert_eq!(error, format!("Error: {message}\n"));
    }
    assert_eq!(fs::read(&volume.image).unwrap(), before);
}

#[test]
fn mkfs_asks_before_data_are_overwritten() {
    let volume = volume();
    let image = volume.image.to_str().unwrap();
    let before = fs::read(&volume.image).unwrap();
    let mkfs = |answer| tool_with_input("mkfs.nilfs2", ["-b1024", "-B32", image], answer);
    for answer in ["", "\n", "n\n"] {
        let said = complaint(mkfs(answer), 1);
        let warning =
            format!("WARNING: Device {image} appears to contain an existing nilfs2 superblock.\n");
        assert!(said.starts_with(&warning), "{said}");
        assert!(said.contains("\nContinue? [y/N] "), "{said}");
        assert!(said.ends_with(&format!("Abort format of device {image}\n")), "{said}");
    }
    assert_eq!(run(&volume, "mkfs.nilfs2 -fn -b1024 -B32 IMAGE").code, Some(0));
    assert_eq!(fs::read(&volume.image).unwrap(), before);
    assert_eq!(mkfs("y\n").code, Some(0));
    assert_ne!(fs::read(&volume.image).unwrap(), before);
}

#[test]
fn both_superblocks_are_tuned() {
    let volume = volume();
    let uuid = "11111111-2222-3333-4444-555555555555";
    let changes = format!("-L other -i 5 -m 6 -U {uuid} -O ^block_count");
    assert_eq!(run(&volume, &format!("nilfs-tune {changes} IMAGE")).output(), "");
    let wanted = [
        "Filesystem volume name:\t  other".to_owned(),
        format!("Filesystem UUID:\t  {uuid}"),
        "Filesystem features:      (none)".to_owned(),
        "Commit interval:\t  5".to_owned(),
        "# of blks to create seg:  6".to_owned(),
    ];
    for copy in ["first", "second"] {
        let list = run(&volume, "nilfs-tune -l IMAGE").output();
        for line in &wanted {
            assert!(list.lines().any(|found| found == line), "{copy}: {line} in {list}");
        }
        volume.nilfs("check IMAGE").output();
        let mut bytes = fs::read(&volume.image).unwrap();
        bytes[1024..2048].fill(0);
        fs::write(&volume.image, bytes).unwrap();
    }
    assert_eq!(
        complaint(run(&volume, "nilfs-tune -U x IMAGE"), 1),
        "nilfs-tune: Invalid UUID format\n"
    );
}

#[test]
fn tune_takes_the_last_operand_and_as_much_of_a_label_as_fits() {
    let volume = volume();
    let label = "x".repeat(100);
    run(&volume, &format!("nilfs-tune -L {label} /nowhere IMAGE")).output();
    let list = run(&volume, "nilfs-tune -l IMAGE").output();
    assert!(list.contains(&format!("volume name:\t  {}\n", &label[..80])), "{list}");
    let said = complaint(run(&volume, "nilfs-tune -L no IMAGE /nowhere"), 1);
    assert_eq!(said, "nilfs-tune: cannot open device /nowhere: No such file or directory\n");
    run(&volume, &format!("mkfs.nilfs2 -fq -b1024 -B32 -L {label}y IMAGE")).output();
    assert_eq!(run(&volume, "nilfs-tune -l IMAGE").output().lines().next(), list.lines().next());
}

#[test]
fn tune_reads_features_and_identities_as_it_always_has() {
    let volume = volume();
    let features = |volume: &Volume| {
        let list = run(volume, "nilfs-tune -l IMAGE").output();
        let line = list.lines().find(|line| line.starts_with("Filesystem features:"));
        line.unwrap().split_whitespace().last().unwrap().to_owned()
    };
    run(&volume, "nilfs-tune -O None, IMAGE").output();
    assert_eq!(features(&volume), "(none)");
    run(&volume, "nilfs-tune -O BLOCK_COUNT IMAGE").output();
    assert_eq!(features(&volume), "block_count");
    assert_eq!(run(&volume, "nilfs-tune -O roll_forward IMAGE").code, Some(1));
    assert_eq!(features(&volume), "block_count");
    for uuid in ["{11111111-2222-3333-4444-555555555555}", "11111111222233334444555555555555"] {
        let said = complaint(run(&volume, &format!("nilfs-tune -U {uuid} IMAGE")), 1);
        assert_eq!(said, "nilfs-tune: Invalid UUID format\n", "{uuid}");
    }
}

#[test]
fn tune_changes_what_it_is_told_to_and_nothing_else() {
    let volume = volume();
    let before = volume.nilfs("info IMAGE").output();
    volume.nilfs("tune -L renamed IMAGE").output();
    assert_eq!(volume.nilfs("info IMAGE").output(), before.replacen("lab\n", "renamed\n", 1));
    let json = volume.nilfs("tune --json -i 7 IMAGE").output();
    let record: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&record["label"], &record["interval_seconds"]), (&"renamed".into(), &7.into()));
    let long = "x".repeat(81);
    let sentence = volume.nilfs(&format!("tune -L {long} IMAGE")).sentence(2);
    assert!(sentence.contains("has 81 bytes, but at most 80 fit"), "{sentence}");
    let sentence = volume.nilfs("tune -O journal IMAGE").sentence(2);
    assert!(sentence.contains("block_count is"), "{sentence}");
    assert!(volume.nilfs("tune IMAGE").sentence(2).contains("nothing is to be changed"));
}

/// Whether Linux may write a volume is nobody's choice.
#[test]
fn no_tune_switches_on_or_off_what_keeps_linux_away() {
    let volume = common::synced_volume();
    for line in ["nilfs-tune -O none IMAGE", "nilfs-tune -O ^block_count IMAGE"] {
        run(&volume, line).output();
        let list = run(&volume, "nilfs-tune -l IMAGE").output();
        assert!(list.contains("Filesystem features:      FEATURE_R62\n"), "{list}");
    }
    for word in ["roll_forward", "^roll_forward"] {
        let sentence = volume.nilfs(&format!("tune -O {word} IMAGE")).sentence(2);
        assert!(sentence.contains("nilfs recover switches it off"), "{sentence}");
    }
    assert!(volume.nilfs("tune --list IMAGE").output().contains("roll_forward"));
}

#[test]
fn a_stale_error_flag_can_be_cleared() {
    let volume = volume();
    set_error_flag(&volume.image);
    assert!(run(&volume, "nilfs-tune -l IMAGE").output().contains(",error\n"));
    volume.nilfs("tune --clear-error IMAGE").output();
    assert!(run(&volume, "nilfs-tune -l IMAGE").output().contains("state:\t  valid\n"));
}

fn set_error_flag(image: &Path) {
    use nilfs_device::{Access, FileDevice};
    use nilfs_ondisk::superblock::STATE_ERROR;
    let device = FileDevice::open(image, Access::ReadWrite).unwrap();
    nilfs_engine::Volume::change_superblocks(&device, |raw| {
        raw.s_state.set(raw.s_state.get() | STATE_ERROR);
    })
    .unwrap();
}

#[test]
fn the_cleaner_of_an_unmounted_volume_is_this_process() {
    let volume = volume();
    let image = volume.image.display();
    assert_eq!(run(&volume, "nilfs-clean -p 0 IMAGE").output(), "");
    volume.nilfs("check IMAGE").output();
    for order in ["-l", "-b", "-s", "-r", "-q", "-c"] {
        let said = complaint(run(&volume, &format!("nilfs-clean {order} IMAGE")), 1);
        assert_eq!(said, format!("No cleaner found on {image}.\n"));
    }
    for (line, message) in [
        ("-p x IMAGE", "invalid protection period: x"),
        ("-m 200% IMAGE", "percent value can't be > 100: 200%"),
        ("-m -1 IMAGE", "value too large: -1"),
        (
            "-m 5000000 IMAGE",
            "cannot run cleaner: Invalid argument (-m 5000000; a segment has 64 blocks)",
        ),
        ("-S 0 IMAGE", "cannot run cleaner: Invalid argument (-S 0 cleans nothing)"),
        ("-S 4/x IMAGE", "invalid gc speed: 4/x"),
        ("/nowhere", "cannot find /nowhere: No such file or directory."),
        ("a b", "too many arguments."),
    ] {
        let said = complaint(run(&volume, &format!("nilfs-clean {line}")), 1);
        assert_eq!(said, format!("Error: {message}\n"));
    }
}

#[test]
fn resizing_asks_first_and_tells_what_it_does() {
    let volume = volume();
    let image = volume.image.to_str().unwrap();
    let before = fs::read(&volume.image).unwrap();
    let plan = format!(
        "Partition size = {size} bytes.\n\
         Shrink the filesystem size from {size} bytes to 1228800 bytes.\n\
         14 segments will be truncated from segnum 18.\n",
        size = common::VOLUME_SIZE
    );
    let question = "Do you wish to proceed (y/N)? ";
    for answer in ["", "\n", "n\n"] {
        let said = complaint(tool_with_input("nilfs-resize", [image, "1200K"], answer), 1);
        assert_eq!(said, format!("{plan}{question}Aborted.\n"));
    }
    assert_eq!(fs::read(&volume.image).unwrap(), before);
    let outcome = tool_with_input("nilfs-resize", [image, "1228900"], "y\n");
    let said = format!(
        "size 1228900 is not aligned to sector size. truncated to 1228800.\n\
         {plan}{question}Done.\n"
    );
    assert_eq!((outcome.code, outcome.stderr), (Some(0), said));
    volume.nilfs("check IMAGE").output();

    let said = run(&volume, "nilfs-resize IMAGE 1200K").stderr;
    let fits = "No need to resize the filesystem on IMAGE.\nIt already fits the device.\n";
    assert_eq!(said, fits.replace("IMAGE", image));
    fs::File::options().write(true).open(image).unwrap().set_len(1 << 21).unwrap();
    let outcome = run(&volume, "nilfs-resize --yes IMAGE");
    let said = "Partition size = 2097152 bytes.\n\
        Extend the filesystem size from 1228800 bytes to 2097152 bytes.\nDone.\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), said));
    volume.nilfs("check IMAGE").output();
}

#[test]
fn a_resize_that_is_not_possible_changes_nothing() {
    let volume = volume();
    let before = fs::read(&volume.image).unwrap();
    for (line, message) in [
        ("IMAGE 4M", "size larger than partition size (2101248 bytes)."),
        ("IMAGE 1x", "bad size argument: 1x"),
        ("IMAGE 1M 2M", "too many arguments."),
        ("/nowhere", "cannot find /nowhere: No such file or directory."),
    ] {
        let said = complaint(run(&volume, &format!("nilfs-resize {line}")), 1);
        assert_eq!(said, format!("Error: {message}\n"));
    }
    assert_eq!(fs::read(&volume.image).unwrap(), before);
    let said = complaint(run(&volume, "nilfs-resize -y IMAGE 256K"), 1);
    assert!(said.ends_with("have at least 8 segments\nAborted.\n"), "{said}");
    volume.nilfs("check IMAGE").output();
}

#[test]
fn the_daemon_is_not_needed_and_says_so() {
    let outcome = tool("nilfs_cleanerd", ["-c", "/etc/nilfs_cleanerd.conf", "/dev/sdb1", "/mnt"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    assert!(outcome.stderr.contains("not needed"), "{}", outcome.stderr);
}

#[test]
fn the_mount_helpers_end_with_the_codes_of_mount_8() {
    let volume = volume();
    for (line, code, message) in [
        ("mount.nilfs2", 1, "No device specified"),
        ("mount.nilfs2 IMAGE", 1, "No mountpoint specified"),
        (
            "mount.nilfs2 /nowhere /",
            32,
            "mount.nilfs2: device /nowhere not accessible: No such file or directory",
        ),
        ("umount.nilfs2", 1, "No mountpoint specified"),
        ("umount.nilfs2 /nowhere", 32, "umount.nilfs2: /nowhere: not found"),
    ] {
        assert_eq!(complaint(run(&volume, line), code), format!("{message}\n"));
    }
    for name in ["mount.nilfs2", "mount.fuse.nilfs", "mount.fuseblk.nilfs"] {
        let run = |words: &str| run(&volume, &format!("{name} {words}"));
        let said = complaint(run("-o frobnicate IMAGE /"), 1);
        assert!(said.starts_with(&format!("{name}: unknown option frobnicate")), "{said}");
        let said = complaint(run("IMAGE /nowhere"), 32);
        assert!(said.starts_with(&format!("{name}: cannot mount on /nowhere")), "{said}");
        assert_eq!(run("-f /nowhere /nowhere").output(), "", "fake");
    }
}

/// Words after -o stand above every file, also above one that comes later.
#[test]
fn settings_that_are_read_again_do_not_undo_the_words_of_the_mount() {
    let volume = volume();
    let dir = tempfile::tempdir().unwrap();
    let file = volume.beside("later.conf");
    fs::write(&file, "protection_period 7\nselection_policy greedy\nfrobnicate\n").unwrap();
    let [image, dir] = [&volume.image, dir.path()].map(|path: &Path| path.to_str().unwrap());
    let options = "rw,policy=timestamp,cleaner-config=/dev/null";
    tool("mount.nilfs2", [image, dir, "-o", options]).output();
    let outcome = tool("nilfs-clean", [format!("-c{}", file.display()).as_str(), dir]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    assert!(outcome.stderr.contains("line 3: there is no setting"), "{}", outcome.stderr);
    let status = volume.nilfs("status IMAGE").output();
    assert!(status.contains(" timestamp\n") && status.contains(" 7s, "), "{status}");
    let said = complaint(tool("nilfs-clean", ["-c/nowhere", dir]), 1);
    assert!(said.contains("cannot read the cleaner's settings in /nowhere"), "{said}");

    let other = common::volume();
    let second = tempfile::tempdir().unwrap();
    let [image, second] = [&other.image, second.path()].map(|path: &Path| path.to_str().unwrap());
    tool("mount.nilfs2", [image, second]).output();
    let said = complaint(tool("nilfs-clean", ["-l"]), 1);
    assert!(said.starts_with("Error: ") && said.ends_with("; name one of them.\n"), "{said}");
    tool("umount.nilfs2", [second]).output();
    tool("umount.nilfs2", [dir]).output();
}

/// With two volumes, they asked to name one, also of the user who stood in one of them.
#[test]
fn without_an_operand_the_volume_of_the_current_directory_is_meant() {
    let volumes = [volume(), empty_volume()];
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (volume, dir) in volumes.iter().zip(&dirs) {
        tool("mount.nilfs2", [&volume.image, dir.path()]).output();
    }
    let here = dirs[0].path().join("directory");
    let in_there = |name: &str, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nilfs"));
        command.arg0(name).args(words).current_dir(&here).env("TZ", "UTC").stdin(Stdio::null());
        CommandOutput::of(&command.output().unwrap()).output()
    };
    let dir = dirs[0].path().to_str().unwrap();
    for name in ["lscp", "lssu"] {
        assert_eq!(in_there(name, &["-a"]), tool(name, ["-a", dir]).output(), "{name}");
    }
    let made = in_there("mkcp", &["-sp"]);
    assert!(tool("lscp", ["-s", dir]).output().contains(&format!(" {}", made.trim())));
    for line in ["checkpoints", "checkpoints list", "snapshot list", "info", "sync"] {
        let words: Vec<_> = line.split(' ').collect();
        let named = nilfs(words.iter().copied().chain([dir])).output();
        assert_eq!(in_there("nilfs", &words), named, "{line}");
    }
    for line in ["status", "df", "metrics", "segments"] {
        assert_ne!(in_there("nilfs", &[line]), "", "{line}");
    }
    let outside = complaint(tool("lscp", [""; 0]), 1);
    assert!(outside.ends_with("; name one of them\n"), "{outside}");
    dirs.iter().for_each(|dir| drop(tool("umount.nilfs2", [dir.path()]).output()));
}

/// From mounting to unmounting, everything as nilfs-utils' programs are called.
#[test]
fn a_mounted_volume_is_administered_through_any_file_on_it() {
    let volume = volume();
    let dir = tempfile::tempdir().unwrap();
    let [image, dir] = [&volume.image, dir.path()].map(|path: &Path| path.to_str().unwrap());
    tool("mount.nilfs2", [image, dir, "-o", "rw,nogc,pp=60"]).output();
    let file = format!("{dir}/directory/file");
    fs::write(&file, "changed").unwrap();

    let cno = tool("mkcp", ["-sp", &file]).output();
    let cno = cno.trim();
    for operand in [image, dir, &file] {
        let list = tool("lscp", ["-s", operand]).output();
        assert!(list.lines().nth(1).is_some_and(|row| row.trim_start().starts_with(cno)), "{list}");
        assert!(tool("lssu", ["-l", operand]).output().contains("NLIVEBLOCKS"));
        assert!(tool("dumpseg", [operand, "0"]).output().starts_with("segment: segnum = 0\n"));
    }
    tool("chcp", ["cp", &file, cno]).output();
    assert_eq!(tool("lscp", ["-s", image]).output().lines().count(), 1);
    tool("rmcp", [dir, cno]).output();
    assert!(checkpoints(&volume).iter().all(|(left, _)| left.to_string() != cno));
    tool("nilfs-clean", [dir]).output();

    let again = complaint(tool("mount.nilfs2", [image, "/nowhere"]), 32);
    assert!(again.contains(&format!("already has a rw-mount on {dir}.\n")), "{again}");
    let said = complaint(tool("nilfs-tune", ["-L", "x", image]), 1);
    assert!(said.starts_with(&format!("ERROR: {image} is currently mounted.")), "{said}");
    let said = complaint(tool("nilfs-tune", ["-fL", "x", image]), 1);
    // Which process it is cannot be told while another test starts a program.
    assert!(said.contains("is in use by "), "{said}");
    let said = complaint(tool("mkfs.nilfs2", ["-f", image]), 1);
    assert!(said.contains(&format!("{image} is currently mounted.")), "{said}");

    tool("umount.nilfs2", [dir]).output();
    assert_eq!(volume.nilfs("cat IMAGE directory/file").output(), "changed");
    volume.nilfs("check IMAGE").output();
}
