//! The queue of a lock in SQL. It follows the rule of [`dlock_core::driver::turn`], with statements that read only the
//! rows they need.

use std::{collections::HashSet, num::NonZeroU32, time::Duration};

use dlock_core::{
    ClaimId, Kind, Result,
    driver::{Entry, Request, watched, watchers},
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
    /// Who has the claim, in words. A dlock that does not know such words has made a claim without them.
    pub(crate) who: Option<String>,
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

/// Where a claim stands after an attempt.
pub(crate) enum Stand {
    /// It holds, with this number.
    Holds(i64),
    /// It waits for one of these claims, or would have to wait if it only tries. Never empty.
    Behind(Vec<QueueRow>),
}

/// A hold that was handed over.
pub(crate) struct Resumed {
    /// Its token.
    pub(crate) number: i64,
    /// How long the detached hold would still have lasted. `None` if the claim held already.
    pub(crate) remaining: Option<Duration>,
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
        let mut entry = request.entry();
        if let Some(own) = &mut own {
            if entry.kind == Kind::Read && own.entry.kind != Kind::Read {
                bells.extend(self.watchers(own).await?);
                self.run(sqlx::query(include_str!("../sql/downgrade.sql")).bind(id(&request.id))).await?;
            } else {
                entry = own.entry;
            }
        }
        let at = own.as_ref().map_or(END, |own| own.number);
        let ahead = self.ahead(request.name.as_str(), at, entry).await?;
        if request.wait == dlock_core::Wait::Never && !ahead.is_empty() {
            if let Some(own) = own {
                self.remove(&own, bells).await?;
            }
            return Ok(Stand::Behind(ahead));
        }
        let number = match own {
            Some(own) => {
                self.renew(request, me).await?;
                own.number
            }
            None => self.join(request, me).await?,
        };
        Ok(if ahead.is_empty() { Stand::Holds(number) } else { Stand::Behind(ahead) })
    }

    /// Renews a claim of this client. Returns `false` if it has expired, was removed or was handed over.
    pub(crate) async fn renew(&mut self, request: &Request, me: &Signature) -> Result<bool> {
        let renew = sqlx::query(include_str!("../sql/renew.sql"))
            .bind(id(&request.id))
            .bind(self.now)
            .bind(self.now.saturating_add(clock::nanos(request.ttl)))
            .bind(id(&me.id));
        Ok(self.run(renew).await? == 1)
    }

    /// Gives a hold to its ticket, without a client, for this long. Returns `false` if it has expired or was removed.
    pub(crate) async fn detach(
        &mut self,
        claim: ClaimId,
        ticket: ClaimId,
        lasting: Duration,
        bells: &mut Vec<QueueRow>,
    ) -> Result<bool> {
        let lasting = clock::nanos(lasting);
        let (expires, until) = (self.now.saturating_add(lasting), clock::wall().saturating_add(lasting));
        let detach = sqlx::query(include_str!("../sql/detach.sql"));
        let detach = detach.bind(id(&claim)).bind(self.now).bind(expires).bind(until).bind(id(&ticket));
        let mut detached = self.run(detach).await? == 1;
        if !detached {
            let again = sqlx::query(include_str!("../sql/detach_again.sql"));
            let again = again.bind(id(&ticket)).bind(self.now).bind(expires).bind(until);
            detached = self.run(again).await? == 1;
        }
        if detached {
            bells.extend(self.who_watches(ticket).await?);
        }
        Ok(detached)
    }

    /// Hands the hold that is detached as `ticket` over to this claim. A claim that holds already is renewed.
    pub(crate) async fn resume(
        &mut self,
        request: &Request,
        ticket: ClaimId,
        me: &Signature,
        bells: &mut Vec<QueueRow>,
    ) -> Result<Option<Resumed>> {
        if self.renew(request, me).await? {
            let own = self.own(request.id).await?;
            return Ok(own.map(|own| Resumed { number: own.number, remaining: None }));
        }
        // A ticket may name another lock than the one that has its id.
        let detached = self.own(ticket).await?.filter(|place| place.name == request.name.as_str());
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
        bells.extend(self.who_watches(request.id).await?);
        Ok(Some(Resumed { number: detached.number, remaining: Some(detached.ttl_left(self.now)) }))
    }

    /// The claims that wait for the end of this one, or for the death of its client. They must look again when either is not
    /// what they know any more. A few others may be among them. Reads the whole queue, which only few calls do.
    async fn who_watches(&mut self, claim: ClaimId) -> Result<Vec<QueueRow>> {
        let Some(place) = self.own(claim).await? else { return Ok(Vec::new()) };
        let mut watching = self.watchers(&place).await?;
        let behind = sqlx::query_as(include_str!("../sql/behind_permit.sql"));
        watching.extend(self.places(behind.bind(place.name).bind(place.number)).await?);
        Ok(watching)
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
            .bind(self.now.saturating_add(clock::nanos(request.ttl)))
            .bind((request.kind == Kind::Permit).then(|| i64::from(request.limit.get())))
            .bind(request.who.text().to_owned());
        self.run(join).await?;
        Ok(number)
    }

    /// The places ahead of this number that a claim waits for. One of them must go first.
    async fn ahead(&mut self, name: &str, number: i64, claim: Entry) -> Result<Vec<QueueRow>> {
        let sql = match claim.kind {
            Kind::Permit => return self.ahead_of_permit(name, number, claim).await,
            Kind::Read => include_str!("../sql/ahead_of_reader.sql"),
            _ => include_str!("../sql/ahead_of_exclusive.sql"),
        };
        self.places(sqlx::query_as(sql).bind(name.to_owned()).bind(number)).await
    }

    /// Looks at no more places than the permit's own limit: so many ahead keep it out, whatever they are.
    async fn ahead_of_permit(&mut self, name: &str, number: i64, claim: Entry) -> Result<Vec<QueueRow>> {
        let nearest = sqlx::query_as(include_str!("../sql/nearest_ahead.sql"));
        let nearest = nearest.bind(name.to_owned()).bind(number).bind(i64::from(claim.limit.get()));
        let mut places = self.places(nearest).await?;
        let queue: Vec<_> = places.iter().rev().map(|place| place.entry).chain([claim]).collect();
        let watched: HashSet<_> = watched(&queue, claim.id).iter().map(|entry| entry.id).collect();
        places.retain(|place| watched.contains(&place.entry.id));
        Ok(places)
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
        let is_permit = |place: &QueueRow| place.entry.kind == Kind::Permit;
        let may_let_permits_in = is_permit(place) || behind.first().is_some_and(is_permit);
        retain_watchers(&mut behind, [place].into_iter(), place.entry.id);
        behind.retain(|place| !is_permit(place));
        if may_let_permits_in {
            behind.extend(self.next_permits(place).await?);
        }
        Ok(behind)
    }

    /// The permits whose turn comes when this claim leaves. Looks at no more places than may hold permits then, and two.
    async fn next_permits(&mut self, place: &QueueRow) -> Result<Vec<QueueRow>> {
        let mut head = self.head(&place.name, 2).await?;
        let first = head.iter().map(|place| place.entry).find(|entry| entry.id != place.entry.id);
        let Some(first) = first.filter(|first| first.kind == Kind::Permit) else { return Ok(Vec::new()) };
        head = self.head(&place.name, i64::from(first.limit.get()) + 2).await?;
        retain_watchers(&mut head, [].into_iter(), place.entry.id);
        head.retain(|place| place.entry.kind == Kind::Permit);
        Ok(head)
    }

    /// So many of the first places of a lock's queue.
    async fn head(&mut self, name: &str, most: i64) -> Result<Vec<QueueRow>> {
        let head = sqlx::query_as(include_str!("../sql/head.sql"));
        self.places(head.bind(name.to_owned()).bind(most)).await
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

/// Retains the places that are to be woken when `leaver` leaves. The queue are the places and those before them.
fn retain_watchers<'a>(
    places: &mut Vec<QueueRow>,
    before: impl Iterator<Item = &'a QueueRow>,
    leaver: ClaimId,
) {
    let queue: Vec<_> =
        before.map(|place| place.entry).chain(places.iter().map(|place| place.entry)).collect();
    let watching: HashSet<_> = watchers(&queue, leaver).map(|entry| entry.id).collect();
    places.retain(|place| watching.contains(&place.entry.id));
}

fn id(id: &ClaimId) -> Vec<u8> {
    id.as_bytes().to_vec()
}

#[cfg(test)]
mod tests;
