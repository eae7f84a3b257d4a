//! The suite, on PostgreSQL. By default it runs without wrappers; `DLOCK_SUITES=postgres:all` runs the
//! queue behind all of them.

use std::{alloc::System, io, net::SocketAddr, process::ExitCode, time::Duration};

use async_trait::async_trait;
use cap::Cap;
use dlock_conformance::{Data, Fixture, Network, Restart, Row, Suite, Unreachable, run_suites};
use dlock_core::{Result, driver::Store};
use dlock_postgres::DRIVER;
use dlock_testbed::servers::{
    Running,
    postgres::{Flavour, Pooling, Version, pool, start},
};

/// Counts the allocated bytes for the case that looks for leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> ExitCode {
    run_suites([
        plain("postgres", Server::start(Version::V17, Flavour::Standalone, "")),
        plain("polling", Server::start(Version::V17, Flavour::Standalone, "notify=off")),
        plain("tls", Server::start(Version::V17, Flavour::Tls, "")),
        plain("session", Server::start(Version::V17, Flavour::Standalone, "mode=session&timeout=5s")),
        plain("postgres14", Server::start(Version::V14, Flavour::Standalone, "")),
        plain("postgres16", Server::start(Version::V16, Flavour::Standalone, "")),
        plain("postgres18", Server::start(Version::V18, Flavour::Standalone, "")),
        plain("pooled", Server::pooled(Pooling::Transaction, "")),
        plain("pooled_unprepared", Server::pooled(Pooling::TransactionWithoutStatements, "prepare=off")),
        plain("pooled_session", Server::pooled(Pooling::Session, "mode=session")),
    ])
}

fn plain<F: Future<Output = Result<Server, Unreachable>> + 'static>(name: &'static str, server: F) -> Suite {
    Suite::new(name, server).in_rows([Row::Plain])
}

struct Server {
    /// The server, or the pooler in front of it. Clients connect to this one.
    running: Running,
    /// The server behind the pooler.
    behind: Option<Running>,
    /// Parameters that are appended to the URL, with their `?` or `&`.
    params: String,
    polls: Option<&'static str>,
}

impl Server {
    async fn start(version: Version, flavour: Flavour, params: &str) -> Result<Self, Unreachable> {
        let running = start(version, flavour).await?;
        let ca = running.ca().map(|ca| format!("ca={}", ca.display())).unwrap_or_default();
        let params: Vec<_> = [params, &ca].into_iter().filter(|params| !params.is_empty()).collect();
        let first = if running.url().contains('?') { '&' } else { '?' };
        let polls = params.contains(&"notify=off").then_some("notify=off makes waiters poll");
        let params = if params.is_empty() { String::new() } else { format!("{first}{}", params.join("&")) };
        Ok(Self { running, behind: None, params, polls })
    }

    async fn pooled(pooling: Pooling, params: &str) -> Result<Self, Unreachable> {
        let behind = start(Version::V17, Flavour::Standalone).await;
        let behind = behind.map_err(|server| Unreachable { name: "pgbouncer".to_owned(), ..server })?;
        let running = pool(&behind, pooling).await?;
        let polls = (pooling != Pooling::Session).then_some("notifications do not arrive through the pooler");
        Ok(Self { running, behind: Some(behind), params: format!("?{params}"), polls })
    }

    fn is_session(&self) -> bool {
        self.params.contains("mode=session")
    }
}

async fn connect(url: &str) -> Result<Store> {
    DRIVER.connect(url.parse()?).await
}

#[async_trait]
impl Fixture for Server {
    fn name(&self) -> &str {
        "postgres"
    }

    async fn connect(&self) -> Result<Store> {
        connect(&format!("{}{}", self.running.url(), self.params)).await
    }

    /// All cases share one server, in which each session is a process. With `mode=session` each claim
    /// has one, and the crowds of twelve cases would have more than 600.
    fn at_once(&self) -> usize {
        if self.is_session() { 6 } else { 12 }
    }

    fn polls(&self) -> Option<&'static str> {
        self.polls
    }

    /// A call may take a third of it. With `mode=session` a claim may first need a connection, for
    /// which the server starts a process, and this takes seconds on a busy machine.
    fn ttl(&self) -> Duration {
        Duration::from_secs(if self.is_session() { 15 } else { 5 })
    }

    /// A call may take a third of it, and a busy server answers late.
    fn short_ttl(&self) -> Duration {
        Duration::from_secs(7)
    }

    /// An advisory lock has a session for each waiter.
    fn tasks(&self) -> usize {
        if self.is_session() { 20 } else { 100 }
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(120)
    }

    fn allocated(&self) -> Option<usize> {
        Some(HEAP.allocated())
    }

    fn network(&self) -> Option<&dyn Network> {
        // An advisory lock is lost with its connection. Session mode therefore omits the cases in which
        // a hold must survive a cut connection, or in which the suite simulates a crash by cutting the
        // connection.
        (self.running.servers().len() == 1 && !self.is_session()).then_some(self)
    }
}

#[async_trait]
impl Network for Server {
    fn server(&self) -> SocketAddr {
        self.running.servers()[0].address()
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Store> {
        let server = self.server().to_string();
        connect(&format!("{}{}", self.running.url().replace(&server, &address.to_string()), self.params))
            .await
    }

    fn restart(&self) -> Option<&dyn Restart> {
        // The restart of a pooler loses no data, and that of its server is not seen by clients.
        self.behind.is_none().then_some(self)
    }
}

#[async_trait]
impl Restart for Server {
    async fn restart(&self, data: Data) -> io::Result<()> {
        let server = &self.running.servers()[0];
        server.kill().await?;
        server.start(data).await
    }
}
