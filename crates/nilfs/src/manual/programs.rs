//! Pages for the other names of the command, from the help that each prints.

use super::commands::add_help;
use super::notes::Notes;
use super::page::Page;
use super::text::{self, Block};
use crate::commands::mount_options;
use crate::drop_in::{TOOLS, Tool};

/// One page for each.
pub fn pages() -> Vec<Page> {
    TOOLS.into_iter().map(page).collect()
}

/// The programs that only look, which are for everybody. The others are for administrators.
const FOR_USERS: [&str; 2] = ["lscp", "lssu"];

fn page(tool: &Tool) -> Page {
    let (usage, help) = split_usage(tool.usage());
    let mut page = Page {
        name: tool.name().to_owned(),
        section: if FOR_USERS.contains(&tool.name()) { 1 } else { 8 },
        summary: String::new(),
        synopsis: usage,
        sections: Vec::new(),
        see_also: Vec::new(),
    };
    let notes = Notes::of(&page.reference());
    notes.summary.clone_into(&mut page.summary);
    for section in text::sections(help) {
        let is_list = |block: &Block| matches!(block, Block::Item(..));
        let (options, words) = section.blocks.into_iter().partition(is_list);
        page.add("DESCRIPTION", words);
        page.add("OPTIONS", options);
    }
    let description = notes.description.iter().map(|text| Block::Paragraph((*text).into()));
    page.add("DESCRIPTION", description.collect());
    if tool.name().starts_with("mount.") {
        add_help(&mut page, &mount_options::help());
    }
    notes.add_to(&mut page);
    page
}

/// Splits a help text into the lines that say how the program is called, and the rest.
fn split_usage(help: &str) -> (Vec<String>, &str) {
    let mut usage = Vec::new();
    let mut rest = help;
    while let Some((line, more)) = rest.split_once('\n') {
        let Some(line) = line.strip_prefix("Usage:").or_else(|| line.strip_prefix("       "))
        else {
            break;
        };
        usage.push(line.trim().to_owned());
        rest = more;
    }
    (usage, rest)
}
