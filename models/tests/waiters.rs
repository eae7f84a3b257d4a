//! All states of the model of the waiters, and the changes of its rules that the checker finds.

use dlock_models::{
    check::{assert_finds, assert_holds},
    waiters::{GRANTED, Mutation, Waiters},
};

#[test]
fn every_waiter_is_granted_in_spite_of_faults() {
    assert_holds(&Waiters::FAULTY, 30_000);
}

#[test]
fn a_waiter_that_sleeps_until_a_hint_is_never_granted() {
    assert_finds(&Waiters::FAULTY.with(Mutation::SleepsUntilHint), GRANTED);
}

#[test]
fn a_claim_without_a_ttl_keeps_waiters_out_forever() {
    assert_finds(&Waiters::FAULTY.with(Mutation::KeepsClaims), GRANTED);
}

#[test]
fn a_contest_that_ends_with_a_failure_grants_nothing() {
    assert_finds(&Waiters::FAULTY.with(Mutation::GivesUp), GRANTED);
}

#[test]
fn attempts_that_lose_their_place_keep_waiters_out() {
    assert_finds(&Waiters::FAULTY.with(Mutation::LosesPlace), GRANTED);
}
