//! A session of one claim, and the statements that it executes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use dlock_core::{ClaimId, Result};
use futures_util::{
    StreamExt as _,
    future::{BoxFuture, join3},
};
use tokio_postgres::{Client, SimpleQueryRow};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    connection::{Opened, drive, first_row, text_column},
    error::STORE,
    sql::{self, advisory},
};

/// A statement that a session executes. If it is dropped, the server still executes it.
pub(super) type PendingStatement = BoxFuture<'static, Result<SimpleQueryRow>>;

/// A session that no other claim uses at the same time. Dropping it closes its connection.
pub(super) struct AdvisorySession {
    client: Client,
    pub(super) id: SessionId,
    end: Arc<End>,
    /// The task that reads the connection.
    _task: AbortOnDropHandle<()>,
}

/// Identifies a session of the server.
pub(super) struct SessionId {
    /// Process id. After the end of the session another session may have it.
    pub(super) pid: String,
    /// Start time in microseconds since 1970, by the server's clock.
    pub(super) started: String,
    /// Value of the setting `dlock.tag`, which only this session has. A connection pooler may execute a
    /// statement on another session.
    pub(super) tag: String,
}

/// The end of a connection.
#[derive(Default)]
struct End {
    has_come: CancellationToken,
    /// Whether the server has announced the end. The session then owns no lock any more.
    is_announced: AtomicBool,
}

/// A connection whose session has the settings that its locks need. No task reads it yet.
pub(super) struct ConfiguredSession {
    opened: Opened,
    id: SessionId,
}

impl ConfiguredSession {
    /// Sets the session up.
    pub(super) async fn new(mut opened: Opened) -> Result<Self> {
        let tag = ClaimId::random().to_string();
        let open = sql::fill(advisory::OPEN, &[("tag", &tag)]);
        let [check, identify] = [advisory::CHECK_CLIENT, advisory::IDENTIFY].map(|text| sql::fill(text, &[]));
        let client = &opened.client;
        let requests = async {
            // The three requests are sent together. Not every platform supports the second one. Without
            // it the session of a client that has vanished waits on, and ends when it is granted its
            // lock.
            let (open, _, row) =
                join3(first_row(client, &open), first_row(client, &check), first_row(client, &identify))
                    .await;
            open.and(row)
        };
        let row = drive(&mut opened.messages, requests, |_| {}).await?;
        let id = SessionId {
            pid: text_column(&row, "pid").to_owned(),
            started: text_column(&row, "started").to_owned(),
            tag,
        };
        if id.pid.is_empty() || id.started.is_empty() {
            return Err(STORE.unexpected_reply("a request for the process id"));
        }
        Ok(Self { opened, id })
    }
}

impl AdvisorySession {
    #[expect(
        clippy::disallowed_methods,
        reason = "tokio-postgres needs one task for each connection; it ends when the session is dropped"
    )]
    pub(super) fn new(configured: ConfiguredSession) -> Arc<Self> {
        let ConfiguredSession { opened: Opened { client, mut messages, .. }, id } = configured;
        let end = Arc::<End>::default();
        let reported = Arc::clone(&end);
        let task = tokio::spawn(async move {
            // Also if the task ends with its runtime.
            let _reports_end = reported.has_come.clone().drop_guard();
            let last = loop {
                match messages.next().await {
                    Some(Ok(_)) => {}
                    last => break last,
                }
            };
            let is_announced =
                last.is_some_and(|last| last.is_err_and(|error| error.as_db_error().is_some()));
            reported.is_announced.store(is_announced, Relaxed);
        });
        Arc::new(Self { client, id, end, _task: AbortOnDropHandle::new(task) })
    }

    /// Returns whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.end.has_come.is_cancelled() || self.client.is_closed()
    }

    /// Returns whether the server has ended the session, so that it owns no lock any more.
    pub(super) fn was_ended_by_server(&self) -> bool {
        self.end.has_come.is_cancelled() && self.end.is_announced.load(Relaxed)
    }

    /// Waits until the connection has ended.
    pub(super) async fn until_ended(&self) {
        self.end.has_come.cancelled().await;
    }

    /// Returns a statement, which is sent when it is first polled. It returns the first row.
    pub(super) fn statement(self: &Arc<Self>, text: String) -> PendingStatement {
        let session = Arc::clone(self);
        Box::pin(async move { first_row(&session.client, &text).await })
    }
}
