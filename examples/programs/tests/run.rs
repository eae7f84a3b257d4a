//! Each program runs to its end, in the store that it has without `DLOCK_STORE`, and says what its first lines promise.

use std::{fs, process::Command};

fn run(program: &str, arguments: &[&str]) -> String {
    let ran =
        Command::new(program).args(arguments).env_remove("DLOCK_STORE").output().expect("built by cargo");
    let (said, failed) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{program}: {}\n{said}{failed}", ran.status);
    said.into_owned()
}

#[test]
fn a_job_runs_once_a_period() {
    let said = run(env!("CARGO_BIN_EXE_job_once_a_period"), &[]);
    assert_eq!(said, "host one sends the report\nhost two has nothing to do: the report is sent\n");
}

#[test]
fn the_next_leader_begins_when_the_first_has_ended() {
    let said = run(env!("CARGO_BIN_EXE_leader"), &[]);
    let names: Vec<_> = said.lines().filter_map(|line| line.split(' ').next()).collect();
    let (first, second) = names.split_at(3);
    assert!(first.iter().all(|name| name == &first[0]), "{said}");
    assert!(second.len() == 3 && second.iter().all(|name| name == &second[0] && name != &first[0]), "{said}");
}

#[test]
fn a_stale_holder_cannot_write() {
    let said = run(env!("CARGO_BIN_EXE_fenced_stock"), &[]);
    assert!(said.contains("the holder takes a chair: true"), "{said}");
    assert!(said.contains("who held before takes one too late: false"), "{said}");
}

#[test]
fn the_second_of_two_requests_is_answered_at_once() {
    let said = run(env!("CARGO_BIN_EXE_web_handler"), &[]);
    assert!(said.ends_with("HTTP/1.1 200 OK\nHTTP/1.1 409 Conflict\n"), "{said}");
}

#[test]
fn a_file_says_which_lock_is_in_which_store() {
    let told = "billing/42 is locked in the store `all`\ncache/42 is locked in the store `here`\n";
    assert_eq!(run(env!("CARGO_BIN_EXE_from_config"), &[]), told);
    let folder = tempfile::tempdir().expect("a folder for the test");
    let file = folder.path().join("dlock.toml");
    let locks = folder.path().join("locks.db");
    fs::write(&file, format!("[stores.main]\nurl = \"sqlite:{}\"\n", locks.display())).expect("a file");
    let told = "billing/42 is locked in the store `main`\ncache/42 is locked in the store `main`\n";
    assert_eq!(run(env!("CARGO_BIN_EXE_from_config"), &[&file.display().to_string()]), told);
    assert!(locks.exists(), "the locks are elsewhere");
}
