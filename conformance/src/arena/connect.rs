//! Connects the clients of a case, which may have a switch or a proxy. Every client is wrapped as the row
//! of the table requires.

use std::{sync::Arc, time::Duration};

use dlock_core::{Locks, Result, driver::Store};

use super::Arena;
use crate::{
    Data, Network, Proxy, Row,
    runner::error_chain,
    wrap::{Requests, Switch},
};

impl Arena {
    /// Connects a new client, as from another process. Its default ttl is [`ttl`](Self::ttl).
    #[track_caller]
    pub fn client(&self) -> impl Future<Output = Locks> {
        self.step("connect a client".to_owned(), async {
            let store = self.connect().await;
            self.locks(store, None)
        })
    }

    /// Connects a new client whose requests are counted.
    pub(crate) async fn client_with_count(&self) -> (Locks, Requests) {
        let requests = Requests::default();
        let store = requests.count(self.connect().await);
        (self.locks(store, None), requests)
    }

    /// Connects a new client that can be cut off from its store, frozen, and killed.
    #[track_caller]
    pub fn client_with_switch(&self) -> impl Future<Output = (Locks, Switch)> {
        self.step("connect a client".to_owned(), async {
            let (store, switch) = match self.fixture.connect_killable().await {
                Some(connected) if !matches!(self.row, Row::Member(_)) => {
                    let (store, kill) = self.connected(connected);
                    (self.wrapped_for_row(store), Switch::with_kill(kill))
                }
                _ => (self.connect().await, Switch::default()),
            };
            (self.locks(switch.wrap(store), Some(&switch)), switch)
        })
    }

    /// Connects a new client through a proxy of its own.
    #[track_caller]
    pub(crate) fn client_behind_proxy(&self) -> impl Future<Output = (Locks, Arc<Proxy>)> {
        self.step("connect a client through a proxy".to_owned(), async {
            let (store, proxy) = self.store_behind_proxy().await;
            (self.locks(store, None), proxy)
        })
    }

    /// Connects a new client through a proxy of its own. Its claims outlast the faults of the case.
    #[track_caller]
    pub(crate) fn lasting_client_behind_proxy(&self) -> impl Future<Output = (Locks, Arc<Proxy>)> {
        self.step("connect a client through a proxy".to_owned(), async {
            let proxy = self.proxy().await;
            let connected = self.network().connect_lasting_to(proxy.address()).await;
            (self.locks(self.connected(connected), None), proxy)
        })
    }

    /// Connects a store through a proxy of its own, for a case that drives claims itself.
    pub(crate) async fn store_behind_proxy(&self) -> (Store, Arc<Proxy>) {
        let proxy = self.proxy().await;
        let connected = self.connect_through(&proxy).await;
        (
            connected
                .unwrap_or_else(|error| panic!("cannot connect through a proxy: {}", error_chain(&error))),
            proxy,
        )
    }

    /// Connects a store, for a case that drives claims itself. The case must release them.
    pub(crate) async fn store(&self) -> Store {
        self.connect().await
    }

    /// Starts a proxy to the server. After the case it lets everything through.
    pub(crate) async fn proxy(&self) -> Arc<Proxy> {
        let proxy = Proxy::to(self.network().server()).await.expect("a port is free");
        let proxy = Arc::new(proxy);
        self.resources.lock().proxies.push(Arc::clone(&proxy));
        proxy
    }

    pub(crate) async fn connect_through(&self, proxy: &Proxy) -> Result<Store> {
        self.network().connect_to(proxy.address()).await
    }

    /// Returns the longest time that one call of the driver may take for a claim with
    /// [`ttl`](Self::ttl).
    pub(crate) fn call_bound(&self) -> Duration {
        self.network().bound(self.ttl())
    }

    /// Restarts the server that all cases share. Only for cases that run alone.
    pub(crate) async fn restart(&self, data: Data) {
        let restart = self.network().restart().expect("the case needs a server that can be restarted");
        restart.restart(data).await.expect("the server restarts");
    }

    fn network(&self) -> &dyn Network {
        self.fixture.network().expect("the case needs a store with a network")
    }

    async fn connect(&self) -> Store {
        let connected = match self.row {
            Row::Plain | Row::Habit(_) => self.fixture.connect().await,
            Row::Member(habit) => {
                self.fixture.connect_with_member(habit).await.expect("the row needs a composite store")
            }
        };
        let store = self.connected(connected);
        self.wrapped_for_row(store)
    }

    /// Returns the connected client.
    ///
    /// # Panics
    /// If connecting failed. The message has the store's error.
    fn connected<T>(&self, connected: Result<T>) -> T {
        connected.unwrap_or_else(|error| {
            let others = self.resources.lock().clients.len();
            panic!("cannot connect another client beside this case's {others}: {}", error_chain(&error))
        })
    }

    /// Wraps the store as the row requires.
    fn wrapped_for_row(&self, store: Store) -> Store {
        match self.row {
            Row::Habit(habit) => habit.wrap(store),
            Row::Plain | Row::Member(_) => store,
        }
    }

    fn locks(&self, store: Store, switch: Option<&Switch>) -> Locks {
        let locks = Locks::new(self.steps.watch(store)).with_defaults(self.options());
        self.resources.lock().clients.push((locks.clone(), switch.cloned()));
        locks
    }
}
