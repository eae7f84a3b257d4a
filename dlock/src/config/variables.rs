//! Environment variables in the strings of a configuration.

use std::{
    env::{self, VarError},
    ops::Range,
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that are escaped in a login. A colon stays, because a variable may contain both the
/// user and the password.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// Replaces each `${…}` by the value of that environment variable.
pub(super) fn substitute(text: &str) -> Result<String, String> {
    replace(text, &(0..0))
}

/// Replaces each `${…}` in a URL, as [`substitute`] does. In the part for the user and the password,
/// the value is percent-encoded.
pub(super) fn substitute_url(url: &str) -> Result<String, String> {
    replace(url, &login_of(url))
}

/// Returns the position of the user and the password in a URL. Empty if it has neither.
fn login_of(url: &str) -> Range<usize> {
    let Some(start) = url.find("://").map(|at| at + "://".len()) else { return 0..0 };
    let end = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    url[start..end].rfind('@').map_or(0..0, |at| start..start + at)
}

fn replace(text: &str, escaped: &Range<usize>) -> Result<String, String> {
    // A value is not expanded again, although it may contain `${`.
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let at = text.len() - rest.len() + before.len();
        let (variable, after) = after.split_once('}').ok_or("a `${` has no `}`")?;
        let value = env::var(variable).map_err(|error| match error {
            VarError::NotPresent => format!("the variable `{variable}` is not set in the environment"),
            VarError::NotUnicode(_) => format!("the variable `{variable}` is not UTF-8"),
        })?;
        done.push_str(before);
        if escaped.contains(&at) {
            done.extend(utf8_percent_encode(&value, ESCAPED));
        } else {
            done.push_str(&value);
        }
        rest = after;
    }
    Ok(done + rest)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_once() {
        let text = substitute("a-${CARGO_PKG_NAME}-${CARGO_PKG_NAME}-$z").unwrap();
        assert_eq!(text, "a-dlock-rs-dlock-rs-$z");
    }

    #[test]
    fn only_variables_of_the_login_are_encoded() {
        for (url, login) in [
            ("redis://u:${P}@h/0?a=b", "u:${P}"),
            ("redis://${L}@h,i", "${L}"),
            ("redis://h/${P}", ""),
            ("redis://h?who=a@b", ""),
            ("sqlite:/a@b/${P}", ""),
            ("${URL}", ""),
        ] {
            assert_eq!(&url[login_of(url)], login, "{url}");
        }
    }

    #[test]
    fn a_value_of_the_login_may_contain_any_character() {
        let path = env::var("PATH").expect("cargo sets it");
        assert!(path.contains('/'), "{path}");
        let url = substitute_url("redis://app:${PATH}@h").unwrap();
        let url: dlock_core::driver::StoreUrl = url.parse().unwrap();
        assert_eq!((url.password(), url.hosts()), (Some(&*path), &["h".to_owned()][..]));
        assert!(substitute_url("redis://h/${PATH}").unwrap().ends_with(&path), "a path is not a login");
    }
}
