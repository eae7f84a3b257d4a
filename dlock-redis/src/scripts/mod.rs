//! The Lua scripts. A call refers to its script by the script's hash, which the server knows once
//! the script was sent in full.

use std::{sync::LazyLock, time::Duration};

use redis::{Arg, Cmd, ToRedisArgs};

/// A script, which the server executes in one atomic step.
pub(crate) struct Script {
    text: &'static str,
    hash: String,
}

/// A call of a script, with its keys and arguments.
pub(crate) struct Call {
    script: &'static Script,
    by_hash: Cmd,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Creates a call with these keys and arguments. Each argument is a value or a list.
    pub(crate) fn call(&'static self, keys: impl ToRedisArgs, args: impl ToRedisArgs) -> Call {
        let mut by_hash = Cmd::with_capacity(16, 512);
        by_hash.arg("EVALSHA").arg(&self.hash).arg(keys.num_of_args()).arg(keys).arg(args);
        Call { script: self, by_hash }
    }
}

impl Call {
    pub(crate) fn by_hash(&self) -> &Cmd {
        &self.by_hash
    }

    /// Returns the same call with the script's text. The server knows the hash from then on.
    pub(crate) fn in_full(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.script.text);
        for arg in self.by_hash.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        cmd
    }
}

/// Converts a duration to milliseconds, the unit of scripts and commands.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

macro_rules! scripts {
    ($($name:ident = $($file:literal)+;)+) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!($file, ".lua"))),+)));)+
    };
}

scripts! {
    ACQUIRE = "time" "late" "draw" "acquire";
    ACQUIRE_ALL = "time" "late" "draw" "acquire_all";
    RELEASE = "release";
    FAIR_ACQUIRE = "time" "late" "draw" "fair" "fair_acquire" "fair_wait";
    FAIR_RELEASE = "time" "fair" "fair_release";
    RW_ACQUIRE = "time" "late" "draw" "rw" "rw_acquire" "rw_wait";
    RW_RELEASE = "time" "readers" "rw" "rw_release";
    RENEW = "permit_renew" "renew";
    HAND_OVER = "time" "late" "readers" "hand_over";
    PLAIN_ACQUIRE = "time" "late" "plain_acquire";
    PLAIN_HAND_OVER = "time" "late" "plain_hand_over";
    PLAIN_RELEASE = "plain_release";
    PLAIN_RENEW = "plain_renew";
    PERMIT_HAND_OVER = "time" "late" "permit" "permit_hand_over";
    PERMIT_ACQUIRE = "time" "late" "draw" "permit_first" "permit" "permit_expire" "permit_acquire";
    PERMIT_RELEASE = "time" "permit_last" "permit" "permit_expire" "permit_release";
    PERMIT_BREAK = "time" "permit" "permit_expire" "permit_break";
    INSPECT = "permit" "fields" "inspect_permits" "inspect";
    PEEK = "peek";
    FORCE_RELEASE = "fields" "force_release";
    WHO = "who";
    WHO_DELETE = "who_delete";
}
