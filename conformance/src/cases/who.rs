//! The store reports the labels of holders and waiters.

use std::sync::Arc;

use dlock_core::{Contender, Error, Kind, LockState, Locks, Who};

use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [
        of("who", Kind::Mutex),
        of("who_fair", Kind::Fair),
        of("who_read", Kind::Read),
        of("who_write", Kind::Write),
        of("who_permit", Kind::Permit),
    ];
    let others = cases! {
        "who" (Kind::Mutex) [] { a_label_that_no_store_could_show_is_refused_before_any_io }
        "who" (Kind::Mutex) [Need::Inspect] { a_label_is_shown_byte_by_byte }
        "who" (Kind::Fair) [Need::Inspect] { waiters_are_shown_by_their_clients_and_labels }
        "who" (Kind::Mutex) [Need::Inspect, Need::Detach] { a_detached_hold_shows_who_left_it }
    };
    of_one_kind.into_iter().flatten().chain(others).collect()
}

fn of(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [Need::Inspect] {
            a_holder_is_shown_by_its_client,
            a_holder_is_shown_by_its_label,
        }
    }
}

/// Returns the same client with another label.
fn named(client: &Locks, name: &str) -> Locks {
    client.clone().with_who(Who::new(name).expect("the name is legal"))
}

/// Returns the lock's state from [`inspect`](Locks::inspect) and from [`list`](Locks::list), which
/// must agree.
async fn inspect_and_list(arena: &Arena, client: &Locks) -> [LockState; 2] {
    let inspected = client.inspect(arena.name()).await.expect("the store is reachable");
    let mut listed = client.list(arena.name()).await.expect("the store is reachable");
    listed.retain(|state| state.name.as_str() == arena.name());
    [inspected.expect("the lock is held"), listed.pop().expect("the lock is held")]
}

fn labels(of: &[Contender]) -> Vec<&str> {
    of.iter().map(|contender| contender.who.as_deref().unwrap_or("no label")).collect()
}

pub(super) async fn a_holder_is_shown_by_its_client(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    for state in inspect_and_list(&arena, &b).await {
        assert_eq!(
            labels(&state.holders),
            [Who::this_process().text()],
            "the label is not that of this process"
        );
    }
    held.release().await.expect("the lock is still held");
    let held = arena.take_soon("a released lock is not free", &named(&a, "the night shift")).await;
    for state in inspect_and_list(&arena, &b).await {
        assert_eq!(labels(&state.holders), ["the night shift"]);
    }
    drop(held);
}

pub(super) async fn a_holder_is_shown_by_its_label(arena: Arc<Arena>) {
    let (a, b) = (named(&arena.client().await, "the night shift"), arena.client().await);
    for label in ["report 7", "report 8"] {
        let held = arena.lock(&a).lock(&arena.options().label(label)).await.expect("the lock is free");
        for state in inspect_and_list(&arena, &b).await {
            assert_eq!(
                labels(&state.holders),
                [label],
                "the label of the claim must precede the label of the client"
            );
        }
        held.release().await.expect("the lock is still held");
    }
    let held = arena.take_soon("a released lock is not free", &a).await;
    for state in inspect_and_list(&arena, &b).await {
        assert_eq!(
            labels(&state.holders),
            ["the night shift"],
            "the store reports the label of an earlier hold"
        );
    }
    drop(held);
}

pub(super) async fn waiters_are_shown_by_their_clients_and_labels(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &named(&a, "first")).await;
    let mut waiting = Vec::new();
    for (client, options) in
        [(named(&b, "second"), arena.options()), (named(&c, "nobody"), arena.options().label("third"))]
    {
        let lock = arena.lock(&client);
        waiting.push(arena.go(async move { lock.lock(&options).await }));
        arena.until_contenders(&a, waiting.len() + 1).await;
    }
    for state in inspect_and_list(&arena, &a).await {
        let mut waiting = labels(&state.queue);
        if !arena.keeps_order() {
            // The members of a RedLock may receive the waiters in different orders.
            waiting.sort_unstable();
        }
        assert_eq!((labels(&state.holders), waiting), (vec!["first"], vec!["second", "third"]));
    }
    held.release().await.expect("the lock is still held");
    for waiter in waiting {
        drop(arena.soon("the next waiter is not granted", waiter).await.expect("the task does not panic"));
    }
}

pub(super) async fn a_detached_hold_shows_who_left_it(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let options = arena.options().label("the nightly job");
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    let ticket = held.detach(arena.long_ttl(&a)).await.expect("the lock is still held");
    for state in inspect_and_list(&arena, &b).await {
        assert_eq!(labels(&state.holders), ["the nightly job"]);
    }
    b.release(&ticket).await.expect("the lock is still held");
}

pub(super) async fn a_label_is_shown_byte_by_byte(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let long = "é".repeat(100);
    for label in [r#"it's "quoted" \n {0} %s ; -- #"#, " padded ", "日本 🦀 ü", "a:b|c,d", "0", &long] {
        let held = arena.lock(&a).lock(&arena.options().label(label)).await.expect("the lock is free");
        for state in inspect_and_list(&arena, &b).await {
            assert_eq!(labels(&state.holders), [label]);
        }
        held.release().await.expect("the lock is still held");
    }
}

pub(super) async fn a_label_that_no_store_could_show_is_refused_before_any_io(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.cut();
    for label in [String::new(), "two\nlines".to_owned(), "\u{1b}[31m".to_owned(), "x".repeat(201)] {
        let options = arena.options().label(label.as_str());
        let lock = arena.lock(&a);
        for result in [lock.lock(&options).await.map(Some), lock.try_lock(&options).await] {
            assert!(matches!(result, Err(Error::InvalidOptions { .. })), "{label:?} returned {result:?}");
        }
    }
}
