//! One claim in the table.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock::{
    Kind, Result, Token, Wait,
    driver::{Attempt, Claim, Entry, Grant, Moment, Release, Renewal, Request, Turn, turn},
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

    /// Makes the claim last for so long from now.
    async fn extend(&self, span: Duration) -> Result<Renewal> {
        self.step(move |table, Request { id, who, .. }| {
            let expires = table.now + span;
            // What has expired was buried before: it is not there any more, even if nobody took the lock meanwhile.
            match table.row(*id) {
                Some(row) => {
                    row.expires = expires;
                    // Somebody else may have taken a detached claim back.
                    row.who = who.text().to_owned();
                    (Renewal::Renewed { valid_for: span }, true)
                }
                None => (Renewal::Lost, false),
            }
        })
        .await
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
        self.extend(self.request.ttl).await
    }

    /// The table forgets a claim when its time is over, whether its client lives or not. So a detached claim is one with
    /// another time.
    async fn detach(&mut self, lasting: Duration, _ticket: ClaimId) -> Result<Renewal> {
        self.extend(lasting).await
    }

    async fn release(&mut self) -> Result<Release> {
        self.step(|table, Request { id, .. }| match table.row(*id) {
            Some(_) => {
                table.rows.retain(|row| row.entry.id != *id);
                (Release::Done, true)
            }
            None => (Release::Gone, false),
        })
        .await
    }

    async fn changed(&mut self) {
        pending().await
    }
}
