//! SQLite keeps its promises on a mounted volume: what it has committed survives the death of the
//! process that serves the volume, and its file is never damaged.

mod common {
    pub mod ours;
}

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::ours::{Image, scale};

const SQLITE: &str = "/usr/bin/sqlite3";

/// Two tables that every transaction changes alike.
const SCHEMA: &str = "
    CREATE TABLE entries (transaction_id INTEGER, part INTEGER, amount INTEGER, filler BLOB);
    CREATE INDEX by_part ON entries (part, transaction_id);
    CREATE TABLE totals (part INTEGER PRIMARY KEY, amount INTEGER);
    WITH RECURSIVE part(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM part WHERE n < 9)
        INSERT INTO totals SELECT n, 0 FROM part;";

/// Whether the two tables tell the same.
const AGREEMENT: &str = "
    SELECT count(*) FROM totals WHERE amount <>
        (SELECT coalesce(sum(amount), 0) FROM entries WHERE entries.part = totals.part);";

/// One transaction; when it is durable, its number is printed.
fn transaction(number: usize) -> String {
    let rows = 1 + number * 7 % 40;
    let filler = number * 131 % 3000;
    let mut text = String::from("BEGIN;\n");
    for row in 0..rows {
        let (part, amount) = ((number + row) % 10, row * 3 + number);
        text += &format!(
            "INSERT INTO entries VALUES ({number}, {part}, {amount}, randomblob({filler}));\n\
             UPDATE totals SET amount = amount + {amount} WHERE part = {part};\n"
        );
    }
    if number % 11 == 10 {
        let old = number - 10;
        text += &format!(
            "UPDATE totals SET amount = amount - (SELECT coalesce(sum(amount), 0) FROM entries \
                 WHERE entries.part = totals.part AND transaction_id = {old});\n\
             DELETE FROM entries WHERE transaction_id = {old};\n"
        );
    }
    text + &format!("COMMIT;\nSELECT {number};\n")
}

/// What a new shell says to some statements.
#[track_caller]
fn ask(database: &Path, statements: &str) -> String {
    let output = Command::new(SQLITE).arg("-bail").arg(database).arg(statements).output();
    let output = output.expect("sqlite3 is needed: install Debian's package sqlite3");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{statements}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// A shell that is fed with transactions until something ends it.
struct Shell {
    process: Child,
}

impl Shell {
    fn start(database: &Path, journal_mode: &str, first: usize) -> Self {
        let mut process = Command::new(SQLITE)
            .arg("-bail")
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The volume is taken away from under it, of which it complains.
            .stderr(Stdio::null())
            .spawn()
            .expect("sqlite3 is needed: install Debian's package sqlite3");
        let mut input = process.stdin.take().unwrap();
        // With less than EXTRA, the deletion of a journal, which commits, need not be durable.
        let mode = format!("PRAGMA synchronous = EXTRA;\nPRAGMA journal_mode = {journal_mode};\n");
        std::thread::spawn(move || {
            let texts = std::iter::once(mode).chain((first..).map(transaction));
            // The pipe breaks when the shell is gone.
            texts.map(|text| input.write_all(text.as_bytes())).find(Result::is_err)
        });
        Self { process }
    }

    /// Waits until transaction `last` is durable, then calls `end`, and returns the number of the
    /// last transaction of which the shell said that it is.
    fn until(mut self, last: usize, end: impl FnOnce()) -> usize {
        let lines = BufReader::new(self.process.stdout.take().unwrap()).lines();
        let mut numbers = lines.map_while(Result::ok).filter_map(|line| line.parse().ok());
        let reached: usize = numbers.find(|&number| number >= last).expect("the shell ended early");
        end();
        let durable = numbers.last().unwrap_or(reached);
        assert!(!self.process.wait().unwrap().success());
        durable
    }
}

fn survives(journal_mode: &str, block_size: u32) {
    let image = Image::ours(&format!("--size 1G -b {block_size}"));
    let mounted = image.mount("rw");
    ask(&mounted.join("database"), SCHEMA);
    mounted.unmount();
    let mut durable = 0;
    for round in 0..3 * scale() as usize {
        println!("{journal_mode}, blocks of {block_size}, round {round}");
        let mounted = image.mount("rw");
        let database = mounted.join("database");
        let shell = Shell::start(&database, journal_mode, durable + 1);
        let last = durable + 20 + round * 17 % 50;
        durable = shell.until(last, || mounted.kill());

        let mounted = image.mount("rw");
        let database = mounted.join("database");
        assert_eq!(ask(&database, "PRAGMA integrity_check;"), "ok\n");
        assert_eq!(ask(&database, AGREEMENT), "0\n");
        let newest = "SELECT max(transaction_id) FROM entries;";
        let newest: usize = ask(&database, newest).trim().parse().unwrap();
        assert!(newest == durable || newest == durable + 1, "{newest} instead of {durable}");
        durable = newest;
        mounted.unmount();
        image.check();
    }
}

#[test]
fn a_write_ahead_log_survives() {
    survives("wal", 4096);
}

#[test]
fn a_rollback_journal_survives() {
    survives("delete", 1024);
}

#[test]
fn a_truncated_rollback_journal_survives() {
    survives("truncate", 4096);
}
