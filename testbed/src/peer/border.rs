//! A peer and dlock's clients on one store.

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

/// dlock's part of a [`Border`], on one store.
#[async_trait]
pub trait Side: Send + Sync + 'static {
    /// Ttl of dlock's locks. A hand-off that takes as long means that a waiter was not woken.
    fn ttl(&self) -> Duration;

    /// Connects a new client, whose locks have this ttl.
    async fn locks(&self) -> Locks;

    /// Number of acquisitions by each contender of a mixed fleet, unless `DLOCK_FLEET` sets it.
    fn acquisitions(&self) -> usize {
        50
    }

    /// Waits until the lock has a waiter.
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

/// A peer and dlock's clients on one store.
#[derive(Debug)]
pub struct Border<S> {
    /// dlock's part.
    pub side: S,
    url: String,
    ttl: Duration,
    built: Built,
    peer: OnceLock<Peer>,
}

impl<S: Side> Border<S> {
    /// Builds the peer. It connects to the store at this URL. `ttl` is that of its locks or its
    /// session.
    ///
    /// # Errors
    /// [`Unreachable`] with the peer's name in `DLOCK_REQUIRE`, if there is no store, or if the
    /// peer cannot be built.
    pub fn new(
        program: Program,
        store: Result<(&str, S), Unreachable>,
        ttl: Duration,
    ) -> Result<Arc<Self>, Unreachable> {
        let (url, side) = store.map_err(|store| Unreachable { name: program.word().to_owned(), ..store })?;
        Ok(Arc::new(Self { side, url: url.to_owned(), ttl, built: program.build()?, peer: OnceLock::new() }))
    }

    /// Name and version of the peer, for messages: `redisson 4.7.0`.
    pub fn name(&self) -> &str {
        self.built.name()
    }

    /// URL at which the peer connects to the store.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The peer's process that all cases share. Started at the first call.
    pub fn peer(&self) -> &Peer {
        self.peer.get_or_init(|| self.start(self.ttl))
    }

    /// Starts another process of the peer, which a case may kill. `ttl` is that of its locks or its
    /// session.
    pub fn start(&self, ttl: Duration) -> Peer {
        self.start_at(&self.url, ttl)
    }

    /// Starts another process of the peer, on another store.
    pub fn start_at(&self, url: &str, ttl: Duration) -> Peer {
        self.built.start(url, ttl)
    }

    /// Adds a contender to the shared process.
    ///
    /// # Panics
    /// If the peer has no locks of this kind.
    pub fn contender(&self, kind: PeerKind) -> Contender {
        assert!(self.peer().can(kind), "{} has no kind {kind}", self.name());
        self.peer().contender()
    }

    /// Connects a new client of dlock.
    pub async fn locks(&self) -> Locks {
        self.side.locks().await
    }

    /// Returns a trial. Its name consists of the peer, the case and the case's arguments.
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

/// Makes trials of cases of a [`Border`].
///
/// Each case is an `async` function, whose arguments are the border and the arguments in the list.
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
