use std::time::Duration;

use dlock_core::{Kind, LostReason, Token};
use tokio::time::{Instant, advance};

use super::{AcquisitionId, Counts, History, Rule};

/// A history that a test writes by hand. Times are in seconds.
struct Story(History);

impl Story {
    fn new() -> Self {
        Self(History::new())
    }

    fn request(&self, name: &str, kind: Kind) -> AcquisitionId {
        self.0.invokes(name, kind, Duration::from_secs(30))
    }

    fn granted(&self, acquisition: AcquisitionId, token: u64, valid_for: u64) {
        self.0.granted(acquisition, Token::new(token), Instant::now() + Duration::from_secs(valid_for));
    }

    fn grant(&self, name: &str, kind: Kind, token: u64, valid_for: u64) -> AcquisitionId {
        let acquisition = self.request(name, kind);
        self.granted(acquisition, token, valid_for);
        acquisition
    }

    fn release(&self, acquisition: AcquisitionId) {
        self.0.releases(acquisition);
        self.0.released(acquisition);
    }

    fn rules(&self) -> Vec<Rule> {
        self.0.check(&Counts::default()).into_iter().map(|violation| violation.rule).collect()
    }
}

async fn pass(seconds: u64) {
    advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn holds_that_follow_each_other_and_readers_that_share_keep_every_rule() {
    let story = Story::new();
    let writer = story.grant("x", Kind::Write, 1, 30);
    story.0.wrote(writer, 0, true);
    pass(10).await;
    story.0.holds(writer, Instant::now() + Duration::from_secs(30));
    let (waiting, elsewhere) = (story.request("x", Kind::Read), story.grant("y", Kind::Mutex, 1, 30));
    story.0.downgrades(writer);
    story.granted(waiting, 2, 30);
    pass(5).await;
    story.release(writer);
    story.release(waiting);
    // Its time is over, so another contender gets the lock.
    let silent = story.grant("x", Kind::Fair, 3, 30);
    pass(30).await;
    let next = story.grant("x", Kind::Mutex, 4, 30);
    pass(1).await;
    story.0.lost(silent, LostReason::Expired);
    story.0.wrote(next, 1, true);
    story.0.wrote(silent, 1, false);
    story.release(silent);
    story.release(next);
    story.release(elsewhere);
    assert_eq!(story.0.check(&Counts::default()), []);
    let counts = Counts {
        grants: 5,
        shared_reads: 1,
        shared_permits: 0,
        losses: 1,
        accepted_writes: 2,
        refused_writes: 1,
    };
    assert_eq!(story.0.counts(), counts);
}

#[tokio::test(start_paused = true)]
async fn a_grant_while_another_guard_still_claims_violates_exclusiveness() {
    for (first, second) in [
        (Kind::Mutex, Kind::Fair),
        (Kind::Read, Kind::Write),
        (Kind::Write, Kind::Read),
        (Kind::Fair, Kind::Fair),
        (Kind::Permit, Kind::Read),
        (Kind::Mutex, Kind::Permit),
    ] {
        let story = Story::new();
        let (early, late) = (story.request("x", first), story.request("x", second));
        story.granted(early, 1, 30);
        pass(29).await;
        story.granted(late, 2, 30);
        assert_eq!(story.rules(), [Rule::Exclusive], "{first} {second}");
    }
}

#[tokio::test(start_paused = true)]
async fn more_permits_than_the_smallest_limit_among_their_holders_violate_it() {
    for (limits, broken) in [
        (&[2, 2][..], false),
        (&[2, 2, 2], true),
        (&[4, 4, 4, 3], true),
        (&[1, 4], true),
        (&[4, 4, 4, 4], false),
    ] {
        let story = Story::new();
        let ttl = Duration::from_secs(30);
        let acquisitions: Vec<_> =
            limits.iter().map(|limit| story.0.invokes_permit("x", *limit, ttl)).collect();
        for (token, acquisition) in (1..).zip(&acquisitions) {
            story.granted(*acquisition, token, 30);
            pass(1).await;
        }
        assert_eq!(story.rules(), if broken { vec![Rule::Limit] } else { vec![] }, "{limits:?}");
        assert_eq!(story.0.counts().shared_permits, limits.len() - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_follows_a_released_permit_keeps_the_limit() {
    let story = Story::new();
    let (ttl, mut held) = (Duration::from_secs(30), Vec::new());
    for token in 1..10 {
        if token > 2 {
            story.release(held.remove(0));
        }
        let acquisition = story.0.invokes_permit("x", 2, ttl);
        story.granted(acquisition, token, 30);
        held.push(acquisition);
        pass(1).await;
    }
    assert_eq!(story.rules(), []);
}

#[tokio::test(start_paused = true)]
async fn a_claim_hidden_behind_a_shorter_one_is_still_seen() {
    let story = Story::new();
    let acquisitions = [Kind::Read, Kind::Read, Kind::Write].map(|kind| story.request("x", kind));
    story.granted(acquisitions[0], 1, 90);
    story.granted(acquisitions[1], 2, 5);
    pass(10).await;
    story.granted(acquisitions[2], 3, 30);
    assert_eq!(story.rules(), [Rule::Exclusive]);
}

#[tokio::test(start_paused = true)]
async fn two_holds_at_one_instant_of_a_paused_clock_violate_exclusiveness() {
    let story = Story::new();
    let acquisitions = [story.request("x", Kind::Mutex), story.request("x", Kind::Mutex)];
    story.granted(acquisitions[0], 1, 30);
    story.granted(acquisitions[1], 2, 30);
    story.release(acquisitions[0]);
    assert_eq!(story.rules(), [Rule::Exclusive]);
}

#[tokio::test(start_paused = true)]
async fn a_force_released_lock_may_be_claimed_until_the_loss_is_reported() {
    let story = Story::new();
    let held = story.grant("x", Kind::Mutex, 1, 30);
    let waiting = story.request("x", Kind::Mutex);
    pass(1).await;
    let force = story.0.breaks("x");
    story.0.broken(force, true);
    story.granted(waiting, 2, 30);
    pass(1).await;
    story.0.lost(held, LostReason::Deleted);
    assert_eq!(story.rules(), []);
    // Contenders that came later must exclude each other.
    story.release(waiting);
    let later = [story.request("x", Kind::Mutex), story.request("x", Kind::Mutex)];
    story.granted(later[0], 3, 30);
    story.granted(later[1], 4, 30);
    assert_eq!(story.rules(), [Rule::Exclusive]);
}

#[tokio::test(start_paused = true)]
async fn a_force_released_holder_that_claims_for_more_than_a_ttl_was_not_notified() {
    let story = Story::new();
    let robbed = story.grant("x", Kind::Mutex, 1, 30);
    let force = story.0.breaks("x");
    story.0.broken(force, true);
    story.0.holds(robbed, Instant::now() + Duration::from_secs(30));
    assert_eq!(story.rules(), []);
    pass(1).await;
    story.0.holds(robbed, Instant::now() + Duration::from_secs(30));
    assert_eq!(story.rules(), [Rule::LossReported]);
}

#[tokio::test(start_paused = true)]
async fn two_accepted_writes_upon_the_same_value_are_a_lost_update() {
    let story = Story::new();
    for token in 1..=2 {
        let acquisition = story.grant("x", Kind::Mutex, token, 30);
        story.0.wrote(acquisition, 0, true);
        story.release(acquisition);
    }
    assert_eq!(story.rules(), [Rule::Fence]);
}

#[tokio::test(start_paused = true)]
async fn an_accepted_write_with_an_older_token_violates_the_fence() {
    let story = Story::new();
    let stale = story.grant("x", Kind::Mutex, 1, 30);
    pass(30).await;
    let next = story.grant("x", Kind::Mutex, 2, 30);
    story.0.wrote(next, 0, true);
    story.0.wrote(stale, 1, true);
    assert_eq!(story.rules(), [Rule::Fence]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_of_a_guard_that_claims_violates_the_fence() {
    let story = Story::new();
    let acquisition = story.grant("x", Kind::Mutex, 1, 30);
    story.0.wrote(acquisition, 0, false);
    assert_eq!(story.rules(), [Rule::Fence]);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_not_above_those_of_earlier_holds_is_out_of_order() {
    let story = Story::new();
    let before = story.grant("x", Kind::Mutex, 7, 30);
    story.release(before);
    story.grant("x", Kind::Mutex, 6, 30);
    // One violation from claim to claim, and one from grant to request.
    assert_eq!(story.rules(), [Rule::TokenOrder, Rule::TokenOrder]);
}

#[tokio::test(start_paused = true)]
async fn a_waiters_token_below_that_of_the_hold_before_it_is_out_of_order() {
    let story = Story::new();
    let waiting = story.request("x", Kind::Mutex);
    let before = story.grant("x", Kind::Mutex, 2, 30);
    story.release(before);
    story.granted(waiting, 1, 30);
    assert_eq!(story.rules(), [Rule::TokenOrder]);
}

#[tokio::test(start_paused = true)]
async fn two_readers_with_the_same_token_are_out_of_order() {
    let story = Story::new();
    let readers = [story.request("x", Kind::Read), story.request("x", Kind::Read)];
    readers.into_iter().for_each(|reader| story.granted(reader, 1, 30));
    assert_eq!(story.rules(), [Rule::TokenOrder]);
}

#[tokio::test(start_paused = true)]
async fn a_loss_before_the_promised_time_is_a_false_alarm() {
    let story = Story::new();
    let acquisition = story.grant("x", Kind::Mutex, 1, 30);
    pass(29).await;
    story.0.lost(acquisition, LostReason::Deleted);
    assert_eq!(story.rules(), [Rule::FalseAlarm]);
}

#[tokio::test(start_paused = true)]
async fn a_loss_after_a_confirmed_release_is_a_false_alarm() {
    let story = Story::new();
    let acquisition = story.grant("x", Kind::Mutex, 1, 30);
    story.release(acquisition);
    pass(60).await;
    story.0.lost(acquisition, LostReason::Expired);
    assert_eq!(story.rules(), [Rule::FalseAlarm]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_guard_that_claims_its_lock_violates_the_rule_that_losses_are_final() {
    let story = Story::new();
    let acquisition = story.grant("x", Kind::Mutex, 1, 30);
    pass(30).await;
    story.0.lost(acquisition, LostReason::Expired);
    story.0.holds(acquisition, Instant::now());
    assert_eq!(story.rules(), [Rule::LostForGood]);
}

#[tokio::test(start_paused = true)]
async fn too_few_events_are_a_violation_of_their_own() {
    let story = Story::new();
    story.grant("x", Kind::Read, 1, 30);
    let least = Counts { grants: 2, shared_reads: 1, losses: 1, ..Counts::default() };
    let rules: Vec<_> = story.0.check(&least).into_iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, [Rule::SharedReads, Rule::Potency, Rule::Potency]);
}

#[tokio::test(start_paused = true)]
async fn a_violation_found_by_other_means_is_reported_too() {
    let story = Story::new();
    story.0.note(Rule::Residue, "one key");
    assert_eq!(story.rules(), [Rule::Residue]);
}
