//! Small crates of which the shape is known.

use std::fs;

use tempfile::TempDir;

use crate::circles;
use crate::layers::{self, Layer};
use crate::source::Source;
use crate::types;

/// The source of a crate with these files.
fn source(files: &[(&str, &str)]) -> Source {
    let directory = TempDir::new().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    Source::read(directory.path()).unwrap()
}

#[test]
fn files_that_import_each_other_are_a_circle_and_tests_import_what_they_want() {
    let files = [
        ("a.rs", "use crate::{b::B, std_like};"),
        ("b/mod.rs", "mod inner; pub struct B; fn f() { inner::g() }"),
        ("b/inner.rs", "pub(super) fn g() { super::super::c::h(); }"),
        ("c.rs", "#[cfg(test)] mod checks { use crate::a::A; }"),
        ("d.rs", "use crate::a::A;"),
        ("b/seen.rs", "pub(super) struct S;"),
        ("e.rs", "use crate::b::seen::S;"),
        ("a/tests.rs", "use crate::d::D;"),
    ];
    assert!(circles::largest(&source(&files)).is_empty());
    let files = [&files[..], &[("c.rs", "pub fn h(_: &crate::a::A) {}")]].concat();
    assert_eq!(circles::largest(&source(&files)), ["a", "b", "b/inner", "c"]);
}

#[test]
fn imports_from_above_and_modules_outside_of_the_layers_are_found() {
    let layer = |name: &str| Layer { name: name.into(), modules: vec![name.into()] };
    let found = source(&[
        ("low.rs", "use crate::high::inner::It;"),
        ("high/inner.rs", "use crate::low;"),
        ("stray.rs", ""),
    ]);
    let upward = layers::upward(&found, &[layer("low"), layer("high")]);
    assert_eq!(upward, ["low imports high/inner (high)", "stray is in no layer"]);
}

#[test]
fn what_a_type_has_is_counted_in_all_files_and_without_tests() {
    let found = source(&[
        (
            "a.rs",
            "struct T { x: u8, y: u8 }\nimpl T { fn f() {} }\n#[cfg(test)] mod t { impl T { fn g() {} } }",
        ),
        (
            "b.rs",
            "impl crate::a::T { fn apply_it() -> Result<()> { Ok(()) } fn apply() {} }\nimpl Drop for T { fn drop(&mut self) {} }",
        ),
    ]);
    let counted = types::count(&found, "T");
    assert_eq!((counted.fields, counted.methods), (2, 4));
    assert_eq!(types::fallible(&found, "apply"), ["apply_it in b"]);
}
