//! A peer and dlock on one store.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use dlock_conformance::Unreachable;
use dlock_core::Locks;
use libtest_mimic::Trial;
use tokio::time::sleep;

use super::{Built, Contender, Peer, PeerKind, Program};

/// What is dlock's of a [`Border`], on one store.
#[async_trait]
pub trait Side: Send + Sync + 'static {
    /// The ttl of dlock's locks. A waiter that waits until it ends was not woken.
    fn ttl(&self) -> Duration;

    /// A new client, whose locks have this ttl.
    async fn locks(&self) -> Locks;

    /// How often each contender of a mixed fleet takes its lock, if `DLOCK_FLEET` does not say it.
    fn acquisitions(&self) -> usize {
        50
    }

    /// Waits until somebody waits for a lock that is held.
    async fn until_somebody_waits(&self, locks: &Locks, name: &str) {
        loop {
            let state = locks.inspect(name).await.expect("an answer");
            if state.is_some_and(|state| !state.queue.is_empty()) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A peer and dlock on one store.
#[derive(Debug)]
pub struct Border<S> {
    /// dlock's side.
    pub side: S,
    url: String,
    ttl: Duration,
    built: Built,
    peer: OnceLock<Peer>,
}

impl<S: Side> Border<S> {
    /// Builds the peer. It reaches the store at this URL, and its locks, or its session, have this ttl.
    ///
    /// # Errors
    /// [`Unreachable`] by the peer's word for `DLOCK_REQUIRE`, if it cannot be built, or without a store.
    pub fn new(
        program: Program,
        store: Result<(&str, S), Unreachable>,
        ttl: Duration,
    ) -> Result<Arc<Self>, Unreachable> {
        let (url, side) = store.map_err(|store| Unreachable { name: program.word().to_owned(), ..store })?;
        Ok(Arc::new(Self { side, url: url.to_owned(), ttl, built: program.build()?, peer: OnceLock::new() }))
    }

    /// What the peer is, for people: `redisson 4.7.0`.
    pub fn name(&self) -> &str {
        self.built.name()
    }

    /// The URL at which the peer reaches the store.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The peer: one process for all cases.
    pub fn peer(&self) -> &Peer {
        self.peer.get_or_init(|| self.start(self.ttl))
    }

    /// One more process of the peer, which may be killed. Its locks, or its session, have this ttl.
    pub fn start(&self, ttl: Duration) -> Peer {
        self.start_at(&self.url, ttl)
    }

    /// One on another store.
    pub fn start_at(&self, url: &str, ttl: Duration) -> Peer {
        self.built.start(url, ttl)
    }

    /// One more contender of the peer.
    ///
    /// # Panics
    /// If the peer has no such kind.
    pub fn contender(&self, kind: PeerKind) -> Contender {
        assert!(self.peer().can(kind), "{} has no kind {kind}", self.name());
        self.peer().contender()
    }

    /// A new client of dlock's.
    pub async fn locks(&self) -> Locks {
        self.side.locks().await
    }

    /// A trial of this border, named by the path of its case and by what the case is given.
    #[doc(hidden)]
    pub fn trial(
        &self,
        path: &str,
        given: &[&dyn fmt::Debug],
        case: impl FnOnce() + Send + 'static,
    ) -> Trial {
        let case_name = path.rsplit("::").next().unwrap_or(path).trim();
        let given: String = given.iter().map(|given| format!(" {given:?}").to_lowercase()).collect();
        Trial::test(format!("{}::{case_name}{given}", self.name()), move || {
            case();
            Ok(())
        })
    }
}

/// Makes trials of cases of a [`Border`], each an `async` function that takes the border, and what else stands
/// behind it.
#[macro_export]
macro_rules! border_trials {
    ($border:expr; $($($case:ident)::+($($given:expr),*);)*) => {
        vec![$({
            let border = ::std::sync::Arc::clone($border);
            $border.trial(stringify!($($case)::+), &[$(&$given),*], move || {
                $crate::hidden::block_on(Some(2), $($case)::+(&border, $($given),*));
            })
        }),*]
    };
}
