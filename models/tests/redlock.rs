//! All states of the model of RedLock, and the changes of its rules that the checker finds.

use dlock_models::{
    check::{assert_finds, assert_holds},
    redlock::{Mutation, OVERLAP, REGAINED, RedLock},
};

#[test]
fn guards_never_overlap_if_members_remember_and_messages_are_lost() {
    assert_holds(&RedLock::LOSSY, 200_000);
}

#[test]
fn guards_never_overlap_if_clocks_of_members_gain_no_more_than_the_drift() {
    assert_holds(&RedLock::DRIFTING, 500_000);
}

#[test]
fn guards_never_overlap_if_a_forgetful_member_stays_away_for_a_ttl() {
    assert_holds(&RedLock::FORGETFUL, 500_000);
}

#[test]
fn no_renewal_confirms_a_broken_hold_after_another_grant() {
    assert_holds(&RedLock::BROKEN, 200_000);
}

#[test]
fn a_forgetful_member_that_returns_at_once_lets_guards_overlap_which_is_a_documented_limit() {
    assert_finds(&RedLock::FORGETFUL.with(Mutation::ReturnsAtOnce), OVERLAP);
}

#[test]
fn a_joined_newcomer_that_cannot_disown_lets_a_broken_hold_continue() {
    assert_finds(&RedLock::BROKEN.with(Mutation::NewcomersCannotDisown), REGAINED);
}

#[test]
fn newcomers_with_a_vote_at_once_let_a_broken_hold_continue() {
    assert_finds(&RedLock::BROKEN.with(Mutation::NewcomersVoteAtOnce), REGAINED);
}

#[test]
fn a_deadline_without_the_drift_lets_guards_overlap() {
    assert_finds(&RedLock::DRIFTING.with(Mutation::IgnoresDrift), OVERLAP);
}

#[test]
fn a_deadline_of_the_longest_granted_time_lets_guards_overlap() {
    assert_finds(&RedLock::LOSSY.with(Mutation::TakesLongestTime), OVERLAP);
}

#[test]
fn a_late_release_of_a_reused_id_lets_guards_overlap() {
    assert_finds(&RedLock::LOSSY.with(Mutation::ReusesIds), OVERLAP);
}

#[test]
fn a_majority_of_the_replies_lets_guards_overlap() {
    assert_finds(&RedLock::LOSSY.with(Mutation::CountsReplies), OVERLAP);
}

#[test]
fn votes_of_earlier_rounds_let_guards_overlap() {
    assert_finds(&RedLock::LOSSY.with(Mutation::CountsOldVotes), OVERLAP);
}
