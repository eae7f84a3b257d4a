//! A follower whose link to the leader is slow or cut, while it goes on answering its clients.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use common::{locks, soon, unique};
use dlock_conformance::{
    Data, Proxy, or_ignore,
    stores::{
        Running, Server,
        zookeeper::{start_behind, word},
    },
};
use dlock_core::{Locks, Token};
use futures_util::future::join_all;
use tokio::time::sleep;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_holder_whose_server_is_cut_off_from_the_leader_knows_before_another_gets_the_lock on 2 threads,
        a_try_and_a_look_at_a_follower_that_lags_tell_what_the_leader_knows on 2 threads,
        clients_of_a_follower_that_lags_and_of_the_leader_are_never_inside_together on 2 threads,
    }])
}

/// How much later everything arrives that the follower and the leader tell each other.
const LAG: Duration = Duration::from_millis(100);

/// Three servers. The first follows.
struct Lagging {
    running: Running,
    links: [Arc<Proxy>; 2],
}

impl Lagging {
    /// `None` if there is no ZooKeeper and none is required.
    async fn start() -> Option<Self> {
        let link = async || Arc::new(Proxy::to(([127, 0, 0, 1], 1).into()).await.expect("a port is free"));
        let links = [link().await, link().await];
        let running = or_ignore(start_behind(links.clone()).await)?;
        running.own_server()?;
        let lagging = Self { running, links };
        // Its number is the lowest, so it leads only if the others were late. They elect another while it is away.
        let [first, others @ ..] = lagging.running.servers() else { panic!("three servers") };
        if !is(first, "follower").await {
            first.kill().await.expect("it runs");
            let elected = async {
                while !is(&others[0], "leader").await && !is(&others[1], "leader").await {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            soon("they elect nobody", elected).await;
            first.start(Data::Kept).await.expect("it starts");
        }
        assert!(is(first, "follower").await, "the first server is to follow");
        Some(lagging)
    }

    /// A client of the first server.
    async fn behind(&self, params: &str) -> Locks {
        client(&self.running.servers()[..1], params).await
    }

    /// A client of the others.
    async fn beside(&self, params: &str) -> Locks {
        client(&self.running.servers()[1..], params).await
    }
}

async fn is(server: &Server, mode: &str) -> bool {
    word(server.address(), "srvr").await.unwrap_or_default().contains(&format!("Mode: {mode}"))
}

async fn client(servers: &[Server], params: &str) -> Locks {
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    locks(&format!("zk://{}/test?timeout=10s&{params}", hosts.join(","))).await
}

/// The follower answers pings and reads for ten seconds more. Only what a majority must confirm shows that it is cut off.
async fn a_holder_whose_server_is_cut_off_from_the_leader_knows_before_another_gets_the_lock() {
    let Some(lagging) = Lagging::start().await else { return };
    let (holder, other) = (lagging.behind("session=3s").await, lagging.beside("session=20s").await);
    let name = unique();
    let held = holder.mutex(&name).lock().await.expect("free");
    lagging.links.iter().for_each(|link| link.stall());
    let next =
        soon("its session does not end", other.mutex(&name).lock().into_future()).await.expect("granted");
    assert!(held.is_lost(), "two hold it");
    assert!(next.token() > held.token(), "a token went back");
}

async fn a_try_and_a_look_at_a_follower_that_lags_tell_what_the_leader_knows() {
    let Some(lagging) = Lagging::start().await else { return };
    let (behind, beside) = (lagging.behind("session=30s").await, lagging.beside("session=30s").await);
    let name = unique();
    assert!(behind.inspect(&name).await.expect("an answer").is_none(), "nobody has used it");
    lagging.links.iter().for_each(|link| link.delay(LAG));
    for round in 0..3 {
        let held = beside.mutex(&name).lock().await.expect("free");
        let seen = behind.inspect(&name).await.expect("an answer").expect("it is held");
        assert_eq!(seen.holders[0].token, held.token(), "round {round}");
        assert!(
            behind.mutex(&name).try_lock().await.expect("an answer").is_none(),
            "round {round}: two hold it"
        );
        held.release().await.expect("held");
        let held = behind.mutex(&name).try_lock().await.expect("an answer").expect("it was released before");
        assert!(beside.inspect(&name).await.expect("an answer").is_some(), "round {round}: it is held");
        held.release().await.expect("held");
    }
}

async fn clients_of_a_follower_that_lags_and_of_the_leader_are_never_inside_together() {
    const TURNS: usize = 5;
    let Some(lagging) = Lagging::start().await else { return };
    let (behind, beside) = (lagging.behind("session=30s").await, lagging.beside("session=30s").await);
    lagging.links.iter().for_each(|link| link.delay(LAG));
    let (name, inside, last) = (unique(), AtomicBool::new(false), std::sync::Mutex::new(None::<Token>));
    let contend = async |client: &Locks| {
        for _ in 0..TURNS {
            let held = soon("its turn does not come", client.mutex(&name).lock().into_future())
                .await
                .expect("granted");
            assert!(!inside.swap(true, SeqCst), "two are inside");
            let before = last.lock().expect("no panic").replace(held.token().expect("a token"));
            assert!(before < held.token(), "a token went back");
            sleep(Duration::from_millis(5)).await;
            inside.store(false, SeqCst);
            held.release().await.expect("held");
        }
    };
    join_all([&behind, &beside, &behind, &beside].map(contend)).await;
}
