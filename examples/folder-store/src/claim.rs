//! One claim in the table.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock::{
    ClaimId, Kind, Result, Token, Wait,
    driver::{Attempt, Claim, Entry, Grant, Moment, Release, Renewal, Request, Resumption, Turn, turn},
};

use crate::{
    backend::Client,
    error,
    table::{Row, Table},
};

/// How often a waiter asks: nothing wakes it.
const INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct FolderClaim {
    pub(crate) client: Arc<Client>,
    pub(crate) request: Request,
    /// Id that the hold was, or may have been, detached as.
    pub(crate) ticket: Option<ClaimId>,
}

impl FolderClaim {
    /// Makes one step of the store, on a thread, because it blocks. Ends by itself within the smaller of the configured
    /// time-out and a third of the ttl.
    async fn step<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Table, &Request) -> (T, bool) + Send + 'static,
    ) -> Result<T> {
        let bound = self.client.timeout.min(self.request.ttl / 3);
        // The thread gives up before the caller does, so that what is late changes nothing any more.
        let until = Moment::now().after(bound * 9 / 10);
        let (client, request) = (Arc::clone(&self.client), self.request.clone());
        let step = move || client.folder.step(&request.name, until, |table| step(table, &request));
        match tokio::time::timeout(bound, tokio::task::spawn_blocking(step)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(error::late()),
        }
    }
}

#[async_trait]
impl Claim for FolderClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.step(|table, Request { name, kind, id, ttl, wait, who, .. }| {
            let expires = table.now + *ttl;
            match table.row(*id) {
                // Here already: the last answer was lost, or this is its sign of life, or it is to be downgraded.
                Some(row) => {
                    row.expires = expires;
                    if *kind == Kind::Read {
                        row.entry.kind = Kind::Read;
                    }
                }
                None => {
                    let entry = Entry::new(*id, *kind);
                    let (number, who) = (table.draw(), who.text().to_owned());
                    table.rows.push(Row { number, entry, expires, who, name: name.clone() });
                }
            }
            let queue = table.queue(name);
            let now = table.now;
            let Turn::Behind(ahead) = turn(&queue, *id) else {
                let number = table.row(*id).map_or(0, |row| row.number);
                return (Attempt::Granted(Grant { token: Token::new(number), valid_for: *ttl }), true);
            };
            // A refused try leaves nothing.
            if *wait == Wait::Never {
                table.rows.retain(|row| row.entry.id != *id);
            }
            let left = table.row(ahead.id).map_or(Duration::ZERO, |row| row.expires.saturating_sub(now));
            (Attempt::Busy { retry_in: left.min(INTERVAL) }, true)
        })
        .await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.step(|table, Request { id, ttl, .. }| {
            let expires = table.now + *ttl;
            // What has expired was buried before: it is not there any more, even if nobody took the lock meanwhile.
            let Some(row) = table.row(*id) else { return (Renewal::Lost, false) };
            // The hold may have been given more time, and a renewal never shortens it.
            row.expires = row.expires.max(expires);
            (Renewal::Renewed { valid_for: *ttl }, true)
        })
        .await
    }

    /// The table forgets a claim when its time is over, whether its client lives or not. So a detached hold is one with another
    /// id and another time.
    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.ticket = Some(ticket);
        self.step(move |table, Request { name, id, .. }| {
            let expires = table.now + lasting;
            if table.holds(name, *id) {
                let Some(row) = table.row(*id) else { return (Renewal::Lost, false) };
                (row.entry.id, row.expires) = (ticket, expires);
            } else if ticket != *id && table.holds(name, ticket) {
                // An earlier call whose answer was lost. A hold that is known by its ticket is never shortened.
                let Some(row) = table.row(ticket) else { return (Renewal::Lost, false) };
                row.expires = row.expires.max(expires);
            } else {
                return (Renewal::Lost, false);
            }
            (Renewal::Renewed { valid_for: lasting }, true)
        })
        .await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        self.step(move |table, Request { name, id, ttl, who, .. }| {
            let (now, expires) = (table.now, table.now + *ttl);
            let Some(known) = [*id, ticket].into_iter().find(|known| table.holds(name, *known)) else {
                return (Resumption::Gone, false);
            };
            let Some(row) = table.row(known) else { return (Resumption::Gone, false) };
            let mut remaining = None;
            if known == *id {
                // An earlier call whose answer was lost, or a hold that was never handed over.
                row.expires = row.expires.max(expires);
            } else {
                remaining = Some(row.expires.saturating_sub(now));
                (row.entry.id, row.expires, row.who) = (*id, expires, who.text().to_owned());
            }
            let grant = Grant { token: Token::new(row.number), valid_for: *ttl };
            (Resumption::Resumed { grant, remaining }, true)
        })
        .await
    }

    async fn release(&mut self) -> Result<Release> {
        let ticket = self.ticket;
        self.step(move |table, Request { id, .. }| {
            let before = table.rows.len();
            table.rows.retain(|row| row.entry.id != *id && Some(row.entry.id) != ticket);
            let removed = table.rows.len() < before;
            (if removed { Release::Done } else { Release::Gone }, removed)
        })
        .await
    }

    async fn changed(&mut self) {
        pending().await
    }
}
