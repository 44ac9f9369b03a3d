//! Names that nobody has: what was probably meant, and what there is.

/// How alike two names must be, from 0 to 1, for one to be taken for a slip in typing the other.
const ALIKE: f64 = 0.85;

/// The message for a name that is not known, such as "there is no workload \"iozon\"".
pub fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let likeness = |other: &str| strsim::jaro_winkler(name, other);
    let closest = known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let guess = match closest.filter(|other| likeness(other) > ALIKE) {
        Some(other) => format!("; did you mean \"{other}\"?"),
        None => ".".to_owned(),
    };
    format!("there is no {what} \"{name}\"{guess} There are: {}", known.join(", "))
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
