//! Holders that are paused between any two statements, for longer than their hold lasts.

use dlock_core::Guard;
use dlock_postgres::CheckIn as _;
use tokio::{sync::Barrier, time::sleep};
use tokio_postgres::{Client, IsolationLevel, Transaction};

use super::{
    check_in::{LEASE, session, until_expired},
    *,
};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        a_holder_that_is_paused_anywhere_is_lost_or_excludes_the_next_one,
        no_update_is_lost_whatever_pauses_occur,
    }
}

/// The points at which a holder can be paused, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    BeforeBegin,
    BeforeCheckIn,
    AfterCheckIn,
    AfterRead,
    BeforeCommit,
}

const POINTS: [Point; 5] =
    [Point::BeforeBegin, Point::BeforeCheckIn, Point::AfterCheckIn, Point::AfterRead, Point::BeforeCommit];

const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

const TABLES: &str = "CREATE TABLE counter (value bigint NOT NULL, token bigint NOT NULL); \
    INSERT INTO counter VALUES (0, 0); CREATE TABLE history (value bigint NOT NULL, token bigint NOT NULL)";

/// Adds one to the counter, without a lock of the database on its row between reading and writing.
/// Calls `pause` at each point.
async fn add_one<P: Future<Output = ()>>(
    client: &mut Client,
    guard: &Guard,
    level: IsolationLevel,
    pause: impl Fn(Point) -> P,
) -> Result<()> {
    let token = i64::try_from(guard.token().expect("a token").get()).expect("a small token");
    pause(Point::BeforeBegin).await;
    let mut transaction = client.build_transaction().isolation_level(level).start().await.expect("begun");
    pause(Point::BeforeCheckIn).await;
    guard.check_in(&mut transaction).await?;
    pause(Point::AfterCheckIn).await;
    let value = read(&transaction).await;
    pause(Point::AfterRead).await;
    let statement = "WITH old AS (INSERT INTO history VALUES ($1, $2)) \
        UPDATE counter SET value = $1, token = $2 WHERE token < $2";
    let written = transaction.execute(statement, &[&(value + 1), &token]).await.expect("written");
    assert_eq!(written, 1, "the fence has accepted a later token already");
    pause(Point::BeforeCommit).await;
    transaction.commit().await.expect("committed");
    Ok(())
}

async fn read(transaction: &Transaction<'_>) -> i64 {
    transaction.query_one("SELECT value FROM counter", &[]).await.expect("the counter").get(0)
}

async fn a_holder_that_is_paused_anywhere_is_lost_or_excludes_the_next_one(server: &Running) {
    sql(server, TABLES).await;
    let [locks, other] =
        [connect(server).await.expect("connected"), connect(server).await.expect("connected")];
    let [mut client, mut others] = [session(server.url()).await, session(server.url()).await];
    let mut commits = 0;
    for level in LEVELS {
        for at in POINTS {
            let guard = locks.mutex("counter").lock().lease(LEASE).await.expect("the lock");
            let meeting = &Barrier::new(2);
            let pause = move |point| async move {
                if point == at {
                    // The holder is at the point.
                    meeting.wait().await;
                    // The successor has tried.
                    meeting.wait().await;
                }
            };
            let holder = add_one(&mut client, &guard, level, pause);
            let successor = async {
                meeting.wait().await;
                until_expired(server, "counter").await;
                let next = other.mutex("counter").try_lock().await.expect("a reply");
                let is_excluded = next.is_none();
                if let Some(next) = next {
                    add_one(&mut others, &next, level, |_| async {}).await.expect("held");
                    next.release().await.expect("released");
                    meeting.wait().await;
                } else {
                    let waiter = other.mutex("counter");
                    let waiting = async { waiter.lock().await.expect("the lock") };
                    let ending = async {
                        while rows(server).await != "2" {}
                        meeting.wait().await;
                    };
                    let (next, ()) = tokio::join!(waiting, ending);
                    add_one(&mut others, &next, level, |_| async {}).await.expect("held");
                    next.release().await.expect("released");
                }
                is_excluded
            };
            let both = async { tokio::join!(holder, successor) };
            let (result, is_excluded) = timeout(SOON * 2, both).await.expect("in time");
            assert_eq!(is_excluded, at >= Point::AfterCheckIn, "the successor at {at:?}, {level:?}");
            match result {
                Ok(()) => assert!(is_excluded, "two holders at {at:?}, {level:?}"),
                Err(Error::Lost { .. }) => assert!(!is_excluded, "nobody has worked at {at:?}, {level:?}"),
                Err(error) => panic!("{at:?}, {level:?}: {error:?}"),
            }
            commits += 1 + u64::from(is_excluded);
            assert_exact(server, commits).await;
        }
    }
    assert_eq!(commits, 24, "of 15 pauses, 9 are after the check-in");
}

/// Asserts that no update was lost, and that the tokens were written in order.
async fn assert_exact(server: &Running, commits: u64) {
    assert_eq!(sql(server, "SELECT value FROM counter").await, commits.to_string(), "an update was lost");
    let in_order = "SELECT count(*) FROM (SELECT value = row_number() OVER (ORDER BY token) AS is_next \
        FROM history) AS rows WHERE is_next";
    assert_eq!(sql(server, in_order).await, commits.to_string(), "two holders interleaved");
}

async fn no_update_is_lost_whatever_pauses_occur(server: &Running) {
    const HOLDERS: usize = 6;
    const ROUNDS: usize = 25;
    sql(server, TABLES).await;
    let (commits, losses) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let contend = |index: usize| {
        let (commits, losses) = (&commits, &losses);
        async move {
            let locks = connect(server).await.expect("connected");
            let mut client = session(server.url()).await;
            for _ in 0..ROUNDS {
                let lease = Duration::from_millis(150);
                let guard = match locks.mutex("counter").lock().lease(lease).await {
                    Ok(guard) => guard,
                    Err(error) if error.is_transient() => continue,
                    Err(error) => panic!("{error:?}"),
                };
                // Every other round has a pause, which may be longer than the lease.
                let at = fastrand::usize(..POINTS.len() * 2);
                let pause = |point| async move {
                    if POINTS.get(at) == Some(&point) {
                        sleep(Duration::from_millis(fastrand::u64(..400))).await;
                    }
                };
                match add_one(&mut client, &guard, LEVELS[index % LEVELS.len()], pause).await {
                    Ok(()) => commits.fetch_add(1, Relaxed),
                    Err(Error::Lost { .. }) => losses.fetch_add(1, Relaxed),
                    Err(error) => panic!("{error:?}"),
                };
                // The guard is often lost.
                guard.release().await.ok();
            }
        }
    };
    timeout(SOON * 12, join_all((0..HOLDERS).map(contend))).await.expect("in time");
    assert_exact(server, commits.load(Relaxed) as u64).await;
    assert!(commits.load(Relaxed) > 0 && losses.load(Relaxed) > 0, "{commits:?} commits, {losses:?} losses");
}
