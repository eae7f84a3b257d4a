//! The command `dlock` on Redis, together with Redisson's locks. The tests write the keys of these
//! locks themselves, as Redisson would.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "the tests start processes, not tasks")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "cli/failover.rs"]
mod failover;
#[path = "cli/partition.rs"]
mod partition;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "cli/place.rs"]
mod place;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "cli/server.rs"]
mod server;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use dlock_conformance::Data;
use dlock_testbed::servers::{
    Running,
    redis::{Brand, Flavour, start},
};
use failover::{ClaimTimes, Contest};
use place::{Ended, Place, Started, until};
use serde_json::Value;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_command_runs_under_a_lock_that_is_free_when_it_ends,
        a_label_is_in_redis_only_while_its_lock_is_held_or_waited_for,
        of_twenty_daily_jobs_one_runs_also_if_they_come_one_after_the_other,
        a_ticket_holds_until_another_process_gives_it_back_and_wakes_the_next_one,
        a_lock_of_redisson_is_listed_shown_and_broken,
        a_fair_hold_is_shown_as_a_mutex_without_its_age_and_without_the_waiters_for_a_mutex,
        a_run_that_waits_for_redisson_is_woken_when_it_lets_go_and_when_it_is_broken,
        a_key_that_is_no_lock_is_refused_and_not_touched,
        a_server_that_is_not_there_is_69_and_its_password_is_not_shown,
        a_wrong_password_is_78_and_is_not_shown,
        a_server_that_is_away_while_dlock_starts_is_waited_for_as_long_as_for_the_lock,
        a_run_without_a_limit_waits_for_a_store_that_restarts_but_not_for_ever,
        waiting_for_a_server_that_hangs_ends_with_the_time_of_wait,
        dlock_ends_with_a_command_that_has_lost_its_lock,
        a_command_that_succeeded_without_a_mark_ends_with_the_error_of_the_store,
        a_mark_that_an_unreachable_store_cannot_set_is_retried_until_the_lock_is_lost,
        a_lock_that_an_unreachable_store_cannot_keep_is_retried_until_it_is_lost,
        a_member_of_a_redlock_that_is_down_delays_no_run,
        a_command_that_is_cut_off_ends_before_the_next_one_begins on 2 threads,
        two_leaders_never_run_while_leaders_are_killed_stopped_and_cut_off on 2 threads,
    }])
}

/// Id of a client and thread, in Redisson's format.
const REDISSON: &str = "2f6c1b1e-9a3d-4a52-8c1f-0b6f9f0f7d11:42";

struct OnRedis {
    place: Place,
    running: Running,
}

impl OnRedis {
    /// Returns `None` if Redis is not available and not required.
    async fn new() -> Option<Self> {
        let running = server::own(start(Brand::Redis, Flavour::Standalone).await)?;
        Some(Self { place: Place::new(), running })
    }

    fn dlock(&self, verb: &str, args: &[&str]) -> Command {
        self.dlock_at(self.running.url(), verb, args)
    }

    fn dlock_at(&self, url: &str, verb: &str, args: &[&str]) -> Command {
        self.place.dlock([&[verb, "--store", url], args].concat())
    }

    fn run(&self, verb: &str, args: &[&str]) -> Ended {
        Ended::of(&mut self.dlock(verb, args))
    }

    /// Returns the output of `dlock inspect`.
    fn state(&self, name: &str) -> Value {
        serde_json::from_str(&self.run("inspect", &["--json", name]).out).expect("JSON")
    }

    /// Sends an inline command. Returns the first line of the reply.
    fn command(&self, command: &str) -> String {
        let mut server = TcpStream::connect(self.running.servers()[0].address()).unwrap();
        server.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut reply = String::new();
        BufReader::new(server).read_line(&mut reply).unwrap();
        assert!(!reply.starts_with('-'), "{command}: {reply}");
        reply.trim_end().to_owned()
    }

    /// Acquires a lock as Redisson does.
    fn hold_as_redisson(&self, name: &str) {
        self.command(&format!("HSET {name} {REDISSON} 1"));
        self.command(&format!("PEXPIRE {name} 600000"));
    }
}

async fn a_command_runs_under_a_lock_that_is_free_when_it_ends() {
    let Some(redis) = OnRedis::new().await else { return };
    let text = "echo $DLOCK_TOKEN; read _; exit 7";
    let run = Started::of(&mut redis.dlock("run", &["job/a", "--", "sh", "-c", text]));
    assert!(run.first.parse::<u64>().is_ok(), "no token: `{}`", run.first);
    assert_eq!(redis.command("EXISTS job/a"), ":1", "the lock is not in Redis while the command runs");
    assert_eq!(redis.run("try", &["job/a"]).status, 75, "the lock was granted twice");
    let state = redis.state("job/a");
    assert_eq!(state["holders"].as_array().unwrap().len(), 1, "{state}");
    let all: Value = serde_json::from_str(&redis.run("ls", &["--json", "job/"]).out).unwrap();
    assert_eq!(all["locks"].as_array().unwrap().len(), 1, "{all}");
    let ended = run.let_go();
    assert_eq!((ended.status, &*ended.err), (7, ""));
    assert_eq!(redis.command("EXISTS job/a"), ":0", "the lock is left behind in Redis");
    let free = redis.run("inspect", &["job/a"]);
    assert_eq!((free.status, &*free.out), (1, "job/a is free\n"));
}

async fn a_label_is_in_redis_only_while_its_lock_is_held_or_waited_for() {
    let Some(redis) = OnRedis::new().await else { return };
    let labels = || redis.command("KEYS dlock_who:*");
    let run = Started::of(&mut redis.dlock("run", &["job/a", "--", "sh", "-c", "echo; read _; true"]));
    assert_eq!(labels(), "*1", "the label of a holder is not in Redis");
    assert_eq!(redis.run("run", &["-n", "job/a", "--", "true"]).status, 75, "the lock was granted twice");
    assert_eq!(labels(), "*1", "a run that has found the lock held leaves its label");
    assert_eq!(redis.run("run", &["-w", "50ms", "job/a", "--", "true"]).status, 75);
    assert_eq!(labels(), "*1", "a run that has waited in vain leaves its label");
    assert_eq!(run.let_go().status, 0);
    assert_eq!(labels(), "*0", "a run that has ended leaves its label");

    let acquired = redis.run("acquire", &["--for", "1h", "deploy"]);
    assert_eq!((acquired.status, &*labels()), (0, "*1"), "the label of a detached hold was deleted");
    assert_eq!(redis.run("run", &["--at-least", "1h", "report", "--", "true"]).status, 0);
    assert_eq!(labels(), "*2", "the label of a hold that outlives its run was deleted");
}

async fn of_twenty_daily_jobs_one_runs_also_if_they_come_one_after_the_other() {
    const HOSTS: usize = 20;
    let Some(redis) = OnRedis::new().await else { return };
    let job = || redis.run("run", &["-n", "--at-least", "23h", "report", "-c", "echo >>ran"]).status;
    let statuses = std::thread::scope(|scope| {
        let all: Vec<_> = (0..HOSTS).map(|_| scope.spawn(job)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 0).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 75).count(), HOSTS - 1, "{statuses:?}");
    for _ in 0..HOSTS {
        assert_eq!(job(), 75, "it ran again on the next host");
    }
    assert_eq!(redis.place.read("ran"), "\n");
}

async fn a_ticket_holds_until_another_process_gives_it_back_and_wakes_the_next_one() {
    let Some(redis) = OnRedis::new().await else { return };
    let acquired = redis.run("acquire", &["--for", "1h", "--who", "step 1", "deploy"]);
    assert_eq!((acquired.status, &*acquired.err), (0, ""));
    let state = redis.state("deploy");
    assert_eq!(state["holders"][0]["who"], "step 1", "{state}");
    let left = state["holders"][0]["ttl_left"].as_f64().unwrap();
    assert!((3000.0..=3600.0).contains(&left), "{state}");
    let args = ["--ttl", "600s", "deploy", "--", "echo", "ran"];
    let waiting = redis.dlock("run", &args).stdout(Stdio::piped()).spawn().unwrap();
    until("dlock subscribes to the channel", || {
        redis.command("PUBLISH redisson_lock__channel:{deploy} 9") == ":1"
    });
    assert_eq!(redis.run("release", &[acquired.out.trim_end()]).status, 0);
    // A waiter that is not woken polls again only after minutes.
    let ended = Ended::from(waiting.wait_with_output().unwrap());
    assert_eq!((ended.status, &*ended.out), (0, "ran\n"));
    assert_eq!(redis.run("release", &[acquired.out.trim_end()]).status, 74, "the ticket was used before");
    assert_eq!(redis.command("EXISTS deploy"), ":0", "the lock is left behind in Redis");
}

async fn a_lock_of_redisson_is_listed_shown_and_broken() {
    let Some(redis) = OnRedis::new().await else { return };
    redis.hold_as_redisson("job/b");
    assert_eq!(redis.run("try", &["job/b"]).status, 75, "the lock was granted twice");
    let listed = redis.run("ls", &[]);
    assert!(listed.status == 0 && listed.out.contains("job/b"), "{listed:?}");
    let shown = redis.run("inspect", &["job/b"]);
    assert!(shown.status == 0 && shown.out.contains(REDISSON), "{shown:?}");
    let state = redis.state("job/b");
    let left = state["holders"][0]["ttl_left"].as_f64().unwrap();
    assert!((1.0..=600.0).contains(&left), "{state}");

    assert_eq!(redis.run("unlock", &["job/b"]).status, 64, "unlocked without --force");
    assert_eq!(redis.command("EXISTS job/b"), ":1", "the refused command has removed the lock");
    let broken = redis.run("unlock", &["--force", "job/b"]);
    assert_eq!((broken.status, &*broken.err), (0, ""));
    assert_eq!(redis.command("EXISTS job/b"), ":0", "the lock is still there");
    assert_eq!(redis.run("unlock", &["--force", "job/b"]).status, 1, "the lock is still held");
}

async fn a_fair_hold_is_shown_as_a_mutex_without_its_age_and_without_the_waiters_for_a_mutex() {
    let Some(redis) = OnRedis::new().await else { return };
    let text = "echo held; read _; true";
    let holder = Started::of(&mut redis.dlock("run", &["--fair", "x", "--", "sh", "-c", text]));
    let waiter = redis.dlock("run", &["x", "--", "true"]).spawn().unwrap();
    until("dlock subscribes to the channel", || {
        redis.command("PUBLISH redisson_lock__channel:{x} 9") == ":1"
    });
    let fair_waiter = redis.dlock("run", &["--fair", "x", "--", "true"]).spawn().unwrap();
    until("a fair waiter is shown", || redis.state("x")["queue"] != serde_json::json!([]));
    let state = redis.state("x");
    assert_eq!(state["queue"].as_array().unwrap().len(), 1, "the waiter for a mutex is shown: {state}");
    assert_eq!(state["queue"][0]["kind"], "fair", "{state}");
    let listed: Value = serde_json::from_str(&redis.run("ls", &["--json"]).out).unwrap();
    let listed = &listed["locks"][0];
    assert_eq!(listed["queue"].as_array().unwrap().len(), 1, "the waiter for a mutex is listed: {listed}");
    for hold in [&state["holders"][0], &listed["holders"][0]] {
        assert_eq!(hold["kind"], "mutex", "{hold}");
        assert_eq!(hold.get("since"), Some(&Value::Null), "{hold}");
    }
    assert_eq!(holder.let_go().status, 0);
    for process in [waiter, fair_waiter] {
        assert!(process.wait_with_output().unwrap().status.success());
    }
}

async fn a_run_that_waits_for_redisson_is_woken_when_it_lets_go_and_when_it_is_broken() {
    let Some(redis) = OnRedis::new().await else { return };
    for name in ["released", "broken"] {
        redis.hold_as_redisson(name);
        let args = ["--ttl", "600s", name, "--", "echo", "ran"];
        let waiting = redis.dlock("run", &args).stdout(Stdio::piped()).spawn().unwrap();
        let channel = format!("redisson_lock__channel:{{{name}}}");
        until("dlock subscribes to the channel", || redis.command(&format!("PUBLISH {channel} 9")) == ":1");
        if name == "broken" {
            assert_eq!(redis.run("unlock", &["--force", name]).status, 0);
        } else {
            redis.command(&format!("DEL {name}"));
            redis.command(&format!("PUBLISH {channel} 0"));
        }
        // A waiter that is not woken polls again only after minutes.
        let ended = Ended::from(waiting.wait_with_output().unwrap());
        assert_eq!((ended.status, &*ended.out), (0, "ran\n"));
    }
}

async fn a_key_that_is_no_lock_is_refused_and_not_touched() {
    let Some(redis) = OnRedis::new().await else { return };
    redis.command("SET page hello");
    let refused = redis.run("run", &["page", "--", "echo", "ran"]);
    assert_eq!((refused.status, &*refused.out), (64, ""), "{}", refused.err);
    assert!(refused.err.contains("`page`") && refused.err.contains("other data"), "{}", refused.err);
    assert_eq!(redis.command("STRLEN page"), ":5", "the key that is no lock was changed");
}

async fn a_server_that_is_not_there_is_69_and_its_password_is_not_shown() {
    let Some(redis) = OnRedis::new().await else { return };
    let closed_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("redis://app:hunter2@{closed_port}");
    for (verb, args) in [
        ("run", &["-n", "x", "--", "echo", "ran"][..]),
        ("run", &["-w", "1s", "x", "--", "echo", "ran"]),
        ("try", &["x"]),
        ("ls", &[]),
        ("inspect", &["x"]),
        ("unlock", &["--force", "x"]),
    ] {
        let ended = Ended::of(&mut redis.dlock_at(&url, verb, args));
        assert_eq!((ended.status, &*ended.out), (69, ""), "{verb}: {}", ended.err);
        assert!(ended.err.starts_with("dlock: redis is not reachable: "), "{verb}: {}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        assert!(!ended.err.contains("hunter2"), "{verb} shows the password: {}", ended.err);
    }
}

async fn a_wrong_password_is_78_and_is_not_shown() {
    let Some(redis) = OnRedis::new().await else { return };
    let address = redis.running.servers()[0].address();
    redis.command("ACL SETUSER app on >right ~* &* +@all");
    let right = format!("redis://app:right@{address}");
    assert_eq!(Ended::of(&mut redis.dlock_at(&right, "ls", &[])).status, 0, "the right one is refused");
    for user in ["app", "nobody", ""] {
        let url = format!("redis://{user}:hunter2@{address}");
        let ended = Ended::of(&mut redis.dlock_at(&url, "run", &["x", "--", "echo", "ran"]));
        assert_eq!((ended.status, &*ended.out), (78, ""), "`{user}`: {}", ended.err);
        assert!(ended.err.contains("password"), "does not say what is wrong: {}", ended.err);
        assert!(!ended.err.contains("hunter2"), "`{user}`: shows the password: {}", ended.err);
    }
}

async fn a_server_that_is_away_while_dlock_starts_is_waited_for_as_long_as_for_the_lock() {
    let Some(on) = OnRedis::new().await else { return };
    let server = &on.running.servers()[0];
    server.pause().await.unwrap();
    let mut runs = Vec::new();
    for limit in [&["-w", "60s"][..], &["-w", "forever"], &[]] {
        let mut run = on.dlock("run", &[limit, &["late", "-v", "--", "echo", "ran"]].concat());
        runs.push((limit, run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()));
    }
    // Longer than the timeout of one attempt to connect.
    std::thread::sleep(Duration::from_secs(4));
    server.resume().await.unwrap();
    for (limit, run) in runs {
        let ended = Ended::from(run.wait_with_output().unwrap());
        assert_eq!((ended.status, &*ended.out), (0, "ran\n"), "{limit:?}: {}", ended.err);
        let status = format!("dlock: waiting for the store, `{}`", on.running.url());
        assert!(ended.err.starts_with(&status), "{limit:?}: {}", ended.err);
    }
}

async fn a_run_without_a_limit_waits_for_a_store_that_restarts_but_not_for_ever() {
    let Some(on) = OnRedis::new().await else { return };
    let server = &on.running.servers()[0];
    server.kill().await.unwrap();
    let run = || {
        let mut run = on.dlock("run", &["x", "--", "echo", "ran"]);
        run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (began, ended) = (Instant::now(), Ended::from(run().wait_with_output().unwrap()));
    assert_eq!((ended.status, &*ended.out), (69, ""), "{}", ended.err);
    assert!(ended.err.starts_with("dlock: redis is not reachable: "), "{}", ended.err);
    assert!(began.elapsed() >= Duration::from_secs(20), "the store was not waited for");
    let waits = run();
    server.start(Data::Kept).await.unwrap();
    let ended = Ended::from(waits.wait_with_output().unwrap());
    assert_eq!((ended.status, &*ended.out, &*ended.err), (0, "ran\n", ""));
}

async fn waiting_for_a_server_that_hangs_ends_with_the_time_of_wait() {
    let Some(on) = OnRedis::new().await else { return };
    let hangs = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("redis://{}?timeout=1h", hangs.local_addr().unwrap());
    let began = Instant::now();
    let ended = Ended::of(&mut on.dlock_at(&url, "run", &["-w", "1s", "x", "--", "echo", "ran"]));
    assert_eq!((ended.status, &*ended.out), (69, ""), "{}", ended.err);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(ended.err.contains("--wait"), "{}", ended.err);
}

async fn dlock_ends_with_a_command_that_has_lost_its_lock() {
    let Some(on) = OnRedis::new().await else { return };
    let server = &on.running.servers()[0];
    let run = Started::of(
        &mut on.dlock("run", &["--ttl", "2s", "x", "--", "sh", "-c", "echo held; exec sleep 600"]),
    );
    server.pause().await.unwrap();
    let ended = run.end();
    server.resume().await.unwrap();
    assert_eq!(ended.status, 74, "{}", ended.err);
    assert!(!ended.err.contains("confirm the release"), "{}", ended.err);
}

async fn a_command_that_succeeded_without_a_mark_ends_with_the_error_of_the_store() {
    let Some(on) = OnRedis::new().await else { return };
    for (refuse, allow, status) in [
        ("SET dlock-once:x:k:1 data", "DEL dlock-once:x:k:1", 64),
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", 69),
    ] {
        let text = "echo begun; read _; echo succeeded";
        let run = Started::of(&mut on.dlock("run", &["--once", "k", "x", "--", "sh", "-c", text]));
        on.command(refuse);
        let ended = run.let_go();
        assert_eq!((ended.status, &*ended.out), (status, "succeeded\n"), "{refuse}: {}", ended.err);
        let message = "dlock: the command has succeeded, but `k` is not marked as done and may run again: ";
        assert!(ended.err.starts_with(message), "{refuse}: {}", ended.err);
        on.command(allow);
    }
    let again = on.run("run", &["--once", "k", "x", "--", "echo", "ran"]);
    assert_eq!((again.status, &*again.out), (0, "ran\n"), "{}", again.err);
}

/// Asserts that a `run` whose command ends after the server was killed retries until its lock is
/// lost. `args` come before the name.
async fn retries_until_its_lock_is_lost(on: &OnRedis, args: &[&str]) {
    const TTL: Duration = Duration::from_secs(6);
    let text = "echo begun; read _; echo succeeded";
    let args = [args, &["--ttl", "6s", "x", "--", "sh", "-c", text]].concat();
    let began = Instant::now();
    let run = Started::of(&mut on.dlock("run", &args));
    on.running.servers()[0].kill().await.unwrap();
    let ended = run.let_go();
    assert_eq!((ended.status, &*ended.out), (74, "succeeded\n"), "{}", ended.err);
    assert!(began.elapsed() >= TTL, "dlock has ended before the lock was lost: {}", ended.err);
}

async fn a_mark_that_an_unreachable_store_cannot_set_is_retried_until_the_lock_is_lost() {
    let Some(on) = OnRedis::new().await else { return };
    retries_until_its_lock_is_lost(&on, &["--once", "k"]).await;
}

async fn a_lock_that_an_unreachable_store_cannot_keep_is_retried_until_it_is_lost() {
    let Some(on) = OnRedis::new().await else { return };
    let file = on.place.path("t").display().to_string();
    assert_eq!(on.run("acquire", &["--ticket-file", &file, "x"]).status, 0);
    retries_until_its_lock_is_lost(&on, &["--ticket-file", &file, "--for", "1h"]).await;
}

async fn a_member_of_a_redlock_that_is_down_delays_no_run() {
    let (Some(one), Some(two), Some(three)) =
        (OnRedis::new().await, OnRedis::new().await, OnRedis::new().await)
    else {
        return;
    };
    let server = &three.running.servers()[0];
    let addresses = [&one, &two, &three].map(|redis| redis.running.servers()[0].address().to_string());
    let url = format!("redis+redlock://{}", addresses.join(","));
    let file = one.place.path("quorum.toml");
    let members = ["a", "b", "c"].into_iter().zip(&addresses);
    let members: String =
        members.map(|(name, address)| format!("[stores.{name}]\nurl = 'redis://{address}'\n")).collect();
    let text = format!("default = 'quorum'\n{members}[stores.quorum]\nredlock = ['a', 'b', 'c']\n");
    fs::write(&file, text).unwrap();
    let run = |of_file: bool| {
        let began = Instant::now();
        let mut command = if of_file {
            let mut command = one.dlock_at("quorum", "run", &["y", "--", "echo", "ran"]);
            command.env("DLOCK_CONFIG", &file);
            command
        } else {
            one.dlock_at(&url, "run", &["x", "--", "echo", "ran"])
        };
        let ended = Ended::of(&mut command);
        assert_eq!((ended.status, &*ended.out, &*ended.err), (0, "ran\n", ""));
        began.elapsed()
    };
    for of_file in [false, true] {
        run(of_file);
        server.pause().await.unwrap();
        let hung = run(of_file);
        server.resume().await.unwrap();
        server.kill().await.unwrap();
        let killed = run(of_file);
        server.start(Data::Kept).await.unwrap();
        for (state, elapsed) in [("hung", hung), ("killed", killed)] {
            // A run that waits for the member when it connects, releases or ends takes 5 s.
            assert!(elapsed < Duration::from_secs(4), "with a {state} member the run took {elapsed:?}");
        }
    }
}

async fn a_command_that_is_cut_off_ends_before_the_next_one_begins() {
    let Some(on) = OnRedis::new().await else { return };
    let server = on.running.servers()[0].address();
    partition::the_command_ends_before_the_next_one_begins(
        &on.place,
        server,
        on.running.url(),
        &["--ttl", "9s"],
    )
    .await;
}

async fn two_leaders_never_run_while_leaders_are_killed_stopped_and_cut_off() {
    let Some(on) = OnRedis::new().await else { return };
    let server = on.running.servers()[0].address();
    let times = ClaimTimes::WITHOUT_SESSION;
    Contest::on_server(&on.place, server, on.running.url(), times).await.run();
}
