//! The documentation is true where a machine can tell: its links lead somewhere, and the programs
//! take the command lines that it shows, with the options that it names.

mod common;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{LazyLock, Mutex};

use common::markdown::{Page, commands, dead_links};
use nilfs_real_kernels::programs;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// All pages but the changelog, which tells of what was.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(PathBuf::from).to_vec();
    for directory in ["docs", "crates"] {
        for entry in fs::read_dir(Path::new(ROOT).join(directory)).unwrap() {
            let entry = Path::new(directory).join(entry.unwrap().file_name());
            for page in [entry.join("README.md"), entry] {
                let is_page = page.extension().is_some_and(|extension| extension == "md");
                if is_page && Path::new(ROOT).join(&page).is_file() {
                    pages.push(page);
                }
            }
        }
    }
    assert!(pages.len() > 15, "{pages:?}");
    pages
}

#[test]
fn every_link_leads_to_a_page_and_a_heading_on_it() {
    let mut pages = pages();
    pages.push("CHANGELOG.md".into());
    assert_eq!(dead_links(Path::new(ROOT), &pages), [""; 0]);
}

#[test]
fn a_dead_link_is_found() {
    let root = tempfile::tempdir().unwrap();
    let text = "# One `two`, three\n[a](#one-two-three) [b](b.md#c) [c](b.md#d) [d](../x) [e](#f)";
    fs::write(root.path().join("a.md"), text).unwrap();
    fs::write(root.path().join("b.md"), "# C").unwrap();
    let dead = dead_links(root.path(), &["a.md".into()]);
    assert_eq!(dead, ["a.md: b.md#d", "a.md: ../x", "a.md: #f"]);
}

/// A program whose command lines the pages show.
fn program(name: &str) -> Option<PathBuf> {
    static LAB: LazyLock<PathBuf> =
        LazyLock::new(|| programs(&["nilfs-lab"]).unwrap().join("nilfs-lab"));
    match Path::new(name).file_name()?.to_str()? {
        "nilfs" => Some(env!("CARGO_BIN_EXE_nilfs").into()),
        "nilfs-lab" => Some(LAB.clone()),
        _ => None,
    }
}

/// Runs a program where there is nothing.
fn run(program: &Path, words: &[String]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.args(words).current_dir(&directory).stdin(Stdio::null()).output().unwrap()
}

/// The help page of a subcommand; none if there is no such subcommand.
fn help(program: &Path, subcommand: &[String]) -> Option<String> {
    static KNOWN: LazyLock<Mutex<HashMap<Vec<String>, Option<String>>>> =
        LazyLock::new(Mutex::default);
    let words = [subcommand, &["--help".to_owned()]].concat();
    let key = [&[program.display().to_string()], subcommand].concat();
    let mut known = KNOWN.lock().unwrap();
    let page = known.entry(key).or_insert_with(|| {
        let output = run(program, &words);
        let text = String::from_utf8(output.stdout).unwrap();
        // With an operand in its place, it is the page of the command above.
        let name = program.file_name().unwrap().to_string_lossy();
        let name = [&[name.into_owned()], subcommand].concat().join(" ");
        let usage = format!("Usage: {name} ");
        let is_it = output.status.success() && (text.clone() + " ").contains(&usage);
        is_it.then_some(text)
    });
    page.clone()
}

/// Each command line that a session shows is accepted by its program: with `--help` at the end, which makes
/// the program parse what stands before that option, and do nothing. Where the page shows how a mistake is
/// answered, the program answers like that.
#[test]
fn every_command_line_that_is_shown_is_one() {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages() {
        for session in Page::read(&Path::new(ROOT).join(&page)).sessions {
            for typed in commands(&session) {
                let Some(program) = program(&typed.words[0]) else { continue };
                checked += 1;
                let mistake =
                    typed.printed.starts_with("nilfs: ") && typed.printed.ends_with("--help");
                let mut words = typed.words[1..].to_vec();
                words.extend((!mistake).then(|| "--help".to_owned()));
                let output = run(&program, &words);
                let said = String::from_utf8_lossy(&output.stderr);
                let as_shown = match mistake {
                    true => output.status.code() == Some(2) && said.trim_end() == typed.printed,
                    false => output.status.success(),
                };
                if !as_shown {
                    wrong.push(format!("{}: {}: {said}", page.display(), typed.words.join(" ")));
                }
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    assert!(checked > 100, "only {checked} command lines were found");
}

/// Commands within sentences and tables have words such as FILE in them, so it is their subcommands
/// and options that are looked up.
#[test]
fn every_subcommand_and_option_that_is_named_exists() {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages() {
        for code in Page::read(&Path::new(ROOT).join(&page)).code {
            let words: Vec<String> = code.split_whitespace().map(str::to_owned).collect();
            let Some((name, words)) = words.split_first() else { continue };
            let Some(program) = program(name).filter(|_| !words.is_empty()) else { continue };
            checked += 1;
            let missing = unknown_words(&program, words);
            wrong.extend(missing.iter().map(|word| format!("{}: {code}: {word}", page.display())));
        }
    }
    assert_eq!(wrong, [""; 0]);
    assert!(checked > 100, "only {checked} commands were found");
}

/// The words of a command that its help page does not have: a subcommand, options, words after `-o`.
fn unknown_words(program: &Path, words: &[String]) -> Vec<String> {
    let is_name = |word: &&String| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let first = words.first().filter(is_name).filter(|word| !word.starts_with('-'));
    let mut path = Vec::new();
    // Without a subcommand it is a mount, as mount(8) asks for one.
    let is_mount = words.first().is_some_and(|word| is_placeholder(word));
    let of_mount = is_mount.then(|| help(program, &["mount".to_owned()])).flatten();
    let mut page = of_mount.or_else(|| help(program, &[])).unwrap();
    for word in words.iter().take_while(|word| is_name(word) && !word.starts_with('-')) {
        path.push(word.clone());
        let Some(below) = help(program, &path) else { break };
        page = below;
    }
    if let Some(first) = first
        && help(program, std::slice::from_ref(first)).is_none()
    {
        return vec![first.clone()];
    }
    let known: Vec<&str> =
        page.split(|c: char| !c.is_alphanumeric() && !"-_".contains(c)).collect();
    let mut unknown = Vec::new();
    let mut words = words.iter().map(|word| word.trim_matches(['[', ']', ',']));
    while let Some(word) = words.next() {
        let option = word.split('=').next().unwrap_or_default();
        let names = match option.strip_prefix('-') {
            None | Some("") => continue,
            Some(_) if option.starts_with("--") => vec![option.to_owned()],
            Some(letters) if letters.starts_with(|c: char| c.is_ascii_digit()) => continue,
            Some(letters) => letters.chars().map(|letter| format!("-{letter}")).collect(),
        };
        unknown.extend(names.iter().filter(|name| !known.contains(&name.as_str())).cloned());
        if option == "-o" {
            let given = words.next().unwrap_or_default();
            let names = given.split(',').map(|word| word.split('=').next().unwrap_or_default());
            let names = names.filter(|name| !is_placeholder(name) && !known.contains(name));
            unknown.extend(names.map(str::to_owned));
        }
    }
    unknown
}

/// Whether a word stands for others: "DEVICE", "…".
fn is_placeholder(word: &str) -> bool {
    word == "…" || word.chars().all(|c| c.is_ascii_uppercase())
}

/// Targets that `make` is asked for, in sentences as in sessions.
#[test]
fn every_target_of_make_that_is_named_exists() {
    let makefile = fs::read_to_string(Path::new(ROOT).join("Makefile")).unwrap();
    let targets = makefile.lines().find_map(|line| line.strip_prefix(".PHONY:")).unwrap();
    let targets: Vec<&str> = targets.split_whitespace().collect();
    let mut wrong = Vec::new();
    for page in pages() {
        let of_page = Page::read(&Path::new(ROOT).join(&page));
        let code = of_page.code.iter().map(|code| code.split_whitespace().map(str::to_owned));
        let typed = of_page.sessions.iter().flat_map(|session| commands(session));
        let lines =
            code.map(Iterator::collect::<Vec<String>>).chain(typed.map(|typed| typed.words));
        for words in lines.filter(|words| words.first().is_some_and(|word| word == "make")) {
            let asked = words[1..].iter().filter(|word| !word.contains('='));
            let unknown = asked.filter(|word| !targets.contains(&word.as_str()));
            wrong.extend(unknown.map(|word| format!("{}: make {word}", page.display())));
        }
    }
    assert_eq!(wrong, [""; 0]);
}
