//! The renewal of a hold, its detachment to a ticket, and its resumption.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, Result,
    driver::{Renewal, Resumption},
};

use super::{EtcdClaim, OwnKey, being_deleted};
use crate::{
    connection::lease_id,
    error,
    keys::{Keys, Record},
    session::Lease,
    wake::HeldKey,
};

/// Maximum number of tries of a resumption. A further try follows a change of the key by another
/// client.
const MAX_RESUME_TRIES: usize = 3;

impl EtcdClaim {
    /// Renews the hold. Sends no request for the key while its watch and the client's lease prove
    /// that it exists.
    pub(super) async fn renew_hold(&mut self) -> Result<Renewal> {
        let keys = self.keys()?;
        self.client.ensure_pump_runs();
        if self.own_key.is_none() && self.detach_leases.is_empty() && !self.has_attempted {
            // This object has neither attempted the lock nor taken it over.
            return Ok(Renewal::Lost);
        }
        let lease = self.client.session.lease().await?;
        let known_lease = self.own_key.and_then(|own_key| own_key.lease);
        // The claim is recorded before any request that moves the key to the lease. If that request
        // is executed late, the session deletes the key like that of any silent claim.
        if !self.touch(&keys) {
            return self.result_during_deletion();
        }
        if let Some(held_key) = &self.held_key {
            held_key.clear();
        }
        let is_held = match (known_lease, &self.held_key) {
            (Some(known_lease), _) if known_lease != lease.id => false,
            (Some(_), Some(held_key)) if held_key.exists() && self.detach_leases.is_empty() => true,
            _ => self.verify_hold(&keys, lease).await?,
        };
        if !is_held {
            self.client.session.leave(self.request.id);
            return Ok(Renewal::Lost);
        }
        Ok(Renewal::Renewed { valid_for: lease.remaining().min(self.request.ttl) })
    }

    /// Returns the result of a renewal or a detachment while the session deletes the claim's key.
    /// The result is `Lost` if the key was last known under the client's lease. Otherwise the hold
    /// may be under a lease of its own. The session deletes the key only if it is under the
    /// client's lease, so only the cluster knows whether the hold exists, and the result is an
    /// error.
    fn result_during_deletion(&self) -> Result<Renewal> {
        self.own_key.and_then(|own_key| own_key.lease).map(|_| Renewal::Lost).ok_or_else(being_deleted)
    }

    /// Reads the key, and moves it to the client's lease if it may have another lease. Returns
    /// `false` if the hold does not exist.
    async fn verify_hold(&mut self, keys: &Keys, lease: Lease) -> Result<bool> {
        let unverified_watch = self.held_key.as_ref().and_then(HeldKey::unverified_watch);
        let client = Arc::clone(&self.client);
        let found = client.hold_reads.submit(Arc::new(keys.own.clone()), self.request.ttl).await?;
        let Some(own) = found.filter(|key| self.is_own(key, self.ticket)) else { return Ok(false) };
        let is_lease_known = self.own_key.is_some_and(|own_key| own_key.lease.is_some());
        // After a failed detachment the key is rewritten even if the lease is right, so that a late
        // detachment is refused.
        if own.lease() != lease.id || !is_lease_known {
            let kind = Record::read(own.value()).kind;
            let rewriting = self.rewrite(keys, &own, kind, lease.id, self.renamed_to());
            if !client.run_other(rewriting).await? {
                return Ok(false);
            }
        }
        self.own_key = Some(OwnKey { lease: Some(lease.id), create_revision: own.create_revision() });
        match (&self.held_key, unverified_watch) {
            (Some(held_key), Some(watch)) => held_key.note_read(watch),
            (Some(_), None) => {}
            // The new watch reports a deletion since the key was read.
            (None, _) => {
                self.grant(keys, lease);
            }
        }
        if !self.detach_leases.is_empty() {
            client.run_other(self.end_detach_leases()).await;
        }
        Ok(true)
    }

    /// Renames the hold to `ticket`, under a new lease of its own.
    pub(super) async fn detach_hold(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.ticket = Some(ticket);
        let mut keys = self.keys()?;
        if !self.touch(&keys) {
            return self.result_during_deletion();
        }
        let own = match self.find(&keys, self.ticket).await? {
            // After a resumption with a lost reply, the key contains the id of another claim.
            None if self.own_key.is_none() => self.find_renamed(&keys, ticket).await?,
            found => found,
        };
        let Some(own) = own else {
            // The ticket may be that of another claim, which the release must not find.
            self.ticket = None;
            self.client.session.leave(self.request.id);
            return Ok(Renewal::Lost);
        };
        keys.own = String::from_utf8_lossy(own.key()).into_owned();
        let record = Record::read(own.value());
        // The time of a hold that is detached already is never shortened.
        let is_detached = record.renamed_to == Some(ticket);
        let remaining =
            if is_detached { self.client.connection.lease_remaining(own.lease()).await? } else { None };
        if remaining.is_none_or(|remaining| remaining < lasting) {
            let lease = lease_id();
            self.detach_leases.push(lease);
            self.client.connection.grant(lease, lasting).await?;
            // If no reply arrives, the next resumption reads the lease of the key, and moves the
            // key back.
            if let Some(own_key) = &mut self.own_key {
                own_key.lease = None;
            }
            self.held_key = None;
            if !self.rewrite(&keys, &own, record.kind, lease, Some(ticket)).await? {
                self.ticket = None;
                self.end_detach_leases().await;
                return Ok(Renewal::Lost);
            }
            self.detach_leases.retain(|created| *created != lease);
        }
        (self.own_key, self.held_key) = (None, None);
        self.end_detach_leases().await;
        self.client.session.leave(self.request.id);
        Ok(Renewal::Renewed { valid_for: lasting })
    }

    /// Takes over the hold of a ticket. If another client changes the key at the same time, reads
    /// the key again.
    pub(super) async fn resume_hold(&mut self, ticket: ClaimId) -> Result<Resumption> {
        for _ in 1..MAX_RESUME_TRIES {
            match self.try_resume(ticket).await {
                Err(error) if error::is_conflict(&error) => {}
                outcome => return outcome,
            }
        }
        self.try_resume(ticket).await
    }

    async fn try_resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let mut keys = self.keys()?;
        self.client.ensure_pump_runs();
        let lease = self.client.session.lease().await?;
        let own = if self.ticket.is_some() || self.adopted_key.is_some() {
            self.find(&keys, Some(ticket)).await?
        } else {
            self.find_renamed(&keys, ticket).await?
        };
        let Some(own) = own else {
            self.client.session.leave(self.request.id);
            return Ok(Resumption::Gone);
        };
        let key = String::from_utf8_lossy(own.key()).into_owned();
        if key != keys.own {
            keys.own.clone_from(&key);
            self.adopted_key = Some(key);
        }
        // The claim is recorded before the request that takes the hold over. If that request is
        // executed late, the session deletes the key like that of any silent claim.
        if !self.touch(&keys) {
            return Err(being_deleted());
        }
        let record = Record::read(own.value());
        let is_detached = record.renamed_to == Some(ticket);
        let remaining =
            if is_detached { self.client.connection.lease_remaining(own.lease()).await? } else { None };
        // If `detach` failed before it sent the request that renames the key, the key still has its
        // id and its lease, and no rewrite is needed. This matters while the database is full: the
        // cluster then refuses the new lease of a detachment, and would refuse a rewrite too.
        let session_lease = self.own_key.and_then(|own_key| own_key.lease);
        let is_unchanged = !is_detached && session_lease == Some(lease.id) && own.lease() == lease.id;
        // Otherwise the key is rewritten even if the lease is right, so that a late detachment is
        // refused.
        if !is_unchanged && !self.rewrite(&keys, &own, record.kind, lease.id, self.renamed_to()).await? {
            self.client.session.leave(self.request.id);
            return Ok(Resumption::Gone);
        }
        self.own_key = Some(OwnKey { lease: Some(lease.id), create_revision: own.create_revision() });
        let grant = self.grant(&keys, lease);
        self.end_detach_leases().await;
        Ok(Resumption::Resumed { grant, remaining })
    }
}
