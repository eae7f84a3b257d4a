//! Tests of labels on the server, and that no lock depends on them.

use std::time::Duration;

use dlock_core::{Kind, LockOptions, Locks, Who};
use futures_util::future::join;

use crate::common::{Bench, KINDS, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        holders_and_waiters_are_reported_with_their_labels,
        labels_of_locks_and_of_clients_are_reported_in_both_dialects,
        the_label_of_a_detached_hold_lasts_as_long_as_the_hold,
        a_client_that_closes_deletes_its_labels_with_one_command_for_each,
        a_client_without_a_label_sends_nothing_when_it_closes,
        the_label_of_a_hold_that_outlives_its_client_is_not_deleted,
        a_label_that_another_client_has_used_is_not_deleted,
        a_client_that_shares_the_connection_of_a_closed_one_writes_its_label_again,
        a_label_that_cannot_be_written_or_read_prevents_no_lock,
        holds_of_redisson_and_of_older_clients_have_no_label,
    }
}

const HOUR: i64 = 3_600_000;
const MINUTE: i64 = 60_000;

impl Bench {
    /// Returns the keys of labels.
    async fn texts(&self) -> Vec<String> {
        self.query("KEYS *dlock_who:*").await
    }

    async fn client(&self, params: &str, who: &str) -> Locks {
        self.locks(params).await.with_who(Who::new(who).expect("legal"))
    }
}

async fn holders_and_waiters_are_reported_with_their_labels() {
    let Some(bench) = Bench::new().await else { return };
    let (anna, bert) = (bench.client("", "anna").await, bench.client("", "bert ☂").await);
    let kinds = [(Kind::Fair, Kind::Fair), (Kind::Read, Kind::Write), (Kind::Permit, Kind::Permit)];
    for (held, wanted) in kinds {
        let name = format!("foo-{held}");
        let guard = anna.of(held, &name).lock(&LockOptions::new()).await.unwrap();
        let lock = bert.of(wanted, &name);
        let options = LockOptions::new();
        let (wait, release) = (lock.lock(&options), async {
            let mut state = anna.inspect(&name).await.unwrap().unwrap();
            while state.queue.is_empty() {
                state = anna.inspect(&name).await.unwrap().unwrap();
            }
            for state in [state, anna.list(&name).await.unwrap().remove(0)] {
                assert_eq!(state.holders[0].who.as_deref(), Some("anna"), "{held}");
                assert_eq!(state.queue[0].who.as_deref(), Some("bert ☂"), "{wanted}");
            }
            guard.release().await.unwrap();
        });
        soon("the waiter is not granted", join(wait, release)).await.0.unwrap().release().await.unwrap();
    }
    assert_eq!(bench.texts().await.len(), 2, "a client has more than one text for its locks");
}

async fn labels_of_locks_and_of_clients_are_reported_in_both_dialects() {
    let Some(bench) = Bench::new().await else { return };
    for params in ["prefix=app:", "prefix=app:&dialect=plain"] {
        let locks = bench.client(params, "anna").await;
        let labelled = locks.mutex("foo").lock().label("the nightly run").await.unwrap();
        let other = locks.mutex("bar").lock().await.unwrap();
        let listed = locks.list("").await.unwrap();
        let labels: Vec<_> = listed
            .iter()
            .map(|state| (state.name.as_str(), state.holders[0].who.as_deref().unwrap_or("no label")))
            .collect();
        assert_eq!(labels, [("bar", "anna"), ("foo", "the nightly run")], "{params}");
        for client in [params, "dialect=plain", ""] {
            let names = bench.locks(client).await.list("").await.unwrap();
            assert!(!names.iter().any(|lock| lock.name.as_str().contains("dlock_who")), "{names:?}");
        }
        for text in bench.texts().await {
            assert!(text.starts_with("app:dlock_who:"), "{text}");
            let left: i64 = bench.query(&format!("PTTL {text}")).await;
            assert!((1..5 * MINUTE).contains(&left), "a label that was used once expires in {left} ms");
        }
        labelled.release().await.unwrap();
        other.release().await.unwrap();
        bench.send("FLUSHALL").await;
    }
}

async fn the_label_of_a_detached_hold_lasts_as_long_as_the_hold() {
    let Some(bench) = Bench::new().await else { return };
    let (anna, bert) = (bench.client("", "anna").await, bench.client("", "bert").await);
    let held = anna.mutex("foo").lock().await.unwrap();
    let ticket = held.detach(Duration::from_secs(24 * 3600)).await.unwrap();
    let left = async || bench.query::<i64>(&format!("PTTL {}", bench.texts().await[0])).await;
    assert!(left().await >= 24 * HOUR, "the label expires before the hold");
    // The client that has detached acquires another lock, which must not shorten the label's time.
    anna.mutex("bar").lock().await.unwrap().release().await.unwrap();
    assert!(left().await >= 24 * HOUR, "the label expires before the hold");
    let held = bert.resume(&ticket).await.unwrap();
    let state = bert.inspect("foo").await.unwrap().unwrap();
    assert_eq!(state.holders[0].who.as_deref(), Some("bert"), "the hold has the label of its first client");
    held.release().await.unwrap();
}

async fn a_client_that_closes_deletes_its_labels_with_one_command_for_each() {
    let Some(bench) = Bench::new().await else { return };
    for params in ["", "prefix=app:&dialect=plain"] {
        let locks = bench.client(params, "anna").await;
        for name in ["foo", "bar"] {
            locks.mutex(name).lock().await.unwrap().release().await.unwrap();
        }
        assert_eq!(bench.texts().await.len(), 1, "{params}");
        let before = bench.calls("eval").await;
        locks.close().await;
        assert_eq!(bench.texts().await, [""; 0], "{params}");
        assert_eq!(bench.calls("eval").await - before, 1, "{params}");
        locks.close().await;
        assert_eq!(bench.calls("eval").await - before, 1, "a second close deletes the labels again");

        let locks = bench.client(params, "anna").await;
        let held = locks.mutex("foo").lock().await.unwrap();
        locks.mutex("bar").lock().label("bert").await.unwrap().release().await.unwrap();
        drop(held);
        locks.close().await;
        assert_eq!(bench.texts().await, [""; 0], "{params}");
    }
}

async fn a_client_without_a_label_sends_nothing_when_it_closes() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("").await;
    locks.list("").await.unwrap();
    let before = bench.calls("eval").await;
    locks.close().await;
    assert_eq!(bench.calls("eval").await, before);
}

async fn the_label_of_a_hold_that_outlives_its_client_is_not_deleted() {
    let Some(bench) = Bench::new().await else { return };
    let observer = bench.locks("").await;
    for at_least in [false, true] {
        let (locks, hour) = (bench.client("", "anna").await, Duration::from_secs(3600));
        if at_least {
            drop(locks.mutex("foo").lock().at_least(hour).await.unwrap());
        } else {
            locks.mutex("foo").lock().await.unwrap().detach(hour).await.unwrap();
        }
        // A label of the same client that no hold needs.
        locks.mutex("bar").lock().label("bert").await.unwrap().release().await.unwrap();
        assert_eq!(bench.texts().await.len(), 2, "at_least: {at_least}");
        locks.close().await;
        assert_eq!(bench.texts().await.len(), 1, "at_least: {at_least}");
        let state = observer.inspect("foo").await.unwrap().unwrap();
        assert_eq!(state.holders[0].who.as_deref(), Some("anna"), "at_least: {at_least}");
        bench.send("FLUSHALL").await;
    }
}

async fn a_label_that_another_client_has_used_is_not_deleted() {
    let Some(bench) = Bench::new().await else { return };
    let (first, second) = (bench.client("", "anna").await, bench.client("", "anna").await);
    first.mutex("foo").lock().await.unwrap().release().await.unwrap();
    let held = second.mutex("foo").lock().await.unwrap();
    first.close().await;
    let state = second.inspect("foo").await.unwrap().unwrap();
    assert_eq!(state.holders[0].who.as_deref(), Some("anna"), "the label of a holder was deleted");
    held.release().await.unwrap();

    // A client with a label of its own.
    bench.send("FLUSHALL").await;
    let (first, second) = (bench.client("", "bert").await, bench.client("", "anna").await);
    first.mutex("foo").lock().await.unwrap().release().await.unwrap();
    second.mutex("foo").lock().await.unwrap().release().await.unwrap();
    first.close().await;
    assert_eq!(bench.texts().await.len(), 1, "the label of another client was deleted");
    second.close().await;
    assert_eq!(bench.texts().await, [""; 0]);
}

async fn a_client_that_shares_the_connection_of_a_closed_one_writes_its_label_again() {
    let Some(bench) = Bench::new().await else { return };
    let (store, anna) = (bench.store("").await, Who::new("anna").expect("legal"));
    let [first, second] = [store.clone(), store].map(|store| Locks::new(store).with_who(anna.clone()));
    first.mutex("foo").lock().await.unwrap().release().await.unwrap();
    first.close().await;
    let held = second.mutex("foo").lock().await.unwrap();
    let state = second.inspect("foo").await.unwrap().unwrap();
    assert_eq!(state.holders[0].who.as_deref(), Some("anna"));
    held.release().await.unwrap();
}

async fn a_label_that_cannot_be_written_or_read_prevents_no_lock() {
    let Some(bench) = Bench::new().await else { return };
    let first = bench.client("", "anna").await;
    first.mutex("foo").lock().await.unwrap().release().await.unwrap();
    let text = bench.texts().await.remove(0);
    for put in ["SET {} x", "HSET {} x y", "RPUSH {} a\u{7}b", "RPUSH {} \u{1b}[2J", "SADD {} x"] {
        bench.send(&format!("DEL {text}")).await;
        bench.send(&put.replace("{}", &text)).await;
        // `first` has recorded that its label was written. A new client detects that it cannot
        // write the label, or writes it again.
        let second = bench.client("", "anna").await;
        for (locks, has_label) in [(&first, false), (&second, put.starts_with("RPUSH"))] {
            for kind in KINDS {
                let held = locks.of(*kind, "foo").lock(&LockOptions::new()).await.unwrap();
                let listed = locks.list("").await.unwrap();
                for state in [locks.inspect("foo").await.unwrap().unwrap(), listed[0].clone()] {
                    let who = state.holders[0].who.as_deref();
                    assert_eq!(who, has_label.then_some("anna"), "{put} {kind}");
                }
                held.release().await.unwrap();
            }
        }
    }
}

async fn holds_of_redisson_and_of_older_clients_have_no_label() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.client("", "anna").await;
    for owner in ["2b9e1f6a-7e0b-4f52-9a9e-1d1f8a6f4c11:31", "2b9e1f6a-7e0b-4f52-9a9e-1d1f8a6f4c11:0", "x"] {
        bench.send("DEL foo").await;
        bench.send(&format!("HSET foo {owner} 1")).await;
        if let Some(state) = locks.inspect("foo").await.unwrap() {
            assert_eq!((&*state.holders[0].id, &state.holders[0].who), (owner, &None));
        }
    }
}
