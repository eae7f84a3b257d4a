//! Each case finds a bug that `planted.rs` of this package has put into the code that it tests.

use dlock_interleavings::runner::{Time, finds};

use crate::{batch, composites, link, locks, seats, shared_read};

/// Declares a test for each bug, with the bug's name, the times in which it shows, and the case that
/// finds it.
macro_rules! bugs {
    ($($test:ident: $bug:literal, $time:ident, $case:path;)*) => {
        $(#[test]
        fn $test() {
            assert!(finds($bug, Time::$time, $case), "no interleaving has found: {}", $bug);
        })*
    };
}

bugs! {
    a_drop_that_notifies_only_a_waiting_keeper_is_found:
        "a drop notifies only a keeper that waits", WhenIdle, locks::handoff;
    a_guard_that_enters_after_the_check_is_found:
        "a guard enters after the check", WhenIdle, locks::reentry;
    a_grant_without_a_caller_that_is_not_released_is_found:
        "a grant without a caller is not released", WhenIdle, locks::dropped_acquisitions;
    a_taker_that_registers_after_the_check_is_found:
        "a taker registers after the check", WhenIdle, locks::takers;
    a_caller_that_draws_its_number_before_it_joins_is_found:
        "a caller draws its number before it joins", WhenIdle, batch::callers;
    a_waiter_that_is_notified_before_its_flag_is_set_is_found:
        "a waiter is notified before its flag is set", WhenIdle, seats::waiters;
    a_notified_waiter_that_leaves_and_notifies_no_other_is_found:
        "a notified waiter leaves and notifies no other", WhenIdle, seats::waiters;
    a_caller_that_opens_a_connection_without_a_second_look_is_found:
        "a caller opens a connection without a second look", WhenIdle, link::callers;
    an_error_that_ends_whichever_connection_is_open_is_found:
        "an error ends whichever connection is open", WhenIdle, link::late_error;
    a_read_that_is_recorded_after_the_look_for_others_is_found:
        "a read is recorded after the look for others", WhenIdle, shared_read::readers;
    several_locks_that_are_granted_after_the_check_are_found:
        "several locks are granted after the check", WhenIdle, composites::several;
    a_deadline_that_counts_from_the_reply_is_found:
        "a deadline counts from the reply", Anytime, locks::mutexes;
    a_majority_with_one_member_less_is_found:
        "a majority has one member less", WhenIdle, locks::majority;
    one_permit_more_is_found:
        "a semaphore has one permit more", WhenIdle, composites::permits;
    a_reader_that_shares_with_a_writer_is_found:
        "a reader shares the lock with a writer", WhenIdle, locks::readers_and_writers;
    a_reader_that_shares_with_a_writer_is_found_beside_a_downgrade:
        "a reader shares the lock with a writer", WhenIdle, composites::downgrade;
    a_hold_that_is_downgraded_too_early_is_found:
        "a hold is downgraded before its exclusive guard ends", WhenIdle, composites::owner_and_reader;
    a_hold_that_does_not_stay_taken_is_found:
        "a hold does not stay taken", WhenIdle, composites::stays_taken;
    a_client_that_ends_before_its_keepers_is_found:
        "a client ends before its keepers", WhenIdle, composites::close;
    a_loss_that_is_not_announced_is_found:
        "a loss is not announced", Anytime, locks::broken;
    a_token_that_does_not_look_for_an_earlier_loss_is_found:
        "a token does not look for an earlier loss", Anytime, locks::broken;
    callers_that_get_the_replies_of_others_are_found:
        "callers get the replies of others", WhenIdle, batch::dropped_callers;
    observers_that_are_not_notified_are_found:
        "observers are not notified", WhenIdle, composites::election;
}
