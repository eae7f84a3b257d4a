//! Tests of refused files, of the creation of the store's file, and of its deletion while in use.

use std::{path::Path, time::Duration};

use dlock_core::{LostReason, driver::Backend};
use dlock_sqlite::{SqliteBackend, SqliteConfig};
use tokio::time::timeout;

use super::{Place, SOON, connect, refusal, run};

#[tokio::test]
async fn a_path_that_cannot_hold_a_store_is_refused_with_what_to_do() {
    let place = Place::new();
    let dir = place.0.path();
    std::fs::write(dir.join("letter"), "Dear reader, this is no database at all. ".repeat(100)).unwrap();
    for (path, advice) in [
        (dir.to_owned(), "is a directory; name a file in it"),
        (dir.join("no/such/locks.db"), "create that directory first"),
        (dir.join("letter"), "is not an SQLite database: choose another path"),
        ("/dev/null".into(), "is not a file"),
    ] {
        let text = refusal(&path).await;
        assert!(text.contains(advice), "{text}");
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
    let text = refusal(&damaged).await;
    assert!(text.contains("is damaged: stop the processes that use it, and delete it"), "{text}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_directory_that_cannot_be_written_is_named() {
    let text = refusal(Path::new("/proc/locks.db")).await;
    assert!(text.contains("cannot be created"), "{text}");
    assert!(text.contains("check that its directory exists and is writable"), "{text}");
}

#[tokio::test]
async fn another_applications_database_is_refused_and_not_touched() {
    let place = Place::new();
    run(&mut place.raw().await, "CREATE TABLE letters (text TEXT)").await;
    let before = std::fs::read(place.path()).unwrap();
    let text = refusal(&place.path()).await;
    assert!(text.contains("is the database of another application: choose another path"), "{text}");
    assert_eq!(std::fs::read(place.path()).unwrap(), before, "the other application's file was changed");
    assert!(!place.0.path().join("locks.db-bells").exists());
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_both_versions() {
    let place = Place::new();
    drop(place.client().await);
    run(&mut place.raw().await, "PRAGMA user_version = 7").await;
    let text = refusal(&place.path()).await;
    assert!(text.contains("has version 7 of dlock's schema and this dlock knows 1"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_clients_that_connect_at_once_create_one_store() {
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
            assert!(
                client.mutex("x").try_lock().await.unwrap().is_none(),
                "two clients that connected at once have two stores"
            );
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

#[cfg(unix)]
#[tokio::test]
async fn a_link_may_lead_to_a_store_that_does_not_exist_yet() {
    let place = Place::new();
    let link = place.0.path().join("link.db");
    std::os::unix::fs::symlink("locks.db", &link).unwrap();
    let a = SqliteBackend::connect(SqliteConfig::new(link)).await.unwrap();
    assert_eq!(a.info().identity, place.backend().await.info().identity);
}

/// SQLite keeps a log for each name of a file, so a file with two names would be two stores.
#[cfg(unix)]
#[tokio::test]
async fn a_file_with_two_names_is_refused() {
    let place = Place::new();
    let client = place.client().await;
    let guard = client.mutex("x").lock().await.unwrap();
    let other = place.0.path().join("other.db");
    std::fs::hard_link(place.path(), &other).unwrap();
    let text = refusal(&other).await;
    assert!(text.contains("is one file with 2 names"), "{text}");
    guard.release().await.expect("the client that had opened the file before can still use it");
    std::fs::remove_file(other).unwrap();
    assert!(place.client().await.mutex("x").try_lock().await.unwrap().is_some());
}

#[cfg(unix)]
#[tokio::test]
async fn a_linked_file_beside_the_store_is_refused_and_not_touched() {
    let place = Place::new();
    let precious = place.0.path().join("precious");
    std::fs::write(&precious, "another user's data").unwrap();
    for end in ["-wal", "-shm", "-journal", "-bells"] {
        let beside = place.0.path().join(format!("locks.db{end}"));
        std::os::unix::fs::symlink(&precious, &beside).unwrap();
        let text = refusal(&place.path()).await;
        assert!(text.contains(&format!("locks.db{end}` is not")), "{text}");
        std::fs::remove_file(&beside).unwrap();
        std::fs::hard_link(&precious, &beside).unwrap();
        let text = refusal(&place.path()).await;
        assert!(text.contains(&format!("locks.db{end}` is")), "{text}");
        std::fs::remove_file(&beside).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "another user's data");
}

/// SQLite finds the log and the shared index by name, so a new file would share those of the deleted
/// one with the processes that still use it.
#[cfg(unix)]
#[tokio::test]
async fn a_new_file_is_refused_while_side_files_of_a_deleted_one_exist() {
    let place = Place::new();
    let client = place.client().await;
    let guard = client.mutex("x").lock().await.unwrap();
    std::fs::remove_file(place.path()).unwrap();
    for side in ["-wal", "-shm"] {
        let error = connect(&format!("sqlite:{}", place.path().display())).await.expect_err("not opened");
        let text = format!("{error:?}");
        assert!(error.is_transient(), "the files may be just being deleted: {text}");
        assert!(text.contains(&format!("locks.db{side}` is of another file")), "{text}");
        assert!(text.contains("delete the file with its `-wal` and `-shm`"), "{text}");
        std::fs::remove_file(format!("{}{side}", place.path().display())).unwrap();
    }
    assert!(place.client().await.mutex("x").try_lock().await.unwrap().is_some());
    drop(guard);
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
    let reason = timeout(SOON, held.lost()).await.expect("the loss was not reported to the holder");
    assert_eq!(reason, LostReason::Deleted);
    assert!(a.mutex("x").try_lock().await.unwrap().is_none(), "the old client does not use the new file");
    next.release().await.unwrap();
}
