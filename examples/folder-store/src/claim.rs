//! A claim, as a row in its lock's table.

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

/// Interval between the attempts of a waiter. The store does not wake waiters.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct FolderClaim {
    pub(crate) client: Arc<Client>,
    pub(crate) request: Request,
    /// Id that the hold was, or may have been, detached as.
    pub(crate) ticket: Option<ClaimId>,
}

impl FolderClaim {
    /// Runs one step of the store on a blocking thread. Returns within the configured timeout or a
    /// third of the ttl, whichever is shorter.
    async fn step<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Table, &Request) -> (T, bool) + Send + 'static,
    ) -> Result<T> {
        let limit = self.request.time_limit(self.client.timeout);
        // The thread's deadline is before the caller's, so that a late step changes nothing.
        let deadline = Moment::now().after(limit * 9 / 10);
        let (client, request) = (Arc::clone(&self.client), self.request.clone());
        let step = move || client.folder.step(&request.name, deadline, |table| step(table, &request));
        match tokio::time::timeout(limit, tokio::task::spawn_blocking(step)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(error::timed_out()),
        }
    }
}

#[async_trait]
impl Claim for FolderClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.step(|table, Request { name, kind, id, ttl, wait, who, .. }| {
            let expires = table.now + *ttl;
            match table.row(*id) {
                // The claim is in the table already. The last reply was lost, a waiter renews its
                // claim, or a holder requests a downgrade.
                Some(row) => {
                    row.expires = expires;
                    if *kind == Kind::Read {
                        row.entry.kind = Kind::Read;
                    }
                }
                None => {
                    let entry = Entry::new(*id, *kind);
                    let (number, who) = (table.draw_number(), who.text().to_owned());
                    table.rows.push(Row { number, entry, expires, who, name: name.clone() });
                }
            }
            let queue = table.queue(name);
            let now = table.now;
            let Turn::Behind(ahead) = turn(&queue, *id) else {
                let number = table.row(*id).map_or(0, |row| row.number);
                return (Attempt::Granted(Grant { token: Token::new(number), valid_for: *ttl }), true);
            };
            // A busy try leaves no row.
            if *wait == Wait::Never {
                table.rows.retain(|row| row.entry.id != *id);
            }
            let ttl_left = table.row(ahead.id).map_or(Duration::ZERO, |row| row.expires.saturating_sub(now));
            (Attempt::Busy { retry_in: ttl_left.min(POLL_INTERVAL) }, true)
        })
        .await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.step(|table, Request { id, ttl, .. }| {
            let expires = table.now + *ttl;
            // An expired row was removed before this step, even if no other client has taken the
            // lock since.
            let Some(row) = table.row(*id) else { return (Renewal::Lost, false) };
            // The hold may have a later expiry already, and a renewal never shortens it.
            row.expires = row.expires.max(expires);
            (Renewal::Renewed { valid_for: *ttl }, true)
        })
        .await
    }

    /// A row stays in the table until it expires, whether its client runs or not. A detached hold
    /// is therefore a row with another id and another expiry.
    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.ticket = Some(ticket);
        let step = self.step(move |table, Request { name, id, .. }| {
            let expires = table.now + lasting;
            if table.holds(name, *id) {
                let Some(row) = table.row(*id) else { return (Renewal::Lost, false) };
                (row.entry.id, row.expires) = (ticket, expires);
            } else if ticket != *id && table.holds(name, ticket) {
                // The reply of an earlier call was lost. A hold that has the ticket's id already is
                // never shortened.
                let Some(row) = table.row(ticket) else { return (Renewal::Lost, false) };
                row.expires = row.expires.max(expires);
            } else {
                return (Renewal::Lost, false);
            }
            (Renewal::Renewed { valid_for: lasting }, true)
        });
        let detached = step.await;
        if matches!(detached, Ok(Renewal::Lost)) {
            // The ticket may be that of another claim, which the release must not find.
            self.ticket = None;
        }
        detached
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        self.step(move |table, Request { name, id, ttl, who, .. }| {
            let (now, expires) = (table.now, table.now + *ttl);
            let Some(found_id) = [*id, ticket].into_iter().find(|found_id| table.holds(name, *found_id))
            else {
                return (Resumption::Gone, false);
            };
            let Some(row) = table.row(found_id) else { return (Resumption::Gone, false) };
            let mut remaining = None;
            if found_id == *id {
                // The reply of an earlier call was lost, or the hold was never detached.
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
