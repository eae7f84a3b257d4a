//! What a case may disturb between a client and its store: the network, or the client's calls where there is none.

use std::{sync::Arc, time::Duration};

use dlock_core::Locks;

use super::Arena;
use crate::{Proxy, wrap::Switch};

/// The line between a client and its store.
pub(crate) enum Line {
    /// A proxy before the server of a network store.
    Network(Arc<Proxy>),
    /// A switch before the driver of any other store.
    Calls(Switch),
}

impl Line {
    /// From now on the store does not answer.
    pub(crate) fn stall(&self) {
        match self {
            Self::Network(proxy) => proxy.stall(),
            Self::Calls(switch) => switch.freeze(),
        }
    }

    /// From now on everything passes at once. What was held back is delivered.
    pub(crate) fn pass(&self) {
        match self {
            Self::Network(proxy) => proxy.pass(),
            Self::Calls(switch) => switch.connect(),
        }
    }

    /// From now on everything arrives this much later, in each direction of a network.
    pub(crate) fn delay(&self, by: Duration) {
        if let Self::Network(proxy) = self
            && !by.is_zero()
        {
            proxy.delay(by);
        }
    }

    /// Number of bytes that the client has sent over the network so far.
    pub(crate) fn requested(&self) -> usize {
        match self {
            Self::Network(proxy) => proxy.requested(),
            Self::Calls(_) => 0,
        }
    }
}

impl Arena {
    /// A new client whose line to the store can be disturbed.
    pub(crate) async fn client_with_line(&self) -> (Locks, Line) {
        if self.fixture.network().is_some() {
            let (client, proxy) = self.client_behind_proxy().await;
            (client, Line::Network(proxy))
        } else {
            let (client, switch) = self.client_with_switch().await;
            (client, Line::Calls(switch))
        }
    }
}
