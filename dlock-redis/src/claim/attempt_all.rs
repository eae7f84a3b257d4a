//! The acquisition of several mutexes of one client by one script, which grants all or none.

use std::{pin::pin, sync::Arc};

use dlock_core::{
    Error, Kind, Result,
    driver::{AttemptAll, Claim, LateRequests, Request},
};
use redis::Value;

use super::{
    RedisClaim,
    reply::{parse_token, wrong_kind},
};
use crate::{
    client::Client,
    config::{Dialect, RedisConfig, Topology},
    error::STORE,
    scripts::{ACQUIRE_ALL, Call, millis},
};

/// Maximum number of locks that one script acquires. It blocks the server's other clients for less
/// than a millisecond.
const MAX_LOCKS_PER_STEP: usize = 64;

/// Returns the maximum number of locks in one step.
pub(crate) fn locks_per_step(config: &RedisConfig) -> usize {
    // The locks of a cluster are on several nodes. A wait for a replica confirms one lock.
    let is_single_server = config.topology != Topology::Cluster && config.replicas.is_none();
    if is_single_server && config.dialect == Dialect::Redisson { MAX_LOCKS_PER_STEP } else { 1 }
}

/// Acquires these mutexes if no other claim holds any of them. Otherwise acquires none.
///
/// # Errors
/// [`Error::Unsupported`], before any I/O, if one script cannot acquire these locks. After any
/// other error the outcome is unknown: a claim with the same id finds its hold, or releases it.
pub(crate) async fn attempt_all(client: &Arc<Client>, requests: Vec<Request>) -> Result<AttemptAll> {
    let Some(first) = requests.first() else { return Ok(AttemptAll::Granted(Vec::new())) };
    if !requests.iter().all(|request| is_like(first, request)) {
        let what = "grant locks of several kinds, ttls or labels in one step".to_owned();
        return Err(Error::Unsupported { store: STORE.store(), what });
    }
    let claims: Vec<_> =
        requests.iter().map(|request| RedisClaim::new(Arc::clone(client), request.clone())).collect();
    let late = LateRequests::default();
    let (key, limit) = (claims[0].record.keys.lock(), claims[0].time_limit());
    let acquire = client.run_in_time(key, limit, &late, |deadline| Ok(call(&claims, deadline)));
    let reply = client.call_with_label(first, None, pin!(acquire)).await?;
    match reply {
        Value::Array(tokens) if tokens.len() == claims.len() => {
            claims.iter().for_each(|claim| claim.late.note_lost_reply(late.remaining()));
            granted(claims, &tokens)
        }
        Value::Int(_) if !late.remaining().is_zero() => {
            Err(STORE.unavailable("the connection broke, and the server may execute the request late"))
        }
        Value::Int(busy) if (0..claims.len() as i64).contains(&busy) => {
            Ok(AttemptAll::Busy(usize::try_from(busy).unwrap_or_default()))
        }
        Value::SimpleString(status) if status == "partly" => {
            Err(STORE.unavailable("an earlier request has acquired some of the locks"))
        }
        // Each claim makes an attempt by itself next, and one of them finds the reason.
        Value::SimpleString(_) => Err(wrong_kind(&claims[0].request, "other")),
        _ => Err(STORE.unexpected_reply("an attempt at several locks")),
    }
}

/// Returns whether one script can acquire the locks of both requests.
fn is_like(first: &Request, request: &Request) -> bool {
    let properties = |request: &Request| (request.ttl, request.wants_token, request.id.who_key());
    request.kind == Kind::Mutex && properties(first) == properties(request)
}

fn call(claims: &[RedisClaim], deadline: u64) -> Call {
    let records = || claims.iter().map(|claim| &*claim.record);
    let keys = records().flat_map(|record| [record.keys.lock().to_owned(), record.keys.token().to_string()]);
    let owners: Vec<_> = records().map(|record| &*record.owner).collect();
    let (ttl, token_ttl) = (millis(claims[0].request.ttl), claims[0].token_ttl());
    ACQUIRE_ALL.call(keys.collect::<Vec<_>>(), (claims.len(), ttl, owners, token_ttl, deadline))
}

fn granted(claims: Vec<RedisClaim>, tokens: &[Value]) -> Result<AttemptAll> {
    let grants = claims.into_iter().zip(tokens).map(|(mut claim, token)| {
        let Value::BulkString(token) = token else { return Err(STORE.unexpected_reply("a fencing token")) };
        let grant = claim.grant(parse_token(token)?);
        Ok((Box::new(claim) as Box<dyn Claim>, grant))
    });
    grants.collect::<Result<_>>().map(AttemptAll::Granted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_script_locks_several_names_on_one_server_with_redissons_protocol_only() {
        let locks = |url: &str| {
            let url = url.parse().expect("a URL");
            locks_per_step(&RedisConfig::from_url(&url).expect("a configuration"))
        };
        assert_eq!(locks("redis://a"), MAX_LOCKS_PER_STEP);
        for url in ["redis-cluster://a", "redis://a?wait_replicas=1", "redis://a?dialect=plain"] {
            assert_eq!(locks(url), 1, "{url}");
        }
    }
}
