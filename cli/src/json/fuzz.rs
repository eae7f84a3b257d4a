//! Fuzz target of the escapes in JSON.

use super::*;

#[test]
fn a_text_in_json_misleads_no_terminal_and_is_read_back() {
    dlock_fuzz::names!("json").check(|input| {
        let text = input.text();
        let written = finished(serde_json::to_string(&text)).expect("JSON");
        assert!(!written.trim_end_matches('\n').contains(show::is_misleading), "{written:?}");
        let read: serde_json::Value = serde_json::from_str(&written).expect("its own text");
        assert_eq!(read.as_str(), Some(&*text));
    });
}
