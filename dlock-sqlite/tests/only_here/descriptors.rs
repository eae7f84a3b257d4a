//! Tests of a process without free file descriptors.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use dlock_core::{Error, Locks};
use tokio::{
    runtime::Builder,
    time::{sleep, timeout},
};

use super::{Place, SOON, connect};

/// Name of the environment variable with the URL for the limited process.
const VARIABLE: &str = "DLOCK_TEST_LIMITED";

/// Returns the command of a process that may open `limit` files and runs the function `name`.
fn with_limit(place: &Place, limit: u32, name: &str) -> Command {
    let command = format!("ulimit -n {limit}; exec \"$0\" --exact --nocapture descriptors::{name}");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).arg(std::env::current_exe().unwrap()).env(VARIABLE, place.url());
    shell
}

/// Runs a process that may open `limit` files and tries the lock `x`. Returns its output.
fn limited(place: &Place, limit: u32) -> String {
    let output = with_limit(place, limit, "the_limited_process").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn without_file_descriptors_the_error_is_temporary_and_names_the_limit() {
    let held = Place::new();
    let holder = held.client().await;
    let _guard = holder.mutex("x").lock().await.unwrap();
    let mut refused = 0;
    // With three descriptors or a few more, the system cannot load the program.
    for limit in 3..=40 {
        for (place, expected) in [(&held, "result: busy"), (&Place::new(), "result: granted")] {
            let output = limited(place, limit);
            let Some(result) = output.lines().find(|line| line.starts_with("result: ")) else {
                assert!(limit < 10, "the process with {limit} descriptors has no result: {output}");
                continue;
            };
            if result != expected {
                let is_named = result.contains("file descriptor") && result.contains("ulimit -n");
                assert!(
                    limit < 40 && result.contains("Unwritable") && is_named,
                    "{limit} descriptors: {result}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "each number of descriptors is enough");
}

/// Not a test. [`limited`] runs it in another process.
#[test]
fn the_limited_process() {
    let Ok(url) = std::env::var(VARIABLE) else { return };
    // This runtime needs no descriptor.
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let tried = runtime.block_on(async { connect(&url).await?.mutex("x").try_lock().await });
    match tried {
        Ok(Some(guard)) => {
            println!("result: granted");
            runtime.block_on(guard.release()).unwrap();
        }
        Ok(None) => println!("result: busy"),
        Err(error @ Error::Unwritable { .. }) => println!("result: Unwritable {error:?}"),
        Err(error) => println!("result: {error:?}"),
    }
}

/// Ttl of the locks of a process that uses up its descriptors.
const TTL: Duration = Duration::from_secs(3);

/// Waits until the lock has one waiter.
async fn until_queued(locks: &Locks, name: &str) {
    let queued = async {
        while locks.inspect(name).await.unwrap().is_none_or(|state| state.queue.len() != 1) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, queued).await.expect("no claim waits for the lock");
}

#[tokio::test]
async fn a_process_that_uses_up_its_descriptors_keeps_its_locks_and_its_place() {
    let place = Place::new();
    let waiter = place.client().await;
    let mut command = with_limit(&place, 64, "the_starved_process");
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut result = || lines.find_map(|line| line.strip_prefix("result: ").map(str::to_owned));
    assert_eq!(result().as_deref(), Some("holds"));
    // The process may be unable to wake this waiter, which makes an attempt in a third of its ttl.
    let next = waiter.mutex("y").lock().ttl(TTL).await.unwrap();
    assert_eq!(result().as_deref(), Some("x is kept, y is kept, released"));
    next.release().await.unwrap();
    assert_eq!(result().as_deref(), Some("x is handed over"));
    assert!(process.wait().unwrap().success());
}

/// Not a test. It runs in another process.
#[test]
fn the_starved_process() {
    let Ok(url) = std::env::var(VARIABLE) else { return };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (holder, waiter) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
        let [x, y] = ["x", "y"].map(|name| holder.mutex(name).lock().ttl(TTL));
        let (x, y) = (x.await.unwrap(), y.await.unwrap());
        let waits = waiter.mutex("x").lock().ttl(TTL);
        let work = async {
            until_queued(&holder, "x").await;
            println!("result: holds");
            until_queued(&holder, "y").await;
            let mut open = Vec::new();
            while let Ok(file) = File::open("/dev/null") {
                open.push(file);
            }
            sleep(TTL * 3).await;
            let state = |is_lost| if is_lost { "lost" } else { "kept" };
            let (x_state, y_state) = (state(x.is_lost()), state(y.is_lost()));
            y.release().await.unwrap();
            println!("result: x is {x_state}, y is {y_state}, released");
            x.release().await.unwrap();
            open
        };
        let (next, open) = tokio::join!(async { timeout(TTL * 6, waits).await }, work);
        next.expect("the waiter lost its place").unwrap().release().await.unwrap();
        println!("result: x is handed over");
        drop(open);
    });
}
