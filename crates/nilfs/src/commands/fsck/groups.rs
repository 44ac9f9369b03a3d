//! Findings of one kind as one: a fault in one place may break a rule in thousands.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::output::printable;

/// Lines of one kind that are shown; of more, their number is.
pub(super) const EXAMPLES: usize = 3;

/// A text, and its kind.
pub(super) struct Words {
    /// Part of the text that is equal, but for numbers, in all texts of a kind: without the paths of files.
    pub kind: String,
    /// All of it.
    pub text: String,
}

/// A finding or a repair, to be shown.
pub(super) struct Line {
    /// Words that come before the text, such as `error`.
    pub label: String,
    /// Subject of the text, in a word or two.
    pub subject: Option<String>,
    /// Finding or repair.
    pub words: Words,
    /// Repair that would put the finding right.
    pub repair: Option<Words>,
}

impl Line {
    /// A line without a subject and a repair.
    pub fn new(label: &str, words: Words) -> Self {
        Self { label: label.to_owned(), subject: None, words, repair: None }
    }
}

/// Lines by their kinds, each where the first of its kind came.
#[derive(Default)]
pub(super) struct Groups {
    groups: Vec<Vec<Line>>,
    known: HashMap<(String, Option<String>, String, Option<String>), usize>,
}

impl Groups {
    /// Adds a line.
    pub fn add(&mut self, line: Line) {
        let repair = line.repair.as_ref().map(|repair| without_particulars(&repair.kind));
        let kind = without_particulars(&line.words.kind);
        let kind = (line.label.clone(), line.subject.clone(), kind, repair);
        let nth = *self.known.entry(kind).or_insert(self.groups.len());
        match self.groups.get_mut(nth) {
            Some(group) => group.push(line),
            None => self.groups.push(vec![line]),
        }
    }

    /// Prints them; of kinds with more than `most` lines, as many as examples.
    pub fn print(&self, out: &mut impl Write, most: usize) -> io::Result<()> {
        for group in &self.groups {
            let Some(first) = group.first() else { continue };
            let label = &first.label;
            if group.len() <= most {
                for line in group {
                    writeln!(out, "{label}: {}", printable(line.words.text.as_bytes()))?;
                    print_repair(out, line, "  ")?;
                }
                continue;
            }
            let subject = first.subject.as_ref().map(|it| format!("{it}: ")).unwrap_or_default();
            let count = group.len();
            writeln!(out, "{label}: {subject}{count} of one kind (-v shows all), such as")?;
            for line in &group[..most] {
                writeln!(out, "  {}", printable(line.words.text.as_bytes()))?;
                print_repair(out, line, "    ")?;
            }
        }
        Ok(())
    }
}

fn print_repair(out: &mut impl Write, line: &Line, indent: &str) -> io::Result<()> {
    match &line.repair {
        Some(repair) => writeln!(out, "{indent}repair: {}", printable(repair.text.as_bytes())),
        None => Ok(()),
    }
}

/// A text in which all numbers are the same, and all that is in quotation marks.
fn without_particulars(text: &str) -> String {
    let mut kind = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let end = match next {
            '0'..='9' => rest.find(|it: char| !it.is_ascii_alphanumeric()).unwrap_or(rest.len()),
            '"' => rest[1..].find('"').map_or(1, |end| end + 2),
            _ => 0,
        };
        match end {
            0 => {
                kind.push(next);
                rest = &rest[next.len_utf8()..];
            }
            end => {
                kind.push('#');
                rest = &rest[end..];
            }
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Words {
        Words { kind: text.to_owned(), text: text.to_owned() }
    }

    fn line(text: &str, repair: Option<&str>) -> Line {
        let repair = repair.map(words);
        Line { subject: Some("things".to_owned()), repair, ..Line::new("error", words(text)) }
    }

    fn printed(lines: impl IntoIterator<Item = Line>, most: usize) -> String {
        let mut groups = Groups::default();
        lines.into_iter().for_each(|line| groups.add(line));
        let mut out = Vec::new();
        groups.print(&mut out, most).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// One wrong pointer was 4122 lines, among which a second fault could not be seen.
    #[test]
    fn many_of_a_kind_are_counted_and_others_are_seen() {
        let many = || (0..4000).map(|nth| line(&format!("block {nth} is 0x{nth:x}"), Some("go")));
        let other = || line("a second fault", None);
        let text = printed(many().take(9).chain([other()]).chain(many()), EXAMPLES);
        let expected = "error: things: 4009 of one kind (-v shows all), such as\n  \
            block 0 is 0x0\n    repair: go\n  block 1 is 0x1\n    repair: go\n  \
            block 2 is 0x2\n    repair: go\nerror: a second fault\n";
        assert_eq!(text, expected);
        assert_eq!(printed(many(), usize::MAX).lines().count(), 8000);
        let few = printed(many().take(EXAMPLES), EXAMPLES);
        assert!(few.starts_with("error: block 0 is 0x0\n  repair: go\nerror: block 1"), "{few}");
    }

    /// The repairs of a thousand files were a thousand lines, because each has the path of its file.
    #[test]
    fn paths_of_files_make_no_kinds() {
        let of_file = |nth: u8| {
            let letters = char::from(b'a' + nth % 26);
            let text = format!("dir/{letters}: make a hole");
            let repair = Some(Words { kind: "make a hole".to_owned(), text });
            Line { repair, ..line("a pointer leads nowhere", None) }
        };
        let text = printed((0..26).map(of_file), EXAMPLES);
        assert!(
            text.starts_with("error: things: 26 of one kind (-v shows all), such as"),
            "{text}"
        );
        assert!(text.ends_with("\n    repair: dir/c: make a hole\n"), "{text}");
    }

    #[test]
    fn what_is_said_or_done_otherwise_is_another_kind() {
        for (one, other, is_same) in [
            ("block 7 is \"a b\"", "block 81 is \"c\"", true),
            ("it is 0xdead", "it is 0x1", true),
            ("größe 5", "größe 6", true),
            ("a \" alone", "a \" alone", true),
            ("block 7 is free", "block 7 is used", false),
            ("block seven", "block 7", false),
        ] {
            assert_eq!(without_particulars(one) == without_particulars(other), is_same, "{one}");
        }
        let repaired =
            |nth: u32| line("same", Some(if nth.is_multiple_of(2) { "take" } else { "drop" }));
        let text = printed((0..8).map(repaired), EXAMPLES);
        assert_eq!(text.matches("4 of one kind").count(), 2, "{text}");
    }
}
