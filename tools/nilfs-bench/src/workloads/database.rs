//! SQLite, with the kinds of statements that its own speed test has; that program comes with no
//! distribution.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use super::Skip;
use crate::command;
use crate::stage::{Sample, Stage};

/// One row of this many is inserted by a transaction of its own.
const ALONE: u64 = 50;

/// Fills a database, changes it, and takes half of it away again.
pub fn sqlite(stage: &mut Stage<'_>) -> Result<Sample> {
    if !stage.system.persistent() {
        return Err(anyhow!(Skip("it keeps no content".to_owned())));
    }
    let rows = stage.sizes.database_rows;
    let script = stage.fixtures.get("database.sql", |path| {
        std::fs::write(path, statements(rows)).context("cannot write the statements")
    })?;
    let database = stage.mount_fresh()?.join("database");
    stage.timed(1, || execute(&script, &database))
}

fn execute(script: &Path, database: &Path) -> Result<()> {
    let statements =
        File::open(script).with_context(|| format!("cannot open {}", script.display()))?;
    // Errors end it, and are told.
    command::run_with(Command::new("sqlite3").args(["-batch", "-bail"]).arg(database), statements)
}

/// The statements, for a database of this many rows.
fn statements(rows: u64) -> String {
    let numbered = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <";
    let text = "printf('%d is a number, and this is some text about it', i * 7919 % 1000003)";
    let mut sql = format!(
        "PRAGMA synchronous = FULL;\n\
         CREATE TABLE t(i INTEGER PRIMARY KEY, a INTEGER, b TEXT);\n\
         {numbered} {rows}) INSERT INTO t SELECT i, i * 7919 % 1000003, {text} FROM n;\n\
         CREATE INDEX a ON t(a);\n\
         CREATE INDEX b ON t(b);\n"
    );
    for nth in 0..rows / ALONE {
        let i = rows + 1 + nth;
        sql.push_str(&format!("INSERT INTO t VALUES({i}, {}, 'row {nth} by itself');\n", nth * 31));
    }
    for nth in 0..rows / ALONE / 10 {
        let from = nth * 1000;
        sql.push_str(&format!(
            "UPDATE t SET b = b || '.' WHERE a BETWEEN {from} AND {from} + 99;\n"
        ));
        sql.push_str(&format!("SELECT count(*), avg(a) FROM t WHERE b LIKE '{nth}%';\n"));
    }
    sql.push_str("DELETE FROM t WHERE a % 2;\nVACUUM;\n");
    sql
}
