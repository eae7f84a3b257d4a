//! Acquires several locks in one transaction.

use std::sync::Arc;

use dlock_core::{
    Result,
    driver::{AttemptAll, Claim, Grant, LateExecution, LateRequests, Request},
};

use super::{
    super::client::{Client, NO_CHANNEL},
    PostgresClaim, token_of,
};
use crate::{
    connection::{Call, Priority},
    error::STORE,
    keys,
    sql::{Function, Param, column},
};

/// Grants all requests, or none of them.
pub(crate) async fn attempt_all(client: &Arc<Client>, requests: Vec<Request>) -> Result<AttemptAll> {
    let timeout = client.connection.timeout();
    let Some(timeout) = requests.iter().map(|request| request.time_limit(timeout)).min() else {
        return Ok(AttemptAll::Granted(Vec::new()));
    };
    let kinds = requests.iter().map(|request| keys::kind_code(request.kind)).collect::<Result<Vec<_>>>()?;
    let bytes = |text: &str| text.as_bytes().to_vec();
    let params: Vec<Param> = vec![
        Box::new(requests.iter().map(|request| keys::bucket(&request.name)).collect::<Vec<_>>()),
        Box::new(requests.iter().map(|request| bytes(request.name.as_str())).collect::<Vec<_>>()),
        Box::new(requests.iter().map(|request| keys::uuid(request.id)).collect::<Vec<_>>()),
        Box::new(kinds),
        Box::new(requests.iter().map(|request| keys::micros(request.ttl)).collect::<Vec<_>>()),
        // The claims hold, so no client notifies them.
        Box::new(NO_CHANNEL.to_owned()),
        Box::new(requests.iter().map(|request| bytes(request.who.text())).collect::<Vec<_>>()),
    ];
    let late = LateRequests::default();
    let call = Call {
        function: Function::AttemptAll,
        params,
        timeout,
        late_execution: LateExecution::Refused(&late),
        priority: Priority::Attempt,
    };
    let reply = client.connection.call(call).await?;
    let row = reply.row("an attempt")?;
    if let Some(busy) = column::<Option<i32>>(row, "busy")? {
        if !late.remaining().is_zero() {
            return Err(
                STORE.unavailable("the connection broke, and the server may execute the request late")
            );
        }
        let index = usize::try_from(busy - 1).map_err(|_| STORE.unexpected_reply("an attempt"))?;
        return Ok(AttemptAll::Busy(index));
    }
    let tokens: Vec<i64> = column(row, "tokens")?;
    if tokens.len() != requests.len() {
        return Err(STORE.unexpected_reply("an attempt"));
    }
    let grant = |(request, token): (Request, i64)| {
        let grant = Grant { token: token_of(token), valid_for: request.ttl };
        let claim = PostgresClaim::new(Arc::clone(client), request);
        claim.late.note_lost_reply(late.remaining());
        (Box::new(claim) as Box<dyn Claim>, grant)
    };
    Ok(AttemptAll::Granted(requests.into_iter().zip(tokens).map(grant).collect()))
}
