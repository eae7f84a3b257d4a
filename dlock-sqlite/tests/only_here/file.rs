//! The file: what cannot be a store, who makes it, what happens when it goes away.

use std::{path::Path, time::Duration};

use dlock_core::{Backend, LostReason};
use dlock_sqlite::{SqliteBackend, SqliteConfig};
use tokio::time::timeout;

use super::{Place, SOON, connect, run};

/// The error and its sources, as a program would show them.
async fn refusal(path: &Path) -> String {
    let error = connect(&format!("sqlite:{}", path.display())).await.expect_err("must be refused");
    assert!(!error.is_transient(), "asking again would not help: {error}");
    let mut shown = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        shown += &format!(": {error}");
        source = error.source();
    }
    shown
}

#[tokio::test]
async fn a_path_that_cannot_hold_a_store_is_refused_with_what_to_do() {
    let place = Place::new();
    let dir = place.0.path();
    std::fs::write(dir.join("letter"), "Dear reader, this is no database at all. ".repeat(100)).unwrap();
    for (path, words) in [
        (dir.to_owned(), "is a directory; name a file in it"),
        (dir.join("no/such/locks.db"), "create that directory first"),
        (dir.join("letter"), "is not an SQLite database: choose another path"),
        ("/dev/null".into(), "is not a file"),
    ] {
        let shown = refusal(&path).await;
        assert!(shown.contains(words), "{shown}");
    }
}

#[tokio::test]
async fn a_damaged_file_is_refused_with_what_to_do() {
    let place = Place::new();
    let client = place.client().await;
    run(&mut place.raw().await, "PRAGMA wal_checkpoint(TRUNCATE)").await;
    let mut bytes = std::fs::read(place.path()).unwrap();
    bytes[100..].fill(0x5a);
    let damaged = place.0.path().join("damaged.db");
    std::fs::write(&damaged, bytes).unwrap();
    drop(client);
    let shown = refusal(&damaged).await;
    assert!(shown.contains("is damaged: stop who uses it and delete it"), "{shown}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_directory_that_cannot_be_written_is_named() {
    let shown = refusal(Path::new("/proc/locks.db")).await;
    assert!(shown.contains("cannot be opened: check that its directory exists and is writable"), "{shown}");
}

#[tokio::test]
async fn another_applications_database_is_refused_and_not_touched() {
    let place = Place::new();
    run(&mut place.raw().await, "CREATE TABLE letters (text TEXT)").await;
    let before = std::fs::read(place.path()).unwrap();
    let shown = refusal(&place.path()).await;
    assert!(shown.contains("is the database of another application: choose another path"), "{shown}");
    assert_eq!(std::fs::read(place.path()).unwrap(), before, "it must not be touched");
    assert!(!place.0.path().join("locks.db-bells").exists());
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_both_versions() {
    let place = Place::new();
    drop(place.client().await);
    run(&mut place.raw().await, "PRAGMA user_version = 7").await;
    let shown = refusal(&place.path()).await;
    assert!(shown.contains("has version 7 of dlock's schema and this dlock knows 1"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_that_connect_at_once_make_one_store() {
    for _ in 0..5 {
        let place = Place::new();
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let url = place.url();
            clients.spawn(async move { connect(&url).await });
        }
        let clients = clients.join_all().await;
        let clients: Vec<_> = clients.into_iter().map(Result::unwrap).collect();
        let guard = clients[0].mutex("x").lock().await.unwrap();
        for client in &clients {
            assert!(client.mutex("x").try_lock().await.unwrap().is_none(), "all must see one store");
        }
        guard.release().await.unwrap();
    }
}

#[cfg(unix)]
#[tokio::test]
async fn links_and_detours_lead_to_the_same_store() {
    let place = Place::new();
    let a = place.backend().await;
    let link = place.0.path().join("link.db");
    std::os::unix::fs::symlink(place.path(), &link).unwrap();
    let b = SqliteBackend::connect(SqliteConfig::new(link)).await.unwrap();
    assert_eq!(a.info().identity, b.info().identity);
}

#[tokio::test]
async fn a_deleted_file_loses_the_hold_and_tokens_still_grow() {
    let place = Place::new();
    let (a, b) = (place.client().await, place.client().await);
    let held = a.mutex("x").lock().ttl(Duration::from_secs(2)).await.unwrap();
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", place.path().display())).unwrap();
    }
    let next = b.mutex("x").lock().await.unwrap();
    assert!(next.token() > held.token(), "{:?} after {:?}", next.token(), held.token());
    let reason = timeout(SOON, held.lost()).await.expect("the holder must be told");
    assert_eq!(reason, LostReason::Taken);
    assert!(a.mutex("x").try_lock().await.unwrap().is_none(), "the old client must see the new file");
    next.release().await.unwrap();
}
