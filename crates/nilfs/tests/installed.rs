//! What is installed with the command: man pages, completions, the name for mount(8); and the
//! page that documents its exit codes.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use common::{Volume, nilfs};
use tempfile::TempDir;

/// A directory with the man pages or the completions.
fn generated(what: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    nilfs(["generate", what, directory.path().to_str().unwrap()]).output();
    directory
}

/// The subcommands, as the help lists them.
fn subcommands() -> Vec<String> {
    let help = nilfs(["--help"]).output();
    let (_, list) = help.split_once("Commands:\n").expect(&help);
    let lines = list.lines().take_while(|line| !line.is_empty());
    // What a description goes on with has more spaces before it.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The other names of the command, as `make install` links them.
fn programs() -> Vec<String> {
    let script = include_str!("../../../scripts/install");
    let lists = script.lines().filter_map(|line| line.strip_suffix(')')?.split_once("=("));
    let lists = lists.filter(|(name, _)| name.ends_with("s") && *name != "drop_ins");
    lists.flat_map(|(_, names)| names.split(' ').map(str::to_owned)).collect()
}

fn pages(directory: &TempDir) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// How a command ended; none if the program is not installed, which `make test` sees to.
fn run(command: &mut Command) -> Option<Output> {
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {command:?} cannot be run");
            None
        }
        output => Some(output.unwrap()),
    }
}

#[test]
fn every_subcommand_program_and_file_has_a_page_with_all_that_belongs_in_one() {
    let directory = generated("man");
    let names: Vec<_> = pages(&directory)
        .iter()
        .map(|page| page.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    let has = |name: String| assert!(names.contains(&name), "there is no {name} in {names:?}");
    subcommands().iter().for_each(|subcommand| has(format!("nilfs-{subcommand}.1")));
    for program in programs() {
        let section = if program.starts_with("ls") { 1 } else { 8 };
        has(format!("{program}.{section}"));
    }
    has("nilfs.toml.5".into());
    has("nilfs_cleanerd.conf.5".into());
    for page in pages(&directory) {
        let text = fs::read_to_string(&page).unwrap();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "FILES", "\"SEE ALSO\""] {
            assert!(text.contains(&format!("\n.SH {section}\n")), "{section} in {page:?}");
        }
        let of_command = page.extension().is_some_and(|section| section != "5");
        let status = text.contains("\n.SH \"EXIT STATUS\"\n");
        assert_eq!(status, of_command, "EXIT STATUS in {page:?}");
    }
}

#[test]
fn mandoc_has_nothing_to_complain_of() {
    let directory = generated("man");
    let lint = run(Command::new("mandoc").args(["-T", "lint"]).args(pages(&directory)));
    let Some(lint) = lint else { return };
    let said = String::from_utf8_lossy(&lint.stdout);
    assert!(lint.status.success() && said.is_empty(), "{said}");
}

/// The list of mount options was once flowed together.
#[test]
fn a_list_in_a_help_text_is_a_list_on_the_page() {
    let directory = generated("man");
    let page = directory.path().join("nilfs-mount.1");
    let shown = run(Command::new("mandoc").args(["-T", "utf8", "-O", "width=60"]).arg(page));
    let Some(shown) = shown else { return };
    let mut text = String::new();
    for character in String::from_utf8(shown.stdout).unwrap().chars() {
        // Bold and underlined letters are struck twice.
        match character {
            '\u{8}' => drop(text.pop()),
            _ => text.push(character),
        }
    }
    for term in ["order=relaxed|strict", "pp=PERIOD", "nilfs mount -o remount,ro /mnt"] {
        assert!(text.lines().any(|line| line.trim() == term), "{term:?} in {text}");
    }
}

/// A place where the shells find the command, and where their files are.
struct Shell {
    bin: TempDir,
    files: TempDir,
}

impl Shell {
    fn new() -> Self {
        let bin = tempfile::tempdir().unwrap();
        let program = env!("CARGO_BIN_EXE_nilfs");
        std::os::unix::fs::symlink(program, bin.path().join("nilfs")).unwrap();
        Self { bin, files: generated("completions") }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// What a script prints, line by line.
    fn run(&self, shell: &str, arguments: &[&str], script: &str) -> Option<Vec<String>> {
        let path = format!("{}:{}", self.bin.path().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(shell);
        command
            .args(arguments)
            .arg(script)
            .env("PATH", path)
            .env("TZ", "UTC")
            .current_dir(self.bin.path());
        let output = run(&mut command)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.is_empty(), "{shell}: {said}");
        Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
    }
}

#[track_caller]
fn assert_offers(shell: &str, offered: &[String], wanted: &[&str]) {
    let words: Vec<_> = offered.iter().map(|line| line.split('\t').next().unwrap()).collect();
    for word in wanted {
        assert!(words.contains(word), "{shell} does not offer {word}: {words:?}");
    }
    assert!(!words.contains(&"generate") && !words.contains(&"--background"), "{words:?}");
}

#[test]
fn bash_completes_subcommands_options_and_the_words_of_a_mount() {
    let shell = Shell::new();
    let file = shell.file("nilfs.bash");
    // As readline does it: the words, which of them is completed, and how it begins.
    let complete_before = |words: &str, begun: &str, after: &str| {
        let script = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             COMP_WORDS+=({after}); _nilfs nilfs '{begun}' 2>/dev/null; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        shell.run("bash", &["-c"], &script)
    };
    let complete = |words: &str, begun: &str| complete_before(words, begun, "");
    assert_offers("bash", &complete("nilfs ''", "").unwrap(), &["mount", "check", "help"]);
    assert_offers("bash", &complete("nilfs mount --", "--").unwrap(), &["--foreground", "--log"]);
    assert_eq!(complete("nilfs mount -o ro,nob", "ro,nob").unwrap(), ["ro,nobarrier"]);
    // Readline takes the sign = for a word, and replaces what comes after it.
    let values = complete("nilfs mount -o order '='", "").unwrap();
    assert_eq!(values, ["relaxed", "strict"]);
    assert_eq!(complete("nilfs mount -o ro,order '=' st", "st").unwrap(), ["strict"]);
    // The volume may come after the moment.
    let volume = volume_with_a_snapshot();
    let image = volume.image.to_str().unwrap();
    let moments = complete_before("nilfs ls --at ''", "", image).unwrap();
    assert_offers("bash", &moments, &["yesterday", "monday", "kept", "1", "2"]);
    assert_eq!(complete_before("nilfs ls --at '=' ke", "ke", image).unwrap(), ["kept"]);
    let snapshots = complete(&format!("nilfs snapshot delete {image} ''"), "").unwrap();
    let number = volume.before_deletion.to_string();
    assert_eq!(snapshots, ["kept", &number, "--json", "--help", "--version"]);
}

/// A volume with a snapshot that is called `kept`.
fn volume_with_a_snapshot() -> Volume {
    let volume = common::volume();
    volume.nilfs(&format!("snapshot create -m kept IMAGE {}", volume.before_deletion)).output();
    volume
}

#[test]
fn fish_completes_subcommands_and_the_words_of_a_mount() {
    let shell = Shell::new();
    let complete = |line: &str| {
        let file = shell.file("nilfs.fish");
        let script = format!("source {}; complete --do-complete '{line}'", file.display());
        shell.run("fish", &["--no-config", "-c"], &script)
    };
    let Some(subcommands) = complete("nilfs ") else { return };
    assert_offers("fish", &subcommands, &["mount", "check", "help"]);
    assert_offers("fish", &complete("nilfs mount -o ro,cle").unwrap(), &["ro,cleaner-config="]);
    let volume = volume_with_a_snapshot();
    let image = volume.image.display();
    let moments = complete(&format!("nilfs snapshot create {image} ")).unwrap();
    let number = volume.before_deletion.to_string();
    assert_offers("fish", &moments, &["yesterday", "kept", &number]);
    let explained = |line: String| assert!(moments.contains(&line), "{line} in {moments:?}");
    explained(format!("kept\t2023-11-14 22:13:20 checkpoint {number}"));
    explained(format!("{number}\t2023-11-14 22:13:20 kept"));
}

/// The script is loaded when it is first needed, and must complete that time already.
#[test]
fn zsh_completes_the_first_time() {
    let shell = Shell::new();
    // compadd and _describe need a terminal; the candidates that come to _describe do not.
    let script = |line: &str| {
        format!(
            "autoload -U compinit; compinit -u -d {dump}; fpath=({files} $fpath); \
             _describe() {{ print -l -- ${{(P)3}} ${{(P)4}}; }}; \
             words=({line}); CURRENT=4; autoload -U _nilfs; _nilfs",
            dump = shell.file("dump").display(),
            files = shell.files.path().display()
        )
    };
    let first = script("nilfs mount -o ro,nob");
    let Some(offered) = shell.run("zsh", &["-f", "-c"], &first) else { return };
    assert!(offered.contains(&"ro,nobarrier".to_owned()), "{offered:?}");
    let volume = volume_with_a_snapshot();
    let line = format!("nilfs ls --at '' {}", volume.image.display());
    let offered = shell.run("zsh", &["-f", "-c"], &script(&line)).unwrap();
    let expected = format!("kept:2023-11-14 22:13:20 checkpoint {}", volume.before_deletion);
    assert!(offered.contains(&expected), "{offered:?}");
}

#[test]
fn the_documented_exit_codes_are_those_of_the_help() {
    let page = include_str!("../../../docs/exit-codes.md");
    let help = nilfs(["--help"]).output();
    let (_, codes) = help.split_once("Exit codes:\n").expect(&help);
    let number = |text: &str| text.trim().split_once(' ').and_then(|(n, _)| n.parse::<u8>().ok());
    let in_help: Vec<u8> = codes.lines().filter_map(number).collect();
    let rows = page.lines().filter_map(|line| line.strip_prefix('|'));
    let in_page: Vec<u8> = rows.filter_map(number).collect();
    assert_eq!((&in_help[..], in_help.len()), (&in_page[..], 9));
}

/// mount(8) runs its helper under a name of its own, with arguments in its own order.
#[test]
fn as_mount_helper_it_mounts() {
    let directory = tempfile::tempdir().unwrap();
    let helper = directory.path().join("mount.fuse.nilfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nilfs"), &helper).unwrap();
    let output = Command::new(&helper)
        .args(["/nowhere/disk.img", "/", "-n", "-o", "ro,nonempty", "-t", "fuse.nilfs"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(32), "as mount(8) says that it failed: {output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/nowhere/disk.img not accessible"), "{said}");
}
