//! The queue of a lock in SQL. It follows the rule of [`dlock_core::driver::turn`], with statements
//! that read only the rows they need.

use std::{collections::HashSet, num::NonZeroU32, time::Duration};

use dlock_core::{
    ClaimId, Kind, Result,
    driver::{Entry, Request, watched, watchers},
};
use sqlx::{FromRow, Row, sqlite::SqliteRow};

use crate::{connection::Tx, host::clock, keys};

/// A claim's row in the file.
#[derive(Clone, Debug)]
pub(crate) struct QueueRow {
    pub(crate) name: String,
    /// Position in the queue, and fencing token.
    pub(crate) number: i64,
    pub(crate) entry: Entry,
    pub(crate) client: ClaimId,
    pub(crate) pid: i64,
    pub(crate) host: String,
    /// Label of the claim. `None` if the dlock that created the claim does not store labels.
    pub(crate) who: Option<String>,
    /// Time of arrival, in nanoseconds on the host's clock.
    pub(crate) since: i64,
    /// Expiry, in nanoseconds on the host's clock.
    pub(crate) expires: i64,
}

/// The data by which the claims in the file identify their client.
#[derive(Clone, Debug)]
pub(crate) struct ClientIdentity {
    pub(crate) id: ClaimId,
    pub(crate) pid: u32,
    pub(crate) host: String,
}

impl QueueRow {
    /// Returns the time until the claim expires.
    pub(crate) fn ttl_left(&self, now: i64) -> Duration {
        Duration::from_nanos(u64::try_from(self.expires.saturating_sub(now)).unwrap_or(0))
    }
}

impl FromRow<'_, SqliteRow> for QueueRow {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        let bad = |column: &str| sqlx::Error::Decode(format!("the file has a bad {column}").into());
        let id = |column| -> sqlx::Result<ClaimId> {
            let bytes: [u8; 16] = row.try_get::<&[u8], _>(column)?.try_into().map_err(|_| bad(column))?;
            Ok(ClaimId::from_bytes(bytes))
        };
        let slots = row.try_get::<Option<u32>, _>("slots")?;
        let limit = slots.map(|slots| NonZeroU32::new(slots).ok_or_else(|| bad("slots"))).transpose()?;
        let kind = keys::kind(row.try_get("kind")?, limit).ok_or_else(|| bad("kind"))?;
        let entry = Entry::new(id("claim")?, kind).limit(limit.unwrap_or(NonZeroU32::MIN));
        Ok(Self {
            name: row.try_get("name")?,
            number: row.try_get("seq")?,
            entry,
            client: id("client")?,
            pid: row.try_get("pid")?,
            host: row.try_get("host")?,
            who: row.try_get("who")?,
            since: row.try_get("since")?,
            expires: row.try_get("expires")?,
        })
    }
}

/// The position of a claim after an attempt.
pub(crate) enum Position {
    /// The claim holds the lock, with this number.
    Holds(i64),
    /// The claim waits for one of these claims, or a try would have to wait for one. Never empty.
    Behind(Vec<QueueRow>),
}

/// The result of a resumption.
pub(crate) struct Resumed {
    /// Token of the hold.
    pub(crate) number: i64,
    /// Remaining time of the detached hold. `None` if the claim already held the lock.
    pub(crate) remaining: Option<Duration>,
}

/// Maximum number of expired claims of other locks that one attempt removes. Removing them takes
/// some tenths of a millisecond, during which the file is locked.
const MAX_SWEPT: i64 = 16;

/// Greater than all numbers that are drawn.
const AFTER_ALL: i64 = i64::MAX;

/// The statements about claims. A method with `to_ring` adds the claims that its change concerns.
/// Their bells must be rung after the commit.
impl Tx<'_> {
    /// Adds the claim to the queue, or renews it if it is there, and returns its position. A try
    /// that would have to wait is not added, and is removed if it was there.
    pub(crate) async fn attempt(
        &mut self,
        request: &Request,
        me: &ClientIdentity,
        to_ring: &mut Vec<QueueRow>,
    ) -> Result<Position> {
        let mut own = self.remove_expired(request.name.as_str(), Some(request.id), to_ring).await?;
        let mut entry = request.entry();
        if let Some(own) = &mut own {
            if entry.kind == Kind::Read && own.entry.kind != Kind::Read {
                to_ring.extend(self.watchers(own).await?);
                self.run(sqlx::query(include_str!("../sql/downgrade.sql")).bind(id(&request.id))).await?;
            } else {
                entry = own.entry;
            }
        }
        let number = own.as_ref().map_or(AFTER_ALL, |own| own.number);
        let ahead = self.ahead(request.name.as_str(), number, entry).await?;
        if request.wait == dlock_core::Wait::Never && !ahead.is_empty() {
            if let Some(own) = own {
                self.remove(&own, to_ring).await?;
            }
            return Ok(Position::Behind(ahead));
        }
        let number = match own {
            Some(own) => {
                self.renew(request, me).await?;
                own.number
            }
            None => self.insert(request, me).await?,
        };
        Ok(if ahead.is_empty() { Position::Holds(number) } else { Position::Behind(ahead) })
    }

    /// Renews a claim of this client. Returns `false` if the claim has expired, was removed or now
    /// belongs to another client.
    pub(crate) async fn renew(&mut self, request: &Request, me: &ClientIdentity) -> Result<bool> {
        let renew = sqlx::query(include_str!("../sql/renew.sql"))
            .bind(id(&request.id))
            .bind(self.now)
            .bind(self.now.saturating_add(clock::nanos(request.ttl)))
            .bind(id(&me.id));
        Ok(self.run(renew).await? == 1)
    }

    /// Detaches a hold for `lasting` under the id `ticket`. Returns `false` if the hold has expired
    /// or was removed.
    pub(crate) async fn detach(
        &mut self,
        claim: ClaimId,
        ticket: ClaimId,
        lasting: Duration,
        to_ring: &mut Vec<QueueRow>,
    ) -> Result<bool> {
        let lasting = clock::nanos(lasting);
        let (expires, until) = (self.now.saturating_add(lasting), clock::wall_now().saturating_add(lasting));
        let detach = sqlx::query(include_str!("../sql/detach.sql"));
        let detach = detach.bind(id(&claim)).bind(self.now).bind(expires).bind(until).bind(id(&ticket));
        let mut detached = self.run(detach).await? == 1;
        if !detached {
            let again = sqlx::query(include_str!("../sql/detach_again.sql"));
            let again = again.bind(id(&ticket)).bind(self.now).bind(expires).bind(until);
            detached = self.run(again).await? == 1;
        }
        if detached {
            to_ring.extend(self.all_watchers(ticket).await?);
        }
        Ok(detached)
    }

    /// Hands the hold that is detached as `ticket` over to this claim. Renews the claim if it
    /// already holds the lock. Returns `None` if neither is the case.
    pub(crate) async fn resume(
        &mut self,
        request: &Request,
        ticket: ClaimId,
        me: &ClientIdentity,
        to_ring: &mut Vec<QueueRow>,
    ) -> Result<Option<Resumed>> {
        if self.renew(request, me).await? {
            let own = self.find(request.id).await?;
            return Ok(own.map(|own| Resumed { number: own.number, remaining: None }));
        }
        // The text of a ticket can be edited, so its id may be that of another lock's claim.
        let detached = self.find(ticket).await?.filter(|row| row.name == request.name.as_str());
        let Some(detached) = detached else { return Ok(None) };
        let resume = sqlx::query(include_str!("../sql/resume.sql"))
            .bind(id(&ticket))
            .bind(self.now)
            .bind(self.now.saturating_add(clock::nanos(request.ttl)))
            .bind(id(&me.id))
            .bind(i64::from(me.pid))
            .bind(me.host.clone())
            .bind(request.who.text().to_owned())
            .bind(id(&request.id));
        if self.run(resume).await? == 0 {
            return Ok(None);
        }
        to_ring.extend(self.all_watchers(request.id).await?);
        Ok(Some(Resumed { number: detached.number, remaining: Some(detached.ttl_left(self.now)) }))
    }

    /// Returns the claims that wait for the expiry of this claim or for the death of its client.
    /// They must attempt again when its expiry or its client changes. A few other claims may be
    /// included. This reads the whole queue, which only few calls do.
    async fn all_watchers(&mut self, claim: ClaimId) -> Result<Vec<QueueRow>> {
        let Some(row) = self.find(claim).await? else { return Ok(Vec::new()) };
        let mut watching = self.watchers(&row).await?;
        let behind = sqlx::query_as(include_str!("../sql/behind_permit.sql"));
        watching.extend(self.rows(behind.bind(row.name).bind(row.number)).await?);
        Ok(watching)
    }

    /// Adds the claim to the end of the queue. Returns its number.
    async fn insert(&mut self, request: &Request, me: &ClientIdentity) -> Result<i64> {
        let draw = sqlx::query_scalar(include_str!("../sql/draw_number.sql")).bind(clock::min_token());
        let number: i64 = draw.fetch_one(self.conn()).await.map_err(|source| self.explain(source))?;
        let insert = sqlx::query(include_str!("../sql/insert.sql"))
            .bind(request.name.as_str().to_owned())
            .bind(number)
            .bind(id(&request.id))
            .bind(keys::word(request.kind)?)
            .bind(id(&me.id))
            .bind(i64::from(me.pid))
            .bind(me.host.clone())
            .bind(self.now)
            .bind(self.now.saturating_add(clock::nanos(request.ttl)))
            .bind((request.kind == Kind::Permit).then(|| i64::from(request.limit.get())))
            .bind(request.who.text().to_owned());
        self.run(insert).await?;
        Ok(number)
    }

    /// Returns the claims ahead of this number for which a claim waits. One of them must leave
    /// first.
    async fn ahead(&mut self, name: &str, number: i64, claim: Entry) -> Result<Vec<QueueRow>> {
        let sql = match claim.kind {
            Kind::Permit => return self.ahead_of_permit(name, number, claim).await,
            Kind::Read => include_str!("../sql/ahead_of_reader.sql"),
            _ => include_str!("../sql/ahead_of_exclusive.sql"),
        };
        self.rows(sqlx::query_as(sql).bind(name.to_owned()).bind(number)).await
    }

    /// Reads no more claims than the permit's own limit. As many claims ahead exclude the permit,
    /// whatever their kinds.
    async fn ahead_of_permit(&mut self, name: &str, number: i64, claim: Entry) -> Result<Vec<QueueRow>> {
        let nearest = sqlx::query_as(include_str!("../sql/nearest_ahead.sql"));
        let nearest = nearest.bind(name.to_owned()).bind(number).bind(i64::from(claim.limit.get()));
        let mut rows = self.rows(nearest).await?;
        let queue: Vec<_> = rows.iter().rev().map(|row| row.entry).chain([claim]).collect();
        let watched: HashSet<_> = watched(&queue, claim.id).iter().map(|entry| entry.id).collect();
        rows.retain(|row| watched.contains(&row.entry.id));
        Ok(rows)
    }

    /// Removes the expired claims of a lock. Returns the row of the claim `own` if it is in the
    /// file and was not removed.
    ///
    /// This must precede any query of the claims ahead. Otherwise a claim could be granted although
    /// an expired claim ahead stays in the file. If the expired claim were renewed afterwards, both
    /// would hold the lock.
    pub(crate) async fn remove_expired(
        &mut self,
        name: &str,
        own: Option<ClaimId>,
        to_ring: &mut Vec<QueueRow>,
    ) -> Result<Option<QueueRow>> {
        let rows = sqlx::query_as(include_str!("../sql/expired_or_own.sql"))
            .bind(name.to_owned())
            .bind(self.now)
            .bind(own.as_ref().map(id));
        let mut own = None;
        for row in self.rows(rows).await? {
            if row.name == name && row.expires <= self.now {
                self.remove(&row, to_ring).await?;
            } else {
                own = Some(row);
            }
        }
        Ok(own)
    }

    /// Removes expired claims of all locks, the oldest first and at most [`MAX_SWEPT`]. Otherwise a
    /// claim that was never released would stay in the file for ever if its name is not requested
    /// again.
    pub(crate) async fn sweep(&mut self, to_ring: &mut Vec<QueueRow>) -> Result<()> {
        let expired =
            sqlx::query_as(include_str!("../sql/expired_of_all.sql")).bind(self.now).bind(MAX_SWEPT);
        self.remove_all(expired, to_ring).await
    }

    /// Removes all claims of a dead client.
    pub(crate) async fn remove_client(&mut self, client: ClaimId, to_ring: &mut Vec<QueueRow>) -> Result<()> {
        let claims = sqlx::query_as(include_str!("../sql/by_client.sql")).bind(id(&client));
        self.remove_all(claims, to_ring).await
    }

    async fn remove_all(&mut self, query: RowQuery, to_ring: &mut Vec<QueueRow>) -> Result<()> {
        for row in self.rows(query).await? {
            self.remove(&row, to_ring).await?;
        }
        Ok(())
    }

    /// Removes a claim.
    pub(crate) async fn remove(&mut self, row: &QueueRow, to_ring: &mut Vec<QueueRow>) -> Result<()> {
        to_ring.extend(self.watchers(row).await?);
        self.run(sqlx::query(include_str!("../sql/delete.sql")).bind(id(&row.entry.id))).await?;
        Ok(())
    }

    /// Returns the claims that wait for this claim to leave.
    pub(crate) async fn watchers(&mut self, row: &QueueRow) -> Result<Vec<QueueRow>> {
        let sql = match row.entry.kind {
            Kind::Read => include_str!("../sql/behind_reader.sql"),
            _ => include_str!("../sql/behind_exclusive.sql"),
        };
        let mut behind = self.rows(sqlx::query_as(sql).bind(row.name.clone()).bind(row.number)).await?;
        let is_permit = |row: &QueueRow| row.entry.kind == Kind::Permit;
        let may_admit_permits = is_permit(row) || behind.first().is_some_and(is_permit);
        retain_watchers(&mut behind, [row].into_iter(), row.entry.id);
        behind.retain(|row| !is_permit(row));
        if may_admit_permits {
            behind.extend(self.next_permits(row).await?);
        }
        Ok(behind)
    }

    /// Returns the permits that are granted when this claim leaves. Reads at most two more claims
    /// than can then hold permits.
    async fn next_permits(&mut self, row: &QueueRow) -> Result<Vec<QueueRow>> {
        let mut head = self.head(&row.name, 2).await?;
        let first = head.iter().map(|row| row.entry).find(|entry| entry.id != row.entry.id);
        let Some(first) = first.filter(|first| first.kind == Kind::Permit) else { return Ok(Vec::new()) };
        head = self.head(&row.name, i64::from(first.limit.get()) + 2).await?;
        retain_watchers(&mut head, [].into_iter(), row.entry.id);
        head.retain(|row| row.entry.kind == Kind::Permit);
        Ok(head)
    }

    /// Returns at most `max_rows` first claims of a lock's queue.
    async fn head(&mut self, name: &str, max_rows: i64) -> Result<Vec<QueueRow>> {
        let head = sqlx::query_as(include_str!("../sql/head.sql"));
        self.rows(head.bind(name.to_owned()).bind(max_rows)).await
    }

    /// Returns the row of a claim, if the claim is in the file.
    pub(crate) async fn find(&mut self, claim: ClaimId) -> Result<Option<QueueRow>> {
        Ok(self.rows(sqlx::query_as(include_str!("../sql/by_claim.sql")).bind(id(&claim))).await?.pop())
    }

    /// Returns the queue of a lock, in order.
    pub(crate) async fn queue(&mut self, name: &str) -> Result<Vec<QueueRow>> {
        self.rows(sqlx::query_as(include_str!("../sql/by_name.sql")).bind(name.to_owned())).await
    }

    /// Returns the queues of the locks whose names begin with `prefix`, in order.
    pub(crate) async fn queues(&mut self, prefix: &str) -> Result<Vec<QueueRow>> {
        let range = sqlx::query_as(include_str!("../sql/by_name_range.sql"));
        self.rows(range.bind(prefix.to_owned()).bind(keys::end_of_prefix(prefix))).await
    }

    async fn rows(&mut self, query: RowQuery) -> Result<Vec<QueueRow>> {
        let rows = query.fetch_all(self.conn()).await;
        rows.map_err(|source| self.explain(source))
    }

    /// Executes a statement, and returns the number of changed rows.
    async fn run(&mut self, statement: Statement) -> Result<u64> {
        let result = statement.execute(self.conn()).await;
        result.map(|result| result.rows_affected()).map_err(|source| self.explain(source))
    }
}

/// A query of claims, with its binds.
type RowQuery = sqlx::query::QueryAs<'static, sqlx::Sqlite, QueueRow, sqlx::sqlite::SqliteArguments>;

/// A statement that returns no rows, with its binds.
type Statement = sqlx::query::Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

/// Retains the claims to wake when `leaver` leaves. The queue consists of `before` and `rows`.
fn retain_watchers<'a>(
    rows: &mut Vec<QueueRow>,
    before: impl Iterator<Item = &'a QueueRow>,
    leaver: ClaimId,
) {
    let queue: Vec<_> = before.map(|row| row.entry).chain(rows.iter().map(|row| row.entry)).collect();
    let watching: HashSet<_> = watchers(&queue, leaver).map(|entry| entry.id).collect();
    rows.retain(|row| watching.contains(&row.entry.id));
}

fn id(id: &ClaimId) -> Vec<u8> {
    id.as_bytes().to_vec()
}

#[cfg(test)]
mod tests;
