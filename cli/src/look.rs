//! `dlock ls` and `dlock inspect`: list the locks or the marks in a store.

use crate::{
    args::{Inspect, Ls},
    choice::Stores,
    exit::{NO, OK, Outcome},
    json, output, show, store, values,
};

/// Lists locks, or marks.
pub(crate) async fn ls(stores: &Stores<'_>, args: Ls) -> Outcome {
    let prefix = values::utf8(&args.prefix, "the prefix of a lock's name")?;
    let text = if args.marks {
        let marks = store::with_store(stores, None, async |locks| locks.marks(prefix).await).await?;
        if args.json { json::marks(&marks)? } else { show::marks(&marks) }
    } else {
        let states = store::with_store(stores, None, async |locks| locks.list(prefix).await).await?;
        if args.json { json::locks(&states)? } else { show::table(&states) }
    };
    output::print(text)?;
    Ok(OK)
}

/// Shows one lock. Returns [`NO`] if it is free.
pub(crate) async fn inspect(stores: &Stores<'_>, args: Inspect) -> Outcome {
    let name = values::name(&args.name)?;
    let state =
        store::with_store(stores, Some(name.as_str()), async |locks| locks.inspect(&name).await).await?;
    output::print(if args.json {
        json::lock(&name, state.as_ref())?
    } else {
        show::page(&name, state.as_ref())
    })?;
    Ok(if state.is_some() { OK } else { NO })
}
