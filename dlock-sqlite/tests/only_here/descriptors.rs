//! Tests of a process without free file descriptors.

use std::process::Command;

use dlock_core::Error;
use tokio::runtime::Builder;

use super::{Place, connect};

/// Name of the environment variable with the URL for the limited process.
const VARIABLE: &str = "DLOCK_TEST_LIMITED";

/// Runs a process that may open `limit` files and tries the lock `x`. Returns its output.
fn limited(place: &Place, limit: u32) -> String {
    let command =
        format!("ulimit -n {limit}; exec \"$0\" --exact --nocapture descriptors::the_limited_process");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).arg(std::env::current_exe().unwrap()).env(VARIABLE, place.url());
    String::from_utf8(shell.output().unwrap().stdout).unwrap()
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
