//! Migrations by other logins than the one that made the schema.

use common::ids::DatabaseName;
use integration_tests::{
    page::Page,
    sandbox::{Postgres, shared},
};
use sqlx::{AssertSqlSafe, PgPool};

use super::{
    fixture,
    indexes::says_which_transaction_it_waits_for,
    migrate::{options, release, version_of},
};
use crate::store::{
    migrate::{Migrated, migrate},
    migrations::schema_version,
    schema::Misfit,
};

/// A database with the schema of the last release, which belongs to a login of its own.
struct Owned {
    server: &'static Postgres,
    database: String,
    owner: String,
}

impl Owned {
    async fn new() -> Self {
        let server = shared::postgres().await.unwrap();
        let owned = Self { server, database: shared::unique("owned"), owner: login(server, "owner", "").await };
        let create = format!("CREATE DATABASE \"{}\" OWNER \"{}\"", owned.database, owned.owner);
        server.execute(&create).await.unwrap();
        release(&owned.url(&owned.owner)).await;
        owned
    }

    fn url(&self, login: &str) -> String {
        format!("postgres://{login}:secret@127.0.0.1:{}/{}", self.server.port(), self.database)
    }

    async fn migrated(&self, url: &str) -> Result<Migrated, Misfit> {
        migrate(&DatabaseName::new("main"), Some(fixture::all_shards()), 128, None, &options(url)).await
    }

    /// All in the schema that belongs to another role.
    async fn of_others(&self, pool: &PgPool) -> Vec<String> {
        let others = "SELECT o.name FROM (
                        SELECT relname::text, relowner, relnamespace FROM pg_class UNION ALL
                        SELECT proname::text, proowner, pronamespace FROM pg_proc UNION ALL
                        SELECT typname::text, typowner, typnamespace FROM pg_type) AS o (name, owner, namespace)
                       WHERE o.namespace = 'duetime'::regnamespace AND pg_get_userbyid(o.owner) <> $1";
        sqlx::query_scalar(others).bind(&self.owner).fetch_all(pool).await.unwrap()
    }
}

async fn login(server: &Postgres, stem: &str, more: &str) -> String {
    let name = shared::unique(stem);
    server.execute(&format!("CREATE ROLE \"{name}\" LOGIN PASSWORD 'secret' {more}")).await.unwrap();
    name
}

/// `duetime.submit` runs with the rights of its owner.
#[tokio::test]
async fn applications_submit_after_a_migration_by_another_login_than_the_owner_of_the_schema() {
    for is_superuser in [false, true] {
        let owned = Owned::new().await;
        let superuser = owned.server.url(&owned.database);
        let url = match is_superuser {
            true => superuser.clone(),
            false => owned.url(&login(owned.server, "member", &format!("IN ROLE \"{}\"", owned.owner)).await),
        };
        owned.migrated(&url).await.unwrap();
        let pool = PgPool::connect(&superuser).await.unwrap();
        sqlx::query("SELECT duetime.submit('q', '1')")
            .execute(&pool)
            .await
            .expect("it uses all that the migration made");
        let others = owned.of_others(&pool).await;
        assert!(others.is_empty(), "superuser: {is_superuser}: {others:?}");
    }
}

#[tokio::test]
async fn a_login_that_may_not_act_as_the_owner_of_the_schema_migrates_nothing_and_learns_both_names() {
    let owned = Owned::new().await;
    let stranger = login(owned.server, "stranger", "").await;
    let misfit = owned.migrated(&owned.url(&stranger)).await.unwrap_err();
    assert!(misfit.is_final() && !misfit.is_unreachable(), "{misfit:?}");
    let text = misfit.to_string();
    assert!(
        matches!(misfit, Misfit::Owner { .. }) && text.contains(&owned.owner) && text.contains(&stranger),
        "{text}"
    );
    let superuser = owned.server.url(&owned.database);
    assert!(version_of(&superuser).await.is_some_and(|version| version < schema_version()));
}

/// PostgreSQL shows the progress of a build to the login that makes it, and not to the role that this acts as. The
/// login has no rights of its own on the schema.
#[tokio::test]
async fn another_login_that_builds_indexes_is_shown_the_progress() {
    let owned = Owned::new().await;
    let superuser = owned.server.url(&owned.database);
    owned.migrated(&owned.url(&owned.owner)).await.unwrap();
    let pool = PgPool::connect(&superuser).await.unwrap();
    sqlx::query("DROP INDEX duetime.task_lane").execute(&pool).await.unwrap();
    let member = login(owned.server, "member", &format!("NOINHERIT IN ROLE \"{}\"", owned.owner)).await;
    says_which_transaction_it_waits_for(&owned.url(&member), &superuser).await;
}

/// The grant to applications fails then.
#[tokio::test]
async fn a_migration_that_may_not_grant_a_function_of_another_role_names_the_function() {
    let owned = Owned::new().await;
    let superuser = owned.server.url(&owned.database);
    owned.migrated(&superuser).await.unwrap();
    let pool = PgPool::connect(&superuser).await.unwrap();
    let change = "ALTER FUNCTION duetime.submit OWNER TO postgres; ALTER FUNCTION duetime.cancel OWNER TO postgres";
    sqlx::raw_sql(change).execute(&pool).await.unwrap();
    let misfit = owned.migrated(&owned.url(&owned.owner)).await.unwrap_err();
    assert!(matches!(misfit, Misfit::Migration { .. }) && !misfit.is_unreachable(), "{misfit:?}");
    let source = std::error::Error::source(&misfit).expect("PostgreSQL's answer").to_string();
    assert!(source.contains("permission denied for function submit"), "{source}");
}

#[tokio::test]
async fn a_schema_of_several_owners_is_migrated_after_the_statements_of_the_documentation() {
    let owned = Owned::new().await;
    let superuser = owned.server.url(&owned.database);
    let second = login(owned.server, "second", "").await;
    let pool = PgPool::connect(&superuser).await.unwrap();
    // The owner keeps what a migration needs to begin.
    let Owned { database, owner, .. } = &owned;
    let split = format!(
        "REASSIGN OWNED BY \"{owner}\" TO \"{second}\";
         ALTER DATABASE \"{database}\" OWNER TO \"{owner}\";
         ALTER SCHEMA duetime OWNER TO \"{owner}\";
         ALTER TABLE duetime.migration OWNER TO \"{owner}\";
         ALTER FUNCTION duetime.cancel OWNER TO postgres;
         CREATE TABLE duetime.of_a_node PARTITION OF duetime.archive FOR VALUES FROM ('2001-01-01') TO ('2001-01-02')"
    );
    sqlx::raw_sql(AssertSqlSafe(split)).execute(&pool).await.unwrap();
    let url = owned.url(owner);
    owned.migrated(&url).await.expect_err("most of the schema belongs to others");
    let fences = Page::read("docs/security.md").fences();
    let recipe = fences.into_iter().find(|fence| fence.text.contains("duetime.migration")).expect("the statements");
    sqlx::raw_sql(AssertSqlSafe(recipe.text)).execute(&pool).await.unwrap();
    let others = owned.of_others(&pool).await;
    assert!(others.is_empty(), "{others:?}");
    owned.migrated(&url).await.unwrap();
    sqlx::query("SELECT duetime.submit('q', '1')").execute(&pool).await.unwrap();
}
