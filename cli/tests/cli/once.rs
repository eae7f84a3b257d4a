//! `dlock run --once` and `--every`: a command that runs once for each occurrence.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::place::{Place, lives, until};

/// Returns the marks of the store, each as its name and key.
fn marks(place: &Place) -> Vec<(String, String)> {
    let listed = place.run(["ls", "--marks", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    listed["marks"].as_array().unwrap().iter().map(|mark| (text(&mark["name"]), text(&mark["key"]))).collect()
}

#[test]
fn of_twenty_hosts_one_runs_the_command_and_all_others_succeed() {
    const HOSTS: usize = 20;
    let place = Place::new();
    let job = ["run", "--once", "2026-11-23", "report", "-c", "echo >>ran"];
    let ended = thread::scope(|scope| {
        let all: Vec<_> = (0..HOSTS).map(|_| scope.spawn(|| place.run(job))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(ended.iter().all(|ended| ended.status == 0), "{ended:?}");
    let silent = ended.iter().filter(|ended| ended.err.is_empty()).count();
    assert_eq!(silent, 1, "hosts that did nothing said nothing: {ended:?}");
    assert_eq!(place.read("ran"), "\n");
    let late = place.run(job);
    assert_eq!((late.status, &*late.out), (0, ""));
    assert!(late.err.contains("`2026-11-23` of lock `report` is done"), "{}", late.err);
    let quiet = place.run(["run", "-q", "--once", "2026-11-23", "report", "-c", "echo >>ran"]);
    assert_eq!((quiet.status, &*quiet.err), (0, ""));
    assert_eq!(place.run(["run", "--once", "2026-11-24", "report", "-c", "echo >>ran"]).status, 0);
    assert_eq!(place.read("ran"), "\n\n");
}

#[test]
fn a_command_that_fails_or_is_stopped_can_run_again() {
    let place = Place::new();
    for (command, status) in [("exit 3", 3), ("kill -TERM $$", 143), ("exec no-such-command", 127)] {
        let ended = place.run(["run", "--once", "k", "x", "-c", command]);
        assert_eq!(ended.status, status, "{}", ended.err);
    }
    let stopped = place.start(&["--once", "k", "x"], "echo held; exec sleep 1000");
    stopped.signal(Signal::TERM);
    assert_eq!(stopped.end().status, 143);
    let killed = place.hold(&["--once", "k", "x"]);
    killed.signal(Signal::KILL);
    killed.end();
    assert_eq!(marks(&place), []);
    until("the dead holder's lock is free", || place.run(["try", "x"]).status == 0);
    let ran = place.run(["run", "--once", "k", "x", "--", "echo", "ran"]);
    assert_eq!((ran.status, &*ran.out, &*ran.err), (0, "ran\n", ""));
}

#[test]
fn a_command_whose_lock_was_taken_leaves_no_mark() {
    let place = Place::new();
    let ended = place.run(["run", "--once", "k", "x", "-c", "$DLOCK unlock --force x"]);
    assert_eq!(ended.status, 74, "{}", ended.err);
    assert_eq!(marks(&place), []);
}

#[test]
fn a_command_runs_again_if_dlock_is_killed_before_the_mark() {
    let place = Place::new();
    let run = place.start(&["--once", "k", "x"], "echo $$; until [ -e end ]; do sleep 0.01; done");
    let command = run.first.clone();
    // A suspended dlock does not notice the end of the command.
    run.signal(Signal::STOP);
    let stat = format!("/proc/{}/stat", run.id());
    until("dlock is suspended", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
    std::fs::write(place.path("end"), "").unwrap();
    until("the command has ended", || !lives(&command));
    run.signal(Signal::KILL);
    assert_eq!(run.end().status, -9);
    until("the dead holder's lock is free", || place.run(["try", "x"]).status == 0);
    let again = place.run(["run", "--once", "k", "x", "--", "echo", "ran"]);
    assert_eq!((again.status, &*again.out, &*again.err), (0, "ran\n", ""));
}

#[test]
fn a_mark_is_listed_and_forgotten_and_is_no_lock() {
    let place = Place::new();
    assert_eq!(place.run(["forget", "x", "k"]).status, 1);
    let holder = place.hold(&["held"]);
    for key in ["2026-11-23", "2026-11-24"] {
        assert_eq!(place.run(["run", "--once", key, "--who", "cron", "x", "true"]).status, 0);
    }
    let listed = place.run(["ls", "--marks"]);
    let lines: Vec<_> = listed.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", listed.out);
    assert!(lines[0].starts_with("NAME") && lines[0].contains("KEY"), "{}", listed.out);
    assert!(lines[1].starts_with("x ") && lines[1].contains("2026-11-23") && lines[1].ends_with("cron"));
    assert!(lines[1].contains("6days"), "the mark is not kept for a week: {}", lines[1]);
    assert_eq!(place.run(["ls", "--marks", "y"]).out, "");
    let locks = place.run(["ls"]);
    assert!(locks.out.contains("held") && !locks.out.contains("2026"), "{}", locks.out);
    holder.let_go();
    assert_eq!(place.run(["forget", "x", "2026-11-23"]).status, 0);
    assert_eq!(marks(&place), [("x".to_owned(), "2026-11-24".to_owned())]);
    let missing = place.run(["forget", "x", "2026-11-23"]);
    assert_eq!(missing.status, 1);
    assert!(missing.err.contains("is not marked as done"), "{}", missing.err);
    assert_eq!(place.run(["run", "--once", "2026-11-23", "x", "--", "echo", "again"]).out, "again\n");
}

#[test]
fn a_mark_ends_with_its_time() {
    let place = Place::new();
    let began = Instant::now();
    assert_eq!(place.run(["run", "--once", "k", "--keep", "1s", "x", "true"]).status, 0);
    until("the command runs again", || {
        !place.run(["run", "--once", "k", "x", "--", "echo", "ran"]).out.is_empty()
    });
    assert!(began.elapsed() >= Duration::from_secs(1), "the mark has ended too early");
}

#[test]
fn a_period_of_the_stores_clock_is_a_key() {
    let place = Place::new();
    let job = ["run", "--every", "300d", "report", "--", "echo", "ran"];
    assert_eq!(place.run(job).out, "ran\n");
    // A host whose clock is wrong has the same key. The period of 300 days does not end here.
    let late = place.run(job);
    assert_eq!((late.status, &*late.out), (0, ""));
    assert!(late.err.contains("T00:00:00Z/300d` of lock `report` is done"), "{}", late.err);
    let marks = place.run(["ls", "--marks", "--json"]);
    let marks: serde_json::Value = serde_json::from_str(&marks.out).unwrap();
    let left = marks["marks"][0]["ttl_left"].as_f64().unwrap();
    assert!(left > 299.0 * 86400.0, "the mark ends before its period: {left}");
    let key = marks["marks"][0]["key"].as_str().unwrap();
    assert_eq!(place.run(["forget", "report", key]).status, 0);
    assert_eq!(place.run(job).out, "ran\n");
}

#[test]
fn an_occurrence_that_is_done_is_reported_although_the_lock_is_busy() {
    let place = Place::new();
    assert_eq!(place.run(["run", "--once", "monday", "x", "true"]).status, 0);
    let holder = place.hold(&["--once", "tuesday", "x"]);
    assert_eq!(place.run(["run", "-n", "--once", "monday", "x", "--", "echo", "ran"]).status, 0);
    assert_eq!(place.run(["run", "-n", "--once", "tuesday", "x", "--", "echo", "ran"]).status, 75);
    holder.let_go();
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let place = Place::new();
    for (args, word) in [
        (&["--once", ""][..], "empty"),
        (&["--once", "a\nb"], "control character"),
        (&["--once", "k", "--every", "1h"], "--every"),
        (&["--once", "k", "--read"], "--read"),
        (&["--every", "1h", "--slots", "2"], "--slots"),
        (&["--every", "10ms"], "10ms"),
        (&["--every", "1d", "--keep", "1h"], "shorter than --every"),
        (&["--once", "k", "--keep", "0"], "keeps a lock"),
        (&["--keep", "1h"], "--once or --every"),
        (&["--once", "k", "--ticket", "t"], "--ticket"),
    ] {
        let ended = place.run([&["run"], args, &["x", "--", "echo", "ran"]].concat());
        assert_eq!((ended.status, &*ended.out), (64, ""), "{args:?}: {}", ended.err);
        assert!(ended.err.contains(word), "{args:?}: {}", ended.err);
    }
}

#[test]
fn a_run_inside_another_cannot_mark_that_ones_occurrence() {
    let place = Place::new();
    let ended = place.run(["run", "x", "-c", "$DLOCK run --once k x -- echo ran"]);
    assert_eq!((ended.status, &*ended.out), (64, ""));
    assert!(ended.err.contains("use --once with the outer one"), "{}", ended.err);
}
