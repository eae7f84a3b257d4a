//! The suite, on MariaDB and MySQL.

use std::{alloc::System, io, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use cap::Cap;
use dlock_conformance::{Data, Fixture, Network, Restart, Row, Suite, Unreachable, run_suites};
use dlock_core::{
    Contender, LockName, LockState, Result,
    driver::{Inspect, Store},
};
use dlock_mysql::DRIVER;
use dlock_testbed::servers::{
    Running,
    mysql::{
        Brand::{self, Mariadb, Mysql},
        Flavour::{self, Standalone},
        start,
    },
};
use tokio::time::{Instant, sleep};

/// Counts the allocated bytes for the case that looks for leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Runs the queue behind all wrappers, and the other modes and MySQL without wrappers, which would
/// add little there.
fn main() -> ExitCode {
    let plain = [Row::Plain];
    run_suites([
        suite("mariadb", Mariadb, Standalone, ""),
        suite("polling", Mariadb, Standalone, "doorbell=off").in_rows(plain),
        suite("session", Mariadb, Standalone, "mode=session").in_rows(plain),
        suite("mysql", Mysql, Standalone, "").in_rows(plain),
        suite("mysql_session", Mysql, Standalone, "mode=session").in_rows(plain),
    ])
}

fn suite(name: &'static str, brand: Brand, flavour: Flavour, params: &'static str) -> Suite {
    Suite::new(name, Server::start(brand, flavour, params))
}

struct Server {
    brand: Brand,
    running: Running,
    /// Parameters that are appended to the URL, with their `?` or `&`.
    params: String,
}

impl Server {
    async fn start(brand: Brand, flavour: Flavour, params: &str) -> Result<Self, Unreachable> {
        let running = start(brand, flavour).await?;
        let ca = running.ca().map(|ca| format!("ca={}", ca.display())).unwrap_or_default();
        let params: Vec<_> = [params, &ca].into_iter().filter(|params| !params.is_empty()).collect();
        let first = if running.url().contains('?') { '&' } else { '?' };
        let params = if params.is_empty() { String::new() } else { format!("{first}{}", params.join("&")) };
        Ok(Self { brand, running, params })
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

/// Inspects named locks once their holders are visible. The server shows the claim of a hold only
/// while the hold is watched. The watch begins 20 ms after the grant.
#[derive(Debug)]
struct Patient(Arc<dyn Inspect>);

impl Patient {
    /// Repeats the inspection for up to half a second while a holder of the states that `of`
    /// returns is not watched. A hold whose replies are lost is never watched.
    async fn until_watched<T, F>(&self, look: impl Fn() -> F, of: impl Fn(&T) -> Vec<&LockState>) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let until = Instant::now() + Duration::from_millis(500);
        loop {
            let inspected = look().await?;
            let is_unwatched = |holder: &Contender| holder.id.starts_with("connection ");
            if !of(&inspected).iter().any(|state| state.holders.iter().any(is_unwatched))
                || Instant::now() > until
            {
                return Ok(inspected);
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

#[async_trait]
impl Inspect for Patient {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        self.until_watched(|| self.0.inspect(name), |state| state.iter().collect()).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        // A hold that is not watched is listed with the name of its named lock. That name has the
        // same beginning as the names of this case.
        let own: String = prefix.chars().take(30).collect();
        let is_own = |state: &&LockState| state.name.as_str().starts_with(&own);
        let all = self.until_watched(|| self.0.list(""), |all| all.iter().filter(is_own).collect()).await?;
        Ok(all.into_iter().filter(|state| state.name.as_str().starts_with(prefix)).collect())
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        self.0.force_release(name).await
    }
}

#[async_trait]
impl Fixture for Server {
    fn name(&self) -> &str {
        self.brand.name()
    }

    async fn connect(&self) -> Result<Store> {
        let mut store = connect(&format!("{}{}", self.running.url(), self.params)).await?;
        if self.is_session() {
            store.inspect = store.inspect.map(|inspect| Arc::new(Patient(inspect)) as _);
        }
        Ok(store)
    }

    /// All cases share one server, whose commits of one name are serialized, and each named lock
    /// has a session. MySQL needs more processor time than MariaDB, and on a busy machine it did not
    /// reply for three seconds to twelve cases with a hundred waiters each.
    fn at_once(&self) -> usize {
        match self.brand {
            Mariadb => 12,
            Mysql => 6,
        }
    }

    /// A named lock has a session for each waiter.
    fn tasks(&self) -> usize {
        if self.is_session() { 20 } else { 100 }
    }

    /// A call may take a third of it, and a busy server answers late.
    fn short_ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(120)
    }

    fn allocated(&self) -> Option<usize> {
        Some(HEAP.allocated())
    }

    fn network(&self) -> Option<&dyn Network> {
        // A named lock is lost with its connection. Session mode therefore omits the cases in which
        // a hold must survive a cut connection, or in which the suite simulates a crash by cutting
        // the connection.
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
