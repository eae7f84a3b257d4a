//! Tests that the SQL follows the rule of the queue, and that no statement scans a queue.

use dlock_core::{
    LockName,
    driver::{Turn, turn},
};
use proptest::{prelude::*, test_runner::TestCaseResult};
use sqlx::AssertSqlSafe;
use tempfile::TempDir;

use super::*;
use crate::{
    connection::schema::StoreFile,
    connection::{Access, Connection},
    gate::Gate,
};

fn request(name: &str, kind: Kind) -> Request {
    let name = LockName::new(name).unwrap();
    Request::new(name, kind, Duration::from_secs(60))
}

fn store() -> (TempDir, Connection, ClientIdentity) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    let me = ClientIdentity { id: ClaimId::random(), pid: 1, host: "host".to_owned() };
    let file = StoreFile { gate: Gate::new(None, &path), path, bells: None, me: me.id };
    (dir, Connection::new(file), me)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Fills a queue that has gaps and lies between two other queues. Compares the SQL with the rule
/// for each claim.
async fn compare(
    connection: &Connection,
    me: &ClientIdentity,
    kinds: &[(Kind, u32, bool)],
) -> TestCaseResult {
    let mut tx = connection.begin(Access::Write).await.unwrap();
    let mut leavers = Vec::new();
    for (kind, limit, stays) in kinds {
        for name in ["a", "b", "c"] {
            let request = request(name, *kind).limit(NonZeroU32::new(*limit).unwrap());
            tx.attempt(&request, me, &mut Vec::new()).await.unwrap();
            if !stays {
                leavers.push(request.id);
            }
        }
    }
    for leaver in leavers {
        let row = tx.find(leaver).await.unwrap().unwrap();
        tx.remove(&row, &mut Vec::new()).await.unwrap();
    }
    let rows = tx.queue("b").await.unwrap();
    let queue: Vec<_> = rows.iter().map(|row| row.entry).collect();
    for row in &rows {
        let ahead = tx.ahead("b", row.number, row.entry).await.unwrap();
        let ahead: Vec<_> = ahead.iter().rev().map(|row| row.entry).collect();
        let rule = turn(&queue, row.entry.id);
        prop_assert_eq!(ahead.is_empty(), rule == Turn::Mine);
        // The statement does not read an exclusive claim that is further ahead of a permit than the
        // permit's limit.
        if queue.iter().all(|entry| entry.kind == Kind::Permit) || row.entry.kind != Kind::Permit {
            prop_assert_eq!(&ahead[..], watched(&queue, row.entry.id));
        }
        let sql: Vec<_> = tx.watchers(row).await.unwrap().iter().map(|row| row.entry).collect();
        let rule: Vec<_> = watchers(&queue, row.entry.id).collect();
        prop_assert_eq!(sql, rule);
        let to_ring = tx.all_watchers(row.entry.id).await.unwrap();
        for other in &rows {
            let ahead = tx.ahead("b", other.number, other.entry).await.unwrap();
            let watches = ahead.iter().any(|ahead| ahead.number == row.number);
            prop_assert!(
                !watches || to_ring.iter().any(|rung| rung.number == other.number),
                "{other:?} watches the claim and is not rung"
            );
        }
    }
    // The transaction is dropped, so that the next case begins with an empty file.
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_statements_return_the_same_turn_as_the_rule(
        kinds in prop_oneof![
            prop::collection::vec((prop::sample::select(keys::KINDS), 1..4_u32, any::<bool>()), 0..12),
            prop::collection::vec((Just(Kind::Permit), 1..5_u32, any::<bool>()), 0..12),
        ]
    ) {
        let (_dir, connection, me) = store();
        block_on(compare(&connection, &me, &kinds))?;
    }
}

#[test]
fn no_statement_scans_a_queue_to_find_one_claim() {
    let (_dir, connection, _) = store();
    block_on(async {
        let mut tx = connection.begin(Access::Read).await.unwrap();
        for (sql, index) in [
            (include_str!("../sql/by_claim.sql"), "claim=?"),
            (include_str!("../sql/renew.sql"), "claim=?"),
            (include_str!("../sql/resume.sql"), "claim=?"),
            (include_str!("../sql/detach_again.sql"), "claim=?"),
            (include_str!("../sql/detach.sql"), "claim=?"),
            (include_str!("../sql/delete.sql"), "claim=?"),
            (include_str!("../sql/downgrade.sql"), "claim=?"),
            (include_str!("../sql/expired_or_own.sql"), "dlock_queue_expires (name=? AND expires<?)"),
            (include_str!("../sql/expired_or_own.sql"), "claim=?"),
            (include_str!("../sql/expired_of_all.sql"), "dlock_queue_left (expires<?)"),
            (include_str!("../sql/ahead_of_exclusive.sql"), "PRIMARY KEY (name=? AND seq<?)"),
            (
                include_str!("../sql/ahead_of_reader.sql"),
                "dlock_queue_shares (name=? AND shares=? AND seq<?)",
            ),
            (include_str!("../sql/behind_reader.sql"), "PRIMARY KEY (name=? AND seq>?)"),
            (
                include_str!("../sql/behind_exclusive.sql"),
                "dlock_queue_shares (name=? AND shares=? AND seq>?)",
            ),
            (include_str!("../sql/nearest_ahead.sql"), "PRIMARY KEY (name=? AND seq<?)"),
            (include_str!("../sql/head.sql"), "PRIMARY KEY (name=?)"),
            (include_str!("../sql/by_client.sql"), "dlock_queue_client (client=?)"),
        ] {
            let explain = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")));
            let plan = explain.fetch_all(tx.conn()).await.unwrap();
            let plan: Vec<String> = plan.iter().map(|step| step.get("detail")).collect();
            assert!(plan.iter().any(|step| step.contains(index)), "{sql}\n{plan:#?}");
            assert!(
                !plan.iter().any(|step| step.contains("SCAN") || step.contains("TEMP")),
                "{sql}\n{plan:#?}"
            );
        }
    });
}
