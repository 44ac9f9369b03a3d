//! Pages for `nilfs` and its subcommands, from the definition of the command line.

use clap::{Arg, Command, CommandFactory};

use super::notes::Notes;
use super::page::Page;
use super::text::{self, Block};
use crate::cli::{Cli, EXIT_CODES};

/// One page for the command and one for each subcommand that is not hidden.
pub fn pages() -> Vec<Page> {
    let mut nilfs = Cli::command().disable_help_subcommand(true);
    nilfs.build();
    let mut pages = vec![page(&nilfs)];
    pages.extend(visible(&nilfs).map(page));
    let commands = visible(&nilfs)
        .map(|command| Block::Item(format!("{}(1)", page_name(command)), about(command)));
    pages[0].add("COMMANDS", commands.collect());
    pages.iter_mut().for_each(finish);
    pages
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
}

fn page_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).replace(' ', "-")
}

fn page(command: &Command) -> Page {
    let mut page = Page {
        name: page_name(command),
        section: 1,
        summary: summary(&about(command)),
        synopsis: usage(command),
        sections: Vec::new(),
        see_also: Vec::new(),
    };
    page.add("DESCRIPTION", description(command));
    page.add("OPTIONS", options(command));
    let is_nilfs = command.get_name() == "nilfs";
    for subcommand in visible(command).filter(|_| !is_nilfs) {
        page.add("COMMANDS", vec![Block::Heading(usage(subcommand).join(" "))]);
        page.add("COMMANDS", description(subcommand));
        page.add("COMMANDS", own_options(subcommand));
    }
    if let Some(help) = command.get_after_help() {
        add_help(&mut page, &help.to_string());
    }
    page
}

/// Adds what a help page says below its options.
pub(super) fn add_help(page: &mut Page, help: &str) {
    for section in text::sections(help) {
        match section.title.as_deref() {
            None => page.add("DESCRIPTION", section.blocks),
            Some("Exit codes") => page.add("EXIT STATUS", section.blocks),
            Some(title) => {
                // "Mount options, after -o": what follows the comma is no heading.
                let (heading, rest) = title.split_once(", ").unwrap_or((title, ""));
                if !rest.is_empty() {
                    let words = vec![Block::Paragraph(format!("{title}."))];
                    page.add(&heading.to_uppercase(), words);
                }
                page.add(&heading.to_uppercase(), section.blocks);
            }
        }
    }
}

/// Adds what the help page of a subcommand leaves to that of `nilfs`, and the notes.
fn finish(page: &mut Page) {
    if page.name != "nilfs" {
        add_help(page, EXIT_CODES);
    }
    Notes::of(&page.reference()).add_to(page);
}

fn usage(command: &Command) -> Vec<String> {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.lines().map(|line| line.trim_start_matches("Usage:").trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// Makes the line for NAME from the first sentence of a help page.
pub(super) fn summary(sentence: &str) -> String {
    let sentence = sentence.trim_end_matches('.');
    let mut characters = sentence.chars();
    match characters.next() {
        // NILFS2 and such keep their capitals.
        Some(first) if !sentence.starts_with("NILFS") => {
            first.to_lowercase().chain(characters).collect()
        }
        _ => sentence.to_owned(),
    }
}

fn description(command: &Command) -> Vec<Block> {
    let text = command.get_long_about().or_else(|| command.get_about());
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.split("\n\n").map(|paragraph| Block::Paragraph(as_sentence(paragraph))).collect()
}

/// Adds the full stop that help pages leave out after a single sentence.
fn as_sentence(text: &str) -> String {
    let ends = text.ends_with(['.', ':', '?', '!']) || text.is_empty();
    format!("{text}{}", if ends { "" } else { "." })
}

fn options(command: &Command) -> Vec<Block> {
    command.get_arguments().filter(|arg| !arg.is_hide_set()).map(option).collect()
}

/// The options but --help and --version, which every command has.
fn own_options(command: &Command) -> Vec<Block> {
    let own =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    command.get_arguments().filter(own).map(option).collect()
}

fn option(arg: &Arg) -> Block {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let mut term = [short, long].into_iter().flatten().collect::<Vec<_>>().join(", ");
    if arg.is_positional() || arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default().join(" ");
        let more =
            if arg.get_num_args().is_some_and(|count| count.max_values() > 1) { "…" } else { "" };
        let space = if term.is_empty() { "" } else { " " };
        term = format!("{term}{space}{names}{more}");
    }
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let mut text = as_sentence(&help.map(ToString::to_string).unwrap_or_default());
    let possible = arg.get_possible_values();
    if arg.get_action().takes_values() && !possible.is_empty() {
        let names: Vec<_> = possible.iter().map(|value| value.get_name()).collect();
        text.push_str(&format!(" One of {}.", names.join(", ")));
    }
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        text.push_str(&format!(" The default is {}.", defaults.join(" ")));
    }
    Block::Item(term, text)
}
