//! Opens connections, to the first of the hosts that accepts writes.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Result,
    driver::{Address, ClockReading, Connect, connect_to_first},
};
use futures_util::{
    StreamExt as _,
    future::{Either, join, select},
    pin_mut,
    stream::{self, BoxStream},
};
use tokio::{sync::watch, time::Instant};
use tokio_postgres::{
    AsyncMessage, Client, Config, Error, NoTls, SimpleQueryMessage, SimpleQueryRow, Socket,
    config::SslMode,
    tls::{MakeTlsConnect, TlsConnect, TlsStream},
};

use super::tls::Rustls;
use crate::{
    config::PostgresConfig,
    error::{self, STORE},
    session::Session,
    sql::{DESCRIBE_SESSION, SERVER},
};

/// Oldest version that the schema is tested for, as in `server_version_num`.
const OLDEST_VERSION: u32 = 14_00_00;

/// Isolation level that the functions of the schema require.
const READ_COMMITTED: &str = "read committed";

/// Messages of the server outside of replies. Replies arrive only while this stream is polled.
pub(crate) type Messages = BoxStream<'static, std::result::Result<AsyncMessage, Error>>;

/// Identity of a running server: its start time in microseconds since 1970. After a failover, the
/// sessions of a client may be on two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerId(u64);

/// The server of a connection, and the time at which the connection was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    pub(crate) server: ServerId,
    pub(crate) opened_at: Instant,
}

/// An open connection that no task drives yet.
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) messages: Messages,
    pub(crate) endpoint: Endpoint,
    pub(crate) clock: ClockReading,
}

/// Connects to a server that accepts writes. Reads the files of certificates and passwords for each
/// connection, because they are replaced before they expire.
pub(crate) struct Dial {
    config: PostgresConfig,
}

impl Dial {
    /// # Errors
    /// For a file that cannot be read now. If a file cannot be read later, perhaps because it is
    /// being replaced, the store is unavailable until it can.
    pub(crate) fn new(config: PostgresConfig) -> Result<Self> {
        let dial = Self { config };
        dial.options(None)?;
        dial.config.tls.as_ref().map(Rustls::new).transpose()?;
        Ok(dial)
    }

    /// Returns the time limit of a call.
    pub(crate) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// If no host accepts writes, returns the error of the last host that refused for good or is
    /// read-only. If there is no such host, returns the error of the first host.
    pub(crate) async fn open(&self) -> Result<Opened> {
        let PostgresConfig { hosts, timeout, .. } = &self.config;
        connect_to_first(STORE, hosts, *timeout, |host| self.open_on(host)).await
    }

    /// Opens a connection whose transactions are READ COMMITTED by default. If the default of the
    /// server, database or user is another one, opens it again with an option. A statement that
    /// changes the default would also change it for other clients of a connection pooler.
    async fn open_on(&self, host: Option<&Address>) -> Result<Opened> {
        let options = self.options(host).map_err(|error| STORE.as_transient(&error))?;
        let (opened, isolation) = self.open_with(&options).await?;
        if isolation == READ_COMMITTED {
            return Ok(opened);
        }
        drop(opened);
        let mut with_level = options;
        with_level.options("-c default_transaction_isolation=read\\ committed");
        match self.open_with(&with_level).await {
            Ok((opened, isolation)) if isolation == READ_COMMITTED => Ok(opened),
            Err(error) if !error::refused_option(&error) => Err(error),
            _ => Err(STORE.refused(error::ISOLATION)),
        }
    }

    /// Opens a connection to a server that accepts writes. Returns its default isolation level.
    async fn open_with(&self, options: &Config) -> Result<(Opened, String)> {
        let tls = self.config.tls.as_ref().map(Rustls::new).transpose();
        let (client, mut messages) = match tls.map_err(|error| STORE.as_transient(&error))? {
            Some(tls) => connect(options, tls).await?,
            None => connect(options, NoTls).await?,
        };
        // The two requests are sent together. A server that is not PostgreSQL may not support the
        // second one.
        let requests = async { join(first_row(&client, DESCRIBE_SESSION), first_row(&client, SERVER)).await };
        let (described, server) = drive(&mut messages, requests, |_| {}).await;
        let described = described?;
        let clock = ClockReading::received(number(&described, "clock")?);
        if !text_column(&described, "version").starts_with("PostgreSQL ") {
            return Err(STORE.refused(error::NOT_POSTGRES));
        }
        if number::<u32>(&described, "version_num")? < OLDEST_VERSION {
            return Err(STORE.refused(error::TOO_OLD));
        }
        if text_column(&described, "is_read_only") == "true" {
            return Err(STORE.unwritable(error::READ_ONLY));
        }
        let isolation = text_column(&described, "isolation").to_owned();
        let server = ServerId(number(&server?, "started")?);
        let endpoint = Endpoint { server, opened_at: Instant::now() };
        Ok((Opened { client, messages, endpoint, clock }, isolation))
    }

    fn options(&self, host: Option<&Address>) -> Result<Config> {
        let PostgresConfig { database, tls, socket, .. } = &self.config;
        let mut options = Config::new();
        options.dbname(database).application_name("dlock").connect_timeout(self.config.timeout);
        if let Some(Address { host, port }) = host {
            options.host(host).port(*port);
        }
        #[cfg(unix)]
        if let Some(socket) = socket {
            options.host_path(socket);
        }
        if let Some(user) = self.config.user() {
            options.user(user);
        }
        if let Some(password) = self.config.password(host)? {
            options.password(password);
        }
        options.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        Ok(options)
    }
}

async fn connect<T>(options: &Config, tls: T) -> Result<(Client, Messages)>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: TlsStream + Send + 'static,
    T::TlsConnect: TlsConnect<Socket> + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let (client, mut connection) = options.connect(tls).await.map_err(error::explain)?;
    Ok((client, stream::poll_fn(move |context| connection.poll_message(context)).boxed()))
}

/// Waits for a request on a connection that no task drives. Calls `on_message` for each message.
pub(crate) async fn drive<T>(
    messages: &mut Messages,
    request: impl Future<Output = T>,
    mut on_message: impl FnMut(&AsyncMessage),
) -> T {
    pin_mut!(request);
    loop {
        match select(request, messages.next()).await {
            Either::Left((result, _)) => return result,
            Either::Right((Some(Ok(message)), unfinished)) => {
                on_message(&message);
                request = unfinished;
            }
            Either::Right((_, unfinished)) => {
                // The connection has ended. The request fails once the connection is dropped.
                *messages = stream::empty().boxed();
                return unfinished.await;
            }
        }
    }
}

/// Sends a query as text, and returns the first row.
pub(crate) async fn first_row(client: &Client, query: &str) -> Result<SimpleQueryRow> {
    let rows = rows(client, query).await?;
    rows.into_iter().next().ok_or_else(|| STORE.unexpected_reply("a query"))
}

/// Sends a query as text, and returns all rows.
pub(crate) async fn rows(client: &Client, query: &str) -> Result<Vec<SimpleQueryRow>> {
    let reply = client.simple_query(query).await.map_err(error::explain)?;
    let rows = reply.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    Ok(rows.collect())
}

/// Returns a column of a query that was sent as text. Empty if it is missing.
pub(crate) fn text_column<'r>(row: &'r SimpleQueryRow, name: &str) -> &'r str {
    row.try_get(name).ok().flatten().unwrap_or_default()
}

fn number<T: std::str::FromStr>(row: &SimpleQueryRow, name: &str) -> Result<T> {
    text_column(row, name).parse().map_err(|_| STORE.unexpected_reply("a query"))
}

/// Opens the lanes of a client, and publishes the server of the lane that was opened last.
pub(crate) struct LaneDial {
    dial: Dial,
    newest_server: Arc<watch::Sender<Option<ServerId>>>,
}

impl LaneDial {
    pub(super) fn new(dial: Dial, newest_server: Arc<watch::Sender<Option<ServerId>>>) -> Self {
        Self { dial, newest_server }
    }
}

impl Connect for LaneDial {
    type Connection = Arc<Session>;

    async fn connect(&self) -> Result<Arc<Session>> {
        let opened = self.dial.open().await?;
        let server = Some(opened.endpoint.server);
        self.newest_server.send_if_modified(|newest| std::mem::replace(newest, server) != server);
        Ok(Session::new(opened, &self.dial.config))
    }
}
