//! Injects faults between a client and its store. A store without a network has faults in the
//! client's calls instead.

use std::{sync::Arc, time::Duration};

use dlock_core::Locks;

use super::Arena;
use crate::{Proxy, wrap::Switch};

/// Injects faults between a client and its store.
pub(crate) enum Faults {
    /// Proxy in front of the server of a network store.
    Network(Arc<Proxy>),
    /// Switch in front of the driver of any other store.
    Calls(Switch),
}

impl Faults {
    /// Stops all replies from now on.
    pub(crate) fn stall(&self) {
        match self {
            Self::Network(proxy) => proxy.stall(),
            Self::Calls(switch) => switch.freeze(),
        }
    }

    /// Breaks the connections, and refuses new ones from now on.
    pub(crate) fn hang_up(&self) {
        match self {
            Self::Network(proxy) => proxy.hang_up(),
            Self::Calls(switch) => switch.cut(),
        }
    }

    /// Delays all replies by `by` from now on. Without a network the replies are lost.
    pub(crate) fn delay_answers(&self, by: Duration) {
        match self {
            Self::Network(proxy) => proxy.delay_answers(by),
            Self::Calls(switch) => switch.lose_answers(),
        }
    }

    /// Lets everything through from now on, and delivers what was held back.
    pub(crate) fn pass(&self) {
        match self {
            Self::Network(proxy) => proxy.pass(),
            Self::Calls(switch) => switch.connect(),
        }
    }

    /// Delays everything by `by` in each direction of a network. No effect without a network.
    pub(crate) fn delay(&self, by: Duration) {
        if let Self::Network(proxy) = self
            && !by.is_zero()
        {
            proxy.delay(by);
        }
    }

    /// Returns the number of bytes that the client has sent over the network. 0 without a network.
    pub(crate) fn requested(&self) -> usize {
        match self {
            Self::Network(proxy) => proxy.requested(),
            Self::Calls(_) => 0,
        }
    }
}

impl Arena {
    /// Connects a new client with fault injection.
    pub(crate) async fn client_with_faults(&self) -> (Locks, Faults) {
        if self.fixture.network().is_some() {
            let (client, proxy) = self.lasting_client_behind_proxy().await;
            (client, Faults::Network(proxy))
        } else {
            let (client, switch) = self.client_with_switch().await;
            (client, Faults::Calls(switch))
        }
    }
}
