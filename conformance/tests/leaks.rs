//! A store that remembers what is over is caught, and one that does not is not. Bytes are counted for the whole process, so
//! this binary does nothing else.

use std::{alloc::System, sync::Arc};

use async_trait::async_trait;
use cap::Cap;
use dlock_conformance::{
    Clock, Fixture, judge, table,
    wrong::{Bug, WrongStore},
};
use dlock_core::{Result, driver::Store};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

struct Counted(WrongStore);

#[async_trait]
impl Fixture for Counted {
    fn name(&self) -> &str {
        "counted"
    }

    async fn connect(&self) -> Result<Store> {
        Ok(self.0.clone().into_store())
    }

    fn clock(&self) -> Clock {
        Clock::Paused
    }

    fn allocated(&self) -> Option<usize> {
        Some(HEAP.allocated())
    }
}

/// What the case that looks for leaks says of a store with this bug.
fn judged(bug: Bug) -> std::result::Result<(), String> {
    let fixture = Arc::new(Counted(WrongStore::new(bug)));
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
