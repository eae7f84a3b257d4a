//! `dlock acquire` and `dlock release`: one process acquires a lock, another one releases it.

use std::{
    io::Write as _,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::place::{Ended, Place, Started, until};

/// Acquires a lock and returns its ticket.
fn acquired(place: &Place, args: &[&str]) -> String {
    let ended = place.run([&["acquire"], args].concat());
    assert_eq!((ended.status, &*ended.err), (0, ""));
    assert_eq!(ended.out.lines().count(), 1, "more than a ticket: {}", ended.out);
    ended.out.trim_end().to_owned()
}

fn queued(place: &Place, name: &str) -> usize {
    place.state(name)["queue"].as_array().unwrap().len()
}

#[test]
fn a_ticket_holds_until_another_process_gives_it_back() {
    let place = Place::new();
    let ticket = acquired(&place, &["deploy/web"]);
    assert_eq!(ticket.split_whitespace().count(), 1, "a ticket is one word: {ticket}");
    let busy = place.run(["try", "deploy/web"]);
    assert_eq!(busy.status, 75, "the lock was released at the end of its process");
    assert!(busy.err.contains("dlock acquire deploy/web"), "{}", busy.err);
    let released = place.run(["release", &ticket]);
    assert_eq!((released.status, &*released.out, &*released.err), (0, "", ""));
    assert_eq!(place.run(["inspect", "deploy/web"]).status, 1, "the lock is still held");
}

#[test]
fn a_ticket_that_is_given_back_wakes_the_next_one() {
    let place = Place::new();
    let ticket = acquired(&place, &["x"]);
    // A waiter that is not woken polls again only after minutes.
    let waiter = place.dlock(["run", "--ttl", "900s", "x", "true"]).spawn().unwrap();
    place.until_queued("x", 1);
    let began = Instant::now();
    assert_eq!(place.run(["release", &ticket]).status, 0);
    assert!(waiter.wait_with_output().unwrap().status.success());
    assert!(began.elapsed() < Duration::from_secs(120), "the waiter was not woken");
}

#[test]
fn a_ticket_ends_with_its_time_and_not_before() {
    let place = Place::new();
    let began = Instant::now();
    let ticket = acquired(&place, &["--for", "1s", "x"]);
    assert_eq!(place.run(["run", "x", "true"]).status, 0);
    assert!(began.elapsed() >= Duration::from_secs(1), "the lock was free too early");
    for args in [&["release", &ticket][..], &["run", "--ticket", &ticket, "x", "--", "echo", "ran"]] {
        let late = place.run(args);
        assert_eq!((late.status, &*late.out), (74, ""), "{args:?}");
        assert!(late.err.starts_with("dlock: lost lock `x`: "), "{}", late.err);
        assert!(late.err.contains("the ticket's time is over"), "{}", late.err);
        assert_eq!(late.err.lines().count(), 1, "{}", late.err);
    }
}

#[test]
fn a_ticket_is_used_once() {
    let place = Place::new();
    let ticket = acquired(&place, &["x"]);
    assert_eq!(place.run(["release", &ticket]).status, 0);
    let holder = place.hold(&["x"]);
    assert_eq!(place.run(["release", &ticket]).status, 74);
    assert_eq!(place.run(["try", "x"]).status, 75, "the ticket has released the next holder's lock");
    holder.let_go();
}

#[test]
fn a_command_runs_under_the_lock_of_a_ticket() {
    let place = Place::new();
    let ticket = acquired(&place, &["--write", "x"]);
    let token = ticket.split(':').nth(2).unwrap();
    let wrong = place.run(["run", "--ticket", &ticket, "y", "--", "echo", "ran"]);
    assert_eq!((wrong.status, &*wrong.out), (64, ""), "{}", wrong.err);
    let text = "echo $DLOCK_NAME $DLOCK_TOKEN; $DLOCK run -n x -- echo inside; read _; exit 7";
    let mut run = Started::of(&mut place.dlock(["run", "--ticket", &ticket, "x", "--", "sh", "-c", text]));
    assert_eq!(run.first, format!("x {token}"));
    assert_eq!(run.line(), "inside");
    assert_eq!(place.run(["try", "x"]).status, 75);
    let ended = run.let_go();
    assert_eq!((ended.status, &*ended.err), (7, ""));
    assert_eq!(place.run(["inspect", "x"]).status, 1, "the lock is still held");
    assert_eq!(place.run(["release", &ticket]).status, 74, "the ticket is still valid after its use");
}

#[test]
fn the_lock_of_a_ticket_is_free_when_its_run_is_killed() {
    let place = Place::new();
    let ticket = acquired(&place, &["--for", "1h", "x"]);
    let run = Started::of(&mut place.dlock(["run", "--ticket", &ticket, "x", "-c", "echo held; read _"]));
    run.signal(Signal::KILL);
    run.end();
    until("the dead holder's lock is free", || place.run(["try", "x"]).status == 0);
}

#[test]
fn acquire_waits_and_gives_up_as_run_does() {
    let place = Place::new();
    let holder = place.hold(&["x"]);
    for (args, status) in [
        (&["-n", "x"][..], 75),
        (&["--wait", "200ms", "x"], 75),
        (&["-w", "0.2", "-E", "9", "--fair", "x"], 9),
    ] {
        let ended = place.run([&["acquire"], args].concat());
        assert_eq!((ended.status, &*ended.out), (status, ""), "{args:?}: {}", ended.err);
        assert!(ended.err.contains("held by "), "{}", ended.err);
    }
    for (signal, status) in [(Signal::TERM, 143), (Signal::KILL, -9)] {
        let args = ["sh", "-c", "echo begun; exec $DLOCK acquire x"];
        let waiter = Started::of(&mut place.dlock(["run", "other", "--"].iter().chain(&args)));
        until("acquire waits", || queued(&place, "x") == 1);
        // The inner dlock is in the queue. The outer dlock forwards the signal, and if it is
        // killed, the kernel kills the inner one.
        waiter.signal(signal);
        let ended = waiter.end();
        assert_eq!((ended.status, &*ended.out), (status, ""), "{}", ended.err);
        until("acquire has left the queue", || queued(&place, "x") == 0);
    }
    let waiter = place.dlock(["acquire", "x"]).stdout(Stdio::piped()).spawn().unwrap();
    place.until_queued("x", 1);
    holder.let_go();
    let ended = Ended::from(waiter.wait_with_output().unwrap());
    assert_eq!(ended.status, 0);
    assert_eq!(place.run(["release", ended.out.trim_end()]).status, 0);
}

#[test]
fn a_script_keeps_its_lock_from_step_to_step() {
    let place = Place::new();
    let file = place.path("deploy.ticket").display().to_string();
    let acquire = place.run(["acquire", "--ticket-file", &file, "x"]);
    assert_eq!((acquire.status, &*acquire.out, &*acquire.err), (0, "", ""));
    let first = place.read("deploy.ticket");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "other users can read the ticket");
    // A step that fails keeps the lock, too.
    for status in [0, 7] {
        let text = format!("echo $DLOCK_TOKEN; exit {status}");
        let step = place.run(["run", "--ticket-file", &file, "--for", "1h", "x", "-c", &text]);
        assert_eq!((step.status, &*step.err), (status, ""));
        assert!(first.contains(&format!(":{}:", step.out.trim_end())), "another token: {}", step.out);
        assert_eq!(place.run(["try", "x"]).status, 75, "the lock was released after a step");
        let left = place.state("x")["holders"][0]["ttl_left"].as_f64().unwrap();
        assert!(left > 600.0, "the lock is kept for {left} s only");
    }
    assert_ne!(place.read("deploy.ticket"), first, "the file has a ticket that was used");
    assert_eq!(place.run(["release", first.trim_end()]).status, 74, "a used ticket is valid");
    let missing = place.run(["run", "--ticket-file", &file, "--for", "1h", "x", "--", "./missing"]);
    assert_eq!(missing.status, 127, "{}", missing.err);
    assert_eq!(place.run(["try", "x"]).status, 75, "the lock was released after a step that cannot start");
    assert_eq!(place.run(["run", "--ticket-file", &file, "x", "true"]).status, 0);
    assert_eq!(place.run(["try", "x"]).status, 0, "the last step has not released the lock");
    let late = place.run(["run", "--ticket-file", &file, "x", "--", "echo", "ran"]);
    assert_eq!((late.status, &*late.out), (64, ""));
    assert!(late.err.contains("cannot read a ticket from"), "{}", late.err);
}

#[test]
fn the_lock_of_a_ticket_file_is_released_by_it() {
    let place = Place::new();
    let file = place.path("t").display().to_string();
    assert_eq!(place.run(["acquire", "--ticket-file", &file, "x"]).status, 0);
    let released = place.run(["release", "--ticket-file", &file]);
    assert_eq!((released.status, &*released.err), (0, ""));
    assert_eq!(place.run(["try", "x"]).status, 0, "the lock is still held");
    assert!(!place.path("t").exists(), "the file has a ticket that was used");
}

#[test]
fn a_ticket_file_that_is_no_regular_file_is_refused_and_stays() {
    let place = Place::new();
    let pipe = place.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    symlink(place.path("other"), place.path("link")).unwrap();
    for file in ["pipe", "link"] {
        let refused = place.run(["acquire", "--ticket-file", file, "x"]);
        assert!(refused.status == 64 && refused.err.contains("not a regular file"), "{}", refused.err);
        assert_eq!(place.run(["inspect", "x"]).status, 1, "the lock is held without a ticket");
    }
    assert!(pipe.metadata().unwrap().file_type().is_fifo());
    assert!(place.path("link").symlink_metadata().unwrap().is_symlink() && !place.path("other").exists());
}

#[test]
fn a_file_with_a_newer_ticket_is_not_deleted() {
    let place = Place::new();
    let file = place.path("t").display().to_string();
    assert_eq!(place.run(["acquire", "--ticket-file", &file, "x"]).status, 0);
    // Another job writes its own ticket while the lock is held.
    let text = format!("$DLOCK acquire y >'{file}'");
    assert_eq!(place.run(["run", "--ticket-file", &file, "x", "-c", &text]).status, 0);
    assert_eq!(place.run(["release", "--ticket-file", &file]).status, 0, "the newer ticket was deleted");
    assert_eq!(place.run(["try", "y"]).status, 0, "the lock of the newer ticket is still held");
}

#[test]
fn a_step_whose_lock_could_not_be_kept_does_not_use_the_ticket() {
    let place = Place::new();
    let ticket = acquired(&place, &["x"]);
    // A file is readable here, and no file can be created beside it.
    let step = ["run", "--ticket-file", "/dev/fd/0", "--for", "1h", "x", "--", "echo", "ran"];
    let mut command = place.dlock(step);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{ticket}").unwrap();
    let ended = Ended::from(child.wait_with_output().unwrap());
    assert_eq!((ended.status, &*ended.out), (64, ""), "{}", ended.err);
    assert!(ended.err.contains("cannot write a ticket to"), "{}", ended.err);
    assert_eq!(place.run(["release", &ticket]).status, 0, "the ticket was used");
}

#[test]
fn a_renewed_ticket_holds_for_longer_and_replaces_the_old_one() {
    let place = Place::new();
    let old = acquired(&place, &["--for", "1m", "x"]);
    let renewed = place.run(["renew", "--for", "1h", &old]);
    assert_eq!((renewed.status, &*renewed.err), (0, ""));
    let new = renewed.out.trim_end();
    let token = |ticket: &str| ticket.split(':').nth(2).map(str::to_owned);
    assert_eq!(token(new), token(&old), "another hold");
    assert!(place.state("x")["holders"][0]["ttl_left"].as_f64().unwrap() > 600.0);
    for verb in ["renew", "release"] {
        let used = place.run([verb, &old]);
        assert_eq!((used.status, &*used.out), (74, ""), "{verb}: {}", used.err);
    }
    let file = place.path("t").display().to_string();
    std::fs::write(&file, new).unwrap();
    let renewed = place.run(["renew", "--ticket-file", &file]);
    assert_eq!((renewed.status, &*renewed.out, &*renewed.err), (0, "", ""));
    assert_eq!(place.run(["release", new]).status, 74, "the file was not rewritten");
    assert_eq!(place.run(["release", "--ticket-file", &file]).status, 0);
}

#[test]
fn a_lock_whose_ticket_file_cannot_be_written_is_not_kept() {
    let place = Place::new();
    let missing = place.path("missing/t").display().to_string();
    let acquire = place.run(["acquire", "--ticket-file", &missing, "x"]);
    assert_eq!((acquire.status, &*acquire.out), (64, ""));
    assert!(acquire.err.contains("cannot write a ticket to"), "{}", acquire.err);
    assert_eq!(place.run(["inspect", "x"]).status, 1, "the lock was taken");

    let folder = place.path("steps");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("t").display().to_string();
    assert_eq!(place.run(["acquire", "--ticket-file", &file, "x"]).status, 0);
    let step = ["run", "--ticket-file", &file, "--for", "1h", "x", "-c"];
    let ended = place.run([&step[..], &[&format!("rm -r '{}'", folder.display())]].concat());
    assert_eq!(ended.status, 70, "{}", ended.err);
    assert!(ended.err.contains("cannot write the ticket to"), "{}", ended.err);
    assert_eq!(place.run(["inspect", "x"]).status, 1, "the lock is held without a ticket");
}

#[test]
fn a_ticket_may_be_for_a_slot() {
    let place = Place::new();
    let tickets = [1, 2].map(|_| acquired(&place, &["--slots", "2", "pool"]));
    assert_eq!(place.run(["acquire", "-n", "--slots", "2", "pool"]).status, 75, "a third slot was granted");
    assert_eq!(place.run(["release", &tickets[0]]).status, 0);
    assert_eq!(place.run(["try", "--slots", "2", "pool"]).status, 0, "the slot was not released");
    assert_eq!(place.run(["release", &tickets[1]]).status, 0);
}

#[test]
fn a_lock_whose_ticket_cannot_be_printed_is_released() {
    let place = Place::new();
    for args in [&["acquire", "x"][..], &["acquire", "--json", "x"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = place.dlock(args);
        let status = command.stdout(writer).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(70), "{args:?}");
        assert_eq!(
            place.run(["inspect", "x"]).status,
            1,
            "{args:?}: the lock is still held, although its ticket was not printed"
        );
    }
}

#[test]
fn acquire_inside_a_run_of_the_same_name_does_not_wait_for_itself() {
    let place = Place::new();
    let ended = place.run(["run", "x", "-c", "$DLOCK acquire x"]);
    assert_eq!((ended.status, &*ended.out), (64, ""));
    assert!(ended.err.contains("held by an outer dlock"), "{}", ended.err);
}

#[test]
fn what_is_no_ticket_is_refused() {
    let place = Place::new();
    let id = "00000000-0000-0000-0000-000000000000";
    for (ticket, word) in [
        ("", "five parts"),
        ("4711", "five parts"),
        (&*format!("dlock9:mutex:1:{id}:x"), "another version"),
        (&*format!("dlock1:mutex:1:{id}:"), "empty"),
        ("dlock1:mutex:1:4711:x", "id"),
    ] {
        for args in [&["release", ticket][..], &["run", "--ticket", ticket, "x", "--", "echo", "ran"]] {
            let ended = place.run(args);
            assert_eq!((ended.status, &*ended.out), (64, ""), "{args:?}");
            assert!(ended.err.starts_with("dlock: ") && ended.err.contains(word), "{}", ended.err);
            assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        }
    }
    let unknown = place.run(["release", &format!("dlock1:mutex:1:{id}:x")]);
    assert_eq!(unknown.status, 74, "{}", unknown.err);
}

#[test]
fn a_time_that_no_store_keeps_is_refused_before_the_wait() {
    let place = Place::new();
    let holder = place.hold(&["x"]);
    for lasting in ["0", "1000years"] {
        let ended = place.run(["acquire", "--for", lasting, "x"]);
        assert_eq!((ended.status, &*ended.out), (64, ""), "{}", ended.err);
        assert!(ended.err.contains("without its holder"), "{}", ended.err);
    }
    holder.let_go();
}
