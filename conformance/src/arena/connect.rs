//! The clients of a case: plain, with a switch, or behind a proxy. All go through the wrapper of the row.

use std::{sync::Arc, time::Duration};

use dlock_core::{Locks, Result, driver::Store};

use super::Arena;
use crate::{Data, Network, Proxy, Row, runner::told, wrap::Switch};

impl Arena {
    /// A new client, as from another process, whose default ttl is [`ttl`](Self::ttl).
    #[track_caller]
    pub fn client(&self) -> impl Future<Output = Locks> {
        self.step("connect a client".to_owned(), async {
            let store = self.connect().await;
            self.locks(store, None)
        })
    }

    /// A new client that can be cut off from its store, and killed.
    #[track_caller]
    pub fn client_with_switch(&self) -> impl Future<Output = (Locks, Switch)> {
        self.step("connect a client".to_owned(), async {
            let (store, switch) = match self.fixture.connect_killable().await {
                Some(connected) if !matches!(self.row, Row::Member(_)) => {
                    let (store, kill) = self.connected(connected);
                    (self.disturbed(store), Switch::with_kill(kill))
                }
                _ => (self.connect().await, Switch::default()),
            };
            (self.locks(switch.wrap(store), Some(&switch)), switch)
        })
    }

    /// A new client that reaches the server through a proxy of its own.
    #[track_caller]
    pub(crate) fn client_behind_proxy(&self) -> impl Future<Output = (Locks, Arc<Proxy>)> {
        self.step("connect a client through a proxy".to_owned(), async {
            let (store, proxy) = self.store_behind_proxy().await;
            (self.locks(store, None), proxy)
        })
    }

    /// The store, for claims by hand, with a proxy between.
    pub(crate) async fn store_behind_proxy(&self) -> (Store, Arc<Proxy>) {
        let proxy = self.proxy().await;
        let connected = self.connect_through(&proxy).await;
        (connected.unwrap_or_else(|error| panic!("cannot connect through a proxy: {}", told(&error))), proxy)
    }

    /// The store, for claims by hand. The case must release them.
    pub(crate) async fn store(&self) -> Store {
        self.connect().await
    }

    /// A proxy to the server. It lets everything through when the case has ended.
    pub(crate) async fn proxy(&self) -> Arc<Proxy> {
        let proxy = Proxy::to(self.network().server()).await.expect("a port is free");
        let proxy = Arc::new(proxy);
        self.used().proxies.push(Arc::clone(&proxy));
        proxy
    }

    pub(crate) async fn connect_through(&self, proxy: &Proxy) -> Result<Store> {
        self.network().connect_to(proxy.address()).await
    }

    /// How long one call of the driver may take whose ttl is [`ttl`](Self::ttl).
    pub(crate) fn call_bound(&self) -> Duration {
        self.network().bound(self.ttl())
    }

    /// Restarts the server that all cases share: only for cases that run alone.
    pub(crate) async fn restart(&self, data: Data) {
        let restart = self.network().restart().expect("the case is for servers that can be restarted");
        restart.restart(data).await.expect("the server starts again");
    }

    fn network(&self) -> &dyn Network {
        self.fixture.network().expect("the case is for stores with a network")
    }

    async fn connect(&self) -> Store {
        let connected = match self.row {
            Row::Plain | Row::Habit(_) => self.fixture.connect().await,
            Row::Member(habit) => {
                self.fixture.connect_with_member(habit).await.expect("the row is for composite stores only")
            }
        };
        let store = self.connected(connected);
        self.disturbed(store)
    }

    /// # Panics
    /// If it is an error: with what the store said.
    fn connected<T>(&self, connected: Result<T>) -> T {
        connected.unwrap_or_else(|error| {
            let others = self.used().clients.len();
            panic!("cannot connect another client beside this case's {others}: {}", told(&error))
        })
    }

    /// The store in the wrapper of this row.
    fn disturbed(&self, store: Store) -> Store {
        match self.row {
            Row::Habit(habit) => habit.wrap(store),
            Row::Plain | Row::Member(_) => store,
        }
    }

    fn locks(&self, store: Store, switch: Option<&Switch>) -> Locks {
        let locks = Locks::new(self.steps.watch(store)).with_defaults(self.options());
        self.used().clients.push((locks.clone(), switch.cloned()));
        locks
    }
}
