//! Opens sessions, on the first of the hosts that accepts writes.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Result,
    driver::{Address, CallCounter, Connect, connect_to_first},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _,
    mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode},
};

use crate::{
    config::MysqlConfig,
    error::{self, STORE},
    session::Session,
    sql::{NO_LOCK, PREPARE, column, flag},
};

/// Maximum size of a call in bytes. Renewals of 500 claims have 38 000 bytes, and an attempt with
/// the longest name has 20 000.
const LONGEST_CALL: u64 = 64 * 1024;

/// Connects to a server that accepts writes. Reads the files of certificates and passwords for
/// each session, because they are replaced before they expire.
pub(crate) struct Dial {
    config: MysqlConfig,
    calls: CallCounter,
}

impl Dial {
    /// # Errors
    /// For a file that cannot be read now. If a file cannot be read later, perhaps because it is
    /// being replaced, the store is unavailable until it can.
    pub(crate) fn new(config: MysqlConfig) -> Result<Self> {
        let dial = Self { config, calls: CallCounter::default() };
        dial.options(None)?;
        Ok(dial)
    }

    /// Returns the counter of the calls that use a session of this dial.
    pub(super) fn calls(&self) -> &CallCounter {
        &self.calls
    }

    /// Returns the time limit of a call.
    pub(crate) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Opens a session, and returns it with the server's connection id. With a `tag`, the session
    /// owns the named lock of that name for its whole life. The tag is an SQL literal.
    ///
    /// # Errors
    /// If no host accepts writes, returns the error of the last host that refused for good or is
    /// read-only. If there is no such host, returns the error of the first host.
    pub(crate) async fn session(&self, tag: Option<&str>) -> Result<(MySqlConnection, u64)> {
        let take_tag = tag.map_or(NO_LOCK.to_owned(), |tag| format!("GET_LOCK({tag}, 0)"));
        let prepare = PREPARE.with(&[("tag", &take_tag)]);
        let MysqlConfig { hosts, timeout, .. } = &self.config;
        connect_to_first(STORE, hosts, *timeout, |host| self.session_on(host, &prepare)).await
    }

    async fn session_on(&self, host: Option<&Address>, prepare: &str) -> Result<(MySqlConnection, u64)> {
        let options = self.options(host).map_err(|error| STORE.as_transient(&error))?;
        let mut connection = options.connect().await.map_err(error::explain)?;
        let prepared = sqlx::raw_sql(AssertSqlSafe(prepare.to_owned())).fetch_one(&mut connection).await;
        let row = prepared.map_err(error::explain)?;
        if column::<u64>(&row, "max_packet")? < LONGEST_CALL {
            return Err(STORE.refused(error::SMALL_PACKET));
        }
        if flag(&row, "is_read_only")? {
            return Err(STORE.unwritable(error::READ_ONLY));
        }
        let id = column(&row, "session")?;
        Ok((connection, id))
    }

    fn options(&self, host: Option<&Address>) -> Result<MySqlConnectOptions> {
        let MysqlConfig { database, login, tls, socket, .. } = &self.config;
        let mut options = MySqlConnectOptions::new()
            .database(database)
            .disable_statement_logging()
            .statement_cache_capacity(0);
        if let Some(Address { host, port }) = host {
            options = options.host(host).port(*port);
        }
        if let Some(socket) = socket {
            options = options.socket(socket);
        }
        if let Some(user) = &login.user {
            options = options.username(user);
        }
        if let Some(password) = &login.password {
            let password = password.read()?;
            // An empty password would be sent, and the server refuses it for a user who has none.
            if !password.is_empty() {
                options = options.password(&password);
            }
        }
        let Some(tls) = tls else {
            // The password methods of newer servers need TLS, even without a checked certificate.
            let mode = if self.config.is_plain { MySqlSslMode::Disabled } else { MySqlSslMode::Preferred };
            return Ok(options.ssl_mode(mode));
        };
        let pems = tls.read()?;
        options = options.ssl_mode(MySqlSslMode::VerifyIdentity);
        if let Some(ca) = pems.ca {
            options = options.ssl_ca_from_pem(ca);
        }
        if let Some((cert, key)) = pems.client_cert {
            options = options.ssl_client_cert_from_pem(cert).ssl_client_key_from_pem(key);
        }
        Ok(options)
    }
}

impl Connect for Dial {
    type Connection = Arc<Session>;

    async fn connect(&self) -> Result<Arc<Session>> {
        self.session(None).await.map(|(connection, id)| Session::new(connection, id, self.calls.clone()))
    }
}
