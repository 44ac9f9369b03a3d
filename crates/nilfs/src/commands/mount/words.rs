//! The words behind -o for those who type them: completions.
//!
//! They are read from the help, which has all of them.

use std::ffi::OsStr;

use clap_complete::engine::CompletionCandidate;

use super::options::HELP;
use crate::manual::terms;

/// Every word: `ro`; `order=relaxed`, where the help lists the values; `cp=`, where it does not.
fn all() -> Vec<String> {
    let terms = terms(HELP);
    let words = terms.iter().flat_map(|term| term.split(", "));
    let mut all = Vec::new();
    for word in words {
        match word.split_once('=') {
            Some((name, values)) if values.contains('|') => {
                all.extend(values.split('|').map(|value| format!("{name}={value}")));
            }
            Some((name, _)) => all.push(format!("{name}=")),
            None => all.push(word.to_owned()),
        }
    }
    all
}

/// What the last word of a list that has been begun may become.
pub fn complete(list: &OsStr) -> Vec<CompletionCandidate> {
    let list = list.to_string_lossy();
    let begun = list.rfind(',').map_or(0, |comma| comma + 1);
    let (before, start) = list.split_at(begun);
    let fitting = all().into_iter().filter(|word| word.starts_with(start));
    fitting.map(|word| CompletionCandidate::new(format!("{before}{word}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(list: &str) -> Vec<String> {
        let candidates = complete(OsStr::new(list));
        candidates.iter().map(|it| it.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_last_word_of_a_list_is_completed() {
        assert_eq!(completed("nob"), ["nobarrier"]);
        assert_eq!(completed("ro,cp"), ["ro,cp="]);
        assert_eq!(completed("ro,order="), ["ro,order=relaxed", "ro,order=strict"]);
        assert!(completed("").contains(&"metrics=".to_owned()));
        assert_eq!(completed("ro,frob"), [] as [&str; 0]);
    }

}
