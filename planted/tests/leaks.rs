//! The case that detects leaks fails on a store that keeps memory for every name ever used, and
//! passes on a correct store. The case counts the bytes of the whole process, so this binary does
//! nothing else.

use std::{alloc::System, sync::Arc};

use cap::Cap;
use dlock_conformance::{InProcess, judge, table};
use dlock_planted::{Bug, BuggyStore};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Runs the case that detects leaks on a store with this bug. An error is the case's message.
fn run_case(bug: Bug) -> Result<(), String> {
    let store = BuggyStore::new(bug);
    let fixture = InProcess::new("counted", move || store.clone().into_store());
    let fixture = Arc::new(fixture.counting(|| HEAP.allocated()));
    let name = "client::the_memory_of_clients_does_not_grow_with_the_names_they_used";
    let (row, case) = table(&*fixture)
        .into_iter()
        .find(|(_, case)| case.to_string() == name)
        .expect("the case is in the table");
    judge(fixture, row, case)
}

#[test]
fn a_store_that_remembers_names_that_are_no_longer_used_is_caught() {
    assert_eq!(run_case(Bug::None), Ok(()), "the case fails on a store without a leak");
    let message =
        run_case(Bug::BellsAreKept).expect_err("the case passes on a store that keeps a bell for each name");
    assert!(
        message.contains("remember names that are no longer used"),
        "the message does not name the leak: {message}"
    );
}
