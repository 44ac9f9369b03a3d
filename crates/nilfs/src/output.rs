//! What a command prints: its results on standard output, aligned for people or as JSON for
//! programs, and what else there is to be said on standard error. Nothing else writes to the two.

use std::env;
use std::fmt;
use std::io::{self, StdoutLock, Write};
use std::mem;
use std::time::Duration;

use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets,
};
use serde::{Serialize, Serializer};

/// Standard output, for results. Whole lines go out at once; [`flush`] sends the rest at the end.
pub struct Out(StdoutLock<'static>);

/// Standard output. Its errors are [`OutputError`]s.
pub fn out() -> Out {
    Out(io::stdout().lock())
}

/// Writes what is left, once the command has done its work.
pub fn flush() -> io::Result<()> {
    out().flush()
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(unprinted)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(unprinted)
    }
}

/// Why results could not be printed.
#[derive(Debug)]
pub struct OutputError(io::Error);

impl OutputError {
    /// Whether the reader has seen enough, as in `nilfs ls … | head`.
    pub fn is_closed_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for OutputError {}

/// An error of standard output, so that nobody takes it for one of a file.
pub fn unprinted(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), OutputError(error))
}

/// Says a line on standard error, as `eprintln!` does.
macro_rules! say {
    ($($words:tt)*) => { $crate::output::utter(format_args!("{}\n", format_args!($($words)*))) };
}

pub(crate) use say;

/// Says on standard error what need not be a line: a question, or how far something is. If that
/// is closed or full, nobody is left to be told.
pub fn utter(words: impl fmt::Display) {
    let _ = io::stderr().write_all(words.to_string().as_bytes());
}

/// Prints a value as JSON.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(out());
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub enum Column {
    /// Words: aligned left.
    Text(&'static str),
    /// Numbers: aligned right.
    Number(&'static str),
}

/// Rows of a table that are printed at once. Lists may be long, and a table takes more than a kilobyte for
/// a row.
const PAGE: usize = 1024;

/// Spaces between two columns.
const GAP: u16 = 2;

/// Rows in aligned columns, without lines around them. A table of several pages has the columns of the
/// first one, unless something in them is wider.
pub struct Rows {
    table: Table,
    columns: Vec<Column>,
    /// Those of the columns on the pages before.
    widths: Vec<u16>,
    /// Why the pages before could not be printed.
    failed: Option<io::Error>,
}

impl Rows {
    /// An empty table with a header, which is bold on a terminal.
    pub fn new(columns: &[Column]) -> Self {
        let mut table = empty_table();
        let names = columns.iter().map(|column| match column {
            Column::Text(name) | Column::Number(name) => name,
        });
        if columns.iter().any(|column| !matches!(column, Column::Text(""))) {
            table.set_header(names.map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
        }
        Self { table, columns: columns.to_vec(), widths: Vec::new(), failed: None }
    }

    /// Pairs of a name and a value, without a header.
    pub fn properties() -> Self {
        Self::new(&[Column::Text(""), Column::Text("")])
    }

    /// Adds a row.
    pub fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        self.table.add_row(cells);
        if self.table.row_count() >= PAGE {
            let lines = self.take_page();
            if self.failed.is_none() {
                self.failed = print_lines(&lines).err();
            }
        }
    }

    /// Prints the rest of the table.
    pub fn print(mut self) -> anyhow::Result<()> {
        let lines = self.take_page();
        Ok(self.failed.map_or_else(|| print_lines(&lines), Err)?)
    }

    /// The lines of the rows so far, which make way for others.
    fn take_page(&mut self) -> Vec<String> {
        let widths = self.table.column_max_content_widths();
        self.widths.resize(self.widths.len().max(widths.len()), 0);
        for (known, width) in self.widths.iter_mut().zip(widths) {
            *known = width.max(*known);
        }
        let columns = self.table.column_iter_mut().zip(&self.columns).zip(&self.widths);
        for ((column, kind), width) in columns {
            column.set_padding((0, GAP));
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width + GAP)));
            if matches!(kind, Column::Number(_)) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let page = mem::replace(&mut self.table, empty_table());
        let is_nothing = page.is_empty() && page.header().is_none();
        let lines = page.lines().filter(|_| !is_nothing);
        lines.map(|line| line.trim_end().to_owned()).collect()
    }
}

fn empty_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    // Some users who want no colours want no bold either, and a program cannot tell which.
    if env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        table.force_no_tty();
    }
    table.set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn print_lines(lines: &[String]) -> io::Result<()> {
    let mut out = io::BufWriter::new(out());
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    out.flush()
}

/// Prints a list as JSON, one value after the other.
pub fn json_list<T: Serialize>(values: impl Iterator<Item = T>) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(out());
    let mut json = serde_json::Serializer::pretty(&mut out);
    json.collect_seq(values).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// A time on disk for people, in the local time zone.
pub fn local_time(seconds: i64) -> String {
    match jiff::Timestamp::from_second(seconds) {
        Ok(time) => {
            let time = time.to_zoned(jiff::tz::TimeZone::system());
            time.strftime("%F %T").to_string()
        }
        Err(_) => format!("@{seconds}"),
    }
}

/// A time on disk for programs: RFC 3339 in UTC, or `@seconds` if no calendar has it.
pub fn exact_time(seconds: i64, nanoseconds: u32) -> String {
    i32::try_from(nanoseconds)
        .ok()
        .and_then(|nanoseconds| jiff::Timestamp::new(seconds, nanoseconds).ok())
        .map_or_else(|| format!("@{seconds}"), |time| time.to_string())
}

/// A number of things for people, in the singular or plural.
pub fn counted(count: u64, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

/// A length of time for people, in its two largest units: `3d 4h`, `2m 5s`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (unit, smaller) = match seconds {
        0..60 => return format!("{seconds}s"),
        60..3600 => ((60, 'm'), (1, 's')),
        3600..86400 => ((3600, 'h'), (60, 'm')),
        _ => ((86400, 'd'), (3600, 'h')),
    };
    let (large, rest) = (seconds / unit.0, seconds % unit.0 / smaller.0);
    match rest {
        0 => format!("{large}{}", unit.1),
        _ => format!("{large}{} {rest}{}", unit.1, smaller.1),
    }
}

/// A name from a volume for a terminal: escaped are characters that control the terminal, that
/// cannot be seen, or that change the order of others, such as U+202E.
pub fn printable(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' | '\'' | '"' | ' '..='~' => text.push(character),
                // A mark that combines with the character before it is escaped only where it stands
                // alone, so it is given one.
                _ => text.extend(format!("x{character}").escape_debug().skip(1)),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hostile image must not be able to send control sequences to the terminal.
    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(printable("grün".as_bytes()), "grün");
        assert_eq!(printable(b"a\x1b[2Jb\xff\n"), "a\\u{1b}[2Jb\\xff\\n");
    }

    #[test]
    fn a_table_of_several_pages_is_aligned_as_one() {
        let columns = [Column::Number("SIZE"), Column::Text("NAME"), Column::Text("NOTE")];
        // The widest are on the first page.
        let size = |nth: u32| if nth < 20 { nth * 100 } else { nth % 10 };
        let row = |nth: u32| [size(nth).to_string(), format!("name {}", size(nth)), "x".into()];
        let (mut whole, mut paged) = (Rows::new(&columns), Rows::new(&columns));
        let mut lines = Vec::new();
        for nth in 0..100 {
            whole.push(row(nth));
            paged.push(row(nth));
            if nth % 25 == 24 {
                lines.extend(paged.take_page());
            }
        }
        lines.extend(paged.take_page());
        assert_eq!(lines, whole.take_page());
        assert_eq!(lines[..2], ["SIZE  NAME       NOTE", "   0  name 0     x"]);
    }

    /// With U+202E in it, `cod.exe` is displayed as if it were `exe.doc`.
    #[test]
    fn names_cannot_look_like_others() {
        for (name, shown) in [
            ("a\u{202e}cod.exe", "a\\u{202e}cod.exe"),
            ("\u{2066}a\u{2069}", "\\u{2066}a\\u{2069}"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
            ("a\u{a0}b\u{2028}", "a\\u{a0}b\\u{2028}"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
        ] {
            assert_eq!(printable(name.as_bytes()), shown);
        }
        // Letters, marks that combine with them, and signs are names like others.
        for name in ["e\u{301}té", "कि", "ไทย", "日本", "ü'\"\\ ✓", "🐧"] {
            assert_eq!(printable(name.as_bytes()), name);
        }
    }

    #[test]
    fn lengths_of_time_have_two_units_at_most() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (60, "1m"), (125, "2m 5s"), (7260, "2h 1m"), (90_061, "1d 1h")]
        {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn times_beyond_the_calendar_are_shown_as_seconds() {
        assert_eq!(exact_time(1_795_203_662, 5), "2026-11-20T19:41:02.000000005Z");
        assert_eq!(exact_time(i64::MAX, 0), format!("@{}", i64::MAX));
        assert_eq!(local_time(i64::MIN), format!("@{}", i64::MIN));
    }
}
