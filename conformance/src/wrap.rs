//! Wrappers that make a good store misbehave as real stores do.

mod chaos;
mod chatty;
mod count;
mod deaf;
mod fast_clock;
mod flaky;
mod joint;
mod queueless;
mod slow;
mod switch;
mod watches;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    LockName, Result,
    driver::{AttemptAll, Backend, Claim, Info, Request, Store, Watch},
};

pub use chaos::Chaos;
pub(crate) use count::Requests;
pub use fast_clock::fast_clock;
pub use queueless::queueless;
pub use switch::{Kill, Switch};

/// A way to misbehave within the driver contract. Every case must still pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// No hint arrives, as with lost messages and disconnected watches.
    Deaf,
    /// Hints arrive without end and without a cause.
    Chatty,
    /// Every reply is slow.
    Slow,
    /// Replies are lost after the store has executed the request.
    Flaky,
}

impl Habit {
    /// All habits.
    pub const ALL: [Self; 4] = [Self::Deaf, Self::Chatty, Self::Slow, Self::Flaky];

    /// Wraps a store so that it has this habit.
    pub fn wrap(self, store: Store) -> Store {
        let wrapper = move |claim, request: Request| -> Box<dyn Claim> {
            match self {
                Self::Deaf => Box::new(deaf::Deaf(claim)),
                Self::Chatty => Box::new(chatty::Chatty::new(claim)),
                Self::Slow => Box::new(slow::Slow(claim)),
                Self::Flaky => Box::new(flaky::Flaky::new(claim, &request)),
            }
        };
        wrap_with(store, wrapper, Some(self))
    }
}

impl fmt::Display for Habit {
    /// Formats the habit in lower case, as the names of trials begin.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deaf => "deaf",
            Self::Chatty => "chatty",
            Self::Slow => "slow",
            Self::Flaky => "flaky",
        })
    }
}

/// Wraps the claims of a store. Its other capabilities are unchanged. A request for several locks
/// in one step passes through `wrapper` as the attempt of one claim.
pub fn wrap(
    store: Store,
    wrapper: impl Fn(Box<dyn Claim>, Request) -> Box<dyn Claim> + Send + Sync + 'static,
) -> Store {
    wrap_with(store, wrapper, None)
}

/// Wraps the claims of a store. Its hints for observers have this habit, too.
fn wrap_with(
    store: Store,
    wrapper: impl Fn(Box<dyn Claim>, Request) -> Box<dyn Claim> + Send + Sync + 'static,
    habit: Option<Habit>,
) -> Store {
    Store { backend: Arc::new(Wrapped { inner: store.backend, wrapper, habit }), inspect: store.inspect }
}

struct Wrapped<W> {
    inner: Arc<dyn Backend>,
    wrapper: W,
    habit: Option<Habit>,
}

impl<W> fmt::Debug for Wrapped<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wrapped").field(&self.inner).finish()
    }
}

#[async_trait]
impl<W> Backend for Wrapped<W>
where
    W: Fn(Box<dyn Claim>, Request) -> Box<dyn Claim> + Send + Sync + 'static,
{
    fn info(&self) -> &Info {
        self.inner.info()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        (self.wrapper)(self.inner.claim(request.clone()), request)
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        joint::attempt_all(&self.inner, &self.wrapper, requests).await
    }

    async fn clock(&self) -> Result<Duration> {
        self.inner.clock().await
    }

    fn watch(&self, name: &LockName) -> Option<Box<dyn Watch>> {
        watches::of_habit(self.habit, self.inner.watch(name))
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
