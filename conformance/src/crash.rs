//! Clients that end as if their process had ended, although they share the process of the test.

use std::net::SocketAddr;

use dlock_core::{Result, driver::Store};
use futures_util::future::try_join_all;

use crate::{Kill, Proxy};

/// Connects a client that can be killed, for
/// [`Fixture::connect_killable`](crate::Fixture::connect_killable) of a store with several servers.
/// The client reaches each server through a [`Proxy`] of its own. `connect` gets the addresses of
/// the proxies, in the order of `servers`.
///
/// [`Kill`] breaks all connections of the client, and from then on each new connection as soon as
/// it is made. No request of the client reaches a server any more, whatever its driver still does:
/// no call, no heartbeat of its session, no release.
///
/// # Errors
/// The error of `connect`.
///
/// # Panics
/// If no port is free.
pub async fn killable<C>(
    servers: &[SocketAddr],
    connect: impl FnOnce(Vec<SocketAddr>) -> C + Send,
) -> Result<(Store, Kill)>
where
    C: Future<Output = Result<Store>> + Send,
{
    let proxies = try_join_all(servers.iter().map(|server| Proxy::to(*server))).await;
    let proxies = proxies.expect("a port is free");
    let store = connect(proxies.iter().map(Proxy::address).collect()).await?;
    // The proxies exist until the case has ended. Otherwise another server might get a port to
    // which the dead client still connects.
    Ok((store, Box::new(move || proxies.iter().for_each(Proxy::hang_up))))
}
