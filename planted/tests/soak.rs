//! The soak tool finds planted bugs in a store that its client processes share, and no others.
//!
//! Each trial runs this binary again, as a program with the soak tool for this store, such as a third
//! party would write. The server is in the process of the trial.

use std::{
    env,
    process::{Command, ExitCode, Output},
};

use dlock_conformance::{run_tests, soak, tests};
use dlock_core::Registry;
use dlock_planted::{Bug, BuggyServer, LINE_DRIVER};

/// Environment variable that makes this binary the program with the soak tool.
const PROGRAM: &str = "DLOCK_TEST_SOAK";

fn main() -> ExitCode {
    if env::var_os(PROGRAM).is_some() {
        return soak::main(&Registry::new().with(LINE_DRIVER));
    }
    run_tests([tests! {
        a_correct_store_has_no_violation on no runtime,
        a_renewal_that_gives_the_lock_away_is_found_as_an_overlap on no runtime,
        tokens_that_do_not_grow_are_found on no runtime,
        a_claim_that_outlives_its_process_is_found_as_a_leftover on no runtime,
    }])
}

/// Runs the soak tool on a store with this bug. Returns the exit status and the report.
fn run(bug: Bug, arguments: &str) -> (Option<i32>, String) {
    let server = BuggyServer::start_buggy(bug);
    let mut command = Command::new(env::current_exe().expect("this binary exists"));
    command.env(PROGRAM, "1").arg("--store").arg(format!("line://{}", server.address()));
    command.args(["--seed", "42", "--clients", "3", "--ttl", "1s"]);
    let Output { status, stdout, stderr } =
        command.args(arguments.split_whitespace()).output().expect("this binary can be run");
    let report = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (status.code(), report)
}

/// Asserts that the tool reports this rule, with an excerpt and the seed.
#[track_caller]
fn assert_found(bug: Bug, arguments: &str, rule: &str, event: &str) {
    let (status, report) = run(bug, arguments);
    assert_eq!(status, Some(1), "{report}");
    for expected in [rule, event, "--seed 42"] {
        assert!(report.contains(expected), "`{expected}` is not in:\n{report}");
    }
}

fn a_correct_store_has_no_violation() {
    let (status, report) = run(Bug::None, "--for 6s --faults pause,kill,cut,late");
    assert_eq!(status, Some(0), "{report}");
    assert!(!report.contains("faults         none"), "{report}");
}

fn a_renewal_that_gives_the_lock_away_is_found_as_an_overlap() {
    // One of 48 holds is long enough to be renewed. These are about a thousand holds.
    let arguments = "--names 24 --tasks 48 --for 6s --no-faults";
    let rule = "claims that exclude each other overlap";
    assert_found(Bug::RenewalGivesWay, arguments, rule, "is granted with token");
}

fn tokens_that_do_not_grow_are_found() {
    assert_found(
        Bug::TokenNeverGrows,
        "--for 2s --no-faults",
        "tokens are out of order",
        "is granted with token",
    );
}

fn a_claim_that_outlives_its_process_is_found_as_a_leftover() {
    let arguments = "--for 4s --faults kill --slack 2s";
    assert_found(
        Bug::ExpiryIgnored,
        arguments,
        "a claim or a task is left behind",
        "is not free: a mutex is refused",
    );
}
