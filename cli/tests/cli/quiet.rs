//! The amount of output: `--quiet`, `--verbose` and `-E`.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use crate::place::Place;

#[test]
fn a_busy_lock_is_reported_unless_dlock_is_to_be_quiet() {
    let place = Place::new();
    let held = place.hold(&["x"]);
    for (options, status, has_message) in [
        (&["run", "-n"][..], 75, true),
        (&["run", "-n", "-E", "0"], 0, false),
        (&["run", "-w", "0.1", "-E", "9"], 9, true),
        (&["run", "-w", "0.1", "-q"], 75, false),
        (&["run", "-n", "--quiet"], 75, false),
        (&["try"], 75, true),
        (&["try", "-q"], 75, false),
        (&["try", "-E", "9"], 9, false),
        (&["acquire", "-n"], 75, true),
        (&["acquire", "-n", "-q"], 75, false),
    ] {
        let ended = place.run([options, &["x"]].concat().into_iter().chain(match options[0] {
            "run" => vec!["--", "true"],
            _ => vec![],
        }));
        assert_eq!(ended.status, status, "{options:?}: {}", ended.err);
        assert_eq!(ended.err.contains("lock `x`"), has_message, "{options:?}: {}", ended.err);
        assert!(has_message || ended.err.is_empty(), "{options:?}: {}", ended.err);
    }
    held.let_go();
}

#[test]
fn an_error_is_printed_however_quiet_dlock_is_to_be() {
    let place = Place::new();
    let ended = place.run(["run", "-q", "x", "--", "/nowhere/at/all"]);
    assert_eq!(ended.status, 127);
    assert!(ended.err.contains("cannot run"), "{}", ended.err);
    assert_eq!(
        place.run(["run", "-q", "-v", "x", "--", "true"]).status,
        64,
        "-q and -v were accepted together"
    );
}

#[test]
fn the_holder_is_printed_without_a_terminal_if_dlock_is_verbose() {
    let place = Place::new();
    let held = place.hold(&["--who", "anna", "x"]);
    let mut waiter = place.dlock(["run", "-v", "x", "--", "true"]);
    let mut waiter = waiter.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(waiter.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("dlock: waiting for lock `x`") && line.contains("anna"), "{line}");
    assert_eq!(held.let_go().status, 0);
    assert!(waiter.wait().unwrap().success());
}
