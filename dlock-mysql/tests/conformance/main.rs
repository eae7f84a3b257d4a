//! The suite, on MariaDB and MySQL.

use std::{alloc::System, io, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use cap::Cap;
use dlock_conformance::{
    Data, Fixture, Network, Restart, Row, Suite, Unreachable, run_suites,
    stores::{
        Running,
        mysql::{
            Brand::{self, Mariadb, Mysql},
            Flavour::{self, Standalone},
            start,
        },
    },
};
use dlock_core::{
    Contender, LockName, LockState, Result,
    driver::{Inspect, Store},
};
use dlock_mysql::DRIVER;
use tokio::time::{Instant, sleep};

/// Counts bytes for the case that looks for leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// The queue in all rows. Other ways to wait, and another server, in one: wrappers tell little more of them.
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
    /// The parameters that are added to the URL, each with the `?` or `&` before it.
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
    (DRIVER.connect)(url.parse()?).await
}

/// Looks at named locks when their holders can be seen. The server tells of a hold whose it is only once it is watched, which it is
/// not for its first 20 ms.
#[derive(Debug)]
struct Patient(Arc<dyn Inspect>);

impl Patient {
    /// Looks again, for half a second, while a holder that `of` tells is not watched yet. One whose answers are lost is never.
    async fn until_watched<T, F>(&self, look: impl Fn() -> F, of: impl Fn(&T) -> Vec<&LockState>) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let until = Instant::now() + Duration::from_millis(500);
        loop {
            let seen = look().await?;
            let is_stranger = |one: &Contender| one.id.starts_with("connection ");
            if !of(&seen).iter().any(|state| state.holders.iter().any(is_stranger)) || Instant::now() > until
            {
                return Ok(seen);
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
        // Of a hold that is not watched yet only the named lock is known, which begins as the names of this case do.
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

    /// All cases share one server, whose commits of one name are one after the other; and named locks have a session each.
    fn at_once(&self) -> usize {
        12
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(120)
    }

    fn allocated(&self) -> Option<usize> {
        Some(HEAP.allocated())
    }

    fn network(&self) -> Option<&dyn Network> {
        // A named lock is gone with its connection, and its holder learns of it at the next renewal. So the cases in which a hold
        // survives its connection are not for them, nor those in which a connection that is cut tells of a crash.
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
