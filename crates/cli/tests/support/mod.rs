//! What the tests of the command share.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;

/// The reference's files, where the checkout has them beside it.
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
pub fn fixtures() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures"
    ));
    if !folder.is_dir() {
        eprintln!("skipped: the fixtures folder is absent");
        return None;
    }
    Some(folder)
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs the command to its end.
pub fn chancery(arguments: &[&str]) -> Output {
    Command::cargo_bin("chancery")
        .unwrap()
        .args(arguments)
        .output()
        .unwrap()
}
