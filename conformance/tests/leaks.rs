//! A store that remembers what is over is caught, and one that does not is not. Bytes are counted for the whole process, so
//! this binary does nothing else.

use std::{alloc::System, sync::Arc};

use cap::Cap;
use dlock_conformance::{
    InProcess, judge, table,
    wrong::{Bug, WrongStore},
};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// What the case that looks for leaks says of a store with this bug.
fn judged(bug: Bug) -> Result<(), String> {
    let store = WrongStore::new(bug);
    let fixture = InProcess::new("counted", move || store.clone().into_store());
    let fixture = Arc::new(fixture.counting(|| HEAP.allocated()));
    let name = "client::the_memory_of_clients_does_not_grow_with_the_names_they_used";
    let (row, case) =
        table(&*fixture).into_iter().find(|(_, case)| case.to_string() == name).expect("in the table");
    judge(fixture, row, case)
}

#[test]
fn a_store_that_remembers_what_is_over_is_caught() {
    assert_eq!(judged(Bug::None), Ok(()), "a store that forgets is accused");
    let said = judged(Bug::BellsStay).expect_err("a store that keeps a bell for each name passed");
    assert!(said.contains("remember names that nobody uses any more"), "does not name the leak: {said}");
}
