//! A store that forgets clients, not claims, passes the suite: one session a client, as on ZooKeeper or etcd, in memory.

mod client;
mod server;

use std::{
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use dlock_conformance::{Clock, Fixture, Kill};
use dlock_core::{Result, driver::Store};

use client::{Bug, Client};
use server::Server;

struct Sessions;

// Each case has a thread and a paused clock of its own, so it has a server of its own.
thread_local!(static SERVER: Arc<Mutex<Server>> = Arc::new(Mutex::new(Server::new())));

fn connect() -> Arc<Client> {
    SERVER.with(|server| Client::connect(server, Bug::None))
}

#[async_trait]
impl Fixture for Sessions {
    fn name(&self) -> &str {
        "sessions"
    }

    async fn connect(&self) -> Result<Store> {
        Ok(connect().into_store())
    }

    async fn connect_killable(&self) -> Option<Result<(Store, Kill)>> {
        let client = connect();
        let victim = Arc::clone(&client);
        Some(Ok((client.into_store(), Box::new(move || victim.kill()))))
    }

    fn clock(&self) -> Clock {
        Clock::Paused
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }
}

fn main() -> ExitCode {
    dlock_conformance::run(Ok(Sessions))
}
