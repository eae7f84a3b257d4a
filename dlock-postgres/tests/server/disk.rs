//! A disk without free space, on which the server cannot write its log and stops.

use dlock_testbed::servers::{postgres::start_with_disk, trial_with_disks};

use super::{check_in::session, *};

pub(crate) fn trial() -> Trial {
    trial_with_disks("a_full_disk_ends_a_hold_with_its_ttl_and_grants_no_other", || {
        Runtime::new()?.block_on(a_full_disk_ends_a_hold_with_its_ttl_and_grants_no_other());
        Ok(())
    })
}

async fn a_full_disk_ends_a_hold_with_its_ttl_and_grants_no_other() {
    let server = start_with_disk(Version::V17).await.expect("the server of the other cases runs");
    let machine = &server.servers()[0];
    let [holder, other] =
        [connect(&server).await.expect("connected"), connect(&server).await.expect("connected")];
    let writer = session(server.url()).await;
    let held = holder.mutex("job").lock().ttl(SOON).await.expect("the lock");
    machine.fill_disk().expect("the server has a disk of its own");
    // The existing files of the log have room for some megabytes.
    let write = "SELECT pg_logical_emit_message(true, 'filler', repeat('x', 100000))";
    let fails = async { while writer.batch_execute(write).await.is_ok() {} };
    timeout(SOON * 3, fails).await.expect("the disk has no room");

    timeout(SOON * 3, held.lost()).await.expect("the holder is notified");
    match other.mutex("job").try_lock().await {
        Ok(granted) => assert!(granted.is_none(), "a lock is granted that the server cannot write"),
        Err(error) => assert!(error.is_transient(), "{error:?}"),
    }

    machine.empty_disk().expect("the disk was filled");
    // The server has ended, or tries to start again.
    machine.kill().await.ok();
    start_again(machine).await;
    let next = try_until_reply(&other, "job").await.expect("the hold has expired");
    assert!(next.token() > held.token(), "{:?} follows {:?}", next.token(), held.token());
    next.release().await.expect("still held");
}
