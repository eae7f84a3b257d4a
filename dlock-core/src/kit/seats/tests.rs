//! Tests of the seats.

use super::*;
use crate::{kit::StoreErrors, model::Error};
use async_trait::async_trait;
use futures_util::{
    future::{BoxFuture, join_all},
    poll,
};
use tokio::{sync::mpsc, time::sleep};

const LIMIT: Duration = Duration::from_secs(3);

/// Seats without a source. The test calls the listener in place of a source.
fn seats_and_listener() -> (Seats, Listener) {
    let seats = Seats::without_source();
    let listener = Listener::of(&seats.0.0);
    (seats, listener)
}

impl Seats {
    fn join_local(&self, kind: Kind) -> Seat {
        self.join_without_subscription("x".to_owned(), None, kind)
    }

    fn join_boxed(&self, event: &str) -> BoxFuture<'_, Result<Seat>> {
        Box::pin(self.join(event.to_owned(), None, Kind::Mutex, LIMIT))
    }

    /// Returns the number of remembered events.
    fn len(&self) -> usize {
        let events = self.0.0.events.lock();
        events.waited_for.len() + events.to_subscribe.len() + events.to_unsubscribe.len()
    }
}

/// Returns a seat of an event whose subscription is active.
async fn subscribed(seats: &Seats, listener: &Listener, event: &str) -> Seat {
    let mut joining = seats.join_boxed(event);
    assert!(poll!(&mut joining).is_pending(), "joined before the subscription was active");
    assert_eq!(take(listener), (vec![event.to_owned()], vec![]));
    listener.mark_subscribed(&[event.to_owned()]);
    joining.await.expect("subscribed")
}

fn take(listener: &Listener) -> (Vec<String>, Vec<String>) {
    let (mut added, mut removed) = listener.take_changes(100, &HashSet::new());
    added.sort_unstable();
    removed.sort_unstable();
    (added, removed)
}

fn notified<'a>(seats: impl IntoIterator<Item = &'a Seat>) -> Vec<bool> {
    seats.into_iter().map(|seat| seat.waiter.is_notified.load(Relaxed)).collect()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn an_event_wakes_the_first_waiter_and_no_other() {
    let (seats, listener) = seats_and_listener();
    let all = [Kind::Mutex; 3].map(|kind| seats.join_local(kind));
    listener.wake("x", Wake::First);
    listener.wake("y", Wake::All);
    assert_eq!(notified(&all), [true, false, false]);
}

#[test]
fn waiters_are_woken_by_arrival_and_those_without_one_last() {
    let (seats, _) = seats_and_listener();
    let join = |arrival| seats.join_without_subscription("x".to_owned(), arrival, Kind::Write);
    let all = [None, Some(30), Some(20), None].map(join);
    let mut order = Vec::new();
    let mut left = Vec::from_iter(&all);
    while !left.is_empty() {
        seats.wake("x", Wake::First);
        let first = left.iter().position(|seat| notified([*seat])[0]).expect("one is woken");
        let first = left.remove(first);
        order.push(first.rank.0);
        // Removes the waiter by hand, because dropping the seat would wake the next one.
        first.clear();
        first
            .client
            .0
            .events
            .lock()
            .waited_for
            .get_mut("x")
            .expect("others wait")
            .waiters
            .remove(&first.rank);
    }
    assert_eq!(order, [20, 30, u64::MAX, u64::MAX]);
}

#[test]
fn an_unused_notification_goes_to_the_next_waiter() {
    let (seats, _) = seats_and_listener();
    let [first, second, third] = [Kind::Mutex; 3].map(|kind| seats.join_local(kind));
    seats.wake("x", Wake::First);
    drop(first);
    assert_eq!(notified([&second, &third]), [true, false]);
    second.clear();
    drop(second);
    assert_eq!(notified([&third]), [false], "the notification was used, but still went to the next waiter");
}

#[test]
fn a_row_of_readers_is_woken_together_up_to_the_next_writer() {
    let (seats, _) = seats_and_listener();
    let all = [Kind::Read, Kind::Read, Kind::Write, Kind::Read].map(|kind| seats.join_local(kind));
    seats.wake("x", Wake::Sharers);
    assert_eq!(notified(&all), [true, true, false, false]);
    seats.wake("x", Wake::All);
    assert_eq!(notified(&all), [true; 4]);
}

#[test]
fn a_writer_that_leaves_wakes_the_row_of_readers_behind_it() {
    let (seats, _) = seats_and_listener();
    let writer = seats.join_local(Kind::Write);
    let readers = [Kind::Read, Kind::Read].map(|kind| seats.join_local(kind));
    seats.wake("x", Wake::Sharers);
    assert_eq!(notified(&readers), [false; 2]);
    drop(writer);
    assert_eq!(notified(&readers), [true; 2]);
}

#[test]
fn two_claims_of_one_arrival_have_a_seat_each() {
    let (seats, _) = seats_and_listener();
    let join = || seats.join_without_subscription("x".to_owned(), Some(7), Kind::Read);
    let (hold, downgraded) = (join(), join());
    drop(hold);
    seats.wake("x", Wake::First);
    assert_eq!(notified([&downgraded]), [true]);
}

#[tokio::test(start_paused = true)]
async fn a_notification_before_the_waiter_waits_is_not_lost() {
    let (seats, _) = seats_and_listener();
    let seat = seats.join_local(Kind::Mutex);
    seats.wake("x", Wake::First);
    seat.notified().await;
    timeout(LIMIT, seat.notified()).await.expect("a notification persists until it is cleared");
    seat.clear();
    timeout(LIMIT, seat.notified()).await.expect_err("cleared");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_joins_once_the_subscription_is_active() {
    let (seats, listener) = seats_and_listener();
    let seat = subscribed(&seats, &listener, "a").await;
    assert_eq!(notified([&seat]), [false], "notified, although the waiter has missed nothing");
    let second = timeout(LIMIT / 2, seats.join_boxed("a")).await.expect("already subscribed").unwrap();
    assert_eq!(take(&listener), (vec![], vec![]), "a second subscription for one event");
    drop((seat, second));
    assert_eq!(take(&listener), (vec![], names(&["a"])));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_joined_before_its_subscription_was_active_is_notified_later() {
    let (seats, listener) = seats_and_listener();
    let seat = seats
        .join_boxed("a")
        .await
        .expect("join returns after its limit, although there is no subscription yet");
    assert_eq!(notified([&seat]), [false]);
    assert_eq!(take(&listener), (names(&["a"]), vec![]));
    listener.mark_subscribed(&names(&["a"]));
    assert_eq!(notified([&seat]), [true]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_may_have_missed_a_message_is_notified_once_messages_arrive_again() {
    let (seats, listener) = seats_and_listener();
    let (a, b) = (subscribed(&seats, &listener, "a").await, subscribed(&seats, &listener, "b").await);
    let local = seats.join_local(Kind::Mutex);
    listener.mark_interrupted("a");
    listener.mark_interrupted("x");
    assert_eq!(take(&listener), (names(&["a"]), vec![]));
    listener.mark_subscribed(&names(&["a", "b"]));
    assert_eq!(notified([&a, &b]), [true, false]);
    a.clear();
    listener.mark_all_interrupted();
    assert_eq!(take(&listener), (names(&["a", "b"]), vec![]));
    listener.mark_subscribed(&names(&["a", "b"]));
    assert_eq!(notified([&a, &b, &local]), [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_ends_before_its_confirmation_arrives_is_made_again() {
    let (seats, listener) = seats_and_listener();
    let mut joining = seats.join_boxed("a");
    assert!(poll!(&mut joining).is_pending());
    assert_eq!(take(&listener), (names(&["a"]), vec![]));
    // The connection breaks after the server has confirmed the subscription. The source sees the
    // break first and the confirmation afterwards.
    listener.mark_all_interrupted();
    listener.mark_subscribed(&names(&["a"]));
    assert!(
        poll!(&mut joining).is_pending(),
        "joined, although messages are missed until the subscription is made again"
    );
    assert_eq!(take(&listener), (names(&["a"]), vec![]));
    listener.mark_subscribed(&names(&["a"]));
    assert_eq!(notified([&joining.await.expect("subscribed")]), [true]);
}

#[tokio::test(start_paused = true)]
async fn every_waiter_that_joins_gets_the_refusal_until_a_subscription_is_active() {
    let (seats, listener) = seats_and_listener();
    let mut joining = seats.join_boxed("a");
    assert!(poll!(&mut joining).is_pending());
    let store = StoreErrors::new("table");
    listener.mark_disconnected();
    listener.refuse(store.share(&store.refused("no rights")));
    for join in [joining, seats.join_boxed("b")] {
        let error = join.await.expect_err("refused");
        assert!(matches!(error, Error::Refused { source, .. } if source.to_string() == "no rights"));
    }
    assert_eq!(seats.len(), 0, "the seat of a refused waiter was not removed");
    subscribed(&seats, &listener, "a").await;
}

#[tokio::test(start_paused = true)]
async fn the_later_of_joining_and_leaving_an_event_counts() {
    let (seats, listener) = seats_and_listener();
    let seat = subscribed(&seats, &listener, "a").await;
    drop(seat);
    let mut again = seats.join_boxed("a");
    assert!(poll!(&mut again).is_pending());
    assert_eq!(
        take(&listener),
        (names(&["a"]), vec![]),
        "not subscribed again, so the waiter is not notified that the subscription is active"
    );
    drop(again);
    let in_progress = HashSet::from(["a".to_owned()]);
    assert_eq!(
        listener.take_changes(100, &in_progress),
        (vec![], vec![]),
        "the end of a subscription is requested while an earlier call for it is in flight"
    );
    assert_eq!(take(&listener), (vec![], names(&["a"])));
    let _seats: Vec<_> = join_all((0..5).map(|i| seats.join_boxed(["a", "b", "c", "d", "e"][i]))).await;
    assert_eq!(listener.take_changes(3, &HashSet::new()).0.len(), 3);
    assert_eq!(listener.take_changes(3, &HashSet::new()).0.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn events_without_waiters_take_no_memory() {
    let (seats, listener) = seats_and_listener();
    for i in 0..10_000 {
        drop(seats.join_without_subscription(format!("local {i}"), None, Kind::Mutex));
        // The source makes no subscription in this test. It makes none while it connects either,
        // which may take hours.
        let mut joining = seats.join_boxed(&i.to_string());
        assert!(poll!(&mut joining).is_pending());
    }
    assert_eq!(seats.len(), 0);
    for i in 0..100 {
        drop(subscribed(&seats, &listener, &i.to_string()).await);
        assert_eq!(take(&listener).1, [i.to_string()]);
    }
    drop(subscribed(&seats, &listener, "a").await);
    listener.mark_disconnected();
    assert_eq!(
        seats.len(),
        0,
        "an event is left, although all subscriptions have ended with their connection"
    );
}

#[tokio::test(start_paused = true)]
async fn the_source_learns_of_new_and_removed_events_and_of_the_end() {
    let (seats, listener) = seats_and_listener();
    let seat = subscribed(&seats, &listener, "a").await;
    assert!(listener.wait_for_changes().await);
    timeout(LIMIT, listener.wait_for_changes()).await.expect_err("nothing new");
    drop(seat);
    assert!(listener.wait_for_changes().await);
    let seat = seats.join_local(Kind::Mutex);
    drop(seats);
    timeout(LIMIT, listener.wait_for_changes()).await.expect_err("there is still a waiter");
    drop(seat);
    assert!(!listener.wait_for_changes().await);
    assert!(!listener.wait_for_changes().await, "reports changes again after the client was dropped");
}

/// A source that subscribes at once. It sends the test a message when it starts and when it ends.
struct Recorder(mpsc::UnboundedSender<&'static str>);

#[async_trait]
impl EventSource for Recorder {
    async fn listen(&mut self, seats: &Listener) {
        self.0.send("started").ok();
        loop {
            let (added, _) = seats.take_changes(100, &HashSet::new());
            seats.mark_subscribed(&added);
            if !seats.wait_for_changes().await {
                break;
            }
        }
        self.0.send("ended").ok();
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_can_run_without_a_waiter() {
    let (sender, mut events) = mpsc::unbounded_channel();
    let seats = Seats::new(Recorder(sender));
    seats.ensure_source_runs();
    seats.ensure_source_runs();
    assert_eq!(events.recv().await, Some("started"));
    assert_eq!(seats.len(), 0, "an event is left, although there was no waiter");
    drop(seats);
    assert_eq!(events.recv().await, Some("ended"), "the source was started twice");
}

#[test]
fn another_runtime_listens_after_the_first_has_ended() {
    let (sender, mut events) = mpsc::unbounded_channel();
    let seats = Seats::new(Recorder(sender));
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let [first, second] = [runtime(), runtime()];
    let seat = first.block_on(seats.join_boxed("a")).expect("subscribed");
    assert_eq!(events.try_recv(), Ok("started"));
    assert_eq!(notified([&seat]), [false]);
    drop(first);
    second.block_on(async {
        seat.notified().await;
        seat.clear();
        timeout(LIMIT, async {
            // This waiter restarts the source, and is notified once its subscription is active
            // again.
            seat.notified().await;
        })
        .await
        .expect("the next waiter restarts the source");
        assert_eq!(events.recv().await, Some("started"));
        drop((seat, seats));
        assert_eq!(events.recv().await, Some("ended"));
        sleep(Duration::ZERO).await;
        assert_eq!(events.recv().await, None, "the source outlives its client");
    });
}
