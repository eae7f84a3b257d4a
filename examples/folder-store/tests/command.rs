//! The command with a third party's driver.

use std::process::{Command, Output};

fn dlock(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock-folder"));
    command.args(args).env_remove("DLOCK_STORE").env_remove("DLOCK_HELD").output().expect("built by cargo")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_command_runs_while_its_lock_is_held_in_the_folder() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let store = format!("folder:{}/locks", folder.path().display());
    let nested = format!("{} inspect --store {store} --json nightly", env!("CARGO_BIN_EXE_dlock-folder"));
    let output = dlock(&["run", "--store", &store, "nightly", "-c", &format!("{nested}; exit 7")]);
    assert_eq!(output.status.code(), Some(7), "not the exit status of the command: {}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("\"holders\""),
        "the lock was not held while the command ran: {}",
        text(&output.stdout)
    );
    let free = dlock(&["try", "--store", &store, "nightly"]);
    assert_eq!(free.status.code(), Some(0), "the lock was not released: {}", text(&free.stderr));
}

#[test]
fn the_help_names_the_scheme_of_the_added_driver_too() {
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
