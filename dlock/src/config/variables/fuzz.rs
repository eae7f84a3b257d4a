//! Fuzz target of the variables in a configuration.

use super::*;

#[test]
fn a_text_without_its_variables_stays_as_it_is() {
    let value = env::var("CARGO_PKG_NAME").expect("cargo sets it");
    dlock_fuzz::target!("variables").check(|input| {
        let text = input.text();
        let login = &text[login_of(&text)];
        assert!(text.contains(&format!("{login}@")) || login.is_empty(), "{login}");
        for replaced in [substitute(&text), substitute_url(&text)] {
            match replaced {
                Ok(replaced) if !text.contains("${") => assert_eq!(replaced, text),
                Ok(replaced) => {
                    let variables = text.matches("${CARGO_PKG_NAME}").count();
                    assert!(replaced.matches(&value).count() >= variables, "{replaced}");
                }
                // The error names the variable, and shows no other part of the text.
                Err(error) => {
                    let (_, variable) = text.split_once("${").expect("a variable");
                    let is_about_variable = error == "a `${` has no `}`"
                        || error
                            .strip_prefix("the variable `")
                            .and_then(|rest| rest.strip_suffix("` is not set in the environment"))
                            .is_some_and(|name| variable.contains(&format!("{name}}}")));
                    assert!(is_about_variable, "{error}");
                }
            }
        }
    });
}
