//! The command with a driver that it was not made with.

use std::process::{Command, Output};

fn dlock(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock-folder"));
    command.args(args).env_remove("DLOCK_STORE").env_remove("DLOCK_HELD").output().expect("built by cargo")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_command_runs_under_a_lock_of_the_foreign_store() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let store = format!("folder:{}/locks", folder.path().display());
    let nested = format!("{} inspect --store {store} --json nightly", env!("CARGO_BIN_EXE_dlock-folder"));
    let ran = dlock(&["run", "--store", &store, "nightly", "-c", &format!("{nested}; exit 7")]);
    assert_eq!(ran.status.code(), Some(7), "the command's own status: {}", text(&ran.stderr));
    assert!(text(&ran.stdout).contains("\"holders\""), "it was held meanwhile: {}", text(&ran.stdout));
    let free = dlock(&["try", "--store", &store, "nightly"]);
    assert_eq!(free.status.code(), Some(0), "it was released: {}", text(&free.stderr));
}

#[test]
fn the_help_names_the_foreign_scheme_too() {
    let help = text(&dlock(&["run", "--help"]).stdout);
    for scheme in ["folder", "sqlite"] {
        assert!(help.contains(&format!("{scheme}:")), "{scheme} is not in: {help}");
    }
}

#[test]
fn an_unknown_scheme_is_refused_and_the_known_schemes_are_named() {
    let refused = dlock(&["try", "--store", "nosuch:x", "nightly"]);
    assert_eq!(refused.status.code(), Some(78));
    assert!(text(&refused.stderr).contains("folder"), "{}", text(&refused.stderr));
}
