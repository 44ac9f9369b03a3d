//! A manual page, and how it is written in roff with the macros of man(7).

use roff::{Roff, bold, roman};

use super::text::Block;

/// The most columns of a line of the source, before escapes make it longer.
const WIDTH: usize = 60;

/// The order of sections, as man-pages(7) has it. Other sections stand between the two lists.
const FIRST: [&str; 3] = ["DESCRIPTION", "COMMANDS", "OPTIONS"];
const LAST: [&str; 4] = ["EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES"];

/// A manual page.
pub struct Page {
    /// What it is about.
    pub name: String,
    /// 1 for commands, 5 for files, 8 for administration.
    pub section: u8,
    /// One line for NAME, without a capital letter or a full stop.
    pub summary: String,
    /// Lines for SYNOPSIS.
    pub synopsis: Vec<String>,
    /// Sections with their headings.
    pub sections: Vec<(String, Vec<Block>)>,
    /// Other pages, such as `nilfs(1)`.
    pub see_also: Vec<String>,
}

impl Page {
    /// What the file is called.
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    /// How others refer to it.
    pub fn reference(&self) -> String {
        format!("{}({})", self.name, self.section)
    }

    /// What it refers to.
    #[cfg(test)]
    pub fn see_also(&self) -> &[String] {
        &self.see_also
    }

    /// Adds blocks to a section, which is made if there is something to add.
    pub fn add(&mut self, heading: &str, blocks: Vec<Block>) {
        if blocks.is_empty() {
            return;
        }
        match self.sections.iter_mut().find(|(known, _)| known == heading) {
            Some((_, known)) => known.extend(blocks),
            None => self.sections.push((heading.to_owned(), blocks)),
        }
    }

    /// Returns the source. `date` is that of the page, as `2026-11-22`.
    pub fn to_roff(&self, date: &str) -> String {
        let mut roff = Roff::new();
        let version = concat!("nilfs ", env!("CARGO_PKG_VERSION"));
        let manual = match self.section {
            1 => "User Commands",
            5 => "File Formats",
            _ => "System Administration",
        };
        let section = self.section.to_string();
        roff.control("TH", [&*self.name.to_uppercase(), &*section, date, version, manual]);
        roff.control("SH", ["NAME"]);
        write_text(&mut roff, &format!("{} - {}", self.name, self.summary));
        roff.control("SH", ["SYNOPSIS"]);
        lines(&mut roff, &self.synopsis);
        let mut sections: Vec<_> = self.sections.iter().collect();
        sections.sort_by_key(|(heading, _)| {
            let place = |list: &[&str]| list.iter().position(|known| known == heading);
            // Less than 0 for the first, 0 for what has no place of its own.
            let first = place(&FIRST).map(|nth| nth as isize - FIRST.len() as isize);
            first.or(place(&LAST).map(|nth| nth as isize + 1)).unwrap_or(0)
        });
        for (heading, blocks) in sections {
            roff.control("SH", [&**heading]);
            let mut first = true;
            for block in blocks {
                write_block(&mut roff, block, first);
                first = matches!(block, Block::Heading(_));
            }
        }
        roff.control("SH", ["SEE ALSO"]);
        write_references(&mut roff, &self.see_also);
        roff.render()
    }
}

/// Writes lines that are not joined.
fn lines(roff: &mut Roff, lines: &[String]) {
    for (nth, line) in lines.iter().enumerate() {
        if nth > 0 {
            roff.control("br", []);
        }
        roff.text([bold(line)]);
    }
}

/// Writes a block. `first`: no paragraph of the section comes before it.
fn write_block(roff: &mut Roff, block: &Block, first: bool) {
    match block {
        Block::Paragraph(text) => {
            if !first {
                roff.control("PP", []);
            }
            write_text(roff, text);
        }
        Block::Item(term, text) => {
            // A term that needs no explanation is a paragraph.
            match text.is_empty() {
                true if first => {}
                true => drop(roff.control("PP", [])),
                false => drop(roff.control("TP", [])),
            }
            roff.text([bold(term)]);
            write_text(roff, text);
        }
        Block::Heading(text) => {
            roff.control("SS", [&**text]);
        }
    }
}

/// Writes a paragraph in short lines, which roff joins.
fn write_text(roff: &mut Roff, text: &str) {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.len() + word.len() >= WIDTH {
            roff.text([roman(std::mem::take(&mut line))]);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        roff.text([roman(line)]);
    }
}

fn write_references(roff: &mut Roff, references: &[String]) {
    for (nth, reference) in references.iter().enumerate() {
        let (name, section) = reference.split_once('(').unwrap_or((reference, ""));
        let comma = if nth + 1 < references.len() { "," } else { "" };
        roff.text([bold(name), roman(format!("({section}{comma}"))]);
    }
}
