//! What a question and an answer have in common, whatever is asked, as JSON.
//!
//! The two sides may be of different versions: a mount serves for months, and the command is
//! updated meanwhile. So both say which version they are, what one side does not know in a message
//! of the other is passed over, and what cannot be passed over is answered with what is missing.
//!
//! ```text
//! question: {"version": "0.1.0", "request": "trim", "arguments": {"from": 0, …}}
//! answer:   {"version": "0.1.0", "done": {"bytes": 4096}}
//!           {"version": "0.1.0", "refused": {"reason": "no-space", "message": "…"}}
//!           {"version": "0.1.0", "not-understood": "there is no request \"trim\""}
//! ```

use std::cmp::Ordering;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::requests::AdminRequest;
use crate::administration::{Reason, Refusal};

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The version of the command.
    #[serde(default)]
    version: String,
    /// The name of the request.
    pub request: String,
    /// The request itself.
    #[serde(default)]
    pub arguments: Value,
}

/// What has become of a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestOutcome<Reply> {
    /// It was done; with the reply.
    Done(Reply),
    /// It was not done.
    Refused(Refusal),
    /// It is not known, or not in this form; with what is wrong.
    NotUnderstood(String),
}

/// What is answered, as it is written: at once, because a reply may be long.
#[derive(Serialize)]
struct Answer<Reply> {
    version: &'static str,
    #[serde(flatten)]
    outcome: RequestOutcome<Reply>,
}

/// What was answered. Only one of the three is there.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Answered<'a> {
    /// The version of the process that serves the mount. The first ones did not say it.
    #[serde(default)]
    version: String,
    #[serde(borrow)]
    done: Option<&'a RawValue>,
    refused: Option<Refusal>,
    not_understood: Option<String>,
}

/// Returns the bytes that ask for something.
///
/// # Errors
/// The request has no form in JSON, such as a path that is not text.
pub fn question<R: AdminRequest>(request: &R) -> Result<Vec<u8>, Refusal> {
    let unfit = |error: serde_json::Error| {
        Refusal::new(Reason::Usage, format!("{} cannot be asked for: {error}", R::NAME))
    };
    let question = Question {
        version: VERSION.to_owned(),
        request: R::NAME.to_owned(),
        arguments: serde_json::to_value(request).map_err(unfit)?,
    };
    serde_json::to_vec(&question).map_err(unfit)
}

/// Returns the bytes that answer a request.
pub fn answer<Reply: Serialize>(outcome: RequestOutcome<Reply>) -> Vec<u8> {
    // An empty answer is not understood by anybody, so nothing is mistaken.
    serde_json::to_vec(&Answer { version: VERSION, outcome }).unwrap_or_default()
}

/// Reads the answer to a request.
///
/// # Errors
/// It was refused; or one of the two sides does not understand the other, because it is older.
pub fn reply<R: AdminRequest>(bytes: &[u8]) -> Result<R::Reply, Refusal> {
    let unknown = || not_understood("", &format!("cannot be asked for {}", R::NAME));
    let answered: Answered<'_> = serde_json::from_slice(bytes).map_err(|_| unknown())?;
    match answered {
        Answered { done: Some(reply), version, .. } => read_text(reply.get()).map_err(|error| {
            let what = format!("answers {} in another form ({error})", R::NAME);
            not_understood(&version, &what)
        }),
        Answered { refused: Some(refusal), .. } => Err(refusal),
        Answered { not_understood: Some(why), version, .. } => {
            Err(not_understood(&version, &format!("cannot do this ({why})")))
        }
        _ => Err(unknown()),
    }
}

/// As [`read`], of what has not been taken apart yet.
fn read_text<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    // An error is said without a line and a column, which mean nothing to anybody.
    serde_json::from_str(text).or_else(|_| read(serde_json::from_str(text)?))
}

/// Reads what was sent; what is not known in it is passed over.
pub fn read<T: DeserializeOwned>(value: Value) -> serde_json::Result<T> {
    serde_json::from_value(value)
}

/// Says what the process that serves the mount, which is of version `theirs`, cannot do for this
/// command, and how to get it.
fn not_understood(theirs: &str, what: &str) -> Refusal {
    let (age, remedy) = match (theirs, compare(theirs, VERSION)) {
        ("", _) => ("older".to_owned(), MOUNT_AGAIN),
        (_, Ordering::Less) => (format!("older (version {theirs})"), MOUNT_AGAIN),
        (_, Ordering::Equal) => (format!("another build of version {theirs}"), MOUNT_AGAIN),
        (_, Ordering::Greater) => (format!("newer (version {theirs})"), "use the newer command"),
    };
    let message = format!("the process that serves this mount is {age} and {what}; {remedy}");
    Refusal::new(Reason::Unsupported, message)
}

const MOUNT_AGAIN: &str = "unmount the volume and mount it again";

/// Compares versions such as `0.10.2`.
fn compare(a: &str, b: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        let parts = version.split(['.', '-', '+']);
        parts.map_while(|part| part.parse().ok()).collect()
    };
    numbers(a).cmp(&numbers(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::requests::{GetUsage, Trim};

    fn refused(answer: &str) -> String {
        let refusal = reply::<Trim>(answer.as_bytes()).unwrap_err();
        refusal.message
    }

    #[test]
    fn an_answer_of_another_version_says_what_is_missing() {
        for (answer, expected) in [
            (
                r#"{"version":"0.0.9","not-understood":"there is no request \"trim\""}"#,
                "the process that serves this mount is older (version 0.0.9) and cannot do this \
                 (there is no request \"trim\"); unmount the volume and mount it again",
            ),
            (
                r#"{"version":"99.0.0","done":{"octets":5}}"#,
                "the process that serves this mount is newer (version 99.0.0) and answers trim in \
                 another form (missing field `bytes`); use the newer command",
            ),
            (
                r#"{"version":"0.0.9","done":{}}"#,
                "the process that serves this mount is older (version 0.0.9) and answers trim in \
                 another form (missing field `bytes`); unmount the volume and mount it again",
            ),
            // What the first servers said: they knew one enum, and did not say their version.
            (
                r#"{"trimmed":5}"#,
                "the process that serves this mount is older and cannot be asked for trim; unmount \
                 the volume and mount it again",
            ),
            (
                r#"{"refused":{"reason":"unsupported","message":"of another version"}}"#,
                "of another version",
            ),
            (
                "",
                "the process that serves this mount is older and cannot be asked for trim; unmount \
                  the volume and mount it again",
            ),
        ] {
            assert_eq!(refused(answer), expected, "{answer}");
        }
    }

    #[test]
    fn versions_are_compared_number_by_number() {
        assert_eq!(compare("0.10.0", "0.9.3"), Ordering::Greater);
        assert_eq!(compare("0.9.3-beta", "0.9.3"), Ordering::Equal);
        assert_eq!(compare("1", "1.0.1"), Ordering::Less);
    }

    #[test]
    fn what_a_newer_process_adds_is_passed_over() {
        let answer = r#"{"version":"99.0.0","colour":"red","done":{"bytes":5,"runs":2}}"#;
        assert_eq!(reply::<Trim>(answer.as_bytes()).unwrap().bytes, 5);
        let refused = r#"{"version":"99.0.0","refused":{"reason":{"too-late":{"by":3}},"message":"m","by":3}}"#;
        let refusal = reply::<GetUsage>(refused.as_bytes()).unwrap_err();
        assert_eq!(refusal, Refusal::new(Reason::Failed, "m"));
    }
}
