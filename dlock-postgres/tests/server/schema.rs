//! The functions of the schema, which another build of dlock may have created.

use super::*;

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        functions_of_an_earlier_build_are_replaced,
        functions_of_a_later_build_are_left_alone,
        the_owner_of_a_schema_replaces_its_functions_without_the_right_to_create_schemas,
        a_user_who_may_not_replace_functions_is_refused,
    }
}

/// Replaces the body of a function by one that fails, and the line with the revision of all
/// functions.
async fn create_other_functions(server: &Running, schema: &str, revision: &str) {
    let statements = format!(
        "CREATE OR REPLACE FUNCTION {schema}.commit_durably_2() RETURNS void LANGUAGE plpgsql VOLATILE AS \
         $$ BEGIN RAISE 'the body of another build'; END $$; \
         DO $$ BEGIN EXECUTE regexp_replace(\
             pg_get_functiondef('{schema}.take_2'::regproc), 'c_revision CONSTANT[^;]*;', '{revision}'\
         ); END $$"
    );
    sql(server, &statements).await;
}

/// A build before the first revision has no line with it.
const EARLIER: [&str; 2] = ["", "c_revision CONSTANT integer := 1;"];

async fn functions_of_an_earlier_build_are_replaced(server: &Running) {
    let locks = connect(server).await.expect("connected");
    for revision in EARLIER {
        create_other_functions(server, "dlock", revision).await;
        let other = connect(server).await.expect("connected");
        // The sessions of clients that were connected before execute the new body too.
        for locks in [&locks, &other] {
            let guard = locks.mutex("job").lock().await.expect("the function was replaced");
            guard.release().await.expect("still held");
        }
    }
}

async fn functions_of_a_later_build_are_left_alone(server: &Running) {
    connect(server).await.expect("connected");
    create_other_functions(server, "dlock", "c_revision CONSTANT integer := 999999;").await;
    let locks = connect(server).await.expect("connected");
    let error = locks.mutex("job").try_lock().await.expect_err("the function is that of the later build");
    assert!(format!("{error:?}").contains("the body of another build"), "{error:?}");
}

async fn the_owner_of_a_schema_replaces_its_functions_without_the_right_to_create_schemas(server: &Running) {
    sql(server, "CREATE ROLE owner LOGIN PASSWORD 'app'; GRANT CREATE ON DATABASE postgres TO owner").await;
    let url = format!("{}?schema=own", server.url().replace("dlock:s3cret%3A%2F@", "owner:app@"));
    connect_to(&url).await.expect("connected");
    sql(server, "REVOKE CREATE ON DATABASE postgres FROM owner").await;
    create_other_functions(server, "own", EARLIER[1]).await;
    let locks = connect_to(&url).await.expect("connected");
    let guard = locks.mutex("job").lock().await.expect("the function was replaced");
    guard.release().await.expect("still held");
}

async fn a_user_who_may_not_replace_functions_is_refused(server: &Running) {
    connect(server).await.expect("connected");
    let create = "CREATE ROLE app LOGIN PASSWORD 'app'; GRANT USAGE ON SCHEMA dlock TO app; \
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dlock TO app";
    sql(server, create).await;
    create_other_functions(server, "dlock", EARLIER[1]).await;
    let url = server.url().replace("dlock:s3cret%3A%2F@", "app:app@");
    let error = connect_to(&url).await.expect_err("the functions are outdated");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("dlock init"), "{error:?}");
    connect(server).await.expect("the owner replaces the functions");
    let locks = connect_to(&url).await.expect("connected");
    let guard = locks.mutex("job").lock().await.expect("the function was replaced");
    guard.release().await.expect("still held");
}
