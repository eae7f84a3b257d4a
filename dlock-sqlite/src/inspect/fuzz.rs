//! Fuzz target of the rows of the file, which any program of its users may write.

use std::cell::RefCell;

use sqlx::{Connection as _, FromRow as _, SqliteConnection};

use super::*;

/// Returns a value of any type as a literal of SQL.
fn literal(input: &dlock_fuzz::Input, at: usize, bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match input.number(at) % 6 {
        0 => format!("CAST(x'{hex}' AS TEXT)"),
        1 => format!("x'{hex}'"),
        2 => "NULL".to_owned(),
        3 => "1.5e300".to_owned(),
        _ => input.signed((at + 1) % 6).to_string(),
    }
}

#[test]
fn a_row_is_a_claim_with_legal_values_or_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let connection = runtime.block_on(SqliteConnection::connect("sqlite::memory:")).expect("a database");
    let connection = RefCell::new(connection);
    dlock_fuzz::target!("kind").check(|input| {
        let (text, other) = (input.text().replace(['\'', '\0'], ""), input.other_bytes());
        let id = |at| match input.number(at) % 4 {
            0 => literal(input, at, other),
            _ => format!("x'{:032x}'", u128::from(input.number(at))),
        };
        let kind = if input.number(0) % 4 == 0 { literal(input, 0, other) } else { format!("'{text}'") };
        // Often one value is odd, and the others are good.
        let number = |at: usize| match input.number(at) % 4 {
            0 => literal(input, at, other),
            _ => input.signed(at).to_string(),
        };
        let slots = if input.number(5) % 2 == 0 { "NULL".to_owned() } else { number(5) };
        let sql = format!(
            "SELECT 'x' AS name, {} AS seq, {} AS claim, {kind} AS kind, {slots} AS slots, {} AS client, \
             {} AS pid, 'h' AS host, NULL AS who, {} AS since, {} AS expires",
            number(1),
            id(2),
            id(3),
            number(4),
            number(0),
            number(2),
        )
        .replace("-9223372036854775808", "(-9223372036854775807 - 1)");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql.clone()));
        let row = runtime.block_on(query.fetch_one(&mut *connection.borrow_mut())).expect(&sql);
        let Ok(row) = QueueRow::from_row(&row) else { return };
        let now = input.signed(3);
        let left = row.ttl_left(now);
        assert!(left.is_zero() || row.expires > now, "{left:?} left of {row:?} at {now}");
        let shown = state(std::slice::from_ref(&row), now).expect("a legal name");
        assert_eq!((shown.holders.len(), shown.queue.len()), (1, 0), "{row:?}");
        assert_eq!(
            shown.holders[0].token.map(Token::get),
            Some(row.number.unsigned_abs()).filter(|token| *token > 0)
        );
    });
}
