//! The soak tool on real stores, briefly, and its arguments.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, ExitCode, Output, Stdio},
};

use dlock_conformance::{or_ignore, run_tests, tests};
use dlock_testbed::servers::redis::{self, Brand, Flavour};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn main() -> ExitCode {
    run_tests([tests! {
        sqlite_has_no_violation_beside_processes_that_are_paused_and_killed on no runtime,
        redis_has_no_violation_beside_all_faults_of_processes_and_connections,
        an_interrupted_run_is_reported on no runtime,
        a_store_of_one_process_is_refused on no runtime,
        faults_that_a_store_cannot_have_are_refused_with_those_that_it_can on no runtime,
        a_store_that_is_not_reachable_is_refused_without_its_password on no runtime,
    }])
}

fn soak(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock-soak"));
    command.args(arguments).env_remove("DLOCK_STORE");
    command
}

/// Runs the tool. Returns the exit status, stdout and stderr.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = soak(arguments).output().expect("the program can be run");
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (status.code(), stdout, stderr)
}

fn sqlite_in(folder: &TempDir) -> String {
    format!("sqlite://{}", folder.path().join("locks.db").display())
}

/// Asserts that the run was clean, that locks were granted, and that each of these faults occurred.
#[track_caller]
fn assert_clean(report: &Path, faults: &[&str]) {
    let text = fs::read_to_string(report.join("report.json")).expect("there is a report");
    let json: serde_json::Value = serde_json::from_str(&text).expect("the report is JSON");
    assert_eq!(json["violations"].as_array().map(Vec::len), Some(0), "{text}");
    assert!(json["acquisitions"]["granted"].as_u64().is_some_and(|count| count > 100), "{text}");
    for fault in faults {
        assert!(json["faults"][fault].as_u64().is_some_and(|count| count > 0), "no {fault}: {text}");
    }
    let history = fs::read_to_string(report.join("history.jsonl")).expect("there is a history");
    let grants = history.lines().filter(|line| line.contains(r#""event":"grant""#)).count();
    assert_eq!(Some(grants as u64), json["acquisitions"]["granted"].as_u64(), "the history is not complete");
    let timeline = fs::read_to_string(report.join("timeline.svg")).expect("there is a timeline");
    assert!(timeline.contains("<rect") && timeline.ends_with("</svg>\n"), "{timeline}");
    let text = fs::read_to_string(report.join("report.txt")).expect("there is a text");
    assert!(text.contains("violations     0"), "{text}");
}

fn sqlite_has_no_violation_beside_processes_that_are_paused_and_killed() {
    let folder = TempDir::new().expect("a folder can be created");
    let (url, report) = (sqlite_in(&folder), folder.path().join("report"));
    let report_text = report.to_str().expect("the folder is UTF-8");
    let arguments = ["--store", &url, "--for", "5s", "--ttl", "1s", "--seed", "1", "--report", report_text];
    let (status, stdout, stderr) = run(&arguments);
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    assert_clean(&report, &["pause", "kill"]);
}

async fn redis_has_no_violation_beside_all_faults_of_processes_and_connections() {
    let Some(server) = or_ignore(redis::start(Brand::Redis, Flavour::Standalone).await) else { return };
    let folder = TempDir::new().expect("a folder can be created");
    let report = folder.path().join("report");
    let report_text = report.to_str().expect("the folder is UTF-8");
    let faults = ["--faults", "pause,kill,cut,late"];
    let arguments = ["--for", "8s", "--ttl", "1s", "--seed", "2", "--store", server.url()];
    let (status, stdout, stderr) = run(&[&arguments[..], &faults, &["--report", report_text]].concat());
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    assert_clean(&report, &["pause", "kill", "cut", "late"]);
}

fn an_interrupted_run_is_reported() {
    let folder = TempDir::new().expect("a folder can be created");
    let url = sqlite_in(&folder);
    let mut command = soak(&["--store", &url, "--for", "1h", "--ttl", "1s", "--clients", "2"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be run");
    let mut stderr = BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines();
    let is_working = |line: &str| line.contains("all clients have connected");
    assert!(
        stderr.by_ref().map_while(Result::ok).any(|line| is_working(&line)),
        "the clients do not connect"
    );
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process has an id");
    kill_process(pid, Signal::INT).expect("the child was not waited for");
    let rest: Vec<_> = stderr.map_while(Result::ok).collect();
    let output = child.wait_with_output().expect("the child ends");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("acquisitions"), "there is no report: {stdout}{rest:?}");
}

fn a_store_of_one_process_is_refused() {
    let (status, _, stderr) = run(&["--store", "memory:", "--for", "1s"]);
    assert_eq!(status, Some(2), "{stderr}");
    assert!(stderr.contains("the processes do not share the store"), "{stderr}");
}

fn faults_that_a_store_cannot_have_are_refused_with_those_that_it_can() {
    let folder = TempDir::new().expect("a folder can be created");
    let url = sqlite_in(&folder);
    let (status, _, stderr) = run(&["--store", &url, "--faults", "pause,cut"]);
    assert_eq!(status, Some(2), "{stderr}");
    assert!(
        stderr.contains("has no server")
            && stderr.contains("possible with")
            && stderr.contains("pause, kill"),
        "{stderr}"
    );
}

fn a_store_that_is_not_reachable_is_refused_without_its_password() {
    let (status, stdout, stderr) = run(&["--store", "redis://:hunter2@127.0.0.1:1/0", "--for", "1s"]);
    assert_eq!(status, Some(2), "{stderr}");
    assert!(!stdout.contains("hunter2") && !stderr.contains("hunter2"), "{stdout}{stderr}");
}
