//! Each case finds a race that `planted.rs` of this package has put into the code that it tests.

use dlock_interleavings::runner::{Time, finds};

use crate::{batch, composites, link, locks, seats, shared_read};

/// Declares a test for each race, with the race's name and the case that finds it.
macro_rules! races {
    ($($test:ident: $race:literal, $case:path;)*) => {
        $(#[test]
        fn $test() {
            assert!(finds($race, Time::WhenIdle, $case), "no interleaving has found: {}", $race);
        })*
    };
}

races! {
    a_drop_that_notifies_only_a_waiting_keeper_is_found:
        "a drop notifies only a keeper that waits", locks::handoff;
    a_guard_that_enters_after_the_check_is_found:
        "a guard enters after the check", locks::reentry;
    a_grant_without_a_caller_that_is_not_released_is_found:
        "a grant without a caller is not released", locks::dropped_acquisitions;
    a_taker_that_registers_after_the_check_is_found:
        "a taker registers after the check", locks::takers;
    a_caller_that_draws_its_number_before_it_joins_is_found:
        "a caller draws its number before it joins", batch::callers;
    a_waiter_that_is_notified_before_its_flag_is_set_is_found:
        "a waiter is notified before its flag is set", seats::waiters;
    a_notified_waiter_that_leaves_and_notifies_no_other_is_found:
        "a notified waiter leaves and notifies no other", seats::waiters;
    a_caller_that_opens_a_connection_without_a_second_look_is_found:
        "a caller opens a connection without a second look", link::callers;
    an_error_that_ends_whichever_connection_is_open_is_found:
        "an error ends whichever connection is open", link::late_error;
    a_read_that_is_recorded_after_the_look_for_others_is_found:
        "a read is recorded after the look for others", shared_read::readers;
    several_locks_that_are_granted_after_the_check_are_found:
        "several locks are granted after the check", composites::several;
}
