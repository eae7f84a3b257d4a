//! Relays between one client and the servers of its store, and the URL that leads through them.

use std::{io, net::SocketAddr};

use dlock_core::driver::StoreUrl;

use super::faults::Action;
use crate::Proxy;

/// Schemes whose clients learn further addresses from the servers, and so pass by a relay.
const DISCOVERING: [&str; 2] = ["redis+sentinel", "redis-cluster"];

/// Schemes with TLS.
const SECURE: [&str; 2] = ["rediss", "etcds"];

/// The parts of a URL around its hosts, and the addresses of the hosts.
#[derive(Clone, Debug)]
pub(super) struct Route {
    before: String,
    servers: Vec<SocketAddr>,
    after: String,
}

impl Route {
    /// Finds the servers of a URL.
    ///
    /// # Errors
    /// The reason why no relay can be put in front of them.
    pub(super) async fn of(text: &str, url: &StoreUrl) -> Result<Self, String> {
        let (before, hosts, after) = split(text, url)?;
        let mut servers = Vec::new();
        for host in hosts {
            let failed = |error: io::Error| format!("the address of `{host}` is unknown: {error}");
            let address = tokio::net::lookup_host(&host).await.map_err(failed)?.next();
            servers.push(address.ok_or_else(|| format!("`{host}` has no address"))?);
        }
        Ok(Self { before, servers, after })
    }
}

/// Splits a URL into the part before its hosts, the hosts, and the part behind them.
fn split(text: &str, url: &StoreUrl) -> Result<(String, Vec<String>, String), String> {
    let scheme = url.scheme();
    if url.hosts().is_empty() {
        return Err(format!("`{scheme}:` has no server, so no relay can be put in front of it"));
    }
    if DISCOVERING.contains(&scheme) {
        return Err(format!(
            "the clients of `{scheme}:` learn addresses from the servers, so they would pass by the relay"
        ));
    }
    let is_on =
        |key: &str| url.param(key).is_some_and(|value| !matches!(value, "off" | "disable" | "disabled"));
    let tls = ["tls", "ssl", "ssl-mode", "ssl_mode", "sslmode", "ca"];
    if SECURE.contains(&scheme) || tls.into_iter().any(is_on) {
        return Err(
            "the connection is encrypted, and the server's certificate is not that of the relay".to_owned()
        );
    }
    if let Some(host) = url.hosts().iter().find(|host| !has_port(host)) {
        return Err(format!("`{host}` has no port in the URL; write it, so that the relay knows the server"));
    }
    let start = text.find("//").map_or(0, |start| start + 2);
    let end = text[start..].find(['/', '?']).map_or(text.len(), |end| start + end);
    let start = text[start..end].rfind('@').map_or(start, |login| start + login + 1);
    Ok((text[..start].to_owned(), url.hosts().to_vec(), text[end..].to_owned()))
}

fn has_port(host: &str) -> bool {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| !port.is_empty() && port.chars().all(|c| c.is_ascii_digit()))
}

/// The relays of one client.
#[derive(Debug)]
pub(super) struct Relay {
    proxies: Vec<Proxy>,
    url: String,
}

impl Relay {
    /// Starts a relay in front of each server.
    ///
    /// # Errors
    /// If no port is free.
    pub(super) async fn start(route: &Route) -> io::Result<Self> {
        let mut proxies = Vec::new();
        for server in &route.servers {
            proxies.push(Proxy::to(*server).await?);
        }
        let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let url = format!("{}{}{}", route.before, hosts.join(","), route.after);
        Ok(Self { proxies, url })
    }

    /// Returns the URL that leads through the relays. May contain a password.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns whether the client has connected through the relays.
    pub(super) fn is_used(&self) -> bool {
        self.proxies.iter().any(|proxy| proxy.connections() > 0)
    }

    /// Begins a fault of the connections.
    pub(super) fn begin(&self, action: Action) {
        for proxy in &self.proxies {
            match action {
                Action::HangUp(_) => proxy.hang_up(),
                Action::Break => proxy.cut(),
                Action::Stall(_) => proxy.stall(),
                Action::LateReplies { by, .. } => proxy.delay_answers(by),
                Action::LateRequests { by, .. } => proxy.delay_requests(by),
                _ => {}
            }
        }
    }

    /// Ends every fault of the connections.
    pub(super) fn end(&self) {
        self.proxies.iter().for_each(Proxy::pass);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Result<(String, Vec<String>, String), String> {
        split(text, &text.parse().expect(text))
    }

    #[test]
    fn the_hosts_of_a_url_are_replaced_and_the_rest_stays_as_it_is() {
        for (text, before, hosts, after) in [
            ("redis://h:1/0?a=b", "redis://", &["h:1"][..], "/0?a=b"),
            ("zk://a:1,b:2?x=1", "zk://", &["a:1", "b:2"], "?x=1"),
            ("mysql://u:p%40%2F@[::1]:3/d", "mysql://u:p%40%2F@", &["[::1]:3"], "/d"),
            ("line://127.0.0.1:4", "line://", &["127.0.0.1:4"], ""),
        ] {
            let expected =
                (before.to_owned(), hosts.iter().map(ToString::to_string).collect(), after.to_owned());
            assert_eq!(parts(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_url_that_no_relay_can_serve_is_refused_with_the_reason() {
        for (text, reason) in [
            ("sqlite:x.db", "has no server"),
            ("redis-cluster://h:1", "pass by the relay"),
            ("rediss://h:1", "encrypted"),
            ("zk://h:1?tls=on", "encrypted"),
            ("redis://h/0", "has no port"),
            ("redis://[::1]/0", "has no port"),
        ] {
            let error = parts(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
