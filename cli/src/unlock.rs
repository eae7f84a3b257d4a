//! `dlock unlock`: takes a lock from whoever holds it.

use crate::{
    args::Unlock,
    choice::Stores,
    exit::{Failure, NO, OK, Outcome},
    output, store, values,
};

/// Breaks a lock; says no if nobody held it.
pub(crate) async fn unlock(stores: &Stores<'_>, args: Unlock) -> Outcome {
    let name = values::name(&args.name)?;
    if !args.force {
        let why = "`unlock` takes the lock from a holder that may still be at work; if you know that it is not, add --force";
        return Err(Failure::usage(why));
    }
    let Some(locks) = store::look(stores, Some(name.as_str())).await? else { return Ok(NO) };
    let held = locks.force_release(&name).await?;
    store::close(&locks).await;
    if !held {
        output::say(&format!("nobody holds lock `{name}`"));
    }
    Ok(if held { OK } else { NO })
}
