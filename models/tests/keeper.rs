//! All states of the model of the keeper, and the changes of its rules that the checker finds.

use dlock_models::{
    check::{assert_finds, assert_holds},
    keeper::{Keeper, MARGIN, Mutation, OVERLAP, STALE, TOKEN},
};

#[test]
fn guards_never_overlap_if_clocks_run_at_the_same_speed() {
    assert_holds(&Keeper::EXACT_CLOCKS, 100_000);
}

#[test]
fn no_guard_is_valid_in_the_margin_of_another() {
    assert_holds(&Keeper::MARGIN, 100_000);
}

#[test]
fn a_margin_makes_up_for_a_store_whose_clock_gains() {
    assert_holds(&Keeper::FAST_STORE, 200_000);
}

#[test]
fn a_token_refuses_stale_writes_even_if_the_store_has_lost_its_data() {
    assert_holds(&Keeper::FORGETFUL_STORE, 500_000);
}

#[test]
fn a_deadline_that_counts_from_the_reply_lets_guards_overlap() {
    assert_finds(&Keeper::EXACT_CLOCKS.with(Mutation::DeadlineFromReply), OVERLAP);
}

#[test]
fn a_clock_that_stops_in_a_suspend_lets_guards_overlap() {
    assert_finds(&Keeper::EXACT_CLOCKS.with(Mutation::StopsInSuspend), OVERLAP);
}

#[test]
fn a_reply_that_counts_for_a_later_request_lets_guards_overlap() {
    assert_finds(&Keeper::EXACT_CLOCKS.with(Mutation::AcceptsEarlierReply), OVERLAP);
}

#[test]
fn a_release_without_an_id_lets_guards_overlap() {
    assert_finds(&Keeper::EXACT_CLOCKS.with(Mutation::ReleasesAnyClaim), OVERLAP);
}

#[test]
fn a_fast_store_without_a_margin_lets_guards_overlap() {
    assert_finds(&Keeper::FAST_STORE.with(Mutation::NoMargin), OVERLAP);
}

#[test]
fn a_release_at_the_deadline_admits_another_holder_in_the_margin() {
    assert_finds(&Keeper::MARGIN.with(Mutation::ReleasesAtDeadline), MARGIN);
}

#[test]
fn tokens_that_begin_again_after_a_loss_of_data_fall() {
    assert_finds(&Keeper::FORGETFUL_STORE.with(Mutation::TokensBeginAgain), TOKEN);
}

#[test]
fn a_resource_that_does_not_compare_tokens_accepts_stale_writes() {
    assert_finds(&Keeper::FORGETFUL_STORE.with(Mutation::AcceptsEveryToken), STALE);
}
