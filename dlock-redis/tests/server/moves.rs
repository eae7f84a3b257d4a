//! Tests of a master whose address moves to another server, like a virtual address or a DNS name.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::time::Duration;

use dlock_core::Locks;

use crate::common::{
    Bench, connect,
    relay::{Relay, Replies},
    soon,
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_demoted_master_is_left_for_the_server_that_has_its_address,
        a_waiter_subscribes_at_the_server_that_executes_the_commands,
    }
}

async fn pair() -> Option<(Bench, Bench)> {
    let (old, new) = (Bench::new().await?, Bench::new().await?);
    old.running.own_server()?;
    Some((old, new))
}

async fn a_demoted_master_is_left_for_the_server_that_has_its_address() {
    let Some((old, new)) = pair().await else { return };
    let relay = Relay::to(old.running.servers()[0].address()).await;
    let locks = Locks::new(connect(&format!("redis://{}", relay.address)).await.unwrap());
    old.send("CONFIG SET replica-serve-stale-data no").await;
    old.send("REPLICAOF 127.0.0.1 1").await;
    relay.redirect_to(new.running.servers()[0].address());
    let result = soon("the call does not end", locks.mutex("foo").try_lock().into_future()).await;
    let held = result
        .expect("the client uses the demoted server, which replies MASTERDOWN")
        .expect("the lock is free");
    assert!(new.query::<bool>("EXISTS foo").await);
    held.release().await.unwrap();
}

async fn a_waiter_subscribes_at_the_server_that_executes_the_commands() {
    let Some((old, new)) = pair().await else { return };
    let relay = Relay::to(old.running.servers()[0].address()).await;
    let url = format!("redis://{}?timeout=1s", relay.address);
    let locks = Locks::new(connect(&url).await.unwrap());
    for server in [&old, &new] {
        server.send("HSET foo aaaa:1 1").await;
    }
    let waiter = tokio::spawn(locks.mutex("foo").lock().ttl(Duration::from_secs(600)).into_future());
    old.wait_for_subscriber("redisson_lock__channel:{foo}").await;
    // The old server hangs. Its kernel acknowledges all data, but there is no reply.
    relay.set_all(Replies::Hold);
    relay.redirect_to(new.running.servers()[0].address());
    let other = async { while locks.mutex("bar").try_lock().await.is_err() {} };
    soon("the client does not use the new server", other).await;
    new.wait_for_subscriber("redisson_lock__channel:{foo}").await;
    new.send("DEL foo").await;
    new.send("PUBLISH redisson_lock__channel:{foo} 0").await;
    drop(soon("the waiter was not woken by the new server", waiter).await.unwrap().unwrap());
}
