//! A follower whose link to the leader is slow or cut, while the follower still replies to its
//! clients.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use common::{locks, soon, unique};
use dlock_conformance::{Data, Proxy, or_ignore};
use dlock_core::{Locks, Token};
use dlock_testbed::servers::{
    Running, Server,
    zookeeper::{start_behind, word},
};
use futures_util::future::join_all;
use tokio::time::sleep;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_holder_whose_server_is_cut_off_from_the_leader_knows_before_another_gets_the_lock on 2 threads,
        a_try_and_an_inspection_through_a_lagging_follower_show_the_leaders_state on 2 threads,
        clients_of_a_follower_that_lags_and_of_the_leader_are_never_inside_together on 2 threads,
    }])
}

/// Delay of all data between the follower and the leader.
const LAG: Duration = Duration::from_millis(100);

/// An ensemble of three servers. The first server is a follower.
struct Lagging {
    running: Running,
    links: [Arc<Proxy>; 2],
}

impl Lagging {
    /// Starts the ensemble. Returns `None` if ZooKeeper is neither available nor required.
    async fn start() -> Option<Self> {
        let link = async || Arc::new(Proxy::to(([127, 0, 0, 1], 1).into()).await.expect("a port is free"));
        let links = [link().await, link().await];
        let running = or_ignore(start_behind(links.clone()).await)?;
        running.own_server()?;
        let lagging = Self { running, links };
        // The first server has the lowest number, so it leads only if the others started late. They
        // elect another leader while it is down.
        let [first, others @ ..] = lagging.running.servers() else { panic!("three servers") };
        if !is(first, "follower").await {
            first.kill().await.expect("the server is running");
            let elected = async {
                while !is(&others[0], "leader").await && !is(&others[1], "leader").await {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            soon("the servers elect no leader", elected).await;
            first.start(Data::Kept).await.expect("the server starts");
        }
        assert!(is(first, "follower").await, "the first server must be a follower");
        Some(lagging)
    }

    /// Connects to the first server.
    async fn behind(&self, params: &str) -> Locks {
        client(&self.running.servers()[..1], params).await
    }

    /// Connects to the other servers.
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

/// The follower replies to pings and reads for ten more seconds. Only a request that a majority
/// must confirm shows that the follower is cut off.
async fn a_holder_whose_server_is_cut_off_from_the_leader_knows_before_another_gets_the_lock() {
    let Some(lagging) = Lagging::start().await else { return };
    let (holder, other) = (lagging.behind("session=3s").await, lagging.beside("session=20s").await);
    let name = unique();
    let held = holder.mutex(&name).lock().await.expect("the lock is free");
    lagging.links.iter().for_each(|link| link.stall());
    let next = soon("the session of the holder does not end", other.mutex(&name).lock().into_future())
        .await
        .expect("the lock is granted");
    assert!(held.is_lost(), "two claims hold the lock");
    assert!(next.token() > held.token(), "the token decreased");
}

async fn a_try_and_an_inspection_through_a_lagging_follower_show_the_leaders_state() {
    let Some(lagging) = Lagging::start().await else { return };
    let (behind, beside) = (lagging.behind("session=30s").await, lagging.beside("session=30s").await);
    let name = unique();
    assert!(behind.inspect(&name).await.expect("the server replies").is_none(), "the lock is free");
    lagging.links.iter().for_each(|link| link.delay(LAG));
    for round in 0..3 {
        let held = beside.mutex(&name).lock().await.expect("the lock is free");
        let seen = behind.inspect(&name).await.expect("the server replies").expect("the lock is held");
        assert_eq!(seen.holders[0].token, held.token(), "round {round}");
        assert!(
            behind.mutex(&name).try_lock().await.expect("the server replies").is_none(),
            "round {round}: two claims hold the lock"
        );
        held.release().await.expect("the claim holds the lock");
        let held =
            behind.mutex(&name).try_lock().await.expect("the server replies").expect("the lock was released");
        assert!(
            beside.inspect(&name).await.expect("the server replies").is_some(),
            "round {round}: the held lock is shown as free"
        );
        held.release().await.expect("the claim holds the lock");
    }
}

async fn clients_of_a_follower_that_lags_and_of_the_leader_are_never_inside_together() {
    const TURNS: usize = 5;
    let Some(lagging) = Lagging::start().await else { return };
    let (behind, beside) = (lagging.behind("session=30s").await, lagging.beside("session=30s").await);
    lagging.links.iter().for_each(|link| link.delay(LAG));
    let (name, inside, last) = (unique(), AtomicBool::new(false), parking_lot::Mutex::new(None::<Token>));
    let contend = async |client: &Locks| {
        for _ in 0..TURNS {
            let held = soon("the lock is not granted", client.mutex(&name).lock().into_future())
                .await
                .expect("the lock is granted");
            assert!(!inside.swap(true, SeqCst), "two clients hold the lock");
            let before = last.lock().replace(held.token().expect("a token"));
            assert!(before < held.token(), "the token decreased");
            sleep(Duration::from_millis(5)).await;
            inside.store(false, SeqCst);
            held.release().await.expect("the claim holds the lock");
        }
    };
    join_all([&behind, &beside, &behind, &beside].map(contend)).await;
}
