//! A `dlock run` inside the command of another `dlock run`.

use crate::place::{Ended, Place, until};

const PRINT_LOCK: &str = r#"echo "$DLOCK_NAME $DLOCK_TOKEN""#;

#[test]
fn a_run_of_the_same_name_inside_the_command_enters_at_once() {
    let place = Place::new();
    let ended = place.run([
        "run",
        "x",
        "-c",
        &format!(r#"{PRINT_LOCK}; "$DLOCK" run -n x -c '{PRINT_LOCK}; exit 7'"#),
    ]);
    assert_eq!((ended.status, &*ended.err), (7, ""));
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines[0], lines[1], "the inner command has another hold than the outer one");
    assert_eq!(place.run(["inspect", "x"]).status, 1, "the lock is held after both commands have ended");
}

#[test]
fn the_outer_command_still_holds_when_the_inner_one_has_ended() {
    let place = Place::new();
    let holder = place.start(&["x"], r#""$DLOCK" run x true; echo held; read _; true"#);
    assert_eq!(place.run(["try", "x"]).status, 75);
    assert_eq!(holder.let_go().status, 0);
}

#[test]
fn all_locks_above_are_entered_whatever_lies_between() {
    let place = Place::new();
    let inner = format!(r#""$DLOCK" run -n a -c '{PRINT_LOCK}'; "$DLOCK" run -n b -c '{PRINT_LOCK}'"#);
    std::fs::write(place.path("inner"), inner).unwrap();
    let ended = place.run([
        "run",
        "a",
        "-c",
        &format!(r#"{PRINT_LOCK}; "$DLOCK" run b -c '{PRINT_LOCK}; sh inner'"#),
    ]);
    assert_eq!((ended.status, &*ended.err), (0, ""));
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[1]), (4, lines[2], lines[3]), "{lines:?}");
    assert!(lines[0].starts_with("a ") && lines[1].starts_with("b "), "{lines:?}");
}

#[test]
fn a_reader_enters_a_writer_but_not_the_reverse() {
    let place = Place::new();
    let nested = |outer: &str, inner: &str| {
        place.run(["run", outer, "x", "-c", &format!(r#""$DLOCK" run {inner} x echo in"#)])
    };
    for (outer, inner) in
        [("--write", "--read"), ("--write", "--write"), ("--read", "--read"), ("--fair", "--write")]
    {
        assert_eq!(nested(outer, inner).out, "in\n", "{inner} in {outer}");
    }
    for inner in ["--write", "--fair", "--no-wait"] {
        let ended = nested("--read", inner);
        assert_eq!((ended.status, &*ended.out), (64, ""), "{inner} was not refused");
        assert!(ended.err.contains("held for reading"), "{}", ended.err);
    }
}

#[test]
fn a_slot_inside_a_slot_is_the_same_and_nothing_else_enters() {
    let place = Place::new();
    let nested = |inner: &str| {
        place.run([
            "run",
            "--slots",
            "1",
            "x",
            "-c",
            &format!(r#"{PRINT_LOCK}; "$DLOCK" run {inner} x -c '{PRINT_LOCK}'"#),
        ])
    };
    let ended = nested("--slots 1");
    assert_eq!((ended.status, &*ended.err), (0, ""));
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines[0], lines[1], "the inner command has another slot");
    for inner in ["--write", "--fair", "--read", "--no-wait"] {
        let ended = nested(inner);
        assert_eq!((ended.status, ended.out.lines().count()), (64, 1), "{inner} was not refused");
        assert!(ended.err.contains("--slots"), "{}", ended.err);
    }
}

#[test]
fn a_free_lock_is_not_entered_on_the_word_of_the_environment() {
    let place = Place::new();
    let held = place.run(["run", "x", "-c", "echo $DLOCK_HELD"]).out;
    let left_over = |args: &[&str]| Ended::of(place.dlock(args).env("DLOCK_HELD", held.trim_end()));
    let tokens = ["run", "x", "-c", "echo $DLOCK_TOKEN"];
    assert_ne!(left_over(&tokens).out, "", "a run with a left-over environment has no token of its own");
    let other = place.hold(&["x"]);
    assert_eq!(
        left_over(&["run", "-n", "x", "true"]).status,
        75,
        "a left-over environment entered the lock of another holder"
    );
    other.let_go();
}

#[test]
fn another_store_is_another_lock() {
    let place = Place::new();
    let inner = r#"DLOCK_STORE=sqlite:other.db "$DLOCK" run -n x -c 'echo $DLOCK_HELD'"#;
    let ended = place.run(["run", "x", "-c", inner]);
    assert_eq!(ended.out.matches(r#""name":"x""#).count(), 2, "{}", ended.out);
}

#[test]
fn an_environment_that_cannot_be_read_is_an_error_and_not_a_deadlock() {
    let place = Place::new();
    let ended = Ended::of(place.dlock(["run", "x", "true"]).env("DLOCK_HELD", "nonsense"));
    assert_eq!(ended.status, 78);
    assert!(ended.err.contains("DLOCK_HELD"), "{}", ended.err);
}

#[test]
fn a_try_inside_the_command_says_what_a_run_would_get() {
    let place = Place::new();
    assert_eq!(place.run(["run", "x", "-c", r#""$DLOCK" try x"#]).status, 0);
}

#[test]
fn a_process_that_outlives_the_run_around_it_does_not_enter() {
    let place = Place::new();
    let left = r#"(while ! [ -e go ]; do sleep 0.05; done; "$DLOCK" run -n x -- touch entered; echo $? >status) >/dev/null 2>&1 &"#;
    let ended = place.run(["run", "--at-least", "10m", "x", "-c", left]);
    assert_eq!((ended.status, &*ended.err), (0, ""));
    assert_eq!(place.run(["try", "x"]).status, 75, "the lock is not held");
    std::fs::write(place.path("go"), "").unwrap();
    until("the process has tried", || !place.read("status").is_empty());
    assert_eq!(place.read("status").trim(), "75", "the process entered without a lock");
    assert!(!place.path("entered").exists());
}
