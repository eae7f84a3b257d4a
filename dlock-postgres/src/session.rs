//! One session of the server, and the execution of calls on it.

use std::sync::Arc;

use dlock_core::{
    Result,
    driver::{ClockReading, Moment},
};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout_at},
};
use tokio_postgres::{Client, Error, Row, SimpleQueryMessage, SimpleQueryRow, Statement, types::ToSql};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    config::PostgresConfig,
    connection::{Call, Endpoint, Opened, first_row, rows},
    error,
    sql::{CLOCK, Function},
};

/// A session. Calls are sent at once, and the server executes them in order.
pub(crate) struct Session {
    client: Client,
    endpoint: Endpoint,
    schema: String,
    /// Prepared statements, in the order of [`Function`]. `None` if the statements of each call are
    /// sent with it, because a connection pooler does not support prepared ones.
    statements: Option<[OnceCell<Statement>; Function::COUNT]>,
    state: Mutex<State>,
    /// The task that reads the connection.
    _task: AbortOnDropHandle<()>,
}

struct State {
    clock: ClockReading,
    last_reply: Instant,
}

/// The result of sending a call to a session.
pub(crate) enum Outcome {
    Done(Vec<Row>),
    Failed(Error),
    /// No reply to this call arrived before the deadline.
    NoReply,
}

impl Session {
    #[expect(
        clippy::disallowed_methods,
        reason = "tokio-postgres needs one task for each connection; it ends when the session is dropped"
    )]
    pub(crate) fn new(opened: Opened, config: &PostgresConfig) -> Arc<Self> {
        let Opened { client, mut messages, endpoint, clock } = opened;
        let task = tokio::spawn(async move { while let Some(Ok(_)) = messages.next().await {} });
        Arc::new(Self {
            client,
            endpoint,
            schema: config.schema.clone(),
            statements: config.prepares_statements.then(Default::default),
            state: Mutex::new(State { clock, last_reply: Instant::now() }),
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Returns the server of the session, and the time at which it was opened.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Returns whether the connection has ended, or its task has ended with its runtime.
    pub(crate) fn has_ended(&self) -> bool {
        self.client.is_closed()
    }

    /// Returns whether no call got a reply since `since`.
    pub(crate) fn is_silent_since(&self, since: Instant) -> bool {
        self.state.lock().last_reply < since
    }

    /// Records a time of the server that has just arrived, in microseconds since 1970.
    pub(crate) fn note_clock(&self, micros: i64) {
        self.state.lock().clock = ClockReading::received(micros.unsigned_abs());
    }

    /// Executes a call. The server may still execute it after `deadline`.
    pub(crate) async fn execute(&self, call: &Call<'_>, deadline: Instant) -> Outcome {
        let outcome = match timeout_at(deadline, self.run(call, deadline)).await {
            Ok(Ok(rows)) => Outcome::Done(rows),
            Ok(Err(error)) => Outcome::Failed(error),
            Err(_) => return Outcome::NoReply,
        };
        self.state.lock().last_reply = Instant::now();
        outcome
    }

    /// Sends the call. A call that must not be executed late may start in the first half of the time
    /// that is left. The second half is for its commit and for the reply.
    async fn run(&self, call: &Call<'_>, deadline: Instant) -> std::result::Result<Vec<Row>, Error> {
        let function = call.function;
        let prepared = self.prepared(function).await?;
        if call.late_execution.is_refused() && self.state.lock().clock.is_outdated(Moment::now()) {
            self.read_clock().await?;
        }
        let half_of_the_time = deadline.saturating_duration_since(Instant::now()) / 2;
        let server_deadline = self.state.lock().clock.deadline(Moment::now(), half_of_the_time);
        let server_deadline = i64::try_from(server_deadline).unwrap_or(i64::MAX);
        let mut params: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(call.params.len() + 1);
        params.extend(call.params.iter().map(|param| &**param as &(dyn ToSql + Sync)));
        if call.late_execution.is_refused() {
            params.push(&server_deadline);
        }
        match prepared {
            Some(statement) => self.client.query(statement, &params).await,
            None => {
                let params: Vec<_> = params.into_iter().zip(function.parameters()).collect();
                self.client.query_typed(&function.statement(&self.schema), &params).await
            }
        }
    }

    /// Returns the prepared statement, or `None` if it is sent with each call.
    async fn prepared(&self, function: Function) -> std::result::Result<Option<&Statement>, Error> {
        let Some(statements) = &self.statements else { return Ok(None) };
        let prepare = || async {
            self.client.prepare_typed(&function.statement(&self.schema), &function.parameters()).await
        };
        statements[function as usize].get_or_try_init(prepare).await.map(Some)
    }

    async fn read_clock(&self) -> std::result::Result<(), Error> {
        let reply = self.client.simple_query(CLOCK).await?;
        let clock = reply.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get("clock")?.parse().ok(),
            _ => None,
        });
        if let Some(clock) = clock {
            self.note_clock(clock);
        }
        Ok(())
    }

    /// Sends a query as text, and returns the first row.
    pub(crate) async fn first_row(&self, query: &str) -> Result<SimpleQueryRow> {
        first_row(&self.client, query).await
    }

    /// Sends a query as text, and returns all rows.
    pub(crate) async fn rows(&self, query: &str) -> Result<Vec<SimpleQueryRow>> {
        let rows = rows(&self.client, query).await?;
        self.state.lock().last_reply = Instant::now();
        Ok(rows)
    }

    /// Executes statements in one transaction.
    pub(crate) async fn execute_all(&self, statements: &str) -> Result<()> {
        self.client.batch_execute(statements).await.map_err(error::explain)
    }
}
