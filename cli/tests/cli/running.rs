//! `dlock run` and `dlock try`: the environment and arguments of the command, and its exit status.

use std::process::{Command, Stdio};

use crate::place::{Ended, Place};

#[test]
fn the_status_of_the_command_passes_through() {
    let place = Place::new();
    for status in [0, 1, 64, 75, 255] {
        let ended = place.run(["run", "x", "--", "sh", "-c", &format!("exit {status}")]);
        assert_eq!((ended.status, &*ended.err), (status, ""));
    }
}

#[test]
fn a_command_that_a_signal_killed_ends_as_in_a_shell() {
    let place = Place::new();
    for (signal, status) in [("TERM", 143), ("KILL", 137), ("HUP", 129)] {
        assert_eq!(place.run(["run", "x", "-c", &format!("kill -{signal} $$")]).status, status);
    }
}

#[test]
fn a_command_that_does_not_exist_is_127() {
    let ended = Place::new().run(["run", "x", "--", "no-such-command"]);
    assert_eq!(ended.status, 127);
    assert!(ended.err.starts_with("dlock: cannot run `no-such-command`: "), "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
}

#[test]
fn a_command_that_is_not_executable_is_126() {
    let place = Place::new();
    std::fs::write(place.path("data"), "no program").unwrap();
    for command in ["./data", "/"] {
        let ended = place.run(["run", "x", "--", command]);
        assert_eq!(ended.status, 126, "{}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    }
}

#[test]
fn a_lock_is_free_after_a_command_that_could_not_be_run() {
    let place = Place::new();
    place.run(["run", "x", "--", "no-such-command"]);
    assert_eq!(place.run(["inspect", "x"]).status, 1);
}

#[test]
fn the_arguments_of_the_command_are_its_own() {
    let place = Place::new();
    for args in
        [&["run", "x", "--", "echo", "-n", "--wait", "-c"][..], &["run", "x", "echo", "-n", "--wait", "-c"]]
    {
        assert_eq!(place.run(args).out, "--wait -c");
    }
}

#[test]
fn the_command_finds_the_name_and_a_token_that_grows() {
    let place = Place::new();
    let token = |name: &str| {
        let out = place.run(["run", name, "-c", "echo \"$DLOCK_NAME|$DLOCK_TOKEN\""]).out;
        let (found, token) = out.trim_end().split_once('|').expect("two words");
        assert_eq!(found, name);
        token.parse::<u64>().expect("a number")
    };
    let first = token("invoice/42 ü");
    assert!(token("invoice/42 ü") > first, "the token of the later grant is not greater");
}

#[test]
fn the_command_has_no_descriptor_of_dlock() {
    let under_a_lock = Place::new().run(["run", "x", "--", "ls", "/proc/self/fd"]);
    let alone = Ended::of(Command::new("ls").arg("/proc/self/fd").stdin(Stdio::null()));
    assert_eq!(under_a_lock.out, alone.out, "the command has other descriptors than without dlock");
}

#[test]
fn stdin_is_the_commands() {
    let place = Place::new();
    std::fs::write(place.path("in"), "hello").unwrap();
    let stdin = std::fs::File::open(place.path("in")).unwrap();
    let ended = Ended::of(place.dlock(["run", "x", "cat"]).stdin(stdin));
    assert_eq!((ended.status, &*ended.out), (0, "hello"));
}

#[test]
fn a_held_lock_is_75_or_what_the_caller_wants() {
    let place = Place::new();
    let holder = place.hold(&["x"]);
    for (args, status) in [
        (&["run", "--no-wait", "x", "--", "true"][..], 75),
        (&["run", "-n", "x", "true"], 75),
        (&["run", "--wait", "0.2", "x", "--", "true"], 75),
        (&["run", "-w", "200ms", "-E", "9", "x", "--", "true"], 9),
        (&["run", "-w", "0", "x", "--", "true"], 75),
        (&["try", "x", "--", "true"], 75),
        (&["try", "x"], 75),
    ] {
        let ended = place.run(args);
        assert_eq!(ended.status, status, "{args:?}: {}", ended.err);
        assert!(
            ended.err.contains("held by ") && ended.err.contains(" pid "),
            "the holder is not named: {}",
            ended.err
        );
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    }
    assert_eq!(holder.let_go().status, 0);
    assert!(place.state("x")["queue"].as_array().unwrap().is_empty(), "a waiter is still in the queue");
}

#[test]
fn a_try_of_a_free_lock_leaves_nothing_behind() {
    let place = Place::new();
    for args in [&["try", "x"][..], &["try", "x", "--", "true"]] {
        let ended = place.run(args);
        assert_eq!((ended.status, &*ended.err), (0, ""));
        assert_eq!(place.run(["inspect", "x"]).status, 1, "the lock is held after the try");
    }
}

#[test]
fn readers_hold_together_and_a_writer_alone() {
    let place = Place::new();
    let reader = place.hold(&["--shared", "x"]);
    assert_eq!(place.run(["try", "-s", "x", "true"]).status, 0, "readers do not share the lock");
    for kind in [&["--write"][..], &["-x"], &["--exclusive"], &["--fair"], &[]] {
        let args = [&["try"], kind, &["x", "true"]].concat();
        assert_eq!(place.run(args).status, 75, "{kind:?} was granted beside a reader");
    }
    reader.let_go();
}

#[test]
fn as_many_hold_at_once_as_there_are_slots() {
    let place = Place::new();
    let holders = [place.hold(&["--slots", "2", "x"]), place.hold(&["--slots", "2", "x"])];
    for args in [
        &["try", "--slots", "2", "x", "true"][..],
        &["try", "--slots", "3", "x", "true"],
        &["try", "x", "true"],
    ] {
        let ended = place.run(args);
        assert_eq!(ended.status, 75, "{args:?}: granted beside two holders of two slots");
        assert!(ended.err.contains("and another"), "{}", ended.err);
    }
    assert_eq!(place.state("x")["holders"][1]["kind"], "permit");
    let [one, other] = holders;
    one.let_go();
    assert_eq!(place.run(["try", "--slots", "2", "x", "true"]).status, 0, "the returned slot is not free");
    other.let_go();
    assert_eq!(place.run(["try", "x", "true"]).status, 0, "the returned slots are not free");
}

#[test]
fn the_users_own_store_is_for_the_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let run_with = |key: &str, path: &str| {
        let mut command = place.dlock(["run", "x", "true"]);
        Ended::of(command.env_remove("DLOCK_STORE").env_remove("XDG_STATE_HOME").env(key, place.path(path)))
    };
    for (key, path, directory) in
        [("HOME", "home", "home/.local/state/dlock"), ("XDG_STATE_HOME", "state%20?", "state%20?/dlock")]
    {
        let ended = run_with(key, path);
        assert_eq!((ended.status, &*ended.err), (0, ""));
        let mode = place.path(directory).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(
            place.path(directory).join("locks.db").exists(),
            "the store is not in the directory that the README names"
        );
    }
}
