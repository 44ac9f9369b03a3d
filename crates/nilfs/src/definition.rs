//! Things that can be set by a name and a value, each defined once: options of a mount, settings of
//! a file.
//!
//! What a [`Definition`] says is enough to obey a word, to explain it, to complete it, and to write
//! the tables of the manual. It does not know where words come from.

use std::fmt::Write;

/// How similar two names must be for one to be taken for the other; equal names have 1.
const ALIKE: f64 = 0.85;

/// Something that can be set in a `T`.
pub struct Definition<T: 'static> {
    /// The words that set it; of several, the last counts.
    words: &'static [Word<T>],
    /// What it does, as the rest of a sentence; what is typed stands in backquotes.
    meaning: &'static str,
    /// What is so if nobody says anything; empty if that goes without saying.
    default: &'static str,
    needs: Option<Need<T>>,
    more: &'static str,
}

/// A word, alone or with a value after it.
pub struct Word<T: 'static> {
    name: &'static str,
    value: Value<T>,
}

/// What comes after a name.
enum Value<T: 'static> {
    Nothing(fn(&mut T)),
    OneOf(&'static [Choice<T>]),
    /// A text that is shown as this placeholder, or as alternatives with `|` between them.
    Text(&'static str, fn(&mut T, &str) -> Result<(), String>),
}

/// A value by its name, and what it sets.
pub type Choice<T> = (&'static str, fn(&mut T));

/// A condition without which something cannot be had.
struct Need<T: 'static> {
    what: &'static str,
    why: &'static str,
    is_met: fn(&T) -> bool,
}

/// A word that stands alone.
pub const fn flag<T>(name: &'static str, set: fn(&mut T)) -> Word<T> {
    Word { name, value: Value::Nothing(set) }
}

/// A word with one of a few values.
pub const fn one_of<T>(name: &'static str, values: &'static [Choice<T>]) -> Word<T> {
    Word { name, value: Value::OneOf(values) }
}

/// A word with a value that `set` reads. Its error says what it has expected.
pub const fn text<T>(
    name: &'static str,
    placeholder: &'static str,
    set: fn(&mut T, &str) -> Result<(), String>,
) -> Word<T> {
    Word { name, value: Value::Text(placeholder, set) }
}

impl<T> Definition<T> {
    /// What these words set, and what that means.
    pub const fn new(words: &'static [Word<T>], meaning: &'static str) -> Self {
        Self { words, meaning, default: "", needs: None, more: "" }
    }

    /// What is so if nobody says anything.
    #[must_use]
    pub const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// What it cannot be had without, whether that is there, and why it is needed.
    #[must_use]
    pub const fn needs(
        self,
        what: &'static str,
        is_met: fn(&T) -> bool,
        why: &'static str,
    ) -> Self {
        Self { needs: Some(Need { what, why, is_met }), ..self }
    }

    /// Where the documentation says more, as a link in Markdown.
    #[must_use]
    pub const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    /// All that is to be typed, such as `ro, rw` or `order=relaxed|strict`.
    pub fn term(&self) -> String {
        let words: Vec<_> = self.words.iter().map(Word::typed).collect();
        words.join(", ")
    }

    /// The names alone.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.words.iter().map(|word| word.name).collect();
        names.join(", ")
    }

    /// What is so if nobody says anything, as it would be typed.
    #[cfg(test)]
    pub fn default_value(&self) -> &'static str {
        self.default
    }

    /// What it means, needs, and is by default.
    pub fn explanation(&self) -> String {
        let mut all = self.in_markdown();
        if !self.default.is_empty() {
            let _ = write!(all, " (default: {})", self.default);
        }
        all.replace('`', "")
    }

    fn in_markdown(&self) -> String {
        let mut all = self.meaning.to_owned();
        if let Some(need) = &self.needs {
            let _ = write!(all, "; needs {}", need.what);
        }
        all
    }
}

impl<T> Word<T> {
    /// The word with its possible values.
    fn typed(&self) -> String {
        match &self.value {
            Value::Nothing(_) => self.name.to_owned(),
            Value::OneOf(values) => format!("{}={}", self.name, list(values, "|", "|")),
            Value::Text(placeholder, _) => format!("{}={placeholder}", self.name),
        }
    }

    /// What may be typed: the word with each value, or only up to a value that is not known.
    fn completions(&self) -> Vec<String> {
        let typed = self.typed();
        match typed.split_once('=') {
            None => vec![typed],
            Some((name, values)) if values.contains('|') => {
                values.split('|').map(|value| format!("{name}={value}")).collect()
            }
            Some((name, _)) => vec![format!("{name}=")],
        }
    }

    fn set(&self, target: &mut T, value: Option<&str>) -> Result<(), String> {
        let missing = || format!("expected {}", self.typed());
        match (&self.value, value) {
            (Value::Nothing(set), None) => set(target),
            (Value::Nothing(_), Some(_)) => return Err("expected no value".to_owned()),
            (Value::Text(_, set), value) => set(target, value.ok_or_else(missing)?)?,
            (Value::OneOf(values), value) => {
                let value = value.ok_or_else(missing)?;
                let known = values.iter().find(|(name, _)| *name == value);
                let (_, set) = known.ok_or_else(|| expected_one(values))?;
                set(target);
            }
        }
        Ok(())
    }
}

fn expected_one<V>(values: &[(&str, V)]) -> String {
    format!("expected {}", list(values, ", ", " or "))
}

fn list<V>(values: &[(&str, V)], between: &str, last: &str) -> String {
    let mut all = String::new();
    for (nth, (name, _)) in values.iter().enumerate() {
        let separator = match nth {
            0 => "",
            _ if nth + 1 == values.len() => last,
            _ => between,
        };
        let _ = write!(all, "{separator}{name}");
    }
    all
}

/// Why a word was not obeyed.
#[derive(Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is none of this name; another one may have been meant.
    Unknown(Option<&'static str>),
    /// What is expected instead of its value.
    Value(String),
}

/// Obeys a word.
///
/// # Errors
/// There is no such word, or it cannot have such a value.
pub fn set<T>(
    definitions: &[Definition<T>],
    target: &mut T,
    name: &str,
    value: Option<&str>,
) -> Result<(), Problem> {
    let word = words(definitions).find(|word| word.name == name);
    let word = word.ok_or_else(|| Problem::Unknown(nearest(definitions, name)))?;
    word.set(target, value).map_err(Problem::Value)
}

/// Checks that everything that is set has what it needs.
///
/// # Errors
/// What is missing to which word, and why it is needed.
pub fn check<T>(definitions: &[Definition<T>], target: &T) -> Result<(), String> {
    for definition in definitions {
        if let Some(need) = definition.needs.as_ref().filter(|need| !(need.is_met)(target)) {
            let name = definition.words.first().map_or("", |word| word.name);
            let what = need.what.replace('`', "");
            return Err(format!("{name} needs {what}: {}", need.why));
        }
    }
    Ok(())
}

/// Everything that may be typed, up to values that are not known.
pub fn completions<T>(definitions: &[Definition<T>]) -> impl Iterator<Item = String> {
    words(definitions).flat_map(Word::completions)
}

/// Returns a list in two columns, as it stands on help pages: terms, and what they mean, in lines
/// of at most 100 columns.
pub fn help<T>(definitions: &[Definition<T>]) -> String {
    const INDENT: usize = 25;
    let mut help = String::new();
    for definition in definitions {
        let mut line = format!("  {}", definition.term());
        // Two spaces end a term.
        if line.len() + 2 > INDENT {
            help.push_str(&line);
            help.push('\n');
            line.clear();
        }
        let mut empty = true;
        for word in definition.explanation().split_whitespace() {
            if !empty && line.chars().count() + 1 + word.chars().count() > 100 {
                help.push_str(&line);
                help.push('\n');
                line.clear();
                empty = true;
            }
            match empty {
                true => line.push_str(&" ".repeat(INDENT - line.len())),
                false => line.push(' '),
            }
            line.push_str(word);
            empty = false;
        }
        help.push_str(&line);
        help.push('\n');
    }
    help
}

/// Returns a table of options, in Markdown.
pub fn option_table<T>(definitions: &[Definition<T>]) -> String {
    table("option", definitions, |word| match word.value {
        Value::Text(placeholder, _) if !placeholder.contains('|') => vec![word.typed()],
        _ => word.completions(),
    })
}

/// Returns a table of settings, in Markdown.
pub fn setting_table<T>(definitions: &[Definition<T>]) -> String {
    table("setting", definitions, |word| vec![word.name.to_owned()])
}

fn table<T>(
    heading: &str,
    definitions: &[Definition<T>],
    typed: impl Fn(&Word<T>) -> Vec<String>,
) -> String {
    let mut table = format!("\n| {heading} | meaning | default |\n|---|---|---|\n");
    for definition in definitions {
        let words = definition.words.iter().flat_map(&typed);
        let words: Vec<_> = words.map(|word| format!("`{word}`")).collect();
        let mut meaning = definition.in_markdown();
        if !definition.more.is_empty() {
            let _ = write!(meaning, "; see {}", definition.more);
        }
        let cells = [words.join(", "), meaning, definition.default.to_owned()];
        for cell in cells {
            let space = if cell.is_empty() { "" } else { " " };
            let _ = write!(table, "|{space}{cell} ");
        }
        table.push_str("|\n");
    }
    table.push('\n');
    table
}

/// Fails unless a page of the documentation has this table.
#[cfg(test)]
#[track_caller]
pub fn assert_documented(page: &str, text: &str, table: &str) {
    assert!(text.contains(table), "the table in {page} has to be this one:\n{table}");
}

fn words<T>(definitions: &[Definition<T>]) -> impl Iterator<Item = &'static Word<T>> {
    definitions.iter().flat_map(|definition| definition.words)
}

/// Returns the name that was most probably meant, if there is one like it.
fn nearest<T>(definitions: &[Definition<T>], name: &str) -> Option<&'static str> {
    let alike = words(definitions).map(|word| (strsim::jaro_winkler(name, word.name), word.name));
    let best = alike.filter(|(alike, _)| *alike > ALIKE).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq)]
    struct Target {
        fast: bool,
        size: u64,
    }

    fn size(target: &mut Target, text: &str) -> Result<(), String> {
        target.size = text.parse().map_err(|_| "expected a number".to_owned())?;
        Ok(())
    }

    type Setting = Definition<Target>;

    const DEFINITIONS: &[Setting] = &[
        Setting::new(
            &[flag("fast", |it| it.fast = true), flag("slow", |it| it.fast = false)],
            "how `fast` it is; a text that is long enough to be continued in a second line of this \
             column",
        )
        .default("slow"),
        Setting::new(&[text("size", "N", size)], "how large").needs(
            "`fast`",
            |it| it.size < 9 || it.fast,
            "it would take long",
        ),
        Setting::new(
            &[one_of("kind", &[("a", |it| it.size = 1), ("b", |it| it.size = 2)])],
            "which",
        )
        .more("[kinds](kinds.md)"),
    ];

    fn set(word: &str) -> Result<Target, Problem> {
        let mut target = Target::default();
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        super::set(DEFINITIONS, &mut target, name, value).map(|()| target)
    }

    #[test]
    fn a_word_is_obeyed_or_what_is_wrong_is_said() {
        assert_eq!(set("fast"), Ok(Target { fast: true, size: 0 }));
        assert_eq!(set("size=7"), Ok(Target { fast: false, size: 7 }));
        assert_eq!(set("kind=b"), Ok(Target { fast: false, size: 2 }));
        let value = |text: &str| Err(Problem::Value(text.to_owned()));
        assert_eq!(set("size"), value("expected size=N"));
        assert_eq!(set("size=x"), value("expected a number"));
        assert_eq!(set("kind=c"), value("expected a or b"));
        assert_eq!(set("fast=1"), value("expected no value"));
        assert_eq!(set("szie=1"), Err(Problem::Unknown(Some("size"))));
        assert_eq!(set("frob"), Err(Problem::Unknown(None)));
    }

    #[test]
    fn what_is_missing_is_named() {
        let large = Target { fast: false, size: 10 };
        let said = "size needs fast: it would take long";
        assert_eq!(check(DEFINITIONS, &large), Err(said.to_owned()));
        assert_eq!(check(DEFINITIONS, &Target { fast: true, ..large }), Ok(()));
    }

    #[test]
    fn help_table_and_completions_say_the_same() {
        let help = "
  fast, slow             how fast it is; a text that is long enough to be continued in a second line
                         of this column (default: slow)
  size=N                 how large; needs fast
  kind=a|b               which
";
        assert_eq!(super::help(DEFINITIONS), help[1..]);
        let table = "\
| `size=N` | how large; needs `fast` | |
| `kind=a`, `kind=b` | which; see [kinds](kinds.md) | |

";
        assert!(option_table(DEFINITIONS).ends_with(table), "{}", option_table(DEFINITIONS));
        let all: Vec<_> = completions(DEFINITIONS).collect();
        assert_eq!(all, ["fast", "slow", "size=", "kind=a", "kind=b"]);
    }
}
