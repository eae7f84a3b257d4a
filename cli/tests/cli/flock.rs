//! The options of `flock`, which dlock accepts for compatibility.

use crate::place::Place;

#[test]
fn options_of_flock_mean_here_what_they_mean_there() {
    let place = Place::new();
    let held = place.hold(&["-e", "x"]);
    for (options, status) in [
        (&["--nonblock", "--conflict-exit-code", "9"][..], 9),
        (&["--nb", "-E", "9"], 9),
        (&["--timeout", "0.1", "--shared"], 75),
        (&["-w", "0.1", "--exclusive"], 75),
        (&["-o", "-n"], 75),
        (&["--close", "-n"], 75),
    ] {
        let ended = place.run([&["run"], options, &["x", "--", "true"]].concat());
        assert_eq!(ended.status, status, "{options:?}: {}", ended.err);
    }
    assert_eq!(held.let_go().status, 0);
    assert_eq!(place.run(["run", "-o", "-e", "x", "-c", "exit 3"]).status, 3);
}

#[test]
fn options_of_flock_that_mean_nothing_here_say_what_to_use() {
    let place = Place::new();
    for (option, instead) in [
        ("-u", "dlock unlock --force"),
        ("--unlock", "dlock unlock --force"),
        ("-F", "leave it out"),
        ("--no-fork", "leave it out"),
    ] {
        for verb in ["run", "try"] {
            let ended = place.run([verb, option, "x", "--", "echo", "ran"]);
            assert_eq!((ended.status, &*ended.out), (64, ""), "{option}: {}", ended.err);
            assert!(ended.err.contains(instead), "{option}: {}", ended.err);
        }
    }
}
