//! Tests of `turn`, `watchers` and `watched`, on queues written by hand and on generated queues.

use super::*;
use proptest::prelude::*;

fn queue(kinds: &[(Kind, u32)]) -> Vec<Entry> {
    let entry = |&(kind, limit)| Entry::new(ClaimId::random(), kind).limit(number(limit));
    kinds.iter().map(entry).collect()
}

fn number(limit: u32) -> NonZeroU32 {
    NonZeroU32::new(limit).expect("not zero")
}

/// Queues of any kinds. Half of the queues have permits only.
fn kinds() -> impl Strategy<Value = Vec<(Kind, u32)>> {
    let any = (prop::sample::select(Kind::ALL), 1..5_u32);
    let permit = (Just(Kind::Permit), 1..5_u32);
    prop_oneof![prop::collection::vec(any, 0..12), prop::collection::vec(permit, 0..12)]
}

fn holders(queue: &[Entry]) -> Vec<Entry> {
    queue.iter().copied().filter(|entry| turn(queue, entry.id) == Turn::Mine).collect()
}

fn without(queue: &[Entry], ids: &[ClaimId]) -> Vec<Entry> {
    queue.iter().copied().filter(|entry| !ids.contains(&entry.id)).collect()
}

#[test]
fn a_claim_that_is_not_queued_is_absent() {
    assert_eq!(turn(&queue(&[(Kind::Fair, 1)]), ClaimId::random()), Turn::Absent);
}

#[test]
fn a_reader_behind_a_waiting_writer_waits() {
    let queue = queue(&[(Kind::Read, 1), (Kind::Write, 1), (Kind::Read, 1)]);
    assert_eq!(turn(&queue, queue[2].id), Turn::Behind(queue[1]));
}

/// Returns the number of permits that hold in a queue with these limits in order of arrival.
fn held(limits: &[u32]) -> usize {
    let kinds: Vec<_> = limits.iter().map(|limit| (Kind::Permit, *limit)).collect();
    holders(&queue(&kinds)).len()
}

#[test]
fn a_permit_holds_if_fewer_are_ahead_than_its_limit_and_all_limits_ahead() {
    for (limits, holders) in [
        (&[][..], 0),
        (&[1, 1], 1),
        (&[4, 4, 4, 4, 4], 4),
        // A program raises the limit from 4 to 5. With a fifth holder, the limit of the first four
        // would be exceeded.
        (&[4, 4, 4, 4, 5], 4),
        (&[5, 5, 5, 5, 4], 4),
        (&[5, 5, 5, 5, 5, 4], 5),
        (&[5, 5, 1, 5], 2),
        (&[5, 1], 1),
        (&[u32::MAX, u32::MAX], 2),
    ] {
        assert_eq!(held(limits), holders, "holders of {limits:?}");
    }
}

#[test]
fn a_permit_that_is_given_back_wakes_one_waiter() {
    let queue = queue(&[(Kind::Permit, 3); 9]);
    for (at, entry) in queue.iter().enumerate() {
        let woken: Vec<_> = watchers(&queue, entry.id).collect();
        assert_eq!(woken, if at < 3 { vec![queue[3]] } else { vec![] }, "when number {at} leaves");
    }
}

#[test]
fn a_permit_with_a_small_limit_wakes_all_that_it_kept_out_when_it_leaves() {
    let queue = queue(&[
        (Kind::Permit, 5),
        (Kind::Permit, 1),
        (Kind::Permit, 3),
        (Kind::Permit, 5),
        (Kind::Permit, 5),
    ]);
    assert_eq!(watchers(&queue, queue[1].id).collect::<Vec<_>>(), queue[2..4]);
}

#[test]
fn a_waiting_permit_watches_the_nearest_permits_ahead() {
    let queue = queue(&[(Kind::Permit, 2); 5]);
    assert_eq!(watched(&queue, queue[1].id), []);
    assert_eq!(watched(&queue, queue[2].id), &queue[..2]);
    assert_eq!(watched(&queue, queue[4].id), &queue[2..4]);
}

proptest! {
    #[test]
    fn claims_whose_turn_it_is_may_all_hold_at_once(kinds in kinds()) {
        let queue = queue(&kinds);
        let holders = holders(&queue);
        prop_assert!(queue.is_empty() || !holders.is_empty(), "no claim holds, although the queue is not empty");
        for (i, a) in holders.iter().enumerate() {
            for b in &holders[i + 1..] {
                let are_permits = a.kind == Kind::Permit && b.kind == Kind::Permit;
                prop_assert!(are_permits || a.kind.shares_with(b.kind));
            }
        }
        let permits = holders.iter().filter(|holder| holder.kind == Kind::Permit);
        for limit in permits.map(limit) {
            prop_assert!(holders.len() <= limit, "{} claims hold, although one of them has a limit of {limit}", holders.len());
        }
    }

    #[test]
    fn as_many_permits_hold_as_the_limits_allow(limits in prop::collection::vec(1..5_u32, 1..12)) {
        let most = (1..=limits.len()).take_while(|&count| limits[..count].iter().all(|limit| count <= *limit as usize));
        prop_assert_eq!(held(&limits), most.count());
    }

    #[test]
    fn a_claim_keeps_its_turn_when_another_leaves(kinds in kinds(), leaving in any::<prop::sample::Index>()) {
        let mut queue = queue(&kinds);
        let holders = holders(&queue);
        if !queue.is_empty() {
            let left = queue.remove(leaving.index(queue.len()));
            for holder in holders.iter().filter(|holder| holder.id != left.id) {
                prop_assert_eq!(turn(&queue, holder.id), Turn::Mine);
            }
        }
    }

    #[test]
    fn the_watchers_of_a_claim_are_those_behind_it_and_the_permits_whose_turn_comes(kinds in kinds()) {
        let queue = queue(&kinds);
        for ahead in &queue {
            let watching: Vec<_> = watchers(&queue, ahead.id).collect();
            let shorter = without(&queue, &[ahead.id]);
            let is_woken = |entry: &Entry| match entry.kind {
                Kind::Permit => turn(&queue, entry.id) != Turn::Mine && turn(&shorter, entry.id) == Turn::Mine,
                _ => turn(&queue, entry.id) == Turn::Behind(*ahead),
            };
            let behind: Vec<_> = queue.iter().copied().filter(is_woken).collect();
            prop_assert_eq!(watching, behind);
        }
    }

    #[test]
    fn no_turn_comes_before_one_of_the_watched_has_left(
        kinds in kinds(),
        leave in prop::collection::vec(any::<bool>(), 12),
    ) {
        let queue = queue(&kinds);
        let left: Vec<_> = queue.iter().zip(&leave).filter(|(_, leaves)| **leaves).map(|(entry, _)| entry.id).collect();
        let shorter = without(&queue, &left);
        for entry in &queue {
            let watched = watched(&queue, entry.id);
            prop_assert_eq!(watched.is_empty(), turn(&queue, entry.id) == Turn::Mine);
            if !watched.is_empty() && turn(&shorter, entry.id) == Turn::Mine {
                let any_left = watched.iter().any(|entry| left.contains(&entry.id));
                prop_assert!(any_left, "a turn came before any of the watched {watched:?} had left");
            }
        }
    }
}
