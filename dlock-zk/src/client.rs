//! The settings and the connection that all claims of one client share.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Error, LockName, Result,
    driver::{Info, Request},
};
use zookeeper_client::{Acls, CreateMode, CreateOptions};

use crate::{
    config::{Acl, ZooKeeperConfig},
    connection::Connection,
    error,
    keys::{self, Marker},
    session::Session,
};

/// One client: its settings and its connection.
pub(crate) struct Client {
    pub(crate) config: ZooKeeperConfig,
    pub(crate) connection: Connection,
    pub(crate) info: Info,
}

impl Client {
    /// Returns the path of a lock's directory.
    ///
    /// # Errors
    /// For a name that the store cannot represent.
    pub(crate) fn directory(&self, name: &LockName) -> Result<Arc<str>> {
        keys::directory(&self.config.base, self.config.names, name).map(Arc::from)
    }

    /// Returns the maximum bytes of the path of a claim's node at the servers, and of the length
    /// field in front of it.
    pub(crate) fn path_bytes(&self, directory: &str, request: &Request) -> usize {
        /// The digits and the sign of the node's number, a slash, and the length field.
        const OVERHEAD: usize = 11 + 1 + 4;
        let prefix = keys::prefix(request, self.marker(request));
        self.config.chroot.len() + directory.len() + prefix.len() + OVERHEAD
    }

    /// Returns the error of a call that got no session within `limit`.
    pub(crate) fn no_session_within(&self, limit: Duration) -> Error {
        error::no_session_within(limit, self.config.tls.is_some())
    }

    /// Returns the marker in the name of a claim's node.
    pub(crate) fn marker(&self, request: &Request) -> Marker {
        Marker::of(request, self.config.elections)
    }

    /// Returns the rights that the client grants on the nodes that it creates.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.config.acl {
            Acl::Open => Acls::anyone_all(),
            Acl::Creator => Acls::creator_all(),
        }
    }

    /// Returns the options for creating directories. They are container nodes, which the server
    /// deletes when they are empty, if the server supports these.
    pub(crate) fn directory_options(&self, session: &Session) -> CreateOptions<'static> {
        let mode = if session.has_containers { CreateMode::Container } else { CreateMode::Persistent };
        mode.with_acls(self.acls())
    }

    /// Logs that another client asks the holder to release the lock. The holder may keep it.
    #[cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "only for `tracing`"))]
    pub(crate) fn note_revocation(&self, request: &Request) {
        #[cfg(feature = "tracing")]
        tracing::warn!(store = self.info.store, lock = %request.name, "another client requests the release of the lock");
    }
}
