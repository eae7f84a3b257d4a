//! `dlock run --at-least`: a job that must not run again before a given time.

use std::thread;

use rustix::process::Signal;

use crate::place::{Place, until};

#[test]
fn of_twenty_daily_jobs_one_runs_also_if_they_come_one_after_the_other() {
    const HOSTS: usize = 20;
    let place = Place::new();
    let job = ["run", "-n", "--at-least", "23h", "report", "-c", "echo >>ran"];
    let statuses = thread::scope(|scope| {
        let all: Vec<_> = (0..HOSTS).map(|_| scope.spawn(|| place.run(job).status)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 0).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 75).count(), HOSTS - 1, "{statuses:?}");
    for _ in 0..HOSTS {
        assert_eq!(place.run(job).status, 75, "it ran again on the next host");
    }
    assert_eq!(place.read("ran"), "\n");
}

#[test]
fn a_command_that_failed_keeps_the_lock_too() {
    let place = Place::new();
    for (name, command, status) in [
        ("fails", "exit 3", 3),
        ("dies", "kill -TERM $$", 143),
        ("is not there", "exec no-such-command", 127),
    ] {
        let ended = place.run(["run", "--at-least", "1h", name, "-c", command]);
        assert_eq!(ended.status, status, "{}", ended.err);
        assert_eq!(place.run(["try", name]).status, 75, "{name}");
    }
}

#[test]
fn a_command_that_could_not_be_started_does_not_keep_the_lock() {
    let place = Place::new();
    std::fs::write(place.path("text"), "no program").unwrap();
    for (command, status) in
        [("/no/such/command", 127), ("no-such-command", 127), ("", 127), ("./text", 126), ("/", 126)]
    {
        let ended = place.run(["run", "--at-least", "1h", "x", "--", command]);
        assert_eq!(ended.status, status, "{}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        assert_eq!(place.run(["try", "x"]).status, 0, "after {status}");
    }
}

#[test]
fn a_run_that_a_signal_ended_keeps_the_lock_and_one_that_was_killed_does_not() {
    let place = Place::new();
    let ended = place.start(&["--at-least", "1h", "ended"], "echo held; exec sleep 1000");
    ended.signal(Signal::TERM);
    assert_eq!(ended.end().status, 143);
    assert_eq!(place.run(["try", "ended"]).status, 75);
    let killed = place.hold(&["--at-least", "1h", "killed"]);
    killed.signal(Signal::KILL);
    killed.end();
    until("the dead holder's lock is free", || place.run(["try", "killed"]).status == 0);
}

#[test]
fn a_command_that_took_longer_frees_the_lock_at_its_end() {
    let place = Place::new();
    for least in ["20ms", "0"] {
        let ended = place.run(["run", "--at-least", least, "x", "--", "sleep", "0.1"]);
        assert_eq!((ended.status, &*ended.err), (0, ""));
        assert_eq!(place.run(["inspect", "x"]).status, 1, "--at-least {least}");
    }
}

#[test]
fn a_run_inside_another_cannot_say_how_long_that_ones_lock_stays() {
    let place = Place::new();
    let ended = place.run(["run", "x", "-c", "$DLOCK run --at-least 1h x -- echo ran"]);
    assert_eq!((ended.status, &*ended.out), (64, ""));
    assert!(ended.err.contains("use --at-least with the outer one"), "{}", ended.err);
}
