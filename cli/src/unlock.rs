//! `dlock unlock`: takes a lock from its holder.

use crate::{
    args::Unlock,
    choice::Stores,
    exit::{Failure, NO, OK, Outcome},
    output, store, values,
};

/// Breaks a lock. Returns [`NO`] if it was not held.
pub(crate) async fn unlock(stores: &Stores<'_>, args: Unlock) -> Outcome {
    let name = values::name(&args.name)?;
    if !args.force {
        let message = "`unlock` takes the lock from a holder that may still be running; if you know that it is not, add --force";
        return Err(Failure::usage(message));
    }
    let held = store::with_store(stores, Some(name.as_str()), async |locks| locks.force_release(&name).await)
        .await?;
    if !held {
        output::say(&format!("lock `{name}` is not held"));
    }
    Ok(if held { OK } else { NO })
}
