//! Each program runs to its end in its default store, and prints what its first lines promise.

use std::{fs, process::Command};

fn run(program: &str, arguments: &[&str]) -> String {
    let output =
        Command::new(program).args(arguments).env_remove("DLOCK_STORE").output().expect("built by cargo");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program}: {}\n{stdout}{stderr}", output.status);
    stdout.into_owned()
}

#[test]
fn a_job_runs_once_per_period() {
    let stdout = run(env!("CARGO_BIN_EXE_job_once_a_period"), &[]);
    assert_eq!(stdout, "host one sends the report\nhost two has nothing to do: the report is sent\n");
}

#[test]
fn the_next_leader_begins_when_the_first_has_ended() {
    let stdout = run(env!("CARGO_BIN_EXE_leader"), &[]);
    let names: Vec<_> = stdout.lines().filter_map(|line| line.split(' ').next()).collect();
    let (first, second) = names.split_at(3);
    assert!(first.iter().all(|name| name == &first[0]), "{stdout}");
    assert!(
        second.len() == 3 && second.iter().all(|name| name == &second[0] && name != &first[0]),
        "{stdout}"
    );
}

#[test]
fn an_instance_forwards_a_write_to_the_leader() {
    let stdout = run(env!("CARGO_BIN_EXE_forwarded_writes"), &[]);
    let [first, second] = stdout.lines().collect::<Vec<_>>()[..] else { panic!("{stdout}") };
    assert!(first.contains(" has stored the order in term Some("), "{stdout}");
    assert_eq!(first, second, "two instances have led");
}

#[test]
fn a_stale_holder_cannot_write() {
    let stdout = run(env!("CARGO_BIN_EXE_fenced_stock"), &[]);
    assert!(stdout.contains("the holder takes a chair: true"), "{stdout}");
    assert!(stdout.contains("the earlier holder takes one too late: false"), "{stdout}");
}

#[test]
fn a_paused_transaction_keeps_the_next_holder_out() {
    let stdout = run(env!("CARGO_BIN_EXE_checked_in"), &[]);
    let expected = "the slow holder has the lock\n\
        the slow holder has committed, after the end of its hold: true\n\
        the next holder has the lock\n\
        the next holder has committed, after the end of its hold: false\n\
        2 pieces were taken\n";
    assert_eq!(stdout, expected);
}

#[test]
fn the_second_of_two_requests_gets_409_at_once() {
    let stdout = run(env!("CARGO_BIN_EXE_web_handler"), &[]);
    assert!(stdout.ends_with("HTTP/1.1 200 OK\nHTTP/1.1 409 Conflict\n"), "{stdout}");
}

#[test]
fn a_file_selects_the_store_of_each_lock() {
    let expected = "billing/42 is locked in the store `shared`\ncache/42 is locked in the store `local`\n";
    assert_eq!(run(env!("CARGO_BIN_EXE_from_config"), &[]), expected);
    let folder = tempfile::tempdir().expect("a folder for the test");
    let file = folder.path().join("dlock.toml");
    let locks = folder.path().join("locks.db");
    fs::write(&file, format!("[stores.main]\nurl = \"sqlite:{}\"\n", locks.display())).expect("a file");
    let expected = "billing/42 is locked in the store `main`\ncache/42 is locked in the store `main`\n";
    assert_eq!(run(env!("CARGO_BIN_EXE_from_config"), &[&file.display().to_string()]), expected);
    assert!(locks.exists(), "the locks are not in the configured file");
}
