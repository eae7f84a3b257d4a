//! The scripts, each known to the server by its hash.

use std::sync::LazyLock;

use redis::{Cmd, ToRedisArgs};

/// One atomic step on the server.
pub(crate) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }

    /// The call by hash.
    pub(crate) fn call(&self, keys: &[impl ToRedisArgs], args: &[impl ToRedisArgs]) -> Cmd {
        whole("EVALSHA", &self.hash, keys, args)
    }

    /// The call with the text, which the server then knows.
    pub(crate) fn call_in_full(&self, keys: &[impl ToRedisArgs], args: &[impl ToRedisArgs]) -> Cmd {
        whole("EVAL", self.text, keys, args)
    }
}

fn whole(command: &str, script: &str, keys: &[impl ToRedisArgs], args: &[impl ToRedisArgs]) -> Cmd {
    let mut cmd = redis::cmd(command);
    cmd.arg(script).arg(keys.len()).arg(keys).arg(args);
    cmd
}

macro_rules! scripts {
    ($($name:ident = $($file:literal)+;)+) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+)));)+
    };
}

scripts! {
    ACQUIRE = "draw" "acquire";
    RELEASE = "release";
    FAIR_ACQUIRE = "draw" "fair" "fair_acquire";
    FAIR_RELEASE = "fair" "fair_release";
    RW_ACQUIRE = "draw" "rw" "rw_acquire" "rw_wait";
    RW_RELEASE = "rw" "rw_release";
    RENEW = "renew";
    PLAIN_ACQUIRE = "plain_acquire";
    PLAIN_RELEASE = "plain_release";
    PLAIN_RENEW = "plain_renew";
    INSPECT = "inspect";
    FORCE_RELEASE = "force_release";
}
