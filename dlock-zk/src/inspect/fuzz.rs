//! Fuzz target of the data of nodes, for display.

use super::*;

#[test]
fn the_data_of_a_node_are_shown_as_a_legal_label_or_not_at_all() {
    dlock_fuzz::target!("data").check(|input| {
        let data = input.bytes();
        if let Some(line) = first_line(data) {
            assert!(Who::new(&*line).is_ok() && data.starts_with(line.as_bytes()), "{line:?}");
        }
        let stat = Stat {
            czxid: input.signed(0),
            mzxid: 0,
            pzxid: 0,
            ctime: input.signed(1),
            mtime: 0,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        };
        let node = Node::of(input.other_text().into_owned())
            .unwrap_or_else(|| Node::stray(input.other_text().into_owned()));
        let shown = contender(node, data, &stat, input.number(2) % 2 == 0, input.duration(3));
        assert!(shown.who.is_none_or(|who| !who.contains(char::is_control)));
    });
}
