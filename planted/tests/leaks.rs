//! The case that looks for leaks fails on a store that keeps something for every name ever used, and passes on a store that
//! keeps nothing. The case counts the bytes of the whole process, so this binary does nothing else.

use std::{alloc::System, sync::Arc};

use cap::Cap;
use dlock_conformance::{InProcess, judge, table};
use dlock_planted::{Bug, WrongStore};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// What the case that looks for leaks says about a store with this bug.
fn judged(bug: Bug) -> Result<(), String> {
    let store = WrongStore::new(bug);
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
    assert_eq!(judged(Bug::None), Ok(()), "the case fails on a store without a leak");
    let said = judged(Bug::BellsStay).expect_err("a store that keeps a bell for each name passed");
    assert!(
        said.contains("remember names that nobody uses any more"),
        "the message does not name the leak: {said}"
    );
}
