//! docs/json.md is what programs rely on: every field that is printed is there, with its type, and
//! all listings follow the rules at its beginning. The superuser and `/dev/fuse` are needed.

mod common {
    pub mod asking;
    pub mod ours;
}

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use common::asking::{json, works};
use common::ours::Image;
use serde_json::Value;

/// Fields with their types, as `[].logs[].created` and `time`.
type Fields = BTreeMap<String, String>;

/// The tables of the page, by the commands in their headings.
fn documented() -> BTreeMap<String, Fields> {
    let mut tables = BTreeMap::new();
    let mut commands: Vec<String> = Vec::new();
    for line in include_str!("../../../docs/json.md").lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            commands = heading.split(", ").map(|it| it.replacen("nilfs ", "", 1)).collect();
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if let ["", field, kind, ..] = cells[..]
            && let Some(field) = field.strip_prefix('`').and_then(|it| it.strip_suffix('`'))
        {
            for command in &commands {
                let table: &mut Fields = tables.entry(command.clone()).or_default();
                table.insert(field.to_owned(), kind.to_owned());
            }
        }
    }
    tables
}

/// Checks each field of a value against what is documented.
#[track_caller]
fn follow(command: &str, path: &str, value: &Value, fields: &Fields) {
    match value {
        Value::Object(object) => object.iter().for_each(|(name, value)| {
            let dot = if path.is_empty() { "" } else { "." };
            follow(command, &format!("{path}{dot}{name}"), value, fields);
        }),
        Value::Array(list) => {
            list.iter().for_each(|value| follow(command, &format!("{path}[]"), value, fields));
        }
        _ => {
            // The numbers of metrics without a label are documented elsewhere, but have a rule.
            let number = "number".to_owned();
            let of_metrics = (command == "metrics" && !path.contains('.')).then_some(&number);
            let kind = fields.get(path).or(of_metrics);
            let kind = kind.unwrap_or_else(|| panic!("{command}: {path} is not in docs/json.md"));
            let kind = match (kind.strip_suffix(" or null"), value) {
                (Some(_), Value::Null) => return,
                (Some(kind), _) => kind,
                (None, _) => kind,
            };
            assert!(is(kind, path, value), "{command}: {path} is {value}, documented as {kind}");
        }
    }
}

fn is(kind: &str, path: &str, value: &Value) -> bool {
    let named = |suffix: &str| path.rsplit('.').next().unwrap_or_default().ends_with(suffix);
    match kind {
        "bytes" => value.is_u64() && named("_bytes"),
        "seconds" => value.is_number() && named("_seconds"),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "time" => value.as_str().is_some_and(is_time),
        "text" => value.as_str().is_some_and(|text| !is_time(text)),
        _ => false,
    }
}

/// Whether it is like 2026-11-22T17:30:00Z, perhaps with a fraction.
fn is_time(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let shape = shape.strip_suffix('Z').map(|shape| match shape.split_once('.') {
        Some((shape, fraction)) if fraction.chars().all(|c| c == '0') => shape,
        _ => shape,
    });
    shape == Some("0000-00-00T00:00:00")
}

#[track_caller]
fn keeps_to_the_page(command: &str, words: &[&str], path: &Path, more: &[&str]) {
    let printed = works(&[words, &["--json"]].concat(), path, more);
    is_on_the_page(command, &serde_json::from_str(&printed).unwrap());
}

#[track_caller]
fn is_on_the_page(command: &str, value: &Value) {
    let tables = documented();
    let fields = tables.get(command).unwrap_or_else(|| panic!("{command} is not in docs/json.md"));
    let is_empty = value.as_array().is_some_and(Vec::is_empty);
    assert!(!is_empty, "{command} has nothing to show");
    follow(command, "", value, fields);
}

/// The list of mounts takes no path, and has those of everybody on the machine.
#[track_caller]
fn the_list_has(root: &Path, access: &str, checkpoint: Option<u64>) {
    let command = Command::new(env!("CARGO_BIN_EXE_nilfs")).args(["list", "--json"]).output();
    let mut value: Value = serde_json::from_slice(&command.unwrap().stdout).unwrap();
    let list = value.as_array_mut().unwrap();
    list.retain(|mount| mount["directory"] == root.to_str().unwrap());
    assert_eq!(list.len(), 1);
    assert_eq!((&list[0]["access"], &list[0]["checkpoint"]), (&access.into(), &checkpoint.into()));
    is_on_the_page("list", &value);
}

#[test]
fn a_field_is_named_after_its_type() {
    for (command, fields) in documented() {
        for (path, kind) in fields {
            let kind = kind.trim_end_matches(" or null");
            assert_eq!(path.ends_with("_bytes"), kind == "bytes", "{command}: {path}");
            assert_eq!(path.ends_with("_seconds"), kind == "seconds", "{command}: {path}");
        }
    }
}

/// The commands below one, with what their help says.
fn with_help(command: &str) -> Vec<(String, String)> {
    let words = command.split_whitespace().chain(["--help"]);
    let help = Command::new(env!("CARGO_BIN_EXE_nilfs")).args(words).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let list = help.split_once("Commands:\n").map_or("", |(_, list)| list);
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let below = names.filter(|name| !name.is_empty()).map(|name| format!("{command} {name}"));
    below
        .flat_map(|name| with_help(name.trim()))
        .chain([(command.to_owned(), help.clone())])
        .collect()
}

#[test]
fn every_command_that_prints_json_is_on_the_page() {
    let tables = documented();
    let printing = with_help("").into_iter().filter(|(_, help)| help.contains("--json"));
    let printing: Vec<_> = printing.map(|(command, _)| command).collect();
    assert!(printing.len() > 30, "{printing:?}");
    // The page has that list as `checkpoints`, which prints the list as well.
    for command in printing.iter().filter(|it| *it != "checkpoints list") {
        assert!(tables.contains_key(command), "{command} is not in docs/json.md");
    }
}

#[test]
fn all_listings_keep_to_the_page() {
    let image = Image::ours("--size 32M -B 256 --label json");
    let mounted = image.mount("nogc,pp=0,cleaner-config=/dev/null");
    fs::create_dir(mounted.join("directory")).unwrap();
    fs::write(mounted.join("directory/file"), vec![7; 300_000]).unwrap();
    std::os::unix::fs::symlink("file", mounted.join("directory/link")).unwrap();
    fs::write(mounted.join("directory/gone"), "deleted later").unwrap();
    let root = mounted.root();
    the_list_has(root, "rw", None);
    let named = ["snapshot", "create", "-m", "first", "--note", "a line"];
    keeps_to_the_page("snapshot create", &named, root, &[]);
    keeps_to_the_page("snapshot rename", &["snapshot", "rename"], root, &["first", "second"]);
    keeps_to_the_page("snapshot note", &["snapshot", "note"], root, &["second", "another line"]);
    keeps_to_the_page("snapshot keep", &["snapshot", "keep", "--daily", "1", "-n"], root, &[]);
    fs::write(mounted.join("directory/file"), vec![8; 300_000]).unwrap();
    keeps_to_the_page("sync", &["sync"], root, &[]);
    fs::remove_file(mounted.join("directory/gone")).unwrap();
    keeps_to_the_page("diff", &["diff", "1"], root, &[]);
    keeps_to_the_page("log", &["log"], &mounted.join("directory/file"), &[]);
    keeps_to_the_page("undelete", &["undelete"], root, &[]);
    let file = mounted.join("directory/file@second");
    keeps_to_the_page("restore", &["restore", "-n"], &file, &[]);
    keeps_to_the_page("restore", &["restore", "-f"], &file, &[]);
    for command in ["status", "metrics", "df", "checkpoints", "trim", "clean"] {
        keeps_to_the_page(command, &[command], root, &[]);
    }
    keeps_to_the_page("snapshot list", &["snapshot", "list"], root, &[]);
    keeps_to_the_page("defrag", &["defrag", "-r"], root, &[]);
    keeps_to_the_page("snapshot delete", &["snapshot", "delete"], root, &["second"]);
    keeps_to_the_page("checkpoints delete", &["checkpoints", "delete"], root, &[".."]);
    keeps_to_the_page("resize", &["resize"], root, &["-4M"]);
    mounted.unmount();
    let newest = json(&["info"], &image.path())["newest_checkpoint"].as_u64().unwrap();
    let past = image.mount(&format!("ro,cp={newest}"));
    the_list_has(past.root(), "ro", Some(newest));
    keeps_to_the_page("umount", &["umount"], past.root(), &[]);
    assert!(past.wait().success());
    keeps_to_the_page(
        "mkfs",
        &["mkfs", "-nB256", "--size", "32M"],
        &image.beside("other.img"),
        &[],
    );
    let copy = image.beside("metadata.img");
    keeps_to_the_page("image", &["image"], &image.path(), &[copy.to_str().unwrap()]);
    for command in ["info", "tune", "segments", "check", "scrub", "df"] {
        keeps_to_the_page(command, &[command], &image.path(), &[]);
    }
    let to = tempfile::tempdir().unwrap();
    let salvage = ["salvage", "--all", "--to", to.path().to_str().unwrap()];
    keeps_to_the_page("salvage", &salvage, &image.path(), &[]);
    keeps_to_the_page("scrub", &["scrub", "--status"], &image.path(), &[]);
    keeps_to_the_page("ls", &["ls", "-R"], &image.path(), &[]);
    keeps_to_the_page("stat", &["stat"], &image.path(), &["/", "directory/link"]);
    let mounted = image.mount("nogc,cleaner-config=/dev/null");
    fs::create_dir(mounted.join("new")).unwrap();
    fs::write(mounted.join("new/file"), b"synced").unwrap();
    fs::File::open(mounted.join("new/file")).unwrap().sync_all().unwrap();
    mounted.kill();
    keeps_to_the_page("dump", &["dump"], &image.path(), &["0", "1"]);
    keeps_to_the_page("recover", &["recover"], &image.path(), &[]);
}
