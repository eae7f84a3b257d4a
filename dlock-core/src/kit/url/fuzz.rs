//! Fuzz targets of store URLs and their typed parameters.

use std::time::Duration;

use super::*;

/// The secret of the URLs of the corpus.
const SECRET: &str = "hunter2";

/// Returns all that a driver may show of a URL: the URL, and every error about it.
fn shown(url: &StoreUrl) -> String {
    let keys: Vec<&str> = url.params.keys().map(String::as_str).collect();
    let mut shown = format!("{url} {url:?} {:?}", url.require_host());
    let mut show = |error: Option<Error>| shown.push_str(&format!("{error:?}"));
    for known in [&[][..], &["db", "timeout"], keys.get(1..).unwrap_or_default()] {
        show(url.allow(known).err());
    }
    for key in &keys {
        show(url.duration(key, Duration::from_secs(1)..=Duration::from_secs(2)).err());
        show(url.number::<u8>(key, 1..).err());
        show(url.choice(key, &[("on", true)]).err());
    }
    show(url.addresses(7).err());
    show(url.login("password_file").err());
    show(url.login_from_params(["sentinel_user", "sentinel_password", "sentinel_file"]).err());
    show(url.tls(Some("rediss")).err());
    shown
}

#[test]
fn what_is_shown_of_a_url_does_not_depend_on_its_secrets() {
    dlock_fuzz::target!("url").check(|input| {
        let url = match input.text().parse::<StoreUrl>() {
            Ok(url) => url,
            Err(error) => {
                assert!(!error.to_string().contains(SECRET), "{error}");
                assert!(matches!(error, Error::InvalidConfig { .. }), "{error:?}");
                return;
            }
        };
        let mut other = url.clone();
        let is_set = |password: &String| !password.is_empty();
        if let Some(password) = other.password.as_mut().filter(|password| is_set(password)) {
            "another".clone_into(password);
        }
        if other.password.is_none() && other.user.is_some() {
            other.user = Some("another".to_owned());
        }
        for (key, value) in &mut other.params {
            if is_secret(key) && value != "on" {
                *value = value.chars().filter(|c| *c == '@').chain("another".chars()).collect();
            }
        }
        // The value of a secret decides whether it is valid. Only the texts must not show it.
        let is_typed = |key: &String| {
            let (before, after) = (&url.params[key], &other.params[key]);
            before != after
                && (before.parse::<u8>().is_ok() || crate::model::duration::parse(before).is_some())
        };
        if !url.params.keys().any(is_typed) {
            assert_eq!(shown(&url), shown(&other));
        }
        let only_hosts = StoreUrl { user: None, password: None, params: BTreeMap::new(), ..url.clone() };
        if url.hides_hosts() && !url.scheme.contains(SECRET) {
            assert!(!only_hosts.hides_hosts() || !only_hosts.to_string().contains(SECRET), "{only_hosts}");
        }
    });
}

#[test]
fn the_parts_of_a_url_are_those_that_were_written() {
    dlock_fuzz::target!("url").check(|input| {
        let text = input.text();
        let Ok(url) = text.parse::<StoreUrl>() else { return };
        assert!(text.to_ascii_lowercase().starts_with(&format!("{}:", url.scheme())), "{}", url.scheme());
        assert!(url.hosts().iter().all(|host| !host.is_empty() && text.contains(host.as_str())));
        assert!(!url.params.keys().any(|key| url.param(key).is_none()));
        // A URL that is composed of the parts has the same parts.
        let encode = |part: &str| {
            percent_encoding::utf8_percent_encode(part, percent_encoding::NON_ALPHANUMERIC).to_string()
        };
        let login = match (&url.user, &url.password) {
            (None, None) => String::new(),
            (user, None) => format!("{}@", encode(user.as_deref().unwrap_or_default())),
            (user, Some(password)) => {
                format!("{}:{}@", encode(user.as_deref().unwrap_or_default()), encode(password))
            }
        };
        let authority =
            if url.has_authority { format!("//{login}{}", url.hosts.join(",")) } else { String::new() };
        let path = match url.path.strip_prefix('/') {
            Some(rest) if url.has_authority => format!("/{}", encode(rest)),
            _ => encode(&url.path),
        };
        let params: Vec<_> =
            url.params.iter().map(|(key, value)| format!("{}={}", encode(key), encode(value))).collect();
        let composed = format!("{}:{authority}{path}?{}", url.scheme, params.join("&"));
        assert_eq!(composed.parse::<StoreUrl>().ok(), Some(url), "{composed}");
    });
}

#[test]
fn an_address_is_read_back() {
    dlock_fuzz::target!("url").check(|input| {
        let Ok(url) = input.text().parse::<StoreUrl>() else { return };
        for address in url.addresses(7).unwrap_or_default() {
            let again = url.with_host("x", &address.to_string()).addresses(8).ok();
            assert_eq!(again, Some(vec![address]));
        }
    });
}
