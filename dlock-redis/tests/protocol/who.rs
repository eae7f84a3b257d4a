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
