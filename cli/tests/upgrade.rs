//! Rolling upgrades: the command of this build and that of an earlier version use one store at the
//! same time, each in both roles.
//!
//! `scripts/upgrade REVISION` builds the earlier command and runs these tests. `DLOCK_PREVIOUS` is
//! the path of that command. Without it the tests are ignored.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "the tests start processes, not tasks")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "cli/place.rs"]
mod place;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
};

use dlock_conformance::Unreachable;
use dlock_testbed::servers::{Running, etcd, mysql, postgres, redis, zookeeper};
use libtest_mimic::{Arguments, Trial};
use place::{Ended, Place, Started, until};
use rustix::process::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;

/// A part of what a store can do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The store keeps a queue, in which readers and permits wait too.
    Queue,
    /// A hold can outlive its process.
    Tickets,
}

type Scenario = fn(&Roles<'_>);

const SCENARIOS: &[(&str, Option<Need>, Scenario)] = &[
    ("a_holder_of_one_version_excludes_and_wakes_the_other", None, excludes_and_wakes),
    ("tokens_grow_while_the_versions_alternate", None, tokens_grow),
    ("a_lock_whose_holder_is_killed_is_free_for_the_other_version", None, killed_holder),
    ("readers_of_both_versions_exclude_a_writer", Some(Need::Queue), readers),
    ("permits_of_both_versions_have_one_limit", Some(Need::Queue), permits),
    ("waiters_of_both_versions_are_granted_in_order", Some(Need::Queue), order),
    ("a_hold_is_shown_and_broken_by_the_other_version", Some(Need::Queue), shown_and_broken),
    ("a_ticket_is_used_and_released_by_the_other_version", Some(Need::Tickets), tickets),
    ("a_mark_of_one_version_counts_for_the_other", Some(Need::Tickets), marks),
];

/// A store that both versions use.
struct Target {
    name: &'static str,
    url: String,
    can: &'static [Need],
    /// Stops the server when it is dropped.
    _server: Option<Running>,
}

/// The store, the lock and the commands of a scenario.
struct Roles<'a> {
    place: &'a Place,
    store: &'a str,
    /// Name of a lock that no other scenario uses.
    lock: &'a str,
    /// The command that acquires first.
    first: &'a Path,
    /// The command that finds the lock taken.
    second: &'a Path,
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let Some(previous) = env::var_os("DLOCK_PREVIOUS").map(PathBuf::from) else {
        let reason = "upgrade: ignored, DLOCK_PREVIOUS is not set; run scripts/upgrade REVISION";
        let trial = Trial::test(reason, || Ok(())).with_ignored_flag(true);
        return libtest_mimic::run(&arguments, vec![trial]).exit_code();
    };
    let runtime = Runtime::new().expect("a runtime");
    // Outlives the trials, which use the servers.
    let stores = runtime.block_on(stores());
    let mut trials = Vec::new();
    for store in stores {
        match store.map(Arc::new) {
            Ok(target) => trials.extend(trials_on(&target, &previous)),
            Err(unreachable) => {
                let name = format!("upgrade on {}", unreachable.name);
                trials.push(unreachable.trial(&name));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

async fn stores() -> Vec<Result<Target, Unreachable>> {
    const ALL: &[Need] = &[Need::Queue, Need::Tickets];
    let on = |name, can, params: &str, server: Result<Running, Unreachable>| {
        let server = server?;
        Ok(Target { name, url: format!("{}{params}", server.url()), can, _server: Some(server) })
    };
    let mariadb = || mysql::start(mysql::Brand::Mariadb, mysql::Flavour::Standalone);
    let postgres = || postgres::start(postgres::Version::V17, postgres::Flavour::Standalone);
    vec![
        // Each scenario has a file of its own.
        Ok(Target { name: "sqlite", url: String::new(), can: ALL, _server: None }),
        on("redis", ALL, "", redis::start(redis::Brand::Redis, redis::Flavour::Standalone).await),
        on(
            "zookeeper",
            &[Need::Queue],
            "?session=6s",
            zookeeper::start(zookeeper::Flavour::Standalone).await,
        ),
        on("etcd", ALL, "?session=6s", etcd::start(etcd::Flavour::Standalone).await),
        on("mariadb", ALL, "", mariadb().await),
        on("mariadb-session", &[], "?mode=session", mariadb().await),
        on("postgres", ALL, "", postgres().await),
        on("postgres-session", &[], "?mode=session", postgres().await),
    ]
}

/// Returns each scenario that the store can run, with the roles in both orders.
fn trials_on(target: &Arc<Target>, previous: &Path) -> Vec<Trial> {
    if !target.url.is_empty() && is_refused(previous, &target.url) {
        let reason = format!("{}: ignored, the earlier version does not support its URL", target.name);
        return vec![Trial::test(reason, || Ok(())).with_ignored_flag(true)];
    }
    let scenarios =
        SCENARIOS.iter().filter(|(_, need, _)| need.is_none_or(|need| target.can.contains(&need)));
    let trial = |(name, _, scenario): &'static (&str, Option<Need>, Scenario)| {
        let (target, previous) = (Arc::clone(target), previous.to_owned());
        Trial::test(format!("{}::{name}", target.name), move || {
            let current = Path::new(env!("CARGO_BIN_EXE_dlock"));
            for (lock, first, second) in
                [("old-first", &*previous, current), ("new-first", current, &*previous)]
            {
                let place = Place::new();
                let file = format!("sqlite:{}", place.path("locks.db").display());
                let store = if target.url.is_empty() { &file } else { &target.url };
                scenario(&Roles { place: &place, store, lock: &format!("{lock}/{name}"), first, second });
            }
            Ok(())
        })
    };
    scenarios.map(trial).collect()
}

/// Returns whether this version refuses the URL, for example because its mode is newer.
fn is_refused(program: &Path, url: &str) -> bool {
    const CONFIG: i32 = 78;
    let place = Place::new();
    Ended::of(&mut place.command(program, ["try", "--store", url, "probe"])).status == CONFIG
}

impl Roles<'_> {
    /// Returns `dlock VERB --store URL ARGS` of a version.
    fn command(&self, program: &Path, verb: &str, args: &[&str]) -> Command {
        self.place.command(program, [&[verb, "--store", self.store], args].concat())
    }

    fn run(&self, program: &Path, verb: &str, args: &[&str]) -> Ended {
        Ended::of(&mut self.command(program, verb, args))
    }

    /// Starts a command that holds the lock until its stdin is closed. Its first line is the token.
    fn hold(&self, program: &Path, options: &[&str]) -> Started {
        let args = [options, &[self.lock, "-c", "echo $DLOCK_TOKEN; read _; true"]].concat();
        let started = Started::of(&mut self.command(program, "run", &args));
        assert!(started.first.parse::<u64>().is_ok(), "not granted: {:?}", started.end());
        started
    }

    /// Starts a command that waits for the lock and prints a word.
    fn wait(&self, program: &Path, options: &[&str], word: &str) -> Child {
        let args = [options, &[self.lock, "--", "echo", word]].concat();
        self.command(program, "run", &args).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Asserts that a try ends with this status.
    #[track_caller]
    fn assert_try(&self, program: &Path, options: &[&str], status: i32) {
        let args = [options, &[self.lock, "--", "true"]].concat();
        let ended = self.run(program, "try", &args);
        assert_eq!(ended.status, status, "{}: {}", program.display(), ended.err);
    }

    /// Returns the lock's state, as this version shows it.
    fn state(&self, program: &Path) -> Value {
        serde_json::from_str(&self.run(program, "inspect", &["--json", self.lock]).out).expect("JSON")
    }

    /// Waits until this version shows `count` waiters.
    fn until_queued(&self, program: &Path, count: usize) {
        until(&format!("{count} wait for {}", self.lock), || {
            self.state(program)["queue"].as_array().unwrap().len() == count
        });
    }
}

fn output(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const BUSY: i32 = 75;

fn excludes_and_wakes(roles: &Roles<'_>) {
    let held = roles.hold(roles.first, &[]);
    roles.assert_try(roles.second, &[], BUSY);
    let waiter = roles.wait(roles.second, &[], "mine");
    roles.assert_try(roles.second, &[], BUSY);
    assert_eq!(held.let_go().status, 0);
    assert_eq!(output(waiter), "mine\n");
    roles.assert_try(roles.first, &[], 0);
}

fn tokens_grow(roles: &Roles<'_>) {
    let mut last = 0;
    for round in 0..6 {
        let program = if round % 2 == 0 { roles.first } else { roles.second };
        let held = roles.hold(program, &[]);
        let token: u64 = held.first.parse().unwrap();
        assert!(token > last, "token {token} of {} after {last}", program.display());
        last = token;
        assert_eq!(held.let_go().status, 0);
    }
}

fn killed_holder(roles: &Roles<'_>) {
    let held = roles.hold(roles.first, &["--ttl", "3s"]);
    held.signal(Signal::KILL);
    held.end();
    assert_eq!(output(roles.wait(roles.second, &[], "mine")), "mine\n");
}

fn readers(roles: &Roles<'_>) {
    let held = roles.hold(roles.first, &["--read"]);
    roles.assert_try(roles.second, &["--read"], 0);
    roles.assert_try(roles.second, &["--write"], BUSY);
    assert_eq!(held.let_go().status, 0);
    let held = roles.hold(roles.second, &["--write"]);
    roles.assert_try(roles.first, &["--read"], BUSY);
    assert_eq!(held.let_go().status, 0);
    roles.assert_try(roles.first, &["--write"], 0);
}

fn permits(roles: &Roles<'_>) {
    let two = ["--slots", "2"];
    let one = roles.hold(roles.first, &two);
    let other = roles.hold(roles.second, &two);
    roles.assert_try(roles.first, &two, BUSY);
    roles.assert_try(roles.second, &two, BUSY);
    assert_eq!(one.let_go().status, 0);
    roles.assert_try(roles.second, &two, 0);
    assert_eq!(other.let_go().status, 0);
}

fn order(roles: &Roles<'_>) {
    let held = roles.hold(roles.first, &["--fair"]);
    let log = roles.place.path("order");
    let mut waiters = Vec::new();
    for (number, program) in [roles.second, roles.first, roles.second, roles.first].into_iter().enumerate() {
        let text = format!("echo {number} >> {}", log.display());
        let mut command = roles.command(program, "run", &["--fair", roles.lock, "-c", &text]);
        waiters.push(command.stdout(Stdio::piped()).spawn().unwrap());
        // The other version must show the waiters of this one.
        roles.until_queued(if program == roles.first { roles.second } else { roles.first }, number + 1);
    }
    assert_eq!(held.let_go().status, 0);
    waiters.into_iter().for_each(|waiter| drop(output(waiter)));
    assert_eq!(roles.place.read("order"), "0\n1\n2\n3\n");
}

fn shown_and_broken(roles: &Roles<'_>) {
    let held = roles.hold(roles.first, &["--who", "the first"]);
    let state = roles.state(roles.second);
    assert_eq!(state["holders"][0]["who"], "the first", "{state}");
    assert_eq!(state["holders"][0]["kind"], "mutex", "{state}");
    // Redis does not store the token of a mutex in its hold.
    let token = &state["holders"][0]["token"];
    assert!(token.is_null() || token.as_u64() == held.first.parse().ok(), "{state}");
    let ended = roles.run(roles.second, "unlock", &["--force", roles.lock]);
    assert_eq!(ended.status, 0, "{}", ended.err);
    // The command is stopped because its lock is lost.
    assert_eq!(held.end().status, 74);
    roles.assert_try(roles.second, &[], 0);
}

fn tickets(roles: &Roles<'_>) {
    let acquire = || {
        let acquired = roles.run(roles.first, "acquire", &["--for", "10m", roles.lock]);
        assert_eq!(acquired.status, 0, "{}", acquired.err);
        acquired.out.trim().to_owned()
    };
    let ticket = acquire();
    roles.assert_try(roles.second, &[], BUSY);
    let used = roles.run(roles.second, "run", &["--ticket", &ticket, roles.lock, "--", "true"]);
    assert_eq!(used.status, 0, "{}", used.err);
    roles.assert_try(roles.first, &[], 0);
    let ticket = acquire();
    roles.assert_try(roles.second, &[], BUSY);
    let released = roles.run(roles.second, "release", &[&ticket]);
    assert_eq!(released.status, 0, "{}", released.err);
    roles.assert_try(roles.first, &[], 0);
}

fn marks(roles: &Roles<'_>) {
    let once = |program| roles.run(program, "run", &["--once", "monday", roles.lock, "--", "echo", "ran"]);
    let ran = once(roles.first);
    assert_eq!((ran.status, &*ran.out), (0, "ran\n"), "{}", ran.err);
    let done = once(roles.second);
    assert_eq!((done.status, &*done.out), (0, ""), "{}", done.err);
}
