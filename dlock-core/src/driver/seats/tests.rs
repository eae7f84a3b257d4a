//! Tests of the seats.

use super::*;
use crate::driver::{Error, Failures};
use async_trait::async_trait;
use futures_util::{
    future::{BoxFuture, join_all},
    poll,
};
use tokio::{sync::mpsc, time::sleep};

const LIMIT: Duration = Duration::from_secs(3);

/// Seats without a source. The test calls what a source would call.
fn both_ends() -> (Seats, Listener) {
    let seats = Seats::without_source();
    let listener = Listener::of(&seats.0.0);
    (seats, listener)
}

impl Seats {
    fn sits(&self, kind: Kind) -> Seat {
        self.sit("x".to_owned(), None, kind)
    }

    fn joins(&self, event: &str) -> BoxFuture<'_, Result<Seat>> {
        Box::pin(self.join(event.to_owned(), None, Kind::Mutex, LIMIT))
    }

    /// How many events the seats remember.
    fn len(&self) -> usize {
        let events = self.0.0.events();
        events.open.len() + events.come.len() + events.gone.len()
    }
}

/// A joined seat of an event whose subscription stands.
async fn heard(seats: &Seats, listener: &Listener, event: &str) -> Seat {
    let mut joining = seats.joins(event);
    assert!(poll!(&mut joining).is_pending(), "joined before the subscription stands");
    assert_eq!(take(listener), (vec![event.to_owned()], vec![]));
    listener.mark_heard(&[event.to_owned()]);
    joining.await.expect("heard")
}

fn take(listener: &Listener) -> (Vec<String>, Vec<String>) {
    let (mut come, mut gone) = listener.take(100, &HashSet::new());
    come.sort_unstable();
    gone.sort_unstable();
    (come, gone)
}

fn rung<'a>(seats: impl IntoIterator<Item = &'a Seat>) -> Vec<bool> {
    seats.into_iter().map(|seat| seat.bell.is_rung.load(Relaxed)).collect()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn an_event_wakes_the_first_waiter_and_no_other() {
    let (seats, listener) = both_ends();
    let all = [Kind::Mutex; 3].map(|kind| seats.sits(kind));
    listener.wake("x", Wake::One);
    listener.wake("y", Wake::All);
    assert_eq!(rung(&all), [true, false, false]);
}

#[test]
fn waiters_are_woken_by_arrival_and_those_without_one_last() {
    let (seats, _) = both_ends();
    let sits = |arrival| seats.sit("x".to_owned(), arrival, Kind::Write);
    let all = [None, Some(30), Some(20), None].map(sits);
    let mut order = Vec::new();
    let mut left = Vec::from_iter(&all);
    while !left.is_empty() {
        seats.wake("x", Wake::One);
        let first = left.iter().position(|seat| rung([*seat])[0]).expect("one is woken");
        let first = left.remove(first);
        order.push(first.rank.0);
        // Removes the seat by hand: dropping it would pass its wake-up on to the next.
        first.clear();
        first.open.0.events().open.get_mut("x").expect("others wait").seats.remove(&first.rank);
    }
    assert_eq!(order, [20, 30, u64::MAX, u64::MAX]);
}

#[test]
fn a_wake_up_that_was_not_used_goes_to_the_next() {
    let (seats, _) = both_ends();
    let [first, second, third] = [Kind::Mutex; 3].map(|kind| seats.sits(kind));
    seats.wake("x", Wake::One);
    drop(first);
    assert_eq!(rung([&second, &third]), [true, false]);
    second.clear();
    drop(second);
    assert_eq!(rung([&third]), [false], "the wake-up was used, and went to the next all the same");
}

#[test]
fn a_row_of_readers_is_woken_together_up_to_the_next_writer() {
    let (seats, _) = both_ends();
    let all = [Kind::Read, Kind::Read, Kind::Write, Kind::Read].map(|kind| seats.sits(kind));
    seats.wake("x", Wake::Sharers);
    assert_eq!(rung(&all), [true, true, false, false]);
    seats.wake("x", Wake::All);
    assert_eq!(rung(&all), [true; 4]);
}

#[test]
fn a_writer_that_leaves_wakes_the_row_of_readers_behind_it() {
    let (seats, _) = both_ends();
    let writer = seats.sits(Kind::Write);
    let readers = [Kind::Read, Kind::Read].map(|kind| seats.sits(kind));
    seats.wake("x", Wake::Sharers);
    assert_eq!(rung(&readers), [false; 2]);
    drop(writer);
    assert_eq!(rung(&readers), [true; 2]);
}

#[test]
fn two_claims_of_one_arrival_have_a_seat_each() {
    let (seats, _) = both_ends();
    let sits = || seats.sit("x".to_owned(), Some(7), Kind::Read);
    let (hold, downgraded) = (sits(), sits());
    drop(hold);
    seats.wake("x", Wake::One);
    assert_eq!(rung([&downgraded]), [true]);
}

#[tokio::test(start_paused = true)]
async fn a_ring_that_comes_before_the_waiter_waits_is_not_lost() {
    let (seats, _) = both_ends();
    let seat = seats.sits(Kind::Mutex);
    seats.wake("x", Wake::One);
    seat.rung().await;
    timeout(LIMIT, seat.rung()).await.expect("a seat stays rung until it is cleared");
    seat.clear();
    timeout(LIMIT, seat.rung()).await.expect_err("cleared");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_joins_once_the_subscription_stands() {
    let (seats, listener) = both_ends();
    let seat = heard(&seats, &listener, "a").await;
    assert_eq!(rung([&seat]), [false], "rung, and the waiter has missed nothing");
    let second = timeout(LIMIT / 2, seats.joins("a")).await.expect("heard already").unwrap();
    assert_eq!(take(&listener), (vec![], vec![]), "a second subscription for one event");
    drop((seat, second));
    assert_eq!(take(&listener), (vec![], names(&["a"])));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_joined_without_its_subscription_is_rung_once_the_subscription_stands() {
    let (seats, listener) = both_ends();
    let seat =
        seats.joins("a").await.expect("join returns though the subscription takes longer than its limit");
    assert_eq!(rung([&seat]), [false]);
    assert_eq!(take(&listener), (names(&["a"]), vec![]));
    listener.mark_heard(&names(&["a"]));
    assert_eq!(rung([&seat]), [true]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_may_have_missed_a_message_is_rung_once_messages_come_again() {
    let (seats, listener) = both_ends();
    let (a, b) = (heard(&seats, &listener, "a").await, heard(&seats, &listener, "b").await);
    let local = seats.sits(Kind::Mutex);
    listener.mark_missed("a");
    listener.mark_missed("x");
    assert_eq!(take(&listener), (names(&["a"]), vec![]));
    listener.mark_heard(&names(&["a", "b"]));
    assert_eq!(rung([&a, &b]), [true, false]);
    a.clear();
    listener.mark_all_missed();
    assert_eq!(take(&listener), (names(&["a", "b"]), vec![]));
    listener.mark_heard(&names(&["a", "b"]));
    assert_eq!(rung([&a, &b, &local]), [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_ends_before_it_is_confirmed_is_made_again_before_it_is_heard() {
    let (seats, listener) = both_ends();
    let mut joining = seats.joins("a");
    assert!(poll!(&mut joining).is_pending());
    assert_eq!(take(&listener), (names(&["a"]), vec![]));
    // The connection breaks after the server has confirmed the subscription. The source sees the break first, and the
    // confirmation then.
    listener.mark_all_missed();
    listener.mark_heard(&names(&["a"]));
    assert!(
        poll!(&mut joining).is_pending(),
        "joined, and messages are missed until the subscription is made again"
    );
    assert_eq!(take(&listener), (names(&["a"]), vec![]));
    listener.mark_heard(&names(&["a"]));
    assert_eq!(rung([&joining.await.expect("heard")]), [true]);
}

#[tokio::test(start_paused = true)]
async fn every_waiter_that_joins_is_told_of_a_refusal_until_a_subscription_stands() {
    let (seats, listener) = both_ends();
    let mut joining = seats.joins("a");
    assert!(poll!(&mut joining).is_pending());
    let store = Failures::of("table");
    listener.mark_all_ended();
    listener.refuse(store.retell(&store.refused("no rights")));
    for join in [joining, seats.joins("b")] {
        let error = join.await.expect_err("refused");
        assert!(matches!(error, Error::Refused { source, .. } if source.to_string() == "no rights"));
    }
    assert_eq!(seats.len(), 0, "a seat is left of a waiter that was refused");
    heard(&seats, &listener, "a").await;
}

#[tokio::test(start_paused = true)]
async fn of_joining_and_leaving_an_event_the_last_one_counts() {
    let (seats, listener) = both_ends();
    let seat = heard(&seats, &listener, "a").await;
    drop(seat);
    let mut again = seats.joins("a");
    assert!(poll!(&mut again).is_pending());
    assert_eq!(
        take(&listener),
        (names(&["a"]), vec![]),
        "not subscribed again, so the waiter does not learn that the subscription stands"
    );
    drop(again);
    let busy = HashSet::from(["a".to_owned()]);
    assert_eq!(
        listener.take(100, &busy),
        (vec![], vec![]),
        "told to end a subscription while an earlier call still works on it"
    );
    assert_eq!(take(&listener), (vec![], names(&["a"])));
    let _seats: Vec<_> = join_all((0..5).map(|i| seats.joins(["a", "b", "c", "d", "e"][i]))).await;
    assert_eq!(listener.take(3, &HashSet::new()).0.len(), 3);
    assert_eq!(listener.take(3, &HashSet::new()).0.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_events_that_nobody_waits_for() {
    let (seats, listener) = both_ends();
    for i in 0..10_000 {
        drop(seats.sit(format!("local {i}"), None, Kind::Mutex));
        // The source does not listen here. It does not while it connects either, and that may take hours.
        let mut joining = seats.joins(&i.to_string());
        assert!(poll!(&mut joining).is_pending());
    }
    assert_eq!(seats.len(), 0);
    for i in 0..100 {
        drop(heard(&seats, &listener, &i.to_string()).await);
        assert_eq!(take(&listener).1, [i.to_string()]);
    }
    drop(heard(&seats, &listener, "a").await);
    listener.mark_all_ended();
    assert_eq!(seats.len(), 0, "an event is left after all subscriptions have ended with their connection");
}

#[tokio::test(start_paused = true)]
async fn the_source_is_told_of_what_comes_and_goes_and_of_the_end() {
    let (seats, listener) = both_ends();
    let seat = heard(&seats, &listener, "a").await;
    assert!(listener.stirred().await);
    timeout(LIMIT, listener.stirred()).await.expect_err("nothing new");
    drop(seat);
    assert!(listener.stirred().await);
    let seat = seats.sits(Kind::Mutex);
    drop(seats);
    timeout(LIMIT, listener.stirred()).await.expect_err("a waiter is still there");
    drop(seat);
    assert!(!listener.stirred().await);
    assert!(!listener.stirred().await, "stirred again after the client is gone");
}

/// A source that subscribes at once. It tells the test when it starts, and when it ends.
struct Told(mpsc::UnboundedSender<&'static str>);

#[async_trait]
impl EventSource for Told {
    async fn listen(&mut self, seats: &Listener) {
        self.0.send("starts").ok();
        loop {
            let (come, _) = seats.take(100, &HashSet::new());
            seats.mark_heard(&come);
            if !seats.stirred().await {
                break;
            }
        }
        self.0.send("ends").ok();
    }
}

#[test]
fn another_runtime_listens_where_the_one_that_did_has_ended() {
    let (sender, mut told) = mpsc::unbounded_channel();
    let seats = Seats::new(Told(sender));
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let [first, second] = [runtime(), runtime()];
    let seat = first.block_on(seats.joins("a")).expect("heard");
    assert_eq!(told.try_recv(), Ok("starts"));
    assert_eq!(rung([&seat]), [false]);
    drop(first);
    second.block_on(async {
        seat.rung().await;
        seat.clear();
        timeout(LIMIT, async {
            // This waiter restarts the source, and is rung once its subscription stands again.
            seat.rung().await;
        })
        .await
        .expect("the next waiter restarts the source");
        assert_eq!(told.recv().await, Some("starts"));
        drop((seat, seats));
        assert_eq!(told.recv().await, Some("ends"));
        sleep(Duration::ZERO).await;
        assert_eq!(told.recv().await, None, "the source outlives its client");
    });
}
