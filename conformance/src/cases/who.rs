//! The store shows who holds and who waits, in the words of whoever asked.

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
        "who" (Kind::Fair) [Need::Inspect] { those_who_wait_are_shown_by_their_clients_and_labels }
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

/// The same client under a name of its own.
fn named(client: &Locks, name: &str) -> Locks {
    client.clone().with_who(Who::new(name).expect("legal"))
}

/// The lock as [`inspect`](Locks::inspect) and as [`list`](Locks::list) show it: both alike.
async fn shown(arena: &Arena, client: &Locks) -> [LockState; 2] {
    let inspected = client.inspect(arena.name()).await.expect("the store can be asked");
    let mut listed = client.list(arena.name()).await.expect("the store can be asked");
    listed.retain(|state| state.name.as_str() == arena.name());
    [inspected.expect("it is held"), listed.pop().expect("it is held")]
}

fn words(of: &[Contender]) -> Vec<&str> {
    of.iter().map(|one| one.who.as_deref().unwrap_or("nobody is shown")).collect()
}

pub(super) async fn a_holder_is_shown_by_its_client(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    for state in shown(&arena, &b).await {
        assert_eq!(words(&state.holders), [Who::this_process().text()], "not this process");
    }
    held.release().await.expect("held until now");
    let held = arena.take_soon("it was released", &named(&a, "the night shift")).await;
    for state in shown(&arena, &b).await {
        assert_eq!(words(&state.holders), ["the night shift"]);
    }
    drop(held);
}

pub(super) async fn a_holder_is_shown_by_its_label(arena: Arc<Arena>) {
    let (a, b) = (named(&arena.client().await, "the night shift"), arena.client().await);
    for label in ["report 7", "report 8"] {
        let held = arena.lock(&a).lock(&arena.options().label(label)).await.expect("nobody holds it");
        for state in shown(&arena, &b).await {
            assert_eq!(words(&state.holders), [label], "a label goes before the name of the client");
        }
        held.release().await.expect("held until now");
    }
    let held = arena.take_soon("it was released", &a).await;
    for state in shown(&arena, &b).await {
        assert_eq!(words(&state.holders), ["the night shift"], "an earlier hold's label");
    }
    drop(held);
}

pub(super) async fn those_who_wait_are_shown_by_their_clients_and_labels(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &named(&a, "first")).await;
    let mut waiting = Vec::new();
    for (client, options) in
        [(named(&b, "second"), arena.options()), (named(&c, "nobody"), arena.options().label("third"))]
    {
        let lock = arena.lock(&client);
        waiting.push(arena.go(async move { lock.lock(&options).await }));
        arena.until_contenders(&a, waiting.len() + 1).await;
    }
    for state in shown(&arena, &a).await {
        assert_eq!((words(&state.holders), words(&state.queue)), (vec!["first"], vec!["second", "third"]));
    }
    held.release().await.expect("held until now");
    for waiter in waiting {
        drop(arena.soon("its turn does not come", waiter).await.expect("no panic"));
    }
}

pub(super) async fn a_detached_hold_shows_who_left_it(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let options = arena.options().label("the nightly job");
    let held = arena.lock(&a).lock(&options).await.expect("nobody holds it");
    let ticket = held.detach(arena.long_ttl(&a)).await.expect("held until now");
    for state in shown(&arena, &b).await {
        assert_eq!(words(&state.holders), ["the nightly job"]);
    }
    b.release(&ticket).await.expect("held until now");
}

pub(super) async fn a_label_is_shown_byte_by_byte(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let long = "é".repeat(100);
    for label in [r#"it's "quoted" \n {0} %s ; -- #"#, " padded ", "日本 🦀 ü", "a:b|c,d", "0", &long] {
        let held = arena.lock(&a).lock(&arena.options().label(label)).await.expect("nobody holds it");
        for state in shown(&arena, &b).await {
            assert_eq!(words(&state.holders), [label]);
        }
        held.release().await.expect("held until now");
    }
}

pub(super) async fn a_label_that_no_store_could_show_is_refused_before_any_io(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    line.cut();
    for label in [String::new(), "two\nlines".to_owned(), "\u{1b}[31m".to_owned(), "x".repeat(201)] {
        let options = arena.options().label(label.as_str());
        let lock = arena.lock(&a);
        for told in [lock.lock(&options).await.map(Some), lock.try_lock(&options).await] {
            assert!(matches!(told, Err(Error::InvalidOptions { .. })), "{label:?}: {told:?}");
        }
    }
}
