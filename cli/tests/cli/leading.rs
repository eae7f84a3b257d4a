//! `dlock lead` and `dlock leader`.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    failover::Contest,
    place::{Place, Started, lives, until},
};

/// Starts `dlock lead ARGS -c TEXT`, and waits for its first line.
fn lead(place: &Place, args: &[&str], text: &str) -> Started {
    Started::of(&mut place.dlock([&["lead"], args, &["-c", text]].concat()))
}

/// Returns an address at which no program listens.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Sends a request. Returns the response, which is empty if the server is not reachable.
fn respond(address: SocketAddr, request: &str) -> String {
    let mut response = String::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request.as_bytes()).ok();
        stream.read_to_string(&mut response).ok();
    }
    response
}

fn get(address: SocketAddr, path: &str) -> String {
    respond(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

#[test]
fn the_command_of_a_leader_has_the_number_of_its_term() {
    let place = Place::new();
    let ended = place.run(["lead", "x", "-c", r#"echo "$DLOCK_NAME $DLOCK_TERM $DLOCK_TOKEN""#]);
    let words: Vec<_> = ended.out.split_whitespace().collect();
    assert_eq!(ended.status, 0, "{}", ended.err);
    assert!(words.len() == 3 && words[0] == "x" && words[1] == words[2], "{words:?}");
    assert!(words[1].parse::<u64>().unwrap() > 0);
    assert_eq!(place.run(["inspect", "x"]).status, 1, "the leader has not resigned");
}

#[test]
fn a_lost_term_stops_the_command_with_its_descendants_and_dlock_stands_again() {
    let place = Place::new();
    let mut run = lead(&place, &["--ttl", "5s", "x"], "sleep 1000 & echo $!; wait");
    let first = run.first.clone();
    assert_eq!(place.run(["unlock", "--force", "x"]).status, 0);
    let second = run.line();
    assert!(!lives(&first), "a process of the lost term runs beside the next leader");
    assert!(lives(&second) && first != second, "{first} {second}");
    run.signal(Signal::TERM);
    let ended = run.end();
    assert_eq!(ended.status, 143, "{}", ended.err);
    assert!(ended.err.contains("lost lock `x`") && ended.err.contains("standing again"), "{}", ended.err);
    until("the descendant has ended", || !lives(&second));
    assert_eq!(place.run(["inspect", "x"]).status, 1);
}

#[test]
fn the_standby_leads_when_the_leader_ends() {
    let place = Place::new();
    let first = lead(&place, &["--who", "anna", "x"], "echo leads; exec sleep 1000");
    let address = free_address();
    let serve = address.to_string();
    let mut standby = place.dlock(["lead", "--who", "bert", "--serve", &serve, "x", "-c"]);
    let mut standby = standby.arg("exec sleep 1000").spawn().unwrap();
    place.until_queued("x", 1);
    assert_eq!(place.run(["leader", "x"]).out, "anna\n");
    assert!(get(address, "/leader").starts_with("HTTP/1.1 503 "), "{}", get(address, "/leader"));
    first.signal(Signal::TERM);
    assert_eq!(first.end().status, 143);
    until("the standby leads", || get(address, "/leader").starts_with("HTTP/1.1 200 "));
    assert_eq!(place.run(["leader", "x"]).out, "bert\n");
    rustix::process::kill_process(rustix::process::Pid::from_child(&standby), Signal::TERM).unwrap();
    standby.wait().unwrap();
    assert_eq!(place.run(["leader", "x"]).status, 1);
}

#[test]
fn a_command_that_fails_is_started_again_after_a_pause() {
    let place = Place::new();
    let fails_twice = "echo run >>runs; test $(wc -l <runs) -gt 2 || exit 3";
    let ended = place.run(["lead", "--cooldown", "50ms..100ms", "x", "-c", fails_twice]);
    assert_eq!((ended.status, place.read("runs").lines().count()), (0, 3), "{}", ended.err);
    assert_eq!(ended.err.matches("ended with status 3; standing again in").count(), 2, "{}", ended.err);
    let ended = place.run(["lead", "--restart", "no", "x", "-c", "exit 3"]);
    assert_eq!(ended.status, 3, "{}", ended.err);
    let mut run = lead(&place, &["--restart", "always", "--cooldown", "50ms..100ms", "x"], "echo again");
    assert_eq!((run.line(), run.line()), ("again".to_owned(), "again".to_owned()));
    until("it ends by TERM", || {
        run.signal(Signal::TERM);
        run.line().is_empty()
    });
}

#[test]
fn the_server_answers_get_leader_only() {
    let place = Place::new();
    let address = free_address();
    let serve = address.to_string();
    let run = lead(&place, &["--serve", &serve, "--who", "anna", "x"], "echo $DLOCK_TERM; exec sleep 1000");
    let response = get(address, "/leader");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    let body: serde_json::Value = serde_json::from_str(response.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let term: u64 = run.first.parse().unwrap();
    let expected =
        serde_json::json!({"version": 1, "name": "x", "leading": true, "who": "anna", "term": term});
    assert_eq!(body, expected);
    assert!(get(address, "/").starts_with("HTTP/1.1 404 "));
    let post = respond(address, "POST /leader HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
    let long = format!("GET /leader HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(100_000));
    assert!(!respond(address, &long).starts_with("HTTP/1.1 200 "), "a request of any size is read");
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    until("silent clients are disconnected", || get(address, "/leader").starts_with("HTTP/1.1 200 "));
    drop(silent);
    let in_use = place.run(["lead", "--serve", &serve, "x", "--", "true"]);
    assert_eq!(in_use.status, 78, "{}", in_use.err);
    run.signal(Signal::TERM);
    assert_eq!(run.end().status, 143);
}

#[test]
fn the_server_serves_64_connections_at_one_time_each_for_at_most_five_seconds() {
    const LIMIT: Duration = Duration::from_secs(5);
    let place = Place::new();
    let address = free_address();
    let run = lead(&place, &["--serve", &address.to_string(), "x"], "echo leads; exec sleep 1000");
    let began = Instant::now();
    let mut silent: Vec<_> = (0..63).map(|_| TcpStream::connect(address).unwrap()).collect();
    let requested_at = Instant::now();
    assert!(get(address, "/leader").starts_with("HTTP/1.1 200 "));
    assert!(requested_at.elapsed() < LIMIT, "63 silent clients have delayed a request");
    silent.push(TcpStream::connect(address).unwrap());
    assert!(get(address, "/leader").starts_with("HTTP/1.1 200 "));
    assert!(began.elapsed() >= LIMIT, "64 silent clients have delayed no request");
    assert!(began.elapsed() < LIMIT * 5, "silent clients are served for longer");
    run.signal(Signal::TERM);
    assert_eq!(run.end().status, 143);
}

#[test]
fn the_leader_is_printed_and_its_absence_is_a_status() {
    let place = Place::new();
    let vacant = place.run(["leader", "x"]);
    assert_eq!((vacant.status, &*vacant.out), (1, ""));
    let run = lead(&place, &["--who", "10.0.0.7:9000", "x"], "echo $DLOCK_TERM; exec sleep 1000");
    let led = place.run(["leader", "x"]);
    assert_eq!((led.status, &*led.out), (0, "10.0.0.7:9000\n"));
    let json: serde_json::Value = serde_json::from_str(&place.run(["leader", "--json", "x"]).out).unwrap();
    let term: u64 = run.first.parse().unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "version": 1, "name": "x", "state": "leader", "who": "10.0.0.7:9000", "term": term, "unknown_for": null
        })
    );
    run.signal(Signal::TERM);
    assert_eq!(run.end().status, 143);
    let json: serde_json::Value = serde_json::from_str(&place.run(["leader", "--json", "x"]).out).unwrap();
    assert_eq!(json["state"], "vacant");
}

#[test]
fn each_change_of_the_leader_is_printed() {
    let place = Place::new();
    drop(place.run(["run", "x", "--", "true"]));
    let mut watch = Started::of(&mut place.dlock(["leader", "--watch", "x"]));
    assert_eq!(watch.first, "vacant");
    let run = lead(&place, &["--who", "anna", "x"], "echo leads; exec sleep 1000");
    assert_eq!(watch.line(), "leader anna");
    run.signal(Signal::TERM);
    assert_eq!(run.end().status, 143);
    assert_eq!(watch.line(), "vacant");
    watch.signal(Signal::TERM);
    assert_eq!(watch.end().status, 143);
}

#[test]
fn a_lead_inside_a_hold_of_the_same_name_is_refused() {
    let place = Place::new();
    let inside = r#""$DLOCK" lead x -- true"#;
    for outer in ["run", "lead"] {
        let args = [outer, "x", "-c", inside];
        let args = if outer == "lead" {
            [&["lead", "--restart", "no"][..], &args[1..]].concat()
        } else {
            args.to_vec()
        };
        let ended = place.run(args);
        assert_eq!(ended.status, 64, "{outer}: {}", ended.err);
        assert!(ended.err.contains("would wait for itself"), "{outer}: {}", ended.err);
    }
}

#[test]
fn a_quiet_lead_prints_its_errors_only() {
    let place = Place::new();
    let fails_once = "echo run >>runs; test $(wc -l <runs) -gt 1 || exit 3";
    let ended = place.run(["lead", "-q", "--cooldown", "50ms..100ms", "x", "-c", fails_once]);
    assert_eq!(ended.status, 0, "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    assert!(ended.err.contains("ended with status 3; standing again"), "{}", ended.err);
}

#[test]
fn a_command_that_dies_of_hup_is_not_started_again() {
    let place = Place::new();
    let run = lead(&place, &["x"], "echo leads; exec sleep 1000");
    run.signal(Signal::HUP);
    assert_eq!(run.end().status, 129);
    assert_eq!(place.run(["leader", "x"]).status, 1);
}

#[test]
fn a_lead_without_a_command_or_with_an_impossible_pause_is_refused() {
    let place = Place::new();
    for args in [&["lead", "x"][..], &["lead", "--cooldown", "2s..1s", "x", "--", "true"]] {
        let ended = place.run(args);
        assert_eq!(ended.status, 64, "{args:?}: {}", ended.err);
    }
    let missing = place.run(["lead", "--restart", "no", "x", "--", "/no/such/program"]);
    assert_eq!(missing.status, 127, "{}", missing.err);
}

#[test]
fn two_leaders_never_run_while_leaders_are_killed_and_stopped() {
    let place = Place::new();
    Contest::on_file(&place).run();
}
