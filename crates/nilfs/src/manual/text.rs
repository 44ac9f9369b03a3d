//! Reads help texts: paragraphs, and lists of two columns, under headings that end with a colon.
//!
//! ```text
//! Examples:                                      a heading
//!   nilfs clean /mnt      take back what can …   an item: a term and, two spaces on, what it means
//!                         be taken back          more of the same
//!
//! A SIZE is in bytes.                            a paragraph; the empty line ended the section
//! ```

/// A piece of a manual page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Words that may be broken anywhere.
    Paragraph(String),
    /// A term, and what it means.
    Item(String, String),
    /// The heading of what follows, within a section.
    Heading(String),
}

/// A heading, if there is one, and what is below it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// Without the colon.
    pub title: Option<String>,
    /// In order.
    pub blocks: Vec<Block>,
}

/// Reads a text.
pub fn sections(text: &str) -> Vec<Section> {
    let mut sections = Vec::new();
    for part in text.split("\n\n").filter(|part| !part.trim().is_empty()) {
        let mut lines = part.lines().peekable();
        let mut section = Section::default();
        if let Some(title) = lines.peek().and_then(|line| line.strip_suffix(':'))
            && part.lines().nth(1).is_some_and(is_indented)
        {
            section.title = Some(title.to_owned());
            lines.next();
        }
        lines.for_each(|line| add(&mut section.blocks, line));
        sections.push(section);
    }
    sections
}

fn is_indented(line: &str) -> bool {
    line.starts_with(' ')
}

/// Spaces before a term; what has more goes on with the line before.
const INDENT: usize = 2;

fn add(blocks: &mut Vec<Block>, line: &str) {
    let content = line.trim();
    if line.len() - line.trim_start().len() == INDENT {
        let (term, meaning) = content.split_once("  ").unwrap_or((content, ""));
        blocks.push(Block::Item(term.to_owned(), meaning.trim().to_owned()));
        return;
    }
    match blocks.last_mut() {
        Some(Block::Item(_, text)) if is_indented(line) => append(text, content),
        Some(Block::Paragraph(text)) => append(text, content),
        _ => blocks.push(Block::Paragraph(content.to_owned())),
    }
}

fn append(text: &mut String, more: &str) {
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_lists_and_paragraphs_are_told_apart() {
        let text = "\
One thing: and
another.

Words:
  ro, rw     read-only, or
             not
  errors=a|b
             what to do
All others are refused.

A SIZE is a number.";
        let item = |term: &str, text: &str| Block::Item(term.into(), text.into());
        let paragraph = |text: &str| Block::Paragraph(text.into());
        let untitled = |block| Section { title: None, blocks: vec![block] };
        let words = vec![
            item("ro, rw", "read-only, or not"),
            item("errors=a|b", "what to do"),
            paragraph("All others are refused."),
        ];
        assert_eq!(
            sections(text),
            [
                untitled(paragraph("One thing: and another.")),
                Section { title: Some("Words".into()), blocks: words },
                untitled(paragraph("A SIZE is a number.")),
            ]
        );
    }
}
