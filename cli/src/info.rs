//! `dlock info`: the store in use, the reason for it, and its capabilities.

use std::fmt::Write;

use dlock::{Locks, driver::Info};
use serde::Serialize;

use crate::{
    args,
    choice::Stores,
    exit::{Failure, OK, Outcome},
    json, output, store, values,
};

/// Output of `--json`. `docs/json.md` describes the fields.
#[derive(Serialize)]
struct Report {
    store: String,
    why: String,
    /// `None`, as the next two, if the store does not exist yet or cannot be reached.
    kinds: Option<Vec<String>>,
    tokens: Option<bool>,
    detaches: Option<bool>,
}

/// Prints the store and its capabilities. Creates no store.
pub(crate) async fn info(stores: &Stores<'_>, args: args::Info) -> Outcome {
    let name = args.name.as_deref().map(values::name).transpose()?;
    let chosen = stores.chosen(name.as_ref().map(|name| name.as_str()))?;
    let connected = if chosen.is_missing() { None } else { Some(chosen.connect(stores.registry).await) };
    let (locks, failure) = match connected {
        None => (None, None),
        Some(Ok(locks)) => (Some(locks), None),
        Some(Err(error)) => (None, Some(Failure::from(error))),
    };
    let capabilities = locks.as_ref().map(Locks::info);
    output::print(if args.json {
        json::text(Report {
            store: chosen.display.clone(),
            why: chosen.reason,
            kinds: capabilities.map(kinds),
            tokens: capabilities.map(|info| info.tokens),
            detaches: capabilities.map(|info| info.detaches),
        })?
    } else {
        let mut text = format!("store   {}\nwhy     {}\n", chosen.display, chosen.reason);
        let state = match (capabilities, &failure) {
            (Some(info), _) => {
                let tokens = if info.tokens { "with tokens" } else { "without tokens" };
                format!("locks   {}; {tokens}", kinds(info).join(", "))
            }
            (None, Some(_)) => "locks   unknown, because the store cannot be reached".to_owned(),
            (None, None) => "locks   none yet; the first one creates the file".to_owned(),
        };
        // Writing to a String cannot fail.
        writeln!(text, "{state}").ok();
        text
    })?;
    if let Some(locks) = &locks {
        store::close(locks).await;
    }
    failure.map_or(Ok(OK), Err)
}

fn kinds(info: &Info) -> Vec<String> {
    info.kinds.iter().map(ToString::to_string).collect()
}
