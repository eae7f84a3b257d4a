//! A client process, on the memory store.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

fn client(lock: &str, requests: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dlock-bench"))
        .args(["--client", lock, "--url", "memory:"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("a pipe").write_all(requests.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_client_measures_on_request_and_ends_with_its_input() {
    for lock in ["mutex", "fair"] {
        let output = client(lock, "a 3\nb 1\n");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines: Vec<Vec<_>> = stdout.lines().map(|line| line.split(' ').collect()).collect();
        assert_eq!(lines.iter().map(|line| line[0]).collect::<Vec<_>>(), ["ready", "took", "took"]);
        assert_eq!(lines.iter().map(|line| line.len() - 1).collect::<Vec<_>>(), [0, 3, 1], "{stdout}");
        assert!(lines[1..].iter().all(|line| line[1..].iter().all(|nanos| nanos.parse::<u64>().is_ok())));
    }
}

#[test]
fn a_client_that_cannot_connect_says_why() {
    let output = client("get-lock", "");
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("dlock-bench:"), "{output:?}");
}
