//! Content of pages of the documentation: links, headings, command lines.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// A page, as far as a machine can check it.
#[derive(Debug, Default)]
pub struct Page {
    /// Where links and pictures lead, as written.
    pub links: Vec<String>,
    /// The names of headings in links, by GitHub's rules.
    pub anchors: HashSet<String>,
    /// Pieces of code within sentences.
    pub code: Vec<String>,
    /// Blocks of what was typed and printed.
    pub sessions: Vec<String>,
}

impl Page {
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        Self::of(&text)
    }

    pub fn of(text: &str) -> Self {
        let mut page = Self::default();
        let mut seen: HashMap<String, u32> = HashMap::new();
        let (mut heading, mut session) = (None::<String>, None::<String>);
        for event in Parser::new_ext(text, pulldown_cmark::Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let name = anchor(&heading.take().unwrap_or_default());
                    let before = seen.entry(name.clone()).or_default();
                    page.anchors.insert(match *before {
                        0 => name,
                        before => format!("{name}-{before}"),
                    });
                    *before += 1;
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(kind))) => {
                    session = (&*kind == "console").then(String::new);
                }
                Event::End(TagEnd::CodeBlock) => page.sessions.extend(session.take()),
                Event::Text(text) => {
                    [&mut heading, &mut session].into_iter().flatten().for_each(|into| {
                        into.push_str(&text);
                    });
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    page.code.push(code.into_string());
                }
                _ => {}
            }
        }
        page
    }
}

/// The name of a heading in links.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The links of these pages, named from a root directory, that lead to no file or heading below it:
/// "docs/json.md: cleaning.md#nowhere".
pub fn dead_links(root: &Path, pages: &[PathBuf]) -> Vec<String> {
    let mut dead = Vec::new();
    for page in pages {
        let of_page = Page::read(&root.join(page));
        for link in of_page.links.iter().filter(|link| !is_elsewhere(link)) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => joined(page.parent().unwrap_or(Path::new("")), path),
            };
            let target = root.join(target);
            let leads = target.exists()
                && (heading.is_empty() || Page::read(&target).anchors.contains(heading));
            if !leads {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    dead
}

/// Whether a link leads out of the documentation.
fn is_elsewhere(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:")
}

/// A path from a directory on, without the directories that it leaves again. One that leads out of
/// the root leads nowhere.
fn joined(directory: &Path, path: &str) -> PathBuf {
    let path = directory.join(path);
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir if parts.pop().is_none() => return "/nowhere".into(),
            Component::ParentDir | Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts.iter().collect()
}

/// A command of a session, and the first line that it printed.
#[derive(Debug)]
pub struct Typed {
    pub words: Vec<String>,
    pub printed: String,
}

/// The simple commands of a session: what stands between `|`, `&&`, `;` and `&`.
pub fn commands(session: &str) -> Vec<Typed> {
    let mut commands = Vec::new();
    let joined = session.replace("\\\n", " ");
    let mut lines = joined.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(typed) = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")) else {
            continue;
        };
        let printed = lines.peek().copied().unwrap_or_default();
        for words in simple_commands(typed) {
            commands.push(Typed { words, printed: printed.to_owned() });
        }
    }
    commands
}

fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let apart = line.replace("$(", " ; ").replace([')', ';'], " ; ");
    let mut commands = vec![Vec::new()];
    let mut words = shlex::Shlex::new(&apart);
    while let Some(word) = words.next() {
        let last = commands.len() - 1;
        match word.as_str() {
            "|" | "&&" | "||" | ";" | "&" => commands.push(Vec::new()),
            ">" | ">>" | "<" => drop(words.next()),
            word if word.starts_with(['>', '<']) || word.starts_with("2>") => {}
            // More of the kind.
            "…" => {}
            // Output of another command: the number of a checkpoint.
            word if word.starts_with('$') => commands[last].push("1".to_owned()),
            word => commands[last].push(word.to_owned()),
        }
    }
    commands.retain(|words| !words.is_empty());
    commands
}
