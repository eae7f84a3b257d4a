//! Many processes, one lock.

use std::{process::Stdio, thread};

use crate::place::{Ended, Place};

#[test]
fn twenty_processes_never_run_their_commands_at_once() {
    const PROCESSES: usize = 20;
    const RUNS: usize = 50;
    let place = Place::new();
    std::fs::write(place.path("f"), "0\n").unwrap();
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                for _ in 0..RUNS {
                    let ended = place.run(["run", "counter", "-c", "n=$(cat f); echo $((n+1)) >f"]);
                    assert_eq!((ended.status, &*ended.err), (0, ""));
                }
            });
        }
    });
    assert_eq!(place.read("f").trim(), (PROCESSES * RUNS).to_string());
}

#[test]
fn sixteen_processes_never_run_more_commands_at_once_than_there_are_slots() {
    const PROCESSES: usize = 16;
    const RUNS: usize = 10;
    let place = Place::new();
    // Each command creates a directory, counts all such directories, and removes its own.
    let text = "mkdir in-$$; echo in-* | wc -w >>counts; rmdir in-$$";
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                for _ in 0..RUNS {
                    let ended = place.run(["run", "--slots", "3", "pool", "-c", text]);
                    assert_eq!((ended.status, &*ended.err), (0, ""));
                }
            });
        }
    });
    let counts: Vec<usize> = place.read("counts").lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(counts.len(), PROCESSES * RUNS);
    assert!(counts.iter().all(|count| (1..=3).contains(count)), "{counts:?}");
    assert!(counts.contains(&2) || counts.contains(&3), "no two commands ever ran at the same time");
}

#[test]
fn a_fair_lock_is_had_in_order_of_arrival() {
    let place = Place::new();
    let holder = place.hold(&["--fair", "x"]);
    let waiters: Vec<_> = (1..=6)
        .map(|i| {
            let waiter =
                place.dlock(["run", "--fair", "x", "-c", &format!("echo {i} >>order")]).spawn().unwrap();
            place.until_queued("x", i);
            waiter
        })
        .collect();
    holder.let_go();
    for mut waiter in waiters {
        assert!(waiter.wait().unwrap().success());
    }
    assert_eq!(place.read("order").split_whitespace().collect::<Vec<_>>(), ["1", "2", "3", "4", "5", "6"]);
}

#[test]
fn the_lock_is_held_until_the_command_has_ended() {
    let place = Place::new();
    let holder = place.start(&["x"], "echo held; read _; echo end >>order");
    let waiter = place.dlock(["run", "x", "-c", "echo next >>order"]).stderr(Stdio::null()).spawn().unwrap();
    place.until_queued("x", 1);
    assert_eq!(place.read("order"), "");
    holder.let_go();
    assert!(waiter.wait_with_output().unwrap().status.success());
    assert_eq!(place.read("order"), "end\nnext\n");
}

/// All processes write to one file at the same time. Without a queue of writers, some of them would
/// exhaust their retries.
#[test]
fn three_hundred_processes_at_once_all_run_their_commands() {
    const PROCESSES: usize = 300;
    let place = Place::new();
    for name in [|i| format!("own-{i}"), |_| "one".to_owned()] {
        let all: Vec<_> = (0..PROCESSES)
            .map(|i| {
                let mut command = place.dlock(["run", &name(i), "-c", "echo >>ran"]);
                command.stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for process in all {
            let ended = Ended::from(process.wait_with_output().unwrap());
            assert_eq!((ended.status, &*ended.err), (0, ""));
        }
    }
    assert_eq!(place.read("ran").len(), 2 * PROCESSES);
    assert_eq!(
        std::fs::read_dir(place.path("locks.db-bells")).unwrap().count(),
        0,
        "a doorbell is left behind"
    );
}
