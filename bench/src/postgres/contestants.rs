//! Locks without dlock, and the least that a lock can cost.

use std::cell::Cell;

use dlock::{Kind, LockOptions, Locks};
use dlock_core::ClaimId;
use sqlx::{
    Connection as _, PgConnection,
    postgres::{PgAdvisoryLock, PgAdvisoryLockGuard},
};
use tokio::sync::Mutex;
use tokio_postgres::{Client as Session, Statement};
use uuid::Uuid;

use crate::contest::{Client, Outcome};

/// Advisory locks, taken and released with one query as text each.
pub(super) struct AdvisoryLocks {
    session: Session,
    lock: &'static str,
}

/// Takes the lock of `:name`.
pub(super) const LOCK: &str = "SELECT pg_advisory_lock(hashtext(':name'))";

/// Takes the lock of `:name`, and draws a token.
pub(super) const LOCK_AND_COMMIT: &str = "WITH lock AS MATERIALIZED (SELECT pg_advisory_lock(hashtext(':name'))) \
    UPDATE dlock.fence SET last = last + 1 WHERE bucket = 7 AND (SELECT count(*) FROM lock) = 1 RETURNING last";

impl AdvisoryLocks {
    /// Takes locks with [`LOCK`] or [`LOCK_AND_COMMIT`].
    pub(super) fn on(session: Session, lock: &'static str) -> Self {
        Self { session, lock }
    }
}

impl Client for AdvisoryLocks {
    /// The lock's name.
    type Held = String;

    async fn lock(&self, name: &str) -> Outcome<String> {
        self.session.simple_query(&self.lock.replace(":name", name)).await?;
        Ok(name.to_owned())
    }

    async fn unlock(&self, held: String) -> Outcome {
        self.session.simple_query(&format!("SELECT pg_advisory_unlock(hashtext('{held}'))")).await?;
        Ok(())
    }
}

/// `PgAdvisoryLock` of sqlx, on one connection.
pub(super) struct Sqlx(pub(super) Mutex<Option<PgConnection>>);

impl Sqlx {
    pub(super) async fn connect(url: &str) -> Outcome<Self> {
        Ok(Self(Mutex::new(Some(PgConnection::connect(url).await?))))
    }
}

impl Client for Sqlx {
    type Held = PgAdvisoryLockGuard<PgConnection>;

    async fn lock(&self, name: &str) -> Outcome<Self::Held> {
        let connection = self.0.lock().await.take().ok_or("the connection is in use")?;
        Ok(PgAdvisoryLock::new(name).acquire(connection).await?)
    }

    async fn unlock(&self, held: Self::Held) -> Outcome {
        *self.0.lock().await = Some(held.release_now().await?);
        Ok(())
    }
}

/// One row, inserted and deleted with a commit each. It does not exclude other clients.
pub(super) struct Row {
    session: Session,
    insert: Statement,
    delete: Statement,
}

impl Row {
    pub(super) async fn on(session: Session) -> Outcome<Self> {
        let insert = "INSERT INTO dlock.queue VALUES (convert_to($1, 'UTF8'), $2, gen_random_uuid(), 1, 1, true, now(), \
            now() + interval '1 minute', '', '')";
        let delete = "DELETE FROM dlock.queue WHERE name = convert_to($1, 'UTF8')";
        Ok(Self { insert: session.prepare(insert).await?, delete: session.prepare(delete).await?, session })
    }
}

impl Client for Row {
    /// The lock's name.
    type Held = String;

    async fn lock(&self, name: &str) -> Outcome<String> {
        self.session.execute(&self.insert, &[&name, &1_i64]).await?;
        Ok(name.to_owned())
    }

    async fn unlock(&self, held: String) -> Outcome {
        self.session.execute(&self.delete, &[&held]).await?;
        Ok(())
    }
}

/// The functions of dlock's schema, called without dlock, on as many sessions as a client of dlock has.
pub(super) struct Functions {
    sessions: Vec<Prepared>,
    next: Cell<usize>,
}

/// A session with its statements.
struct Prepared {
    session: Session,
    attempt: Statement,
    release: Statement,
}

impl Functions {
    pub(super) async fn on(sessions: Vec<Session>) -> Outcome<Self> {
        let mut prepared = Vec::new();
        for session in sessions {
            let attempt = "SELECT * FROM dlock.attempt_2($1, convert_to($2, 'UTF8'), $3, 1::smallint, 1, 60000000, false, \
                'bench', '', 9000000000000000)";
            let release =
                "SELECT * FROM dlock.release_2($1, convert_to($2, 'UTF8'), ARRAY[$3::uuid], 'bench', false)";
            prepared.push(Prepared {
                attempt: session.prepare(attempt).await?,
                release: session.prepare(release).await?,
                session,
            });
        }
        Ok(Self { sessions: prepared, next: Cell::new(0) })
    }

    fn next(&self) -> &Prepared {
        let next = self.next.get();
        self.next.set(next + 1);
        &self.sessions[next % self.sessions.len()]
    }
}

/// Returns a bucket. Any number is valid, because all clients of a name compute the same one.
fn bucket(name: &str) -> i32 {
    name.bytes().fold(0, |bucket, byte| (bucket * 31 + i32::from(byte)) % 1024)
}

impl Client for Functions {
    /// The lock's name, and the id of the claim.
    type Held = (String, Uuid);

    async fn lock(&self, name: &str) -> Outcome<Self::Held> {
        let (claim, Prepared { session, attempt, .. }) =
            (Uuid::from_bytes(*ClaimId::random().as_bytes()), self.next());
        let row = session.query_one(attempt, &[&bucket(name), &name, &claim]).await?;
        row.try_get::<_, Option<i64>>("token")?.ok_or("the lock is held")?;
        Ok((name.to_owned(), claim))
    }

    async fn unlock(&self, (name, claim): Self::Held) -> Outcome {
        let Prepared { session, release, .. } = self.next();
        session.query_one(release, &[&bucket(&name), &name, &claim]).await?;
        Ok(())
    }
}

/// A query without effect, as the least time of a round trip.
pub(super) struct SelectOne {
    session: Session,
    statement: Statement,
}

impl SelectOne {
    pub(super) async fn on(session: Session) -> Outcome<Self> {
        Ok(Self { statement: session.prepare("SELECT 1").await?, session })
    }
}

impl Client for SelectOne {
    type Held = ();

    async fn lock(&self, _name: &str) -> Outcome {
        self.session.query_one(&self.statement, &[]).await?;
        Ok(())
    }

    async fn unlock(&self, _held: ()) -> Outcome {
        Ok(())
    }
}

/// Tries of dlock to acquire a lock that is held.
pub(super) struct RefusedTries(pub(super) Locks);

/// Name of the lock that is held during [`RefusedTries`].
pub(super) const TAKEN: &str = "taken";

impl Client for RefusedTries {
    type Held = ();

    async fn lock(&self, _name: &str) -> Outcome {
        match self.0.of(Kind::Mutex, TAKEN).try_lock(&LockOptions::new()).await? {
            Some(_) => Err("the lock is free".into()),
            None => Ok(()),
        }
    }

    async fn unlock(&self, _held: ()) -> Outcome {
        Ok(())
    }
}
