//! The queue of a lock in SQL. It follows the rule of [`dlock_core::driver::turn`], with statements that read only the
//! rows they need.

use std::{collections::HashSet, time::Duration};

use dlock_core::{
    ClaimId, Kind, Result,
    driver::{Entry, Request, watchers},
};
use sqlx::{FromRow, Row, sqlite::SqliteRow};

use crate::{connection::Tx, host::clock, keys};

/// A claim's place in the queue of its lock.
#[derive(Clone, Debug)]
pub(crate) struct QueueRow {
    pub(crate) name: String,
    pub(crate) number: i64,
    pub(crate) entry: Entry,
    pub(crate) client: ClaimId,
    pub(crate) pid: i64,
    pub(crate) host: String,
    pub(crate) since: i64,
    pub(crate) expires: i64,
}

/// A client of the store, as its claims in the file name it.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    pub(crate) id: ClaimId,
    pub(crate) pid: u32,
    pub(crate) host: String,
}

impl QueueRow {
    /// How long until the claim expires.
    pub(crate) fn ttl_left(&self, now: i64) -> Duration {
        Duration::from_nanos(u64::try_from(self.expires - now).unwrap_or(0))
    }
}

impl FromRow<'_, SqliteRow> for QueueRow {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        let bad = |what: &str| sqlx::Error::Decode(format!("the file holds a bad {what}").into());
        let id = |column| -> sqlx::Result<ClaimId> {
            let bytes: [u8; 16] = row.try_get::<&[u8], _>(column)?.try_into().map_err(|_| bad(column))?;
            Ok(ClaimId::from_bytes(bytes))
        };
        let kind = keys::kind(row.try_get("kind")?).ok_or_else(|| bad("kind"))?;
        Ok(Self {
            name: row.try_get("name")?,
            number: row.try_get("seq")?,
            entry: Entry::new(id("claim")?, kind),
            client: id("client")?,
            pid: row.try_get("pid")?,
            host: row.try_get("host")?,
            since: row.try_get("since")?,
            expires: row.try_get("expires")?,
        })
    }
}

/// Where a claim stands after an attempt.
pub(crate) enum Stand {
    /// It holds, with this number.
    Holds(i64),
    /// It waits for this claim, or would have to wait if it only tries.
    Behind(QueueRow),
}

/// The most expired claims of other locks that one attempt removes. So many take some tenths of a millisecond, and the
/// file is locked for that time.
const SWEPT: i64 = 16;

/// Above all numbers that are drawn.
const END: i64 = i64::MAX;

/// The changes and questions of claims. A method with `bells` adds the claims there that its change concerns: they must
/// be rung after the commit.
impl Tx<'_> {
    /// Enters the claim into the queue, or renews it if it is there, and tells whose turn it is. A claim that only tries and
    /// has to wait is not entered, and removed if it was there.
    pub(crate) async fn ask(
        &mut self,
        request: &Request,
        me: &Signature,
        bells: &mut Vec<QueueRow>,
    ) -> Result<Stand> {
        self.bury_expired(request.name.as_str(), bells).await?;
        let mut own = self.own(request.id).await?;
        let mut kind = request.kind;
        if let Some(own) = &mut own {
            if kind == Kind::Read && own.entry.kind != Kind::Read {
                bells.extend(self.watchers(own).await?);
                self.run(sqlx::query(include_str!("../sql/downgrade.sql")).bind(id(&request.id))).await?;
            } else {
                kind = own.entry.kind;
            }
        }
        let at = own.as_ref().map_or(END, |own| own.number);
        let ahead = self.ahead(request.name.as_str(), at, kind).await?;
        if request.wait == dlock_core::Wait::Never
            && let Some(ahead) = ahead
        {
            if let Some(own) = own {
                self.remove(&own, bells).await?;
            }
            return Ok(Stand::Behind(ahead));
        }
        let number = match own {
            Some(own) => {
                self.renew(request).await?;
                own.number
            }
            None => self.join(request, me).await?,
        };
        Ok(ahead.map_or(Stand::Holds(number), Stand::Behind))
    }

    /// Renews a claim; `false` if it has expired or was removed.
    pub(crate) async fn renew(&mut self, request: &Request) -> Result<bool> {
        let expires = self.now.saturating_add(clock::nanos(request.ttl));
        let renew = sqlx::query(include_str!("../sql/renew.sql"));
        Ok(self.run(renew.bind(id(&request.id)).bind(self.now).bind(expires)).await? == 1)
    }

    async fn join(&mut self, request: &Request, me: &Signature) -> Result<i64> {
        self.run(sqlx::query(include_str!("../sql/draw.sql")).bind(clock::floor())).await?;
        let drawn = sqlx::query_scalar(include_str!("../sql/drawn.sql")).fetch_one(self.conn()).await;
        let number: i64 = drawn.map_err(|source| self.explain(source))?;
        let join = sqlx::query(include_str!("../sql/join.sql"))
            .bind(request.name.as_str().to_owned())
            .bind(number)
            .bind(id(&request.id))
            .bind(keys::word(request.kind)?)
            .bind(id(&me.id))
            .bind(i64::from(me.pid))
            .bind(me.host.clone())
            .bind(self.now)
            .bind(self.now.saturating_add(clock::nanos(request.ttl)));
        self.run(join).await?;
        Ok(number)
    }

    /// The nearest place ahead of this number that must go first.
    async fn ahead(&mut self, name: &str, number: i64, kind: Kind) -> Result<Option<QueueRow>> {
        let sql = match kind {
            Kind::Read => include_str!("../sql/ahead_of_reader.sql"),
            _ => include_str!("../sql/ahead_of_exclusive.sql"),
        };
        let mut places = self.places(sqlx::query_as(sql).bind(name.to_owned()).bind(number)).await?;
        Ok(places.pop())
    }

    /// Removes the expired claims of a lock. Must come before any look at who is ahead. Otherwise a claim could be
    /// granted past an expired one that stays in the file; that one could then be renewed, and both would hold.
    pub(crate) async fn bury_expired(&mut self, name: &str, bells: &mut Vec<QueueRow>) -> Result<()> {
        let expired = sqlx::query_as(include_str!("../sql/expired.sql")).bind(name.to_owned()).bind(self.now);
        for place in self.places(expired).await? {
            self.remove(&place, bells).await?;
        }
        Ok(())
    }

    /// Removes expired claims of any lock: at most [`SWEPT`], the oldest first. Without this, a claim that was never
    /// released would stay in the file for ever if nobody asks for its name again.
    pub(crate) async fn sweep(&mut self, bells: &mut Vec<QueueRow>) -> Result<()> {
        let left = sqlx::query_as(include_str!("../sql/expired_anywhere.sql")).bind(self.now).bind(SWEPT);
        for place in self.places(left).await? {
            self.remove(&place, bells).await?;
        }
        Ok(())
    }

    /// Removes all claims of a client that is dead.
    pub(crate) async fn bury_client(&mut self, client: ClaimId, bells: &mut Vec<QueueRow>) -> Result<()> {
        let places = sqlx::query_as(include_str!("../sql/of_client.sql")).bind(id(&client));
        for place in self.places(places).await? {
            self.remove(&place, bells).await?;
        }
        Ok(())
    }

    /// Removes a claim.
    pub(crate) async fn remove(&mut self, place: &QueueRow, bells: &mut Vec<QueueRow>) -> Result<()> {
        bells.extend(self.watchers(place).await?);
        self.run(sqlx::query(include_str!("../sql/remove.sql")).bind(id(&place.entry.id))).await?;
        Ok(())
    }

    /// The claims that wait for this one.
    pub(crate) async fn watchers(&mut self, place: &QueueRow) -> Result<Vec<QueueRow>> {
        let sql = match place.entry.kind {
            Kind::Read => include_str!("../sql/behind_reader.sql"),
            _ => include_str!("../sql/behind_exclusive.sql"),
        };
        let mut behind = self.places(sqlx::query_as(sql).bind(place.name.clone()).bind(place.number)).await?;
        let queue: Vec<_> = [place].into_iter().chain(&behind).map(|place| place.entry).collect();
        let watching: HashSet<_> = watchers(&queue, place.entry.id).map(|entry| entry.id).collect();
        behind.retain(|place| watching.contains(&place.entry.id));
        Ok(behind)
    }

    /// The place of a claim, if it has one.
    pub(crate) async fn own(&mut self, claim: ClaimId) -> Result<Option<QueueRow>> {
        Ok(self.places(sqlx::query_as(include_str!("../sql/own.sql")).bind(id(&claim))).await?.pop())
    }

    /// The queue of a lock, in order.
    pub(crate) async fn queue(&mut self, name: &str) -> Result<Vec<QueueRow>> {
        self.places(sqlx::query_as(include_str!("../sql/of_name.sql")).bind(name.to_owned())).await
    }

    /// The queues of the locks whose names begin with `prefix`, in order.
    pub(crate) async fn queues(&mut self, prefix: &str) -> Result<Vec<QueueRow>> {
        let range = sqlx::query_as(include_str!("../sql/of_range.sql"));
        self.places(range.bind(prefix.to_owned()).bind(keys::beyond(prefix))).await
    }

    async fn places(&mut self, query: Asked) -> Result<Vec<QueueRow>> {
        let places = query.fetch_all(self.conn()).await;
        places.map_err(|source| self.explain(source))
    }

    async fn run(&mut self, query: Told) -> Result<u64> {
        let done = query.execute(self.conn()).await;
        done.map(|done| done.rows_affected()).map_err(|source| self.explain(source))
    }
}

/// A query with its binds, for places.
type Asked = sqlx::query::QueryAs<'static, sqlx::Sqlite, QueueRow, sqlx::sqlite::SqliteArguments>;

/// A statement with its binds, for the count of changed rows.
type Told = sqlx::query::Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

fn id(id: &ClaimId) -> Vec<u8> {
    id.as_bytes().to_vec()
}

#[cfg(test)]
mod tests;
