//! Makes sessions, to the first of the hosts that takes writes.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Result,
    driver::{Address, Connect},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Row as _,
    mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode},
};

use super::{Calls, Line};
use crate::{
    config::MysqlConfig,
    error::{self, STORE},
    sql::{NOTHING, PREPARE},
};

/// No call has more bytes: renewals of 500 claims have 38 000, and an attempt of the longest name 20 000.
const LONGEST_CALL: u64 = 64 * 1024;

/// Knows how to reach a server that takes writes. Files of certificates and passwords are read for each session, because they are
/// replaced before they expire.
pub(crate) struct Dial {
    pub(super) config: MysqlConfig,
    calls: Calls,
}

impl Dial {
    /// # Errors
    /// For a file that cannot be read now. If a file cannot be read later, perhaps because it is just being replaced, the store is
    /// unavailable for that long.
    pub(crate) fn new(config: MysqlConfig) -> Result<Self> {
        let dial = Self { config, calls: Calls::default() };
        dial.options(None)?;
        Ok(dial)
    }

    /// How many calls the sessions have that were made for calls.
    pub(super) fn calls(&self) -> Calls {
        Arc::clone(&self.calls)
    }

    /// How long a call may take.
    pub(crate) fn limit(&self) -> Duration {
        self.config.timeout
    }

    /// A new session, and the server's number of it. With a tag it has the named lock of that name, as a literal, for its life.
    ///
    /// # Errors
    /// Those of the last host, if none takes writes.
    pub(crate) async fn session(&self, tag: Option<&str>) -> Result<(MySqlConnection, u64)> {
        let prepare =
            PREPARE.with(&[("tag", &tag.map_or(NOTHING.to_owned(), |tag| format!("GET_LOCK({tag}, 0)")))]);
        let hosts: Vec<_> = self.config.hosts.iter().map(Some).collect();
        let hosts = if hosts.is_empty() { vec![None] } else { hosts };
        let share = self.config.timeout / u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let mut failed = None;
        for host in hosts {
            match STORE.in_time(share, self.session_of(host, &prepare)).await {
                Ok(session) => return Ok(session),
                // A host that says what is wrong with the URL or the user tells more than one that is away.
                Err(error) => {
                    let error = match host {
                        Some(host) => STORE.at(host, error),
                        None => error,
                    };
                    if failed.as_ref().is_none_or(|_| !error.is_transient() || error::is_read_only(&error)) {
                        failed = Some(error);
                    }
                }
            }
        }
        Err(failed.unwrap_or_else(|| STORE.unavailable("the URL names no host")))
    }

    async fn session_of(&self, host: Option<&Address>, prepare: &str) -> Result<(MySqlConnection, u64)> {
        let options = self.options(host).map_err(|error| STORE.not_now(&error))?;
        let mut session = options.connect().await.map_err(error::explain)?;
        let prepared = sqlx::raw_sql(AssertSqlSafe(prepare.to_owned())).fetch_one(&mut session).await;
        let row = prepared.map_err(error::explain)?;
        if row.try_get_unchecked::<u64, _>(1).map_err(error::explain)? < LONGEST_CALL {
            return Err(STORE.refused(error::SMALL_PACKET));
        }
        if row.try_get_unchecked::<i64, _>(0).map_err(error::explain)? != 0 {
            return Err(STORE.unwritable("the server is read-only: a replica, or one that somebody made so"));
        }
        let id = row.try_get_unchecked(2).map_err(error::explain)?;
        Ok((session, id))
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
            // An empty one would be sent as a password, and the server wants none of a user without one.
            if !password.is_empty() {
                options = options.password(&password);
            }
        }
        let Some(tls) = tls else {
            // Passwords of newer servers need TLS, whoever the server says that it is.
            let mode = if self.config.is_plain { MySqlSslMode::Disabled } else { MySqlSslMode::Preferred };
            return Ok(options.ssl_mode(mode));
        };
        let pems = tls.read()?;
        options = options.ssl_mode(MySqlSslMode::VerifyIdentity);
        if let Some(ca) = pems.ca {
            options = options.ssl_ca_from_pem(ca);
        }
        if let Some((cert, key)) = pems.own {
            options = options.ssl_client_cert_from_pem(cert).ssl_client_key_from_pem(key);
        }
        Ok(options)
    }
}

impl Connect for Dial {
    type Connection = Arc<Line>;

    async fn connect(&self) -> Result<Arc<Line>> {
        self.session(None).await.map(|(session, id)| Line::new(session, id, self.calls()))
    }
}
