//! Tests of the Redis and Valkey fixtures. A server starts, accepts requests, and recovers after
//! each fault.
#![expect(clippy::print_stdout, reason = "the binary that a test kills prints the address of its server")]

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use dlock_testbed::servers::{
    Data, Running,
    redis::{Brand, Flavour, start},
};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};

type Case = Result<(), Failed>;

/// Environment variable with the name of a brand. This binary then starts a standalone server of
/// the brand, prints its address, and waits until it is killed.
const VICTIM: &str = "DLOCK_TEST_STORES_VICTIM";

fn main() -> ExitCode {
    let victim = std::env::var(VICTIM);
    if let Some(brand) = Brand::ALL.into_iter().find(|brand| victim.as_deref() == Ok(brand.name())) {
        return wait_to_be_killed(brand);
    }
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    let all = |brand| Flavour::ALL.map(|flavour| (brand, flavour));
    // Only those flavours of the old versions that other tests use.
    let old = [(Brand::Redis5, Flavour::Standalone), (Brand::Redis6, Flavour::Cluster)];
    for (brand, flavour) in all(Brand::Redis).into_iter().chain(all(Brand::Valkey)).chain(old) {
        let name = format!("{}_{}", brand.name(), flavour.name());
        match runtime().block_on(start(brand, flavour)) {
            Ok(store) => trials.extend(trials_of(&name, brand, flavour, store)),
            Err(unreachable) => trials.push(unreachable.trial(&name)),
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns the trials of one store. There are none for external servers, which tests must not harm.
fn trials_of(name: &str, brand: Brand, flavour: Flavour, store: Running) -> Vec<Trial> {
    if store.servers().is_empty() {
        return Vec::new();
    }
    let case = Trial::test(format!("{name}_answers_and_heals"), move || {
        runtime().block_on(async {
            match flavour {
                Flavour::Standalone => faults_are_survived(&store).await,
                Flavour::Tls => only_the_user_is_let_in(&store),
                Flavour::Sentinel => a_replica_takes_over(&store).await,
                Flavour::Cluster => a_node_that_forgot_comes_back_empty(&store).await,
            }
        })
    });
    let ends = Trial::test(format!("{name}_ends_with_a_binary_that_is_killed"), move || {
        runtime().block_on(servers_end_with_a_killed_binary(brand))
    });
    // One flavour is sufficient, because the servers of all flavours end in the same way.
    if flavour == Flavour::Standalone { vec![case, ends] } else { vec![case] }
}

async fn faults_are_survived(store: &Running) -> Case {
    let server = &store.servers()[0];
    let address = server.address();
    assert_eq!(store.url(), format!("redis://{address}"), "the URL does not name the server");
    assert_eq!(request(address, "SET kept 1")?, "+OK");

    server.pause().await?;
    assert!(request(address, "PING").is_err(), "a paused server replied");
    server.resume().await?;
    assert_eq!(request(address, "PING")?, "+PONG", "a resumed server does not reply");

    server.kill().await?;
    assert!(request(address, "PING").is_err(), "a killed server replied");
    server.start(Data::Kept).await?;
    assert_eq!(request(address, "EXISTS kept")?, ":1", "the server lost a write that it had acknowledged");

    server.kill().await?;
    server.start(Data::Lost).await?;
    assert_eq!(request(address, "EXISTS kept")?, ":0", "the server kept its data");
    Ok(())
}

fn only_the_user_is_let_in(store: &Running) -> Case {
    assert!(store.url().starts_with("rediss://dlock:"), "the URL does not name the user");
    let ca = std::fs::read_to_string(store.ca().ok_or("there is no certificate authority")?)?;
    assert!(ca.starts_with("-----BEGIN CERTIFICATE-----"), "the certificate of the authority is not in PEM");
    let reply = request(store.servers()[0].address(), "PING")?;
    assert!(reply.starts_with("-NOAUTH"), "a client without a user was let in: {reply}");
    let port = store.url().rsplit(':').next().ok_or("there is no port")?.parse()?;
    let reply = request(SocketAddr::from(([127, 0, 0, 1], port)), "PING");
    assert!(reply.is_err(), "a client without TLS was let in: {reply:?}");
    Ok(())
}

async fn a_replica_takes_over(store: &Running) -> Case {
    let [primary, replica, sentinel] = store.servers() else { return Err("there should be three".into()) };
    assert_eq!(store.url(), format!("redis+sentinel://{}/dlock", sentinel.address()));
    assert_eq!(request(primary.address(), "SET kept 1")?, "+OK");
    until("the replica has the key", || {
        request(replica.address(), "EXISTS kept").is_ok_and(|reply| reply == ":1")
    })
    .await?;
    primary.kill().await?;
    until("the replica is promoted", || {
        request(replica.address(), "SET more 1").is_ok_and(|reply| reply == "+OK")
    })
    .await?;
    assert_eq!(
        request(replica.address(), "EXISTS kept")?,
        ":1",
        "the promoted replica lost a key that it had"
    );
    primary.start(Data::Kept).await?;
    store.ready().await?;
    until("the old primary follows", || {
        request(primary.address(), "SET more 1").is_ok_and(|reply| reply.starts_with("-READONLY"))
    })
    .await?;
    Ok(())
}

async fn a_node_that_forgot_comes_back_empty(store: &Running) -> Case {
    let addresses: Vec<_> = store.servers().iter().map(|server| server.address().to_string()).collect();
    assert_eq!(store.url(), format!("redis-cluster://{}", addresses.join(",")));
    // The slot of `foo` is 12182: the last third.
    let [.., last] = store.servers() else { return Err("there should be three".into()) };
    assert_eq!(request(last.address(), "SET foo 1")?, "+OK");
    let reply = request(store.servers()[0].address(), "GET foo")?;
    assert_eq!(
        reply,
        format!("-MOVED 12182 {}", last.address()),
        "the node sends clients to the wrong address"
    );
    last.kill().await?;
    last.start(Data::Lost).await?;
    store.ready().await?;
    until("the node has its slots again", || {
        request(last.address(), "EXISTS foo").is_ok_and(|reply| reply == ":0")
    })
    .await?;
    Ok(())
}

async fn servers_end_with_a_killed_binary(brand: Brand) -> Case {
    let mut victim = Command::new(std::env::current_exe()?)
        .env(VICTIM, brand.name())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    BufReader::new(victim.stdout.take().ok_or("the binary has no output")?).read_line(&mut address)?;
    let address = address.trim().parse()?;
    let reply = request(address, "PING");
    victim.kill()?;
    victim.wait()?;
    assert_eq!(reply?, "+PONG", "the server ended before the binary");
    until("the server ends", || TcpStream::connect(address).is_err()).await
}

fn wait_to_be_killed(brand: Brand) -> ExitCode {
    let Ok(store) = runtime().block_on(start(brand, Flavour::Standalone)) else {
        return ExitCode::FAILURE;
    };
    println!("{}", store.servers()[0].address());
    // Standard input ends with the test that should kill this binary.
    let _ = io::stdin().read(&mut [0]);
    ExitCode::SUCCESS
}

/// Waits until the condition is true. Fails after a minute.
async fn until(event: &str, condition: impl Fn() -> bool + Send + Sync) -> Case {
    let checks = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), checks)
        .await
        .map_err(|_| format!("this never happened: {event}").into())
}

/// Sends one command, and returns the first line of the reply.
fn request(address: SocketAddr, command: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_millis(if command == "PING" { 500 } else { 10_000 })))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// Returns a new runtime. Each case has its own, because a fixture must not depend on the runtime
/// on which it was started.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime can be built")
}
