//! Renewals of many claims in one transaction.

use std::sync::Arc;

use dlock_core::{
    Result,
    driver::{Batch, Request},
};

use super::Client;
use crate::connection::Access;

/// Maximum number of claims in one transaction, which then takes some milliseconds.
const MAX_CLAIMS: usize = 100;

/// The renewals of one client. The reply to each is whether the claim is still in the file.
pub(crate) struct Renewals(pub(crate) Arc<Client>);

impl Renewals {
    async fn renew(&self, requests: Vec<Arc<Request>>) -> Result<Vec<bool>> {
        let client = Arc::clone(&self.0);
        let renewal = async move {
            let mut tx = client.begin(Access::Write).await?;
            let mut renewed = Vec::with_capacity(requests.len());
            for request in &requests {
                renewed.push(tx.renew(request, &client.me).await?);
            }
            client.commit(tx, Vec::new()).await?;
            Ok(renewed)
        };
        self.0.thread.run(renewal).await
    }
}

impl Batch for Renewals {
    type Request = Request;
    type Reply = bool;
    type Group = ();

    fn group(&self, _: &Request) {}

    fn max_size(&self) -> usize {
        MAX_CLAIMS
    }

    async fn send_one(&self, request: &Request) -> Result<bool> {
        let renewed = self.renew(vec![Arc::new(request.clone())]).await?;
        Ok(renewed == [true])
    }

    async fn send_many(&self, requests: &[Arc<Request>]) -> Result<Vec<Option<bool>>> {
        let renewed = self.renew(requests.to_vec()).await?;
        Ok(renewed.into_iter().map(Some).collect())
    }
}
