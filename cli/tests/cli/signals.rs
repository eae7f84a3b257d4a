//! Signals to dlock, which forwards them to the command, or ends the wait.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::place::{Ended, Place, Started, lives, until};

/// Prints the signals that it receives, and exits with 5 on TERM.
const LISTENER: &str = r#"
    for s in HUP INT QUIT USR1 USR2 WINCH; do trap "echo $s" $s; done
    trap 'echo TERM; exit 5' TERM
    echo ready; while :; do sleep 0.05; done"#;

#[test]
fn signals_are_passed_on_and_the_commands_end_is_waited_for() {
    let place = Place::new();
    let mut run = place.start(&["x"], LISTENER);
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ] {
        run.signal(signal);
        assert_eq!(run.line(), name);
    }
    assert_eq!(place.run(["try", "x"]).status, 75, "the lock was released before the end of the command");
    run.signal(Signal::TERM);
    let ended = run.end();
    assert_eq!((ended.status, &*ended.out), (5, "TERM\n"));
    assert_eq!(place.run(["inspect", "x"]).status, 1);
}

#[test]
fn all_that_the_command_has_started_gets_the_signal() {
    let place = Place::new();
    let run = place.start(&["x"], "sleep 1000 & echo $!; wait");
    let grandchild = run.first.clone();
    assert!(lives(&grandchild));
    run.signal(Signal::TERM);
    assert_eq!(run.end().status, 143);
    until("the grandchild has ended", || !lives(&grandchild));
}

#[test]
fn a_signal_ends_the_waiting_and_leaves_the_queue() {
    let place = Place::new();
    let holder = place.hold(&["x"]);
    for (signal, status) in [(Signal::INT, -2), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        let mut command = place.dlock(["run", "--fair", "x", "--", "echo", "ran"]);
        let waiter = command.stdout(Stdio::piped()).spawn().unwrap();
        place.until_queued("x", 1);
        // A manager may send it to all candidates, and its default action would end the process.
        kill_process(Pid::from_child(&waiter), Signal::USR1).unwrap();
        kill_process(Pid::from_child(&waiter), signal).unwrap();
        let ended = Ended::from(waiter.wait_with_output().unwrap());
        assert_eq!((ended.status, &*ended.out), (status, ""));
        assert!(place.state("x")["queue"].as_array().unwrap().is_empty(), "the waiter is still in the queue");
    }
    assert_eq!(holder.let_go().status, 0);
}

#[test]
fn a_killed_dlock_takes_its_command_with_it() {
    let place = Place::new();
    let run = place.start(&["--ttl", "3s", "x"], "echo $$; exec sleep 1000");
    let command = run.first.clone();
    run.signal(Signal::KILL);
    until("the command has ended", || !lives(&command));
    assert_eq!(run.end().status, -9);
    assert_eq!(
        place.run(["run", "--wait", "60", "x", "true"]).status,
        0,
        "the next waiter did not get the lock"
    );
}

#[test]
fn what_the_parent_ignores_is_ignored() {
    let place = Place::new();
    let text = r#"trap "" HUP; exec "$DLOCK" run x -- sh -c 'trap "echo end; exit 0" TERM; echo ready; while :; do sleep 0.05; done'"#;
    let mut command = Command::new("sh");
    let dlock = place.dlock(["run"]);
    command.args(["-c", text]).envs(dlock.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let run = Started::of(&mut command);
    run.signal(Signal::HUP);
    run.signal(Signal::TERM);
    let ended = run.end();
    assert_eq!((ended.status, &*ended.out), (0, "end\n"), "HUP has ended dlock or the command");
}

/// systemd makes its services ignore PIPE.
#[test]
fn a_command_does_not_ignore_pipe_although_the_parent_of_dlock_does() {
    let place = Place::new();
    let text = r#"trap "" HUP PIPE; exec "$DLOCK" run x -- grep SigIgn /proc/self/status"#;
    let ended = place.run_shell(text);
    let mask = ended.out.strip_prefix("SigIgn:").expect("the command prints its mask").trim();
    let mask = u64::from_str_radix(mask, 16).expect("hexadecimal digits");
    let is_ignored = |signal: Signal| mask & (1 << (signal.as_raw() - 1)) != 0;
    assert!(is_ignored(Signal::HUP), "the command ignores other signals than the parent of dlock: {mask:x}");
    assert!(!is_ignored(Signal::PIPE), "the command ignores PIPE: {mask:x}");
}

#[test]
fn the_command_ignores_and_blocks_no_signal_of_its_own() {
    let grep = ["grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"];
    let under_a_lock = Place::new().run(["run", "x", "--"].iter().chain(&grep));
    let alone = Ended::of(Command::new(grep[0]).args(&grep[1..]));
    assert_eq!(under_a_lock.out, alone.out, "the command has other signal masks than dlock");
}

#[test]
fn a_stopped_dlock_stops_its_command_until_both_continue() {
    let place = Place::new();
    let run = place.start(&["x"], "echo $$; exec sleep 1000");
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", run.first)).unwrap_or_default();
    run.signal(Signal::TSTP);
    until("the command is stopped", || state().contains(") T "));
    run.signal(Signal::CONT);
    until("the command continues", || !state().contains(") T "));
    run.signal(Signal::TERM);
    assert_eq!(run.end().status, 143);
}

/// STOP cannot be caught. The command runs beside the next holder until dlock continues.
#[test]
fn the_command_of_a_dlock_that_is_suspended_beyond_the_ttl_ends_as_soon_as_dlock_continues() {
    let place = Place::new();
    let run = place.start(&["--ttl", "2s", "x"], "echo $$; exec sleep 1000");
    let command = run.first.clone();
    run.signal(Signal::STOP);
    assert_eq!(
        place.run(["run", "-w", "60s", "x", "true"]).status,
        0,
        "the lock of a suspended dlock is not free"
    );
    let state = std::fs::read_to_string(format!("/proc/{command}/stat")).unwrap_or_default();
    assert!(lives(&command) && !state.contains(") T "), "the command is suspended, too: {state}");
    run.signal(Signal::CONT);
    assert_eq!(run.end().status, 74);
    until("the command has ended", || !lives(&command));
}

#[test]
fn a_stopped_command_that_has_lost_its_lock_never_continues() {
    let place = Place::new();
    let text = "trap 'echo continued' CONT; echo $$; sleep 1000 & wait; wait";
    let run = place.start(&["--ttl", "2s", "x"], text);
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", run.first)).unwrap_or_default();
    run.signal(Signal::TSTP);
    until("the command is stopped", || state().contains(") T "));
    assert_eq!(
        place.run(["run", "-w", "60s", "x", "true"]).status,
        0,
        "the lock of a stopped dlock is not free"
    );
    run.signal(Signal::CONT);
    let ended = run.end();
    assert_eq!((ended.status, &*ended.out), (74, ""), "the command ran beside the next holder");
}
