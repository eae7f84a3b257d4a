//! The SQL agrees with the rule, and no statement walks over a queue.

use dlock_core::{
    LockName,
    driver::{Turn, turn},
};
use proptest::{prelude::*, test_runner::TestCaseResult};
use sqlx::AssertSqlSafe;
use tempfile::TempDir;

use super::*;
use crate::{
    connection::schema::Site,
    connection::{Access, Connection},
    gate::Gate,
};

fn request(name: &str, kind: Kind) -> Request {
    let name = LockName::new(name).unwrap();
    Request::new(name, kind, Duration::from_secs(60))
}

fn store() -> (TempDir, Connection, Signature) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    let me = Signature { id: ClaimId::random(), pid: 1, host: "here".to_owned() };
    let site = Site { gate: Gate::new(None, &path), path, bells: None, me: me.id };
    (dir, Connection::new(site), me)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Fills a queue, with holes and between two others, and compares each place with the rule.
async fn compare(connection: &Connection, me: &Signature, kinds: &[(Kind, u32, bool)]) -> TestCaseResult {
    let mut tx = connection.begin(Access::Write).await.unwrap();
    let mut leavers = Vec::new();
    for (kind, limit, stays) in kinds {
        for name in ["a", "b", "c"] {
            let request = request(name, *kind).limit(NonZeroU32::new(*limit).unwrap());
            tx.ask(&request, me, &mut Vec::new()).await.unwrap();
            if !stays {
                leavers.push(request.id);
            }
        }
    }
    for leaver in leavers {
        let place = tx.own(leaver).await.unwrap().unwrap();
        tx.remove(&place, &mut Vec::new()).await.unwrap();
    }
    let places = tx.queue("b").await.unwrap();
    let queue: Vec<_> = places.iter().map(|place| place.entry).collect();
    for place in &places {
        let ahead = tx.ahead("b", place.number, place.entry).await.unwrap();
        let ahead: Vec<_> = ahead.iter().rev().map(|place| place.entry).collect();
        let rule = turn(&queue, place.entry.id);
        prop_assert_eq!(ahead.is_empty(), rule == Turn::Mine);
        // The statement sees no exclusive claim that is further ahead of a permit than its limit.
        if queue.iter().all(|entry| entry.kind == Kind::Permit) || place.entry.kind != Kind::Permit {
            prop_assert_eq!(&ahead[..], watched(&queue, place.entry.id));
        }
        let sql: Vec<_> = tx.watchers(place).await.unwrap().iter().map(|place| place.entry).collect();
        let rule: Vec<_> = watchers(&queue, place.entry.id).collect();
        prop_assert_eq!(sql, rule);
        let told = tx.who_watches(place.entry.id).await.unwrap();
        for one in &places {
            let ahead = tx.ahead("b", one.number, one.entry).await.unwrap();
            let watches = ahead.iter().any(|ahead| ahead.number == place.number);
            prop_assert!(
                !watches || told.iter().any(|told| told.number == one.number),
                "{one:?} is not told"
            );
        }
    }
    // Dropped: the next case begins with an empty file.
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_statements_say_whose_turn_it_is_as_the_rule_does(
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
fn no_statement_walks_over_a_queue_to_find_one_place() {
    let (_dir, connection, _) = store();
    block_on(async {
        let mut tx = connection.begin(Access::Read).await.unwrap();
        for (sql, index) in [
            (include_str!("../sql/own.sql"), "claim=?"),
            (include_str!("../sql/renew.sql"), "claim=?"),
            (include_str!("../sql/resume.sql"), "claim=?"),
            (include_str!("../sql/detach_again.sql"), "claim=?"),
            (include_str!("../sql/detach.sql"), "claim=?"),
            (include_str!("../sql/remove.sql"), "claim=?"),
            (include_str!("../sql/downgrade.sql"), "claim=?"),
            (include_str!("../sql/expired.sql"), "dlock_queue_expires (name=? AND expires<?)"),
            (include_str!("../sql/expired_anywhere.sql"), "dlock_queue_left (expires<?)"),
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
            (include_str!("../sql/of_client.sql"), "dlock_queue_client (client=?)"),
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
