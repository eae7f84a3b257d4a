//! The serde representation of public types: a token as a number, a name and a kind as their texts,
//! an age in seconds.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{Kind, LockName, Token};

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.get())
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(u64::deserialize(from)?).ok_or_else(|| D::Error::custom("a token is never zero"))
    }
}

impl Serialize for LockName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for LockName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(Cow::<str>::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = Cow::<str>::deserialize(from)?;
        Self::from_name(&name).ok_or_else(|| D::Error::custom(format!("`{name}` is not a kind of lock")))
    }
}

/// A duration as a number of seconds, as `dlock inspect --json` prints it.
pub(crate) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    #[expect(clippy::ref_option, reason = "serde calls it with a reference to the field")]
    pub(crate) fn serialize<S: Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        span.map(|span| span.as_secs_f64()).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let span = Option::<f64>::deserialize(from)?;
        span.map(|span| Duration::try_from_secs_f64(span).map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{from_value, json, to_value};

    use super::*;
    use crate::contract::{Contender, LockState};

    #[test]
    fn a_lock_state_is_serialized_and_read_back() {
        let mut state = LockState::new(LockName::new("job/1").expect("legal"));
        let holder =
            Contender::new("4711", Kind::Fair).token(Token::new(7)).since(Duration::from_millis(1500));
        state.holders.push(holder.who("anna"));
        let data = to_value(&state).expect("data");
        let holder =
            json!({"id": "4711", "kind": "fair", "token": 7, "since": 1.5, "ttl_left": null, "who": "anna"});
        assert_eq!(data, json!({"name": "job/1", "holders": [holder], "queue": []}));
        assert_eq!(from_value::<LockState>(data).expect("its own data"), state);
    }

    #[test]
    fn an_invalid_token_name_or_kind_is_refused() {
        from_value::<Token>(json!(0)).expect_err("zero");
        from_value::<LockName>(json!("")).expect_err("an empty name");
        from_value::<Kind>(json!("Mutex")).expect_err("another text");
    }
}
