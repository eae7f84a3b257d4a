//! The fixture of the session store.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_conformance::{Clock, Fixture, Kill};
use dlock_core::{Result, driver::Store};
use parking_lot::Mutex;

use crate::{
    client::{Bug, Client},
    server::Server,
};

/// A session store whose clients have this bug.
pub(crate) struct Sessions(pub(crate) Bug);

// Each case has its own thread and paused clock, and therefore its own server.
thread_local!(static SERVER: Arc<Mutex<Server>> = Arc::new(Mutex::new(Server::new())));

impl Sessions {
    pub(crate) fn client(&self) -> Arc<Client> {
        SERVER.with(|server| Client::connect(server, self.0))
    }
}

#[async_trait]
impl Fixture for Sessions {
    fn name(&self) -> &str {
        "sessions"
    }

    async fn connect(&self) -> Result<Store> {
        Ok(self.client().into_store())
    }

    async fn connect_killable(&self) -> Option<Result<(Store, Kill)>> {
        let client = self.client();
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
