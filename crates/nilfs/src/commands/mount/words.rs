//! Help with typing the words after `-o`: completions, and what a mistyped word may have been meant
//! to be. The words are read from the help text, which has all of them.

use std::ffi::OsStr;

use clap_complete::engine::CompletionCandidate;

use super::options::HELP;
use crate::manual::terms;

/// How similar two words must be for one to be taken for the other; equal words have 1.
const ALIKE: f64 = 0.85;

/// Every word: `ro`; `order=relaxed` where the help lists the values, and `cp=` where it does not.
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

/// The lists that a list may become when its last word is completed.
pub fn complete(list: &OsStr) -> Vec<CompletionCandidate> {
    let list = list.to_string_lossy();
    let begun = list.rfind(',').map_or(0, |comma| comma + 1);
    let (before, start) = list.split_at(begun);
    let fitting = all().into_iter().filter(|word| word.starts_with(start));
    fitting.map(|word| CompletionCandidate::new(format!("{before}{word}"))).collect()
}

/// Returns the name of the word that was most probably meant, if there is one like it.
pub fn nearest(name: &str) -> Option<String> {
    let names = all().into_iter().map(|word| word.split('=').next().unwrap_or_default().to_owned());
    let alike = names.map(|known| (strsim::jaro_winkler(name, &known), known));
    let best = alike.filter(|(alike, _)| *alike > ALIKE).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, known)| known)
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

    #[test]
    fn what_is_nearly_a_word_is_taken_for_it() {
        for (typed, meant) in
            [("nobarier", "nobarrier"), ("polcy", "policy"), ("readonly", ""), ("frob", "")]
        {
            assert_eq!(nearest(typed).unwrap_or_default(), meant, "{typed}");
        }
    }
}
