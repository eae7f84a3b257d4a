//! A lock that is lost while the command runs.

use std::{
    io::{PipeReader, PipeWriter, Write},
    process::Stdio,
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};

use crate::place::{Place, lives, until};

/// Returns a full pipe without a reader.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    for piece in [&[b'x'; 4096][..], b"x"] {
        while writer.write(piece).is_ok() {}
    }
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn a_command_whose_lock_is_lost_is_stopped_even_if_stderr_is_not_read() {
    let place = Place::new();
    let (_reader, writer) = full_pipe();
    let text = "exec 2>/dev/null; echo $$ >pid; exec sleep 1000";
    let mut run = place.dlock(["run", "--ttl", "2s", "x", "-c", text]);
    let mut run = run.stderr(writer).stdout(Stdio::null()).spawn().unwrap();
    until("the command runs", || !place.read("pid").is_empty());
    assert_eq!(place.run(["unlock", "--force", "x"]).status, 0);
    let command = place.read("pid").trim().to_owned();
    until("the command is stopped", || !lives(&command));
    until("dlock ends", || run.try_wait().unwrap().is_some());
    assert_eq!(run.wait().unwrap().code(), Some(74));
}

#[test]
fn a_process_of_a_lost_lock_is_stopped_in_whatever_session_it_is() {
    let place = Place::new();
    let run = place.start(&["--ttl", "2s", "x"], "setsid sleep 1000 >/dev/null 2>&1 & echo $!; wait");
    let elsewhere = run.first.clone();
    until("it has a session of its own", || {
        let stat = std::fs::read_to_string(format!("/proc/{elsewhere}/stat")).unwrap_or_default();
        stat.contains("(sleep)")
    });
    assert_eq!(place.run(["unlock", "--force", "x"]).status, 0);
    until("it is stopped", || !lives(&elsewhere));
    assert_eq!(run.end().status, 74);
}

#[test]
fn a_lock_whose_ticket_is_not_read_is_released() {
    let place = Place::new();
    let (_reader, writer) = full_pipe();
    let mut acquire = place.dlock(["acquire", "--for", "1h", "x"]).stdout(writer).spawn().unwrap();
    until("the lock is held", || place.run(["inspect", "x"]).status == 0);
    until("it reacts to TERM", || {
        kill_process(Pid::from_child(&acquire), Signal::TERM).ok();
        acquire.try_wait().unwrap().is_some()
    });
    assert_eq!(
        place.run(["inspect", "x"]).status,
        1,
        "the lock is still held, although its ticket was not printed"
    );
    let closed = place.run_shell(r#""$DLOCK" acquire --for 1h x >&-"#);
    assert_eq!(closed.status, 64, "{}", closed.err);
    assert_eq!(
        place.run(["inspect", "x"]).status,
        1,
        "the lock is still held, although its ticket was not printed"
    );
}

#[test]
fn a_command_whose_lock_is_lost_receives_term() {
    let place = Place::new();
    let run = place.start(
        &["--ttl", "2s", "x"],
        "trap 'echo TERM; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
    );
    assert_eq!(place.run(["unlock", "--force", "x"]).status, 0);
    let ended = run.end();
    assert_eq!((ended.status, &*ended.out), (74, "TERM\n"), "{}", ended.err);
    assert!(ended.err.contains("dlock: lost lock `x`: "), "{}", ended.err);
    // The shell may add messages about its child processes.
    assert_eq!(ended.err.matches("dlock: ").count(), 1, "{}", ended.err);
}

#[test]
fn a_command_that_does_not_stop_is_killed_with_all_it_has_started() {
    let place = Place::new();
    let text = "trap '' TERM; sleep 1000 & echo $!; wait; wait";
    let run = place.start(&["--ttl", "2s", "--kill-after", "100ms", "x"], text);
    let grandchild = run.first.clone();
    assert_eq!(place.run(["unlock", "--force", "x"]).status, 0);
    let ended = run.end();
    assert_eq!(ended.status, 74, "{}", ended.err);
    until("the grandchild has ended", || !lives(&grandchild));
}

#[test]
fn a_command_may_be_given_all_the_time_there_is() {
    let place = Place::new();
    let run = place
        .start(&["--ttl", "2s", "--kill-after", "10000000000000000000", "x"], "echo ready; exec sleep 1000");
    assert_eq!(place.run(["unlock", "--force", "x"]).status, 0);
    let ended = run.end();
    assert_eq!(ended.status, 74, "{}", ended.err);
}

#[test]
fn the_end_of_a_command_that_lost_its_lock_does_not_free_the_next_holders_lock() {
    let place = Place::new();
    let run = place.hold(&["--ttl", "2s", "x"]);
    assert_eq!(place.run(["unlock", "--force", "x"]).status, 0);
    let next = place.hold(&["x"]);
    assert_eq!(run.end().status, 74);
    assert_eq!(
        place.run(["try", "x"]).status,
        75,
        "the end of the first command has released the next holder's lock"
    );
    assert_eq!(next.let_go().status, 0);
}

#[test]
fn a_process_that_is_older_than_dlock_continues_when_the_lock_is_lost() {
    let place = Place::new();
    let text = r#"sleep 1000 >/dev/null 2>&1 & echo $! >beside; exec "$DLOCK" run --ttl 2s x -c 'echo $$ >pid; exec sleep 1000'"#;
    let ended = std::thread::scope(|scope| {
        let run = scope.spawn(|| place.run_shell(text));
        until("the command runs", || !place.read("pid").is_empty());
        assert_eq!(place.run(["unlock", "--force", "x"]).status, 0);
        run.join().unwrap()
    });
    let beside = place.read("beside").trim().to_owned();
    let is_alive = lives(&beside);
    kill_process(Pid::from_raw(beside.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert_eq!((ended.status, is_alive), (74, true), "{}", ended.err);
}
