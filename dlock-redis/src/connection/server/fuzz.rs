//! Fuzz target of the text that `INFO` replies.

use super::*;

#[test]
fn a_field_of_info_is_the_line_with_its_name() {
    dlock_fuzz::target!("info").check(|input| {
        let info = input.text();
        for name in ["redis_version", "cluster_enabled", "role", "connected_slaves", "maxmemory_policy"] {
            let Some(value) = field(&info, name) else { continue };
            assert!(!value.contains(['\n']) && info.contains(&format!("{name}:")), "{name} {value:?}");
        }
        let is_old = refuse_old(&info).is_err();
        let version = field(&info, "redis_version").unwrap_or_default();
        assert_eq!(
            is_old,
            version.split('.').next().is_some_and(|major| major.parse::<u32>().is_ok_and(|major| major < 5))
        );
        assert!(!is_master(&info) || info.contains("role:"), "{info}");
        assert!(!has_replicas(&info) || info.contains("connected_slaves:"), "{info}");
    });
}
