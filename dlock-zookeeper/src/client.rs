//! What the claims of one client share.

mod queue;

use std::sync::Arc;

use dlock_core::{
    LockName, Result,
    driver::{Info, Request},
};
use zookeeper_client::{Acls, CreateMode, CreateOptions};

use crate::{
    config::{Acl, ZooKeeperConfig},
    connection::{Connection, Session},
    keys,
};

pub(crate) use queue::{Place, Queue, Source};

/// One client: its settings and its connection.
pub(crate) struct Client {
    pub(crate) config: ZooKeeperConfig,
    pub(crate) connection: Connection,
    pub(crate) info: Info,
}

impl Client {
    /// The path of a lock's directory.
    ///
    /// # Errors
    /// For a name that the store cannot have.
    pub(crate) fn directory(&self, name: &LockName) -> Result<Arc<str>> {
        keys::directory(&self.config.base, self.config.names, name).map(Arc::from)
    }

    /// Maximum bytes of the path of a claim's node at the servers, and of the length in front of it.
    pub(crate) fn path_bytes(&self, directory: &str, request: &Request) -> usize {
        /// The digits of a number with a sign, a slash, and the length.
        const REST: usize = 11 + 1 + 4;
        let prefix = keys::prefix(request.id, request.kind, request.limit);
        self.config.chroot.len() + directory.len() + prefix.len() + REST
    }

    /// Who may do what with the nodes of this client.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.config.acl {
            Acl::Open => Acls::anyone_all(),
            Acl::Creator => Acls::creator_all(),
        }
    }

    /// How directories are made: as nodes that the server removes when they are empty, where it can.
    pub(crate) fn container(&self, session: &Session) -> CreateOptions<'static> {
        let mode = if session.has_containers { CreateMode::Container } else { CreateMode::Persistent };
        mode.with_acls(self.acls())
    }

    /// Notes that somebody has asked the holder to release the lock. The holder decides.
    #[cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "only for `tracing`"))]
    pub(crate) fn note_revocation(&self, request: &Request) {
        #[cfg(feature = "tracing")]
        tracing::warn!(store = self.info.store, lock = %request.name, "somebody asks the holder to release the lock");
    }
}
