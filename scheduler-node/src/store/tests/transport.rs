//! Traffic over a network is encrypted, unless the URL says otherwise.

use common::ids::DatabaseName;
use integration_tests::sandbox::{Authority, Postgres, Tether, scratch, shared};

use super::fixture;
use crate::store::{StoreOp, connect, migrate::migrate, schema::Misfit};

fn options(url: &str) -> connect::Options {
    connect::Options { url: url.to_owned().into(), max_connections: 4, application_name: "duetime test".into() }
}

async fn migrated(url: &str) -> Result<(), Misfit> {
    migrate(&DatabaseName::new("main"), Some(fixture::all_shards()), 128, None, &options(url)).await.map(drop)
}

/// Whether the server reports this node's connections as encrypted.
async fn is_encrypted(url: &str) -> bool {
    let database = fixture::open(url);
    database.schema_check().await.unwrap();
    let asked = database.run(StoreOp::Ping, |pool| async move {
        sqlx::query_scalar("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetch_one(&pool).await
    });
    asked.await.unwrap()
}

#[tokio::test]
async fn beyond_loopback_a_server_without_tls_is_refused_until_the_url_allows_it() {
    let folder = scratch().join(shared::unique("transport"));
    let server = Postgres::start(&folder, Tether::Tethered).await.unwrap();
    let near = server.create_database("tasks").await.unwrap();
    // This address leads to this machine but is not a loopback address.
    let far = near.replace("127.0.0.1", "0.0.0.0");
    for url in [far.clone(), format!("{near}?sslmode=require")] {
        let misfit = migrated(&url).await.unwrap_err();
        assert!(misfit.is_final() && !misfit.is_unreachable(), "{misfit:?}");
        let text = misfit.to_string();
        assert!(text.contains("sslmode=disable") && text.contains("ssl = on"), "{text}");
    }
    migrated(&near).await.unwrap();
    let clear = format!("{far}?sslmode=disable");
    migrated(&clear).await.unwrap();
    assert!(!is_encrypted(&clear).await);
    let misfit = fixture::open(&far).schema_check().await.unwrap_err();
    assert!(matches!(misfit, Misfit::NoTls { .. }), "{misfit:?}");

    let authority = Authority::new(&scratch().join(shared::unique("authority"))).unwrap();
    server.encrypt(&authority.server().unwrap()).await.unwrap();
    migrated(&far).await.unwrap();
    assert!(is_encrypted(&far).await);
    assert!(!is_encrypted(&clear).await);
    // A URL that names an authority also makes the node check the server's name.
    let named = format!("{far}?sslrootcert={}", authority.file().display());
    assert!(migrated(&named).await.unwrap_err().is_unreachable());
    assert!(is_encrypted(&format!("{named}&sslmode=require")).await);
    assert!(is_encrypted(&named.replace("0.0.0.0", "localhost").replace("?", "?sslmode=verify-full&")).await);
}
