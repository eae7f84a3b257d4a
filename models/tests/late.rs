//! All states of the model of late requests, and the changes of its rules that the checker finds.

use dlock_models::{
    check::{assert_finds, assert_holds},
    late::{CREATED, EXTENDED, FREED, Late, Mutation, RENAMED, SHORTENED},
};

#[test]
fn a_late_request_changes_no_hold() {
    assert_holds(&Late::RULES, 200_000);
}

#[test]
fn a_late_attempt_without_a_deadline_creates_a_hold() {
    assert_finds(&Late::RULES.with(Mutation::AttemptsWithoutDeadline), CREATED);
}

#[test]
fn a_late_detachment_without_a_deadline_hands_a_hold_over() {
    assert_finds(&Late::RULES.with(Mutation::DetachesWithoutDeadline), RENAMED);
}

#[test]
fn a_late_resumption_without_a_deadline_takes_a_hold_from_its_ticket() {
    assert_finds(&Late::RULES.with(Mutation::ResumesWithoutDeadline), RENAMED);
}

#[test]
fn a_deadline_without_the_error_of_the_clock_lets_a_late_detachment_hand_a_hold_over() {
    assert_finds(&Late::RULES.with(Mutation::IgnoresClockError), RENAMED);
}

#[test]
fn a_late_renewal_without_an_id_extends_the_next_hold() {
    assert_finds(&Late::RULES.with(Mutation::RenewsAnyHold), EXTENDED);
}

#[test]
fn a_renewal_of_a_deleted_claim_creates_a_hold() {
    assert_finds(&Late::RULES.with(Mutation::RenewsDeletedClaim), CREATED);
}

#[test]
fn a_release_without_an_id_frees_a_detached_hold() {
    assert_finds(&Late::RULES.with(Mutation::ReleasesAnyHold), FREED);
}

#[test]
fn a_detached_hold_that_keeps_its_id_is_extended_by_a_late_renewal() {
    assert_finds(&Late::RULES.with(Mutation::DetachKeepsId), EXTENDED);
}

#[test]
fn a_renewal_that_sets_the_time_shortens_a_detached_hold_that_keeps_its_id() {
    assert_finds(&Late::RULES.with(Mutation::RenewalShortens), SHORTENED);
}

#[test]
fn a_release_by_ticket_after_a_failed_hand_back_frees_a_detached_hold() {
    assert_finds(&Late::RULES.with(Mutation::FreesTicketAfterHandBack), FREED);
}

#[test]
fn a_claim_that_is_not_released_once_more_leaves_the_hold_of_an_attempt_that_was_given_up_early() {
    assert_finds(&Late::RULES.with(Mutation::NeverSettles), CREATED);
}

#[test]
fn a_resumption_that_was_given_up_early_takes_a_hold_that_is_not_returned_to_its_ticket() {
    assert_finds(&Late::RULES.with(Mutation::SettlesWithoutTicket), RENAMED);
}

#[test]
fn a_claim_that_is_released_too_early_takes_a_hold_that_another_client_has_handed_back() {
    assert_finds(&Late::RULES.with(Mutation::ReleasesBeforeItSettles), RENAMED);
}
