//! The program's exit status and output, without measurements.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dlock-bench")).args(arguments).output().expect("it starts")
}

/// Runs the program on a fabricated file of results.
fn judge(lines: &[&str], arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let file: PathBuf = folder.path().join("results");
    fs::write(&file, lines.join("\n")).expect("it is written");
    bench(&[&["--judge", file.to_str().expect("UTF-8")], arguments].concat())
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the row of a target in the output.
fn row(output: &Output, target: &str) -> String {
    let stdout = stdout(output);
    let row = stdout.lines().find(|line| line.contains(target));
    row.unwrap_or_else(|| panic!("no row of {target} in\n{stdout}")).to_owned()
}

const MET: &str = r#"{"target":"ETCD_PAIR","value":{"median":1.05,"least":0.9,"greatest":1.2}}"#;
const MISSED: &str = r#"{"target":"ETCD_PAIR","value":{"median":1.06,"least":0.9,"greatest":1.2}}"#;
const HANDOFF_MET: &str = r#"{"target":"ETCD_HANDOFF","value":{"median":0.1,"least":0.1,"greatest":0.1}}"#;
const REQUESTS_MET: &str = r#"{"target":"ETCD_REQUESTS","value":{"median":2,"least":2,"greatest":2}}"#;
const NOT_MEASURED: &str = r#"{"target":"ETCD_PAIR","missing":"Go is not installed"}"#;
const PAIR: &str = "lock + release of a free lock";

#[test]
fn a_missed_target_fails_only_a_check() {
    let missed = judge(&[MISSED], &["etcd"]);
    assert!(row(&missed, PAIR).contains("missed"), "{}", stdout(&missed));
    assert_eq!(missed.status.code(), Some(0), "without --check the verdicts are information");
    assert_eq!(judge(&[MISSED], &["etcd", "--check"]).status.code(), Some(1), "the check has failed");
}

#[test]
fn a_check_passes_if_the_measured_targets_are_met() {
    let met = judge(&[MET], &["etcd", "--check"]);
    assert!(row(&met, PAIR).contains("met"), "{}", stdout(&met));
    assert!(row(&met, "hand-off").contains("not measured: the part has no result"), "{}", stdout(&met));
    assert_eq!(met.status.code(), Some(0), "targets without a result are not missed");
}

#[test]
fn require_all_refuses_a_target_that_was_not_measured() {
    let all = ["etcd", "--check", "--require-all"];
    let missing = judge(&[HANDOFF_MET, REQUESTS_MET, NOT_MEASURED], &all);
    assert!(row(&missing, PAIR).contains("not measured: Go is not installed"), "{}", stdout(&missing));
    assert_eq!(missing.status.code(), Some(1), "one target was not measured");
    let complete = judge(&[HANDOFF_MET, REQUESTS_MET, MET], &all);
    assert_eq!(complete.status.code(), Some(0), "{}", stdout(&complete));
}

#[test]
fn the_last_result_of_a_target_counts() {
    assert_eq!(judge(&[MISSED, MET], &["etcd", "--check"]).status.code(), Some(0));
    assert_eq!(judge(&[MET, MISSED], &["etcd", "--check"]).status.code(), Some(1));
}

#[test]
fn the_verdicts_of_a_part_are_those_of_its_targets() {
    let redis = judge(&[MISSED], &["redis", "--check"]);
    assert_eq!(redis.status.code(), Some(0), "etcd was not selected");
    assert!(!stdout(&redis).contains("etcd"), "{}", stdout(&redis));
    let all = judge(&[MISSED], &["--check"]);
    assert_eq!(all.status.code(), Some(1), "without a part all targets count");
    assert!(row(&all, "missed").starts_with("etcd"), "{}", stdout(&all));
}

#[test]
fn a_line_that_is_no_result_is_an_error_with_its_number() {
    let output = judge(&[MET, "nonsense"], &[]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("results:2:"), "{stderr}");
}

#[test]
fn an_unknown_part_is_refused_with_the_names_of_the_parts() {
    let output = bench(&["etdc"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    for part in ["engine", "etcd", "redis-held", "zookeeper-distant", "command"] {
        assert!(stderr.contains(part), "{part} is not in {stderr}");
    }
}

#[test]
fn an_unknown_option_is_refused() {
    assert_eq!(bench(&["--brief"]).status.code(), Some(2));
    assert_eq!(bench(&["--require-all"]).status.code(), Some(2), "it has a meaning with --check only");
    assert_eq!(bench(&["--judge", "x", "--quick"]).status.code(), Some(2), "--judge measures nothing");
}

#[test]
fn help_prints_the_usage_and_measures_nothing() {
    let output = bench(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let stdout = stdout(&output);
    assert!(stdout.contains("Usage: dlock-bench") && stdout.contains("redis-crowd"), "{stdout}");
}

#[test]
fn a_measured_part_ends_with_its_verdict() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("results");
    let file = file.to_str().expect("UTF-8");
    let output = bench(&["held", "--quick", "--results", file]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(row(&output, "memory of a held lock").contains("≤ 2048"), "{}", stdout(&output));
    let judged = bench(&["held", "--judge", file]);
    assert_eq!(row(&judged, "memory of a held lock"), row(&output, "memory of a held lock"));
}
