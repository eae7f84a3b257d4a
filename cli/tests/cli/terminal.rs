//! dlock on a terminal.

use std::{
    fs::File,
    io::{Read, Write},
    process::{Command, Stdio},
};

use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

use crate::place::{Place, Started, until};

/// Opens a pseudo-terminal. Returns the user's side and the programs' side.
fn terminal() -> (File, File) {
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    let path = ptsname(&person, Vec::new()).unwrap();
    let programs =
        rustix::fs::open(&*path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    (person.into(), programs.into())
}

/// Reads until the output contains `words`. Returns the output.
fn read_until(person: &mut File, words: &str) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let output = String::from_utf8_lossy(&text).into_owned();
        if output.contains(words) {
            return output;
        }
        let count =
            person.read(&mut buffer).unwrap_or_else(|error| panic!("{error}: no {words:?} in {output:?}"));
        text.extend_from_slice(&buffer[..count]);
    }
}

#[test]
fn a_terminal_shows_the_holder_during_the_wait() {
    let place = Place::new();
    let holder = place.hold(&["x"]);
    let first = place.dlock(["run", "x", "true"]).spawn().unwrap();
    place.until_queued("x", 1);
    let (mut person, programs) = terminal();
    let waiter = place.dlock(["run", "x", "--", "true"]).stderr(programs).spawn().unwrap();
    let line = read_until(&mut person, "(1 ahead), held by ");
    assert!(line.contains("dlock: waiting for lock `x` (1 ahead), held by "), "{line:?}");
    // The line is overwritten in place before it is erased.
    read_until(&mut person, "\r\u{1b}[2Kdlock: waiting");
    holder.let_go();
    for process in [first, waiter] {
        assert!(process.wait_with_output().unwrap().status.success());
    }
    let mut rest = Vec::new();
    // The programs' side is closed, so on Linux the read ends with an error.
    person.read_to_end(&mut rest).ok();
    assert!(rest.ends_with(b"\r\x1b[2K"), "{:?}", String::from_utf8_lossy(&rest));
}

#[test]
fn the_holder_is_not_printed_without_a_terminal() {
    let place = Place::new();
    let holder = place.hold(&["x"]);
    let ended = place.run(["run", "--wait", "1", "x", "--", "true"]);
    assert_eq!(ended.err.lines().count(), 1, "more than the final message: {}", ended.err);
    holder.let_go();
}

/// Returns a command in a new session on the terminal.
fn at_a_terminal(place: &Place, programs: File, words: &[&str]) -> Command {
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait"]).args(words).stdin(Stdio::from(programs)).current_dir(place.path("."));
    command.envs(place.dlock(["run"]).get_envs().filter_map(|(key, value)| Some((key, value?))));
    command
}

#[test]
fn a_command_may_ask_at_the_terminal_though_its_stdin_is_a_file() {
    let place = Place::new();
    let (mut person, programs) = terminal();
    let text = r#""$DLOCK" run x -- sh -c 'echo ready; read word </dev/tty; echo "$word" > word' </dev/null"#;
    let run = Started::with_its_stdin(&mut at_a_terminal(&place, programs, &["sh", "-c", text]));
    person.write_all(b"hello\n").unwrap();
    until("the command has read from the terminal", || place.read("word") == "hello\n");
    assert_eq!(run.end().status, 0);
}

#[test]
fn ctrl_c_ends_the_script_around_it_too() {
    let place = Place::new();
    let (mut person, programs) = terminal();
    // A shell continues after a child that exits, whatever its status.
    let text = r#""$DLOCK" run x -- sh -c 'echo ready; exec sleep 1000'; echo after"#;
    let run = Started::with_its_stdin(&mut at_a_terminal(&place, programs, &["bash", "-c", text]));
    person.write_all(b"\x03").unwrap();
    assert_eq!(run.end().out, "", "the script continued");
    assert_eq!(place.run(["inspect", "x"]).status, 1, "the lock is still held");
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let place = Place::new();
    let (mut person, programs) = terminal();
    let text =
        r#"trap 'echo INT' INT; trap 'echo end; exit 3' USR1; echo $PPID; while :; do sleep 0.05; done"#;
    let words = [env!("CARGO_BIN_EXE_dlock"), "run", "x", "--", "sh", "-c", text];
    let mut run = Started::with_its_stdin(&mut at_a_terminal(&place, programs, &words));
    person.write_all(b"\x03").unwrap();
    assert_eq!(run.line(), "INT");
    let dlock = rustix::process::Pid::from_raw(run.first.parse().unwrap()).unwrap();
    rustix::process::kill_process(dlock, rustix::process::Signal::USR1).unwrap();
    let ended = run.end();
    assert_eq!((ended.status, &*ended.out), (3, "end\n"), "dlock has ended by Ctrl-C");
}
