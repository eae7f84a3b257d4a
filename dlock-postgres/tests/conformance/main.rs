//! The suite, on PostgreSQL.

use std::{alloc::System, io, net::SocketAddr, process::ExitCode, time::Duration};

use async_trait::async_trait;
use cap::Cap;
use dlock_conformance::{Data, Fixture, Network, Restart, Row, Suite, Unreachable, run_suites};
use dlock_core::{Result, driver::Store};
use dlock_postgres::DRIVER;
use dlock_testbed::servers::{
    Running,
    postgres::{Flavour, start},
};

/// Counts the allocated bytes for the case that looks for leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Runs the queue behind all wrappers, and polling, TLS and session mode without wrappers, which would
/// add little there.
fn main() -> ExitCode {
    let plain = [Row::Plain];
    run_suites([
        suite("postgres", Flavour::Standalone, ""),
        suite("polling", Flavour::Standalone, "notify=off").in_rows(plain),
        suite("tls", Flavour::Tls, "").in_rows(plain),
        suite("session", Flavour::Standalone, "mode=session").in_rows(plain),
    ])
}

fn suite(name: &'static str, flavour: Flavour, params: &'static str) -> Suite {
    Suite::new(name, Server::start(flavour, params))
}

struct Server {
    running: Running,
    /// Parameters that are appended to the URL, with their `?` or `&`.
    params: String,
}

impl Server {
    async fn start(flavour: Flavour, params: &str) -> Result<Self, Unreachable> {
        let running = start(flavour).await?;
        let ca = running.ca().map(|ca| format!("ca={}", ca.display())).unwrap_or_default();
        let params: Vec<_> = [params, &ca].into_iter().filter(|params| !params.is_empty()).collect();
        let first = if running.url().contains('?') { '&' } else { '?' };
        let params = if params.is_empty() { String::new() } else { format!("{first}{}", params.join("&")) };
        Ok(Self { running, params })
    }
}

impl Server {
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

    /// All cases share one server, in which each session is a process.
    fn at_once(&self) -> usize {
        12
    }

    fn polls(&self) -> Option<&'static str> {
        self.params.contains("notify=off").then_some("notify=off makes waiters poll")
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
        Some(self)
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
