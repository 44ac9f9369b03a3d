//! The `nilfs` command.
fn main() {}
