//! Names and numbers in messages: what was probably meant by a name that does not exist, and things
//! counted.

use crate::failure::{Failure, Status};

/// How alike two names must be, from 0 to 1, for one to be taken for a slip in typing the other.
const ALIKE: f64 = 0.85;

/// The message for a name that is not known, such as "there is no workload \"iozon\"".
#[must_use]
pub fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let likeness = |other: &str| strsim::jaro_winkler(name, other);
    let closest = known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let guess = match closest.filter(|other| likeness(other) > ALIKE) {
        Some(other) => format!("; did you mean \"{other}\"?"),
        None => ".".to_owned(),
    };
    format!("there is no {what} \"{name}\"{guess} There are: {}", known.join(", "))
}

/// The failure of a command line with a name that is not known.
#[must_use]
pub fn wrong(what: &str, name: &str, known: &[&str]) -> anyhow::Error {
    Failure::new(Status::Usage, unknown(what, name, known)).into()
}

/// A number of things: "1 device", "2 devices".
#[must_use]
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_answered_with_what_was_meant() {
        let known = ["iozone", "sqlite", "dd"];
        let message = unknown("workload", "iozon", &known);
        assert!(message.contains("no workload \"iozon\"; did you mean \"iozone\"?"), "{message}");
        assert!(message.ends_with("iozone, sqlite, dd"), "{message}");
        for far in ["bonnie", "", "ioooooooooo"] {
            let message = unknown("workload", far, &known);
            assert!(!message.contains("did you mean"), "{message}");
        }
    }
}
