//! Tests of the warnings about settings of a server.

use crate::common::{Bench, connect, log::Log};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_server_that_may_evict_locks_causes_a_warning,
        a_missing_replica_causes_a_warning_if_one_is_required,
    }
}

async fn a_server_that_may_evict_locks_causes_a_warning() {
    let Some(bench) = Bench::new().await else { return };
    bench.send("ACL SETUSER app on >hunter2 +@all ~* &*").await;
    let url = bench.running.url().replacen("://", "://app:hunter2@", 1);
    for (policy, limit, expected) in [
        ("allkeys-lru", "1gb", true),
        // This policy evicts keys with a ttl, and the keys of locks have one.
        ("volatile-ttl", "1gb", true),
        ("noeviction", "1gb", false),
        ("allkeys-lru", "0", false),
    ] {
        bench.send(&format!("CONFIG SET maxmemory-policy {policy}")).await;
        bench.send(&format!("CONFIG SET maxmemory {limit}")).await;
        let log = Log::new();
        connect(&url).await.unwrap();
        let text = log.text();
        let warns = text.lines().any(|line| {
            let words = ["WARN", "set maxmemory-policy to noeviction", policy];
            words.iter().all(|word| line.contains(word))
        });
        assert_eq!(warns, expected, "{policy} with a limit of {limit}: {text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

async fn a_missing_replica_causes_a_warning_if_one_is_required() {
    let Some(bench) = Bench::new().await else { return };
    let locks = bench.locks("wait_replicas=1").await;
    let log = Log::new();
    let held = locks.mutex("foo").try_lock().await.unwrap();
    assert!(held.is_some() && log.text().contains("no replica to wait for"), "{}", log.text());
}
