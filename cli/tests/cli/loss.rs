//! A lock that is lost while the command runs.

use crate::place::{Place, lives, until};

#[test]
fn a_command_whose_lock_is_lost_is_told_to_stop() {
    let place = Place::new();
    let run = place.start(
        &["--ttl", "2s", "x"],
        "trap 'echo TERM; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
    );
    assert_eq!(place.run(["unlock", "--force", "x"]).status, 0);
    let ended = run.end();
    assert_eq!((ended.status, &*ended.out), (74, "TERM\n"), "{}", ended.err);
    assert!(ended.err.starts_with("dlock: lost lock `x`: "), "{}", ended.err);
    // The shell may add messages about the processes that it had started.
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
        "the end of the first command has freed the lock of the next"
    );
    assert_eq!(next.let_go().status, 0);
}
