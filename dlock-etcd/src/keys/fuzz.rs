//! Fuzz targets of keys and values.

use std::time::Duration;

use super::*;

fn configs() -> [EtcdConfig; 4] {
    ["etcd://h", "etcd://h?prefix=app.", "etcd://h?names=exact", "etcd://h?names=exact&prefix=/a/"]
        .map(|url| EtcdConfig::from_url(&url.parse().expect("a URL")).expect("a configuration"))
}

#[test]
fn two_names_never_have_the_same_queue() {
    let configs = configs();
    dlock_fuzz::names!("queue").check(|input| {
        let config = &configs[input.pick(0, &[0, 1, 2, 3])];
        let (Ok(first), Ok(second)) = (LockName::new(input.text()), LockName::new(input.other_text())) else {
            return;
        };
        let id = ClaimId::from_bytes(u128::from(input.number(1)).to_be_bytes());
        let keys = [&first, &second].map(|name| Keys::new(config, name, id).ok());
        for (name, keys) in [&first, &second].into_iter().zip(&keys) {
            let Some(Keys { queue, own }) = keys else {
                assert_eq!(config.names, Names::Exact, "{name} has no key");
                continue;
            };
            assert_eq!(parse_key(config, own), Some((name.clone(), &*id.to_string())), "{own}");
            let end = (0..=name.as_str().len()).rev().find(|end| name.as_str().is_char_boundary(end / 2));
            let beginning = &name.as_str()[..end.unwrap_or_default() / 2];
            assert!(
                queue.starts_with(&name_prefix(config, beginning)),
                "{queue} is not listed by {beginning}"
            );
            assert_eq!(queue_of_event(&event_of_queue(queue)), Some(&**queue));
            assert_eq!(queue_of_event(own), None);
        }
        if let [Some(first_keys), Some(second_keys)] = keys
            && first != second
        {
            assert!(!second_keys.own.starts_with(&first_keys.queue), "{second_keys:?} is in {first_keys:?}");
        }
    });
}

#[test]
fn a_key_belongs_to_no_lock_or_to_the_queue_of_its_name() {
    let configs = configs();
    dlock_fuzz::target!("key").check(|input| {
        let (config, key) = (&configs[input.pick(0, &[0, 1, 2, 3])], input.text());
        if let Some((name, rest)) = parse_key(config, &key) {
            assert!(!rest.contains('/'), "{rest}");
            assert_eq!(queue_prefix(config, &name).ok().map(|queue| queue + rest).as_deref(), Some(&*key));
        }
    });
}

#[test]
fn a_value_is_read_as_it_was_written() {
    dlock_fuzz::names!("value").check(|input| {
        let Ok(who) = Who::new(&*input.text()) else { return };
        let name = LockName::new("x").expect("legal");
        let limit = NonZeroU32::new(input.number(0) as u32).unwrap_or(NonZeroU32::MIN);
        let request =
            Request::by(who.clone(), name, input.pick(1, Kind::ALL), Duration::from_secs(1)).limit(limit);
        let request = if input.number(2) % 2 == 0 { request } else { request.candidate() };
        // The ids of leases are positive.
        let own_lease = Some(input.signed(3)).filter(|lease| *lease > 0);
        let renamed_to = Some(ClaimId::from_bytes(u128::from(input.number(4)).to_le_bytes()))
            .filter(|_| input.number(5) % 2 == 0);
        let written = value(&request, own_lease, renamed_to);
        let record = Record::read(written.as_bytes());
        assert_eq!((record.kind, record.who.as_deref()), (request.kind, Some(who.text())), "{written}");
        assert_eq!((record.own_lease, record.renamed_to), (own_lease, renamed_to), "{written}");
        let has_limit = written.starts_with(MAGIC);
        assert_eq!(record.limit, if has_limit { request.limit } else { NonZeroU32::MIN }, "{written}");
        assert!(is_of_dlock(&request.id.to_string(), written.as_bytes()), "{written}");
    });
}

#[test]
fn the_value_of_another_program_is_a_mutex_or_the_label_of_a_candidate() {
    dlock_fuzz::target!("value").check(|input| {
        let (value, text) = (input.bytes(), input.text());
        let record = Record::read(value);
        if !value.starts_with(MAGIC.as_bytes()) {
            assert_eq!((record.limit, record.own_lease, record.renamed_to), (NonZeroU32::MIN, None, None));
            assert_eq!(record.kind, if record.who.is_some() { Kind::Fair } else { Kind::Mutex }, "{text}");
            assert!(record.who.is_none_or(|who| Who::new(&*who).is_ok() && who == text), "{text}");
        }
        let (rest, lease) = (input.other_text(), input.signed(0));
        let is_own = is_of_dlock(&rest, value);
        assert!(!is_own || is_claim(&rest, value, lease));
        assert!(!is_own || value.starts_with(MAGIC.as_bytes()) || rest.parse::<ClaimId>().is_ok(), "{rest}");
        if is_claim(&rest, value, lease) && !is_own {
            assert!(
                lease != 0 && i64::from_str_radix(&rest, 16).is_ok_and(|of_key| of_key == lease) || lease < 0
            );
        }
    });
}
