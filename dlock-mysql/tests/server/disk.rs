//! A disk without free space. Each commit writes to the binary log, so commits fail or wait.

use dlock_conformance::Data;
use dlock_testbed::servers::{
    mysql::{Brand, start_with_disk},
    trial_with_disks,
};
use libtest_mimic::{Failed, Trial};
use tokio::{runtime::Runtime, time::timeout};

use crate::{SOON, connect, execute, or_failed, plain_session, until_reply};

pub(crate) fn trial(brand: Brand) -> Trial {
    let name = format!("{}::disk::a_full_disk_ends_a_hold_with_its_ttl_and_grants_no_other", brand.name());
    trial_with_disks(name, move || {
        Runtime::new()?.block_on(a_full_disk_ends_a_hold_with_its_ttl_and_grants_no_other(brand))
    })
}

async fn a_full_disk_ends_a_hold_with_its_ttl_and_grants_no_other(brand: Brand) -> Result<(), Failed> {
    let server = or_failed(start_with_disk(brand).await)?;
    let machine = &server.servers()[0];
    let (holder, other) = (connect(&server, "").await?, connect(&server, "").await?);
    let mut writer = plain_session(&server).await;
    execute(&mut writer, "CREATE TABLE filler (bytes BLOB)").await;
    let held = holder.mutex("job").lock().ttl(SOON).await?;
    machine.fill_disk()?;
    // The last block of the log may have room for some commits.
    let insert = sqlx::raw_sql("INSERT INTO filler VALUES (REPEAT('x', 8192))");
    let fails = timeout(SOON / 2, insert.execute(&mut writer)).await;
    assert!(!matches!(fails, Ok(Ok(_))), "the disk has room for 8 KiB");

    timeout(SOON * 3, held.lost()).await.expect("the holder is notified");
    match other.mutex("job").try_lock().await {
        Ok(granted) => assert!(granted.is_none(), "a lock is granted that the server cannot write"),
        Err(error) => assert!(error.is_transient(), "{error:?}"),
    }

    machine.empty_disk()?;
    // MariaDB may have ended. A server that runs checks once a minute whether the disk has room again.
    machine.start(Data::Kept).await.ok();
    let next = until_reply(SOON * 30, || async { other.mutex("job").lock().wait(SOON).await }).await;
    assert!(next.token() > held.token(), "{:?} follows {:?}", next.token(), held.token());
    next.release().await?;
    Ok(())
}
